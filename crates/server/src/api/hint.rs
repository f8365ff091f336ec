//! What replicas say to each other: that something in the store concerns the receiver.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use evenkeel_core::{Code, Error};
use http::{HeaderMap, StatusCode};
use secrecy::ExposeSecret;
use subtle::ConstantTimeEq;

use crate::app::Shared;
use crate::app::hints;
use crate::wire::refusal::Refusal;

/// Paths for other replicas; each checks their secret.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route(hints::PATH, post(hint))
}

async fn hint(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<StatusCode, Refusal> {
    let shown = headers.get(hints::SECRET).map(http::HeaderValue::as_bytes);
    let secret = shared.hints.secret().map(ExposeSecret::expose_secret);
    let known =
        matches!((shown, secret), (Some(shown), Some(secret)) if shown.ct_eq(secret.as_bytes()).into());
    if !known {
        let message = "The request does not show the secret of the replicas.";
        let remedy = "Set replica.secret to the same value on every replica.";
        return Err(Error::client(Code::Forbidden, message, remedy).into());
    }
    shared.dispatch.nudge();
    shared.dispatch.look();
    Ok(StatusCode::NO_CONTENT)
}
