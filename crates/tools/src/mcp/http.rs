//! The client's side of streamable HTTP: rmcp's transport over our own HTTP client.
//!
//! Answers are bounded before they are read: a JSON body by its limit, a stream of events by the
//! size of one event. Redirects are not followed, so a token goes to the configured place only.

use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::Env;
use evenkeel_env::http::{Body, Client, ClientError};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpClientTransport,
    StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};
use sse_stream::{Sse, SseStream};

use super::MESSAGE_BYTES_MAX;

const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Bytes of an error's body that are shown.
const ERROR_BYTES_MAX: usize = 4096;

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const SESSION: &str = "mcp-session-id";
const LAST_EVENT: &str = "last-event-id";

/// Our HTTP client as rmcp wants it.
#[derive(Clone)]
pub(super) struct Http {
    client: Client,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// No answer came.
    #[error(transparent)]
    Request(#[from] ClientError),
    /// The request cannot be written down.
    #[error("write the request: {0}")]
    Write(#[from] http::Error),
    /// The message cannot be written down.
    #[error("encode the message: {0}")]
    Encode(#[from] serde_json::Error),
    /// The answer broke or is too long.
    #[error("read the answer: {0}")]
    Read(String),
}

type Failure = StreamableHttpError<HttpError>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// A transport to the server at `url`.
pub(super) fn transport(env: &Env, url: &str, token: Option<String>) -> StreamableHttpClientTransport<Http> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.auth_header = token;
    config.max_sse_event_size = MESSAGE_BYTES_MAX;
    config.max_json_response_size = MESSAGE_BYTES_MAX;
    config.max_error_response_size = ERROR_BYTES_MAX;
    // A lost session is opened again by us, once, by the same rules as for every other transport.
    config.reinit_on_expired_session = false;
    StreamableHttpClientTransport::with_client(Http { client: Client::new(env, CONNECT_TIME) }, config)
}

impl Http {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Failure> {
        let sent = self.client.send(request).await;
        sent.map_err(|error| StreamableHttpError::Client(HttpError::Request(error)))
    }
}

impl StreamableHttpClient for Http {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session_id, auth_header, custom_headers, limits)
            .await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let body = serde_json::to_vec(&message).map_err(client)?;
        let has_session = session_id.is_some();
        let needs_answer = matches!(message, JsonRpcMessage::Request(_));
        let request = builder(Method::POST, &uri, session_id, auth_header, custom_headers)
            .header(CONTENT_TYPE, JSON)
            .header(ACCEPT, format!("{JSON}, {EVENTS}"))
            .body(Bytes::from(body));
        let response = self.send(request.map_err(client)?).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        if let Some(refused) = unauthorised(&response) {
            return Err(refused);
        }
        let session = text_of(&response, SESSION);
        if status.is_success() && (!needs_answer || status == StatusCode::ACCEPTED) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let kind = text_of(&response, CONTENT_TYPE.as_str()).unwrap_or_default().to_ascii_lowercase();
        if status.is_success() && kind.starts_with(EVENTS) {
            let events = events(response, limits.max_sse_event_size);
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        let body = read(response, limits.max_json_response_size).await?;
        match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
            Ok(answer @ JsonRpcMessage::Error(_)) => Ok(StreamableHttpPostResponse::Json(answer, session)),
            Ok(answer) if status.is_success() => Ok(StreamableHttpPostResponse::Json(answer, session)),
            _ => Err(unexpected(status, &body)),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), Failure> {
        let request = builder(Method::DELETE, &uri, Some(session_id), auth_header, custom_headers)
            .body(Bytes::new())
            .map_err(client)?;
        // A server that knows no such request, or no such session any more, has nothing to end.
        self.send(request).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let limit = MESSAGE_BYTES_MAX;
        self.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event_id,
            auth_header,
            custom_headers,
            limit,
        )
        .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let has_session = session_id.is_some();
        let mut request =
            builder(Method::GET, &uri, session_id, auth_header, custom_headers).header(ACCEPT, EVENTS);
        if let Some(id) = last_event_id {
            request = request.header(LAST_EVENT, id);
        }
        let response = self.send(request.body(Bytes::new()).map_err(client)?).await?;
        if let Some(refused) = unauthorised(&response) {
            return Err(refused);
        }
        match response.status() {
            status if status.is_success() => Ok(events(response, max_sse_event_size)),
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            StatusCode::NOT_FOUND if has_session => Err(StreamableHttpError::SessionExpired),
            status => Err(unexpected(status, &read(response, ERROR_BYTES_MAX).await.unwrap_or_default())),
        }
    }
}

fn client(error: impl Into<HttpError>) -> Failure {
    StreamableHttpError::Client(error.into())
}

fn builder(
    method: Method,
    uri: &str,
    session: Option<Arc<str>>,
    token: Option<String>,
    headers: Headers,
) -> http::request::Builder {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if let Some(session) = session {
        request = request.header(SESSION, session.as_ref());
    }
    match token {
        Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
        None => request,
    }
}

fn text_of<B>(response: &Response<B>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

fn unauthorised<B>(response: &Response<B>) -> Option<Failure> {
    if response.status() != StatusCode::UNAUTHORIZED {
        return None;
    }
    let header = text_of(response, WWW_AUTHENTICATE.as_str()).unwrap_or_default();
    Some(StreamableHttpError::AuthRequired(AuthRequiredError::new(header)))
}

fn unexpected(status: StatusCode, body: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(body.get(..ERROR_BYTES_MAX.min(body.len())).unwrap_or_default());
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(format!("HTTP {status}: {}", text.trim())))
}

async fn read<B>(response: Response<B>, limit: usize) -> Result<Bytes, Failure>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    match Limited::new(response.into_body(), limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(client(HttpError::Read(error.to_string()))),
    }
}

fn events(response: Response<Body>, limit: usize) -> BoxStream<'static, Result<Sse, SseError>> {
    let bytes = Bounded::new(response.into_body().into_data_stream(), limit);
    SseStream::from_bytes_stream(bytes).boxed()
}

/// A stream of events that ends with an error when one event grows beyond the limit.
pub(super) struct Bounded<S> {
    inner: S,
    limit: usize,
    /// Bytes of the event that is being read.
    n_bytes: usize,
    last: u8,
}

impl<S> Bounded<S> {
    pub(super) fn new(inner: S, limit: usize) -> Self {
        Self { inner, limit, n_bytes: 0, last: 0 }
    }

    fn measure(&mut self, chunk: &[u8]) -> Result<(), std::io::Error> {
        for byte in chunk.iter().copied().filter(|byte| *byte != b'\r') {
            // An empty line ends an event.
            self.n_bytes = if byte == b'\n' && self.last == b'\n' { 0 } else { self.n_bytes + 1 };
            self.last = byte;
            if self.n_bytes > self.limit {
                return Err(std::io::Error::other(format!("an event is longer than {} bytes", self.limit)));
            }
        }
        Ok(())
    }
}

impl<S, E> Stream for Bounded<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::error::Error + Send + Sync + 'static,
{
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.poll_next_unpin(cx).map(|next| {
            next.map(|chunk| {
                let chunk = chunk.map_err(std::io::Error::other)?;
                self.measure(&chunk)?;
                Ok(chunk)
            })
        })
    }
}
