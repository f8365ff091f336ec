//! The way of a request: named, counted, authenticated, within its rate and size, in a slot.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use evenkeel_core::{Code, Error, Origin, Wall};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tracing::Instrument;

use super::auth::Caller;
use super::{health, proxy};
use crate::api;
use crate::app::Shared;
use crate::config::Role;
use crate::wire::refusal::{Refusal, malformed};

/// Time for a client to send a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A request's body, whole and within the limit.
#[derive(Clone)]
pub(crate) struct Sent(Bytes);

impl Sent {
    /// The bytes as they were sent.
    pub(crate) fn bytes(&self) -> Bytes {
        self.0.clone()
    }

    /// The JSON object; an empty body and `null` are an empty one.
    pub(crate) fn json(&self) -> Result<Value, Error> {
        match self.value()? {
            Value::Null => Ok(Value::Object(serde_json::Map::new())),
            object @ Value::Object(_) => Ok(object),
            _ => Err(malformed("The body is not a JSON object.", "Send an object: `{ ... }`.")),
        }
    }

    fn value(&self) -> Result<Value, Error> {
        if self.0.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Object(serde_json::Map::new()));
        }
        serde_json::from_slice(&self.0).map_err(|error| {
            Error::client(
                Code::InvalidJson,
                format!("The body is not valid JSON: {error}."),
                "Send valid JSON in UTF-8.",
            )
        })
    }
}

/// The `traceparent` of a request, if it is well formed.
#[derive(Clone)]
pub(crate) struct TraceParent(pub(crate) Option<String>);

/// Everything that is served in this process's role.
pub(crate) fn service(shared: &Arc<Shared>) -> Router {
    let guarded = from_fn_with_state(shared.clone(), guard);
    let in_slot = from_fn_with_state(shared.clone(), within_slot);
    let routes = match shared.config.server.role {
        Role::All | Role::Api => api::routes().merge(api::operators()).layer(in_slot).layer(guarded),
        Role::Worker => api::operators().layer(in_slot).layer(guarded),
        // What waits for a replica, or is passed on for long, holds no slot here.
        Role::Gateway => api::replicas::routes().fallback(proxy::forward).layer(guarded),
    };
    let routes = match shared.config.server.role {
        Role::Gateway => routes,
        _ => routes.fallback(nothing_here).merge(api::hint::routes()),
    };
    let document = Bytes::from(api::document().to_string());
    let described = move || async move { ([(header::CONTENT_TYPE, "application/json")], document) };
    routes
        .merge(health::routes())
        .route("/openapi.json", get(described))
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(shared.clone(), observe))
        .with_state(shared.clone())
}

/// Names the request, counts it, dates the answer.
async fn observe(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let begun = tokio::time::Instant::now();
    let id = request_id(&shared, request.headers());
    let traceparent = traceparent(request.headers());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let elsewhere = if shared.balancer.is_some() { "(passed on)" } else { "(none)" };
    let route = route.unwrap_or_else(|| elsewhere.to_owned());
    let span = tracing::info_span!("request", id = ?id, %method, route, traceparent);
    request.extensions_mut().insert(TraceParent(traceparent));
    request.headers_mut().insert("x-request-id", id.clone());
    let mut response = next.run(request).instrument(span).await;
    let headers = response.headers_mut();
    headers.insert("x-request-id", id);
    headers.insert(header::DATE, date(shared.env.wall()));
    shared.metrics.request(&route, method.as_str(), response.status().as_u16(), begun.elapsed());
    response
}

/// Lets only those requests through that may be handled, and handles them within a slot.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match guarded(&shared, request, next).await {
        Ok(response) => response,
        Err(error) => Refusal(error).into_response(),
    }
}

async fn guarded(shared: &Shared, request: Request, next: Next) -> Result<Response, Error> {
    shared.rate_limit.take_global(shared.env.mono())?;
    let caller = shared.auth.caller(&shared.env, request.headers()).await?;
    shared.rate_limit.take_own(&caller, shared.env.mono())?;
    let (mut parts, body) = request.into_parts();
    let body = read(&parts.method, &parts.headers, body, shared.config.limits.body_bytes_max).await?;
    parts.extensions.insert(Sent(body));
    parts.extensions.insert(caller);
    Ok(next.run(Request::from_parts(parts, axum::body::Body::empty())).await)
}

/// Handles a request within a slot and its time.
async fn within_slot(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match slotted(&shared, request, next).await {
        Ok(response) => response,
        Err(error) => Refusal(error).into_response(),
    }
}

async fn slotted(shared: &Shared, request: Request, next: Next) -> Result<Response, Error> {
    let timeout = shared.config.limits.api.timeout.0;
    let deadline = tokio::time::Instant::now() + timeout;
    let tenant = request.extensions().get::<Caller>().map(|caller| caller.tenant.clone());
    // The slot covers the handling; a body that streams or waits afterwards holds none.
    let _slot = shared.slots.api.acquire(&tenant.unwrap_or_else(|| "".into()), timeout).await?;
    tokio::time::timeout_at(deadline, next.run(request)).await.map_err(|_| {
        Error::new(
            Code::Overloaded,
            Origin::Ours,
            format!("The request was not answered within {} s.", timeout.as_secs()),
            "Send it again with the same Idempotency-Key.",
        )
        .retry_after(Duration::from_secs(5))
    })
}

async fn read(
    method: &Method,
    headers: &HeaderMap,
    body: axum::body::Body,
    limit: usize,
) -> Result<Bytes, Error> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(Bytes::new());
    }
    let too_large = || {
        Error::client(
            Code::BodyTooLarge,
            format!("The body is larger than {limit} bytes."),
            "Send less, or raise limits.body_bytes_max.",
        )
    };
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, limit).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Error::client(
            Code::BadRequest,
            format!("The body could not be read: {error}."),
            "Send it again.",
        )),
        Err(_) => Err(Error::client(
            Code::BadRequest,
            format!("The body did not arrive within {} s.", BODY_TIMEOUT.as_secs()),
            "Send it again over a faster connection.",
        )),
    }
}

/// The client's own id if it is a plain word, else a fresh one.
fn request_id(shared: &Shared, headers: &HeaderMap) -> HeaderValue {
    let own = headers.get("x-request-id").filter(|value| {
        let bytes = value.as_bytes();
        (1..=128).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    own.cloned().unwrap_or_else(|| {
        let id = evenkeel_core::id::uuid_v7(shared.env.wall(), &shared.env.generator);
        HeaderValue::try_from(id.to_string()).unwrap_or_else(|_| HeaderValue::from_static("none"))
    })
}

/// A `traceparent` of the form `00-<32 hex>-<16 hex>-<2 hex>`.
fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    let hex = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    (hex && lengths == [2, 32, 16, 2]).then(|| text.to_owned())
}

fn date(now: Wall) -> HeaderValue {
    let at = i64::try_from(now.0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .unwrap_or_default();
    let text = at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

async fn nothing_here(request: Request) -> Refusal {
    Refusal(Error::client(
        Code::NotFound,
        format!("There is nothing at {}.", request.uri().path()),
        "See docs/guide for the paths that are served.",
    ))
}

async fn wrong_method(request: Request) -> Refusal {
    Refusal(crate::wire::refusal::unsupported(format!(
        "{} {} is not offered by this server.",
        request.method(),
        request.uri().path()
    )))
}
