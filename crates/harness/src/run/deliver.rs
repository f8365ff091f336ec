//! A result that is to be delivered is delivered before its run ends: what a client is told of has
//! happened, and a forge that is down holds the run up, not the result back.
//!
//! Nothing of a delivery is stored in between. A run that is resumed in the middle of one finds its
//! answer in the journal, comes here again, and asks for the same delivery, which is made once.

use std::time::Duration;

use evenkeel_core::control::backoff::Backoff;
use evenkeel_core::port::forge::Delivery;
use evenkeel_core::run::{Delivered, Repository, RunState};
use evenkeel_core::{Code, Error, Mono, Origin, Retry};

use super::commit::Stop;
use super::drive::Driver;
use super::step::Ending;

/// The waits between two tries.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    factor: 2.0,
    max_early: Duration::from_secs(15),
    max: Duration::from_secs(30),
    max_late: Duration::from_secs(60),
};

/// How a delivery left.
pub(crate) enum Settled {
    /// The run ends like this.
    Ends(Ending, Option<Delivered>),
    /// The replica drains while the forge is down: another one goes on.
    HandedBack,
}

impl Driver {
    /// Delivers what a completed run changed, if that was asked for. A delivery that cannot succeed
    /// fails the run; its diff is kept.
    pub(crate) async fn deliver(&mut self, ending: Ending, diff: Option<&str>) -> Result<Settled, Stop> {
        let Some(delivery) = self.delivery(&ending, diff) else { return Ok(Settled::Ends(ending, None)) };
        // The answer and every effect are durable before the outside is asked.
        self.journal.flush().await?;
        Ok(match self.until_delivered(delivery).await? {
            Some(Ok(delivered)) => Settled::Ends(ending, Some(delivered)),
            Some(Err(error)) => Settled::Ends(Ending::failed(error), None),
            None => Settled::HandedBack,
        })
    }

    /// What is to be delivered; nothing if the run did not complete or changed nothing.
    fn delivery(&self, ending: &Ending, diff: Option<&str>) -> Option<Delivery> {
        let run = &self.claim.run;
        let (Some(wanted), Some(Repository::Url(url))) = (&run.spec.deliver, &run.spec.repository) else {
            return None;
        };
        let diff = diff.filter(|diff| !diff.is_empty() && ending.state == RunState::Completed)?;
        Some(Delivery {
            run: run.id,
            thread: run.thread,
            url: url.clone(),
            wanted: wanted.clone(),
            diff: diff.to_owned(),
            text: ending.text.clone(),
            at_s: run.created_at.0 / 1_000,
        })
    }

    /// Asks until the forge has it, or says never, or the run's time is up; nothing if the replica
    /// drains meanwhile.
    async fn until_delivered(&self, delivery: Delivery) -> Result<Option<Result<Delivered, Error>>, Stop> {
        let began = self.host.env.mono();
        let mut last = out_of_time();
        for n_tries in 0.. {
            self.journal.check_lease()?;
            let asked = self.unless_stopped(self.host.parts.forge.deliver(delivery.clone())).await;
            match self.unless_cancelled(asked)? {
                None => break,
                Some(Ok(delivered)) => return Ok(Some(Ok(delivered))),
                Some(Err(error)) if error.retry == Retry::No => return Ok(Some(Err(error))),
                Some(Err(error)) => last = error,
            }
            tracing::warn!(run = %delivery.run, error = %last, "the result is not delivered yet");
            if self.drains() {
                return Ok(None);
            }
            let paused = self.unless_stopped(self.pause_of_delivery(began, n_tries)).await;
            if self.unless_cancelled(paused)?.is_none() {
                break;
            }
        }
        Ok(Some(Err(Error { retry: Retry::No, ..last })))
    }

    /// A cancel goes on as every cancel does; nothing when the run's time is up.
    fn unless_cancelled<T>(&self, answer: Result<T, Stop>) -> Result<Option<T>, Stop> {
        match answer {
            Err(Stop::Again) if !self.is_cancelled() => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn pause_of_delivery(&self, began: Mono, n_tries: u32) {
        let age = self.host.env.mono().since(began);
        tokio::time::sleep(BACKOFF.delay(n_tries, age, &self.host.env.generator)).await;
    }
}

fn out_of_time() -> Error {
    Error::new(
        Code::DeliveryFailed,
        Origin::Tool,
        "The run's time was up before the forge had answered.",
        "Look at the forge, and give the run more time; its diff is kept.",
    )
}
