//! The body of `wait` and `join`: a line break every few seconds, then the final values.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::StoreClient;
use evenkeel_core::run::Outcome;
use serde_json::{Value, json};

use super::follow::{Follow, Seen, view_of};
use super::run_stream::OnLeave;
use super::{Hub, project};

/// What is waited for.
pub(crate) struct WaitStart {
    /// The run's tenant.
    pub(crate) tenant: TenantId,
    /// The run's thread.
    pub(crate) thread: ThreadId,
    /// The run; after it, whichever answers in its place.
    pub(crate) run: RunId,
    /// Whether it has not begun behind `after`.
    pub(crate) queued: bool,
    /// Its end, if it has ended or waits for a person, with the newest event of its thread.
    pub(crate) ended: Option<(Ended, u64)>,
    /// Its end lies behind this event, if it has not.
    pub(crate) after: u64,
    /// What is answered at the end.
    pub(crate) ending: Ending,
    /// Called if the client leaves before the end.
    pub(crate) on_leave: Option<OnLeave>,
}

/// How a run came to where nothing more is waited for.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// It ended so.
    Outcome(Box<Outcome>),
    /// It waits for a person.
    Paused,
}

/// What is answered at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The thread's values, or the error.
    Values,
    /// `{}`: the run has stopped.
    Nothing,
}

struct Waiter {
    store: StoreClient,
    start: WaitStart,
    follow: Follow,
    out: VecDeque<Bytes>,
    done: bool,
}

/// Opens the body.
pub(crate) fn body(hub: &Arc<Hub>, store: StoreClient, start: WaitStart, heartbeat: Duration) -> Body {
    let queued = start.queued.then_some(start.run);
    let follow = Follow::new(hub, (&start.tenant, start.thread), start.after, queued, heartbeat);
    let waiter = Waiter { store, start, follow, out: VecDeque::new(), done: false };
    let bytes = futures_util::stream::unfold(waiter, |mut waiter| async move {
        let bytes = waiter.next().await?;
        Some((bytes, waiter))
    });
    Body::from_stream(bytes)
}

impl Waiter {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(bytes) = self.out.pop_front() {
                return Some(Ok(bytes));
            }
            if self.done {
                return None;
            }
            if let Some((ended, seq)) = self.start.ended.clone() {
                return Some(self.end(&ended, seq).await);
            }
            match self.follow.next().await {
                Seen::Event(event) if event.run == self.start.run => {
                    if let EventBody::RunEnded { outcome } = &event.body {
                        match project::answered_by(outcome) {
                            Some(other) if self.start.ending == Ending::Values => self.start.run = other,
                            _ => {
                                let ended = Ended::Outcome(Box::new(outcome.clone()));
                                return Some(self.end(&ended, event.seq).await);
                            }
                        }
                    } else if project::is_pause(&event) && self.start.ending == Ending::Values {
                        return Some(self.end(&Ended::Paused, event.seq).await);
                    }
                }
                Seen::Event(_) | Seen::Piece(_) | Seen::PiecesLost => {}
                Seen::Beat => self.out.push_back(Bytes::from_static(b"\n")),
                Seen::Closed => {
                    self.close();
                    return Some(Err(io::Error::other("the server is stopping")));
                }
            }
        }
    }

    /// The answer. A body that is cut short makes clients come back, which is right when the store
    /// cannot be read or the server stops.
    async fn end(&mut self, ended: &Ended, seq: u64) -> io::Result<Bytes> {
        self.close();
        let answer = match self.start.ending {
            Ending::Nothing => Ok(json!({})),
            Ending::Values => self.values(ended, seq).await,
        };
        answer.map(|value| Bytes::from(value.to_string())).map_err(io::Error::other)
    }

    /// Ends the body from this side: the client did not leave.
    fn close(&mut self) {
        self.done = true;
        if let Some(leave) = &mut self.start.on_leave {
            leave.disarm();
        }
    }

    async fn values(&mut self, ended: &Ended, seq: u64) -> Result<Value, Error> {
        if let Ended::Outcome(outcome) = ended
            && let Some(error) = &outcome.error
        {
            return Ok(json!({ "__error__": { "error": error.code, "message": error.message } }));
        }
        let view = view_of(&self.store, &self.start.tenant, self.start.thread, seq).await?;
        Ok(match ended {
            Ended::Outcome(_) => view.values(),
            Ended::Paused => view.paused_values(),
        })
    }
}
