//! One body on its way from a replica to a client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::http::Body;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::carried::Carried;
use super::plan::Rest;
use crate::gateway::balance::{Balancer, OnReplica, Tried};

/// How long the rest of a body is looked for before its client is cut off, to resume by itself.
const RESUME_MAX: Duration = Duration::from_secs(20);

/// A body: bytes are taken from the replica when the client takes them.
pub(super) struct Relay {
    balancer: Arc<Balancer>,
    body: Body,
    replica: OnReplica,
    carried: Carried,
    rest: Option<Rest>,
    done: bool,
}

/// What comes next of a body.
enum Came {
    Bytes(Bytes),
    /// The replica ended it.
    End,
    /// The connection broke, or the replica is not well.
    Cut,
}

/// How the look for the rest ended.
enum Rested {
    /// It comes from another replica.
    GoesOn,
    /// There is no more of it.
    Gone,
    /// It was not found in time.
    NotFound,
}

impl Relay {
    pub(super) fn new(
        balancer: Arc<Balancer>,
        body: Body,
        replica: OnReplica,
        carried: Carried,
        rest: Option<Rest>,
    ) -> Self {
        Self { balancer, body, replica, carried, rest, done: false }
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while !self.done {
            match self.come().await {
                Came::Bytes(bytes) => {
                    let given = self.carried.pass(bytes);
                    if !given.is_empty() {
                        return Some(Ok(given));
                    }
                }
                Came::End if self.carried.is_whole() => self.done = true,
                Came::End | Came::Cut => match self.go_on().await {
                    Rested::GoesOn => {}
                    Rested::Gone => self.done = true,
                    Rested::NotFound => {
                        self.done = true;
                        // A body that is cut off makes its client come back and ask for the rest.
                        return Some(Err(io::Error::other("the replica went away")));
                    }
                },
            }
        }
        None
    }

    async fn come(&mut self) -> Came {
        let may_leave =
            self.carried.can_go_on() && self.rest.as_ref().is_some_and(|rest| !rest.cancels_on_leave);
        let frame = tokio::select! {
            biased;
            frame = self.body.frame() => frame,
            () = self.replica.unwell(), if may_leave => return Came::Cut,
        };
        match frame {
            Some(Ok(frame)) => Came::Bytes(frame.into_data().unwrap_or_default()),
            Some(Err(_)) => Came::Cut,
            None => Came::End,
        }
    }

    /// Goes on from another replica, behind the last event that was given.
    async fn go_on(&mut self) -> Rested {
        let Some(rest) = self.rest.as_ref().filter(|_| self.carried.can_go_on()) else {
            return Rested::NotFound;
        };
        let deadline = Instant::now() + RESUME_MAX;
        let mut tried = vec![self.replica.idx];
        while let Some(place) = self.balancer.place(rest.thread.as_deref(), &mut tried, deadline).await {
            tried.push(place.idx);
            let Ok(request) = rest.request(place.name(), self.carried.last_id()) else {
                return Rested::NotFound;
            };
            match place.send(request, true).await {
                Tried::Answered(response, replica) if self.carried.is_continued_by(&response) => {
                    self.balancer.counters.resumed.fetch_add(1, Ordering::Relaxed);
                    self.carried.begin_again();
                    self.body = response.into_body();
                    self.replica = replica;
                    return Rested::GoesOn;
                }
                Tried::Answered(response, _) if response.status() == StatusCode::NOT_FOUND => {
                    return Rested::Gone;
                }
                Tried::Answered(response, _) if response.status().is_client_error() => {
                    return Rested::NotFound;
                }
                Tried::Answered(..) | Tried::NotTaken | Tried::Lost => {}
            }
        }
        Rested::NotFound
    }
}
