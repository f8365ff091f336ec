//! A client of a server's HTTP door, for the commands that take `--server`.
//!
//! It speaks what every other client may speak and knows nothing that is not on the wire. It never
//! repeats a request by itself; a stream that breaks is resumed by the command that reads it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::http::{Body, Client, ClientError};
use evenkeel_env::{Env, sse};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

/// The address that is used when none is given.
pub(crate) const ADDRESS: &str = "http://127.0.0.1:7070";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const BODY_MAX: usize = 256 << 20;
const EVENT_MAX: usize = 64 << 20;

/// Which server, and as whom.
#[derive(Args, Clone, Debug)]
pub(crate) struct Connection {
    /// The server's address
    #[arg(long, global = true, value_name = "URL", env = "EVENKEEL_SERVER", default_value = ADDRESS)]
    pub(crate) server: String,
    /// An API key, if the server asks for one; better in the variable, where `ps` does not show it
    #[arg(long, global = true, value_name = "KEY", env = "EVENKEEL_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<SecretString>,
}

impl Connection {
    /// A client for this connection.
    pub(crate) fn open(&self, env: &Env) -> Server {
        Server::new(env, &self.server, self.api_key.clone())
    }
}

/// A server.
#[derive(Clone)]
pub(crate) struct Server {
    base: String,
    key: Option<SecretString>,
    http: Client,
}

impl Server {
    /// A client for the server at `base`, such as `http://127.0.0.1:7070`.
    pub(crate) fn new(env: &Env, base: &str, key: Option<SecretString>) -> Self {
        let base = base.trim_end_matches('/');
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        Self { base, key, http: Client::new(env, CONNECT_TIMEOUT) }
    }

    /// Its address.
    pub(crate) fn address(&self) -> &str {
        &self.base
    }

    /// Reads JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Error> {
        self.json(Method::GET, path, None, &[]).await
    }

    /// Sends JSON and reads JSON; an empty answer is `null`.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.json(Method::POST, path, Some(body), &[]).await
    }

    /// Sends JSON with further headers and reads JSON.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Value, Error> {
        let answer = async {
            let response = self.send(method, path, body, headers).await?;
            let bytes = Limited::new(response.into_body(), BODY_MAX).collect().await;
            bytes.map_err(|cause| self.broken(&cause.to_string())).map(http_body_util::Collected::to_bytes)
        };
        let bytes = tokio::time::timeout(ANSWER_TIMEOUT, answer)
            .await
            .unwrap_or_else(|_| Err(self.broken("no answer within a minute")))?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|_| self.broken("the answer is not JSON"))
    }

    /// Opens an event stream; `after` is the last id that was seen, `-1` for all from the start.
    pub(crate) async fn events(&self, path: &str, after: &str) -> Result<Events, Error> {
        let headers = [("last-event-id", after), ("accept", "text/event-stream")];
        let response = self.send(Method::GET, path, None, &headers).await?;
        Ok(Events {
            address: self.base.clone(),
            body: response.into_body(),
            parser: sse::Parser::new(EVENT_MAX),
            ready: VecDeque::new(),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Response<Body>, Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("x-api-key", key.expose_secret());
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request.body(bytes).map_err(|cause| {
            Error::client(
                Code::BadRequest,
                format!(
                    "{} is not an address, or the key holds characters that no key has: {cause}.",
                    self.base
                ),
                "Give it as http://HOST:PORT.",
            )
        })?;
        let response = self.http.send(request).await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refused(response).await) }
    }

    /// The error that the server reported, as it reported it.
    async fn refused(&self, response: Response<Body>) -> Error {
        let status = response.status();
        let body = Limited::new(response.into_body(), 1 << 20).collect().await;
        let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
        let code =
            text("code").and_then(|code| code.parse().ok()).unwrap_or_else(|| code_of(status.as_u16()));
        let message = text("message")
            .or_else(|| text("detail"))
            .unwrap_or_else(|| format!("The server at {} answered {status}.", self.base));
        let origin = if status.is_client_error() { Origin::Client } else { Origin::Ours };
        Error::new(code, origin, message, text("remedy").unwrap_or_default())
    }

    fn unreachable(&self, error: &ClientError) -> Error {
        Error::new(
            Code::ServerUnreachable,
            Origin::Ours,
            format!("No Evenkeel server answers at {}: {error}.", self.base),
            "Start one with `evenkeel serve`, or name another with --server.",
        )
    }

    fn broken(&self, cause: &str) -> Error {
        broken(&self.base, cause)
    }
}

fn broken(address: &str, cause: &str) -> Error {
    let message = format!("The connection to {address} broke: {cause}.");
    Error::new(Code::ServerUnreachable, Origin::Ours, message, "Try again; accepted runs go on without you.")
        .retryable()
}

/// A code for an answer that names none, as from a proxy in between.
fn code_of(status: u16) -> Code {
    match status {
        400 => Code::InvalidJson,
        401 => Code::Unauthenticated,
        403 => Code::Forbidden,
        404 => Code::NotFound,
        409 => Code::ThreadBusy,
        413 => Code::BodyTooLarge,
        422 => Code::BadRequest,
        429 => Code::RateLimited,
        501 => Code::Unsupported,
        502..=504 => Code::ServerUnreachable,
        _ => Code::Internal,
    }
}

/// An open event stream.
pub(crate) struct Events {
    address: String,
    body: Body,
    parser: sse::Parser,
    ready: VecDeque<sse::Event>,
}

impl Events {
    /// The next event; `None` at the end of the stream. May be dropped and called again.
    ///
    /// # Errors
    /// `server-unreachable` (retryable) when the connection broke.
    pub(crate) async fn next(&mut self) -> Result<Option<sse::Event>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|cause| broken(&self.address, &cause.to_string()))?;
            let Ok(chunk) = frame.into_data() else { continue };
            let items =
                self.parser.push(&chunk).map_err(|cause| broken(&self.address, &cause.to_string()))?;
            self.ready.extend(items.into_iter().filter_map(|item| match item {
                sse::Item::Event(event) => Some(event),
                sse::Item::Comment => None,
            }));
        }
    }
}
