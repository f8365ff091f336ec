//! What a request's path and query say, with our own refusal when they cannot be read.
//!
//! The web framework's own refusal is plain text without a code; no answer of ours is.

use axum::extract::FromRequestParts;
use evenkeel_core::Error;
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::wire::refusal::{Refusal, malformed};

/// The variable parts of the path.
pub(crate) struct Path<T>(pub(crate) T);

/// The query.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        read.map(|axum::extract::Path(value)| Self(value)).map_err(|error| Refusal(path(&error.body_text())))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        read.map(|axum::extract::Query(value)| Self(value))
            .map_err(|error| Refusal(query(&error.body_text())))
    }
}

fn path(cause: &str) -> Error {
    malformed(format!("The path cannot be read: {cause}."), "Send ids as they were given, in UTF-8.")
}

fn query(cause: &str) -> Error {
    let cause = cause.trim_start_matches("Failed to deserialize query string: ");
    malformed(format!("The query cannot be read: {cause}."), "See docs/guide for what it may hold.")
}
