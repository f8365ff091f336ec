//! How an error is answered: status, `{"detail","code","message","remedy"}`, `Retry-After`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use evenkeel_core::{Code, Error, Origin, Retry};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use crate::gateway::balance::DRAINING;

/// An error on its way to the client.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(error) = self;
        if error.origin != Origin::Client {
            tracing::warn!(code = %error.code, message = %error.message, "request refused");
        }
        let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = json!({
            "detail": error.message,
            "code": error.code,
            "message": error.message,
            "remedy": error.remedy,
        });
        let mut response = (status, Json(body)).into_response();
        if error.code == Code::Draining {
            // A gateway sends it elsewhere: nothing of the request was taken.
            response.headers_mut().insert(DRAINING, HeaderValue::from_static("1"));
        }
        if let Some(seconds) = retry_after_s(&error) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Whole seconds, rounded up, for every answer that says "later".
fn retry_after_s(error: &Error) -> Option<u64> {
    match error.retry {
        Retry::AfterMs(ms) => Some(ms.div_ceil(1000).max(1)),
        Retry::Yes => Some(1),
        Retry::No if matches!(error.code.status(), 429 | 503) => Some(1),
        Retry::No => None,
    }
}

/// A 422 for a request of the wrong shape.
pub(crate) fn malformed(message: impl Into<String>, remedy: &'static str) -> Error {
    Error::client(Code::BadRequest, message.into(), remedy)
}

/// The dialect's answer for a thread that is not there.
pub(crate) fn no_thread() -> Error {
    Error::client(Code::ThreadNotFound, "Thread not found.", "Create it first, or correct the id.")
}

/// The dialect's answer for a run that is not there.
pub(crate) fn no_run() -> Error {
    Error::client(Code::RunNotFound, "Run not found.", "Check the run's id and its thread's id.")
}

/// The dialect's answer for an assistant that is not there.
pub(crate) fn no_assistant(name: &str) -> Error {
    Error::client(
        Code::AssistantNotFound,
        format!("Thread or assistant not found: there is no assistant `{name}`."),
        "POST /assistants/search lists the assistants.",
    )
}

/// An operation of the dialect that is not offered.
pub(crate) fn unsupported(what: impl Into<String>) -> Error {
    Error::client(Code::Unsupported, what.into(), "See docs/guide for the operations that are offered.")
}
