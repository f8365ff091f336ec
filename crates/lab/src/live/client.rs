//! A plain client of the product's HTTP door. It repeats nothing by itself: what is repeated, and
//! with which key, is the load's business.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::Env;
use evenkeel_env::http::{Client, ClientError};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::Instant;

/// How long a read of the harvest may be refused.
const READ_WITHIN: Duration = Duration::from_secs(120);
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Why there is no good answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// The server said no.
    #[error("{0}: {1}")]
    Refused(u16, String),
    /// No answer, or half of one: what became of the request is not known.
    #[error("{0}")]
    Unknown(String),
}

/// A client of one address, or of several that are the same to it: one that refuses connections is
/// left for the next.
#[derive(Clone)]
pub(crate) struct Door {
    bases: Arc<Vec<String>>,
    /// Which of them is asked.
    at: Arc<AtomicUsize>,
    http: Client,
}

impl Door {
    pub(crate) fn new(env: &Env, bases: Vec<String>) -> Self {
        let http = Client::new(env, Duration::from_secs(2));
        Self { bases: Arc::new(bases), at: Arc::default(), http }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, Trouble> {
        let text = self.text(path).await?;
        serde_json::from_str(&text)
            .map_err(|error| Trouble::Unknown(format!("the answer is not JSON: {error}")))
    }

    /// Reads what the harvest needs, however busy the servers are: a refusal that passes is waited
    /// out. Nothing if it is not there.
    ///
    /// # Errors
    /// If it is refused for good, or for longer than [`READ_WITHIN`].
    pub(crate) async fn read(&self, path: &str) -> Result<Option<Value>, Trouble> {
        let until = Instant::now() + READ_WITHIN;
        loop {
            let trouble = match self.get(path).await {
                Ok(value) => return Ok(Some(value)),
                Err(Trouble::Refused(404, _)) => return Ok(None),
                Err(trouble @ Trouble::Refused(code, _)) if code != 429 && code < 500 => return Err(trouble),
                Err(trouble) => trouble,
            };
            if Instant::now() >= until {
                return Err(trouble);
            }
            tokio::time::sleep(READ_AGAIN_AFTER).await;
        }
    }

    /// The body as text, for what is not JSON.
    pub(crate) async fn text(&self, path: &str) -> Result<String, Trouble> {
        self.send(Method::GET, path, None, &Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, key: Option<&str>, body: &Value) -> Result<Value, Trouble> {
        let text = self.send(Method::POST, path, key, body).await?;
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text)
            .map_err(|error| Trouble::Unknown(format!("the answer is not JSON: {error}")))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Result<String, Trouble> {
        let mut n_refused = 0;
        let response = loop {
            let at = self.at.load(Ordering::Relaxed);
            let base = &self.bases[at % self.bases.len()];
            match self.http.send(request(method.clone(), &format!("{base}{path}"), key, body)).await {
                Ok(response) => break response,
                Err(error @ ClientError::Connect { .. }) => {
                    n_refused += 1;
                    // Whoever comes first moves on; the others follow.
                    let _ = self.at.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
                    if n_refused >= self.bases.len() {
                        return Err(Trouble::Unknown(error.to_string()));
                    }
                }
                Err(error) => return Err(Trouble::Unknown(error.to_string())),
            }
        };
        let status = response.status();
        let body = response.into_body().collect().await;
        let body =
            body.map_err(|error| Trouble::Unknown(format!("the answer broke off: {error}")))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() { Ok(text) } else { Err(Trouble::Refused(status.as_u16(), text)) }
    }
}

fn request(method: Method, uri: &str, key: Option<&str>, body: &Value) -> Request<Bytes> {
    let mut request = Request::builder().method(method).uri(uri);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let bytes = match body {
        Value::Null => Bytes::new(),
        body => {
            request = request.header("content-type", "application/json");
            Bytes::from(body.to_string())
        }
    };
    request.body(bytes).expect("paths and keys of the lab are valid")
}
