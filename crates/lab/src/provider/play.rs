//! How an answer goes out in time: a list of beats, played into the body of the response.
//!
//! Slowness is asked at every wait, so a brown-out also slows streams that already run.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::Mono;
use futures_util::stream::{self, Stream};
use http_body::Frame;

use super::count::RequestSeen;
use super::{Fault, Shared, WireKind};

/// One moment of an answer.
pub(crate) enum Beat {
    /// Time passes; slowness stretches it.
    Wait(Duration),
    /// Bytes go out, worth this many output tokens.
    Bytes(Bytes, u64),
    /// The connection breaks.
    Abort,
    /// Nothing more ever comes.
    Hang,
    /// The same bytes again and again with this pause before each, for ever.
    Forever(Bytes, Duration),
}

/// The record of one call; it is entered in the book exactly once, when this is dropped.
pub(crate) struct Call {
    shared: Arc<Shared>,
    begun: Mono,
    at_ms: u64,
    pub(crate) wire: Option<WireKind>,
    pub(crate) model: String,
    pub(crate) input_tokens: u64,
    /// What is entered; `client_gone` until something else is known.
    pub(crate) outcome: &'static str,
    streaming: bool,
}

impl Call {
    pub(crate) fn begin(shared: &Arc<Shared>) -> Self {
        let while_down = shared.in_outage();
        shared.book().arrived(while_down);
        Self {
            shared: shared.clone(),
            begun: shared.env.mono(),
            at_ms: shared.at_ms(),
            wire: None,
            model: String::new(),
            input_tokens: 0,
            outcome: "client_gone",
            streaming: false,
        }
    }

    /// Counts it among the streams; false if that would be more than the limit.
    pub(crate) fn occupy(&mut self) -> bool {
        let mut book = self.shared.book();
        if self.shared.config.streams_max.is_some_and(|max| book.counters.streams >= max) {
            return false;
        }
        book.count_streams(self.shared.at_ms());
        book.counters.streams += 1;
        book.counters.streams_peak = book.counters.streams_peak.max(book.counters.streams);
        self.streaming = true;
        true
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.outcome == "client_gone" {
            let cause = [Fault::Down, Fault::BlackHole].into_iter().find(|fault| self.shared.has(fault));
            self.outcome = cause.as_ref().map_or("client_gone", Fault::name);
        }
        let seen = RequestSeen {
            at_ms: self.at_ms,
            wire: self.wire,
            model: std::mem::take(&mut self.model),
            outcome: self.outcome,
            ms: u64::try_from(self.shared.env.mono().since(self.begun).as_millis()).unwrap_or(u64::MAX),
            input_tokens: self.input_tokens,
        };
        let mut book = self.shared.book();
        book.count_streams(self.shared.at_ms());
        book.counters.streams -= usize::from(self.streaming);
        book.ended(seen);
    }
}

struct Player {
    shared: Arc<Shared>,
    beats: VecDeque<Beat>,
    call: Call,
    /// What the call counts as when the last beat has been played.
    outcome: &'static str,
}

/// The body that plays `beats`; the call counts as `outcome` once they have all been played.
pub(crate) fn body(
    shared: &Arc<Shared>,
    beats: Vec<Beat>,
    call: Call,
    outcome: &'static str,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send + use<> {
    let player = Player { shared: shared.clone(), beats: beats.into(), call, outcome };
    stream::unfold(player, |mut player| async move {
        let frame = player.next().await;
        if matches!(frame, None | Some(Err(_))) {
            player.call.outcome = player.outcome;
        }
        // After an error hyper closes the connection and never polls again.
        frame.map(|frame| (frame, player))
    })
}

impl Player {
    async fn next(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        loop {
            match self.beats.pop_front()? {
                Beat::Wait(time) => self.wait(time).await,
                Beat::Bytes(bytes, n_tokens) => {
                    self.shared.book().counters.output_tokens += n_tokens;
                    return Some(Ok(Frame::data(bytes)));
                }
                Beat::Abort => return Some(Err(io::Error::other("the fault cuts the stream here"))),
                Beat::Hang => {
                    // A silent stream ends when the client gives up; it counts as the fault.
                    self.call.outcome = self.outcome;
                    std::future::pending::<()>().await;
                }
                Beat::Forever(bytes, pause) => {
                    self.call.outcome = self.outcome;
                    tokio::time::sleep(pause).await;
                    self.beats.push_front(Beat::Forever(bytes.clone(), pause));
                    return Some(Ok(Frame::data(bytes)));
                }
            }
        }
    }

    /// Waits in slices, so that slowness that begins or ends takes effect at once.
    async fn wait(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let slice = left.min(Duration::from_millis(250));
            tokio::time::sleep(slice.mul_f64(self.shared.slowness())).await;
            left -= slice;
        }
        // A black hole swallows the packets of running streams too, until it is healed.
        while self.shared.has(&Fault::BlackHole) {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
}
