//! The way of a request through a gateway to a replica, and of the answer back.
//!
//! A request is tried until a replica has answered with headers; after that nothing is repeated.
//! What may be repeated when a connection breaks (`plan`) is what has no second effect: reads, and
//! the creation of runs, since every creation carries an `Idempotency-Key`. The gateway makes one
//! where the client sent none; its keys have a prefix that clients may not use. A refused connection
//! and a refusal by a replica that drains took nothing, so after them everything may be repeated.
//!
//! A body is passed on as its client takes it (`relay`); of a slow client no more is kept than the
//! buffers of its two connections. The streams of runs and the waits for their ends go on from
//! another replica when theirs goes away (`carried` says where).

mod carried;
mod headers;
mod plan;
mod relay;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use evenkeel_core::{Code, Error, Origin};
use tokio::time::Instant;

use self::carried::Carried;
use self::plan::Plan;
use self::relay::Relay;
use super::balance::{Balancer, OnReplica, Tried, no_replica};
use super::route::Sent;
use crate::app::Shared;
use crate::wire::refusal::Refusal;

#[cfg(test)]
mod tests;

/// Who is at the other end of a client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(pub(crate) IpAddr);

/// Passes a request on to a replica.
pub(crate) async fn forward(
    State(shared): State<Arc<Shared>>,
    Extension(sent): Extension<Sent>,
    request: Request,
) -> Response {
    let Some(balancer) = shared.balancer.clone() else {
        return Refusal(Error::internal("A gateway without replicas.")).into_response();
    };
    let (parts, _) = request.into_parts();
    let plan = match Plan::of(&shared.env, parts, sent) {
        Ok(plan) => plan,
        Err(error) => return Refusal(error).into_response(),
    };
    match answer(&balancer, &plan).await {
        Ok((response, replica)) => relayed(balancer, plan, response, replica),
        Err(error) => Refusal(error).into_response(),
    }
}

/// Tries replicas until one answers.
async fn answer(
    balancer: &Arc<Balancer>,
    plan: &Plan,
) -> Result<(http::Response<evenkeel_env::http::Body>, OnReplica), Error> {
    let deadline = Instant::now() + balancer.config().hold_max.0;
    let mut tried = Vec::new();
    for _ in 0..balancer.config().tries_max {
        let place = balancer.place(plan.thread.as_deref(), &mut tried, deadline).await;
        let place = place.ok_or_else(|| no_replica(balancer))?;
        tried.push(place.idx);
        let request = plan.request(place.name())?;
        match place.send(request, plan.is_repeatable).await {
            Tried::Answered(response, replica) => return Ok((response, replica)),
            Tried::NotTaken => {}
            Tried::Lost if plan.is_repeatable => {}
            Tried::Lost => return Err(lost()),
        }
    }
    Err(no_replica(balancer))
}

/// The answer with its body on its way.
fn relayed(
    balancer: Arc<Balancer>,
    plan: Plan,
    response: http::Response<evenkeel_env::http::Body>,
    replica: OnReplica,
) -> Response {
    let (mut parts, body) = response.into_parts();
    let carried = Carried::of(parts.status, &parts.headers);
    headers::remove_hop_by_hop(&mut parts.headers);
    let rest = plan.rest(&parts.headers);
    let relay = Relay::new(balancer, body, replica, carried, rest);
    let bytes = futures_util::stream::unfold(relay, |mut relay| async move {
        let bytes = relay.next().await?;
        Some((bytes, relay))
    });
    Response::from_parts(parts, Body::from_stream(bytes))
}

fn lost() -> Error {
    Error::new(
        Code::ReplicaLost,
        Origin::Ours,
        "The replica went away before it answered; whether it carried the request out is not known.",
        "Look whether it did before you send it again.",
    )
    .retry_after(Duration::from_secs(1))
}
