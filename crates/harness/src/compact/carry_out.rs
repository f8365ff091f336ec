//! Carries a compaction out: plans, asks for the summary, writes the record.

use evenkeel_core::journal::EventBody;
use evenkeel_core::message::{Message, Role};
use evenkeel_core::port::model::{ModelOutcome, ModelReply, ModelRequest, Purpose, RouteFacts, Unwatched};
use evenkeel_core::{Code, Error, Origin};
use std::sync::Arc;

use super::plan::{self, Cut};
use super::{estimate, text};
use crate::run::attempt::NotNow;
use crate::run::commit::Stop;
use crate::run::drive::{Driver, Left};
use crate::run::output;
use crate::run::state::{Entry, NOTE_COMPACTION_EXHAUSTED, NOTE_COMPACTION_FAILED};
use crate::run::step::Ending;

/// Fewer whole results than this are left only when no summary can be had.
const STUB_KEEP_MIN: usize = 2;

/// What a compaction aims at.
#[derive(Clone, Copy, Debug)]
struct Aim {
    facts: RouteFacts,
    /// Estimated tokens now.
    before: u64,
    /// Tokens at which compaction begins.
    threshold: u64,
    /// Tokens to reach.
    goal: u64,
}

/// What came of asking for a summary.
enum Summarised {
    Text(String),
    Failed(String),
    NotNow(NotNow),
}

impl Driver {
    /// Makes the context smaller. `Some` when the claim ends with it.
    pub(crate) async fn compact(&mut self) -> Result<Option<Left>, Stop> {
        self.journal.flush().await?;
        let aim = self.aim()?;
        let keeps = plan::keeps(self.host.config.compact.keep_units);
        for keep in keeps.into_iter().filter(|keep| *keep >= STUB_KEEP_MIN) {
            if self.stub(keep, aim).await? {
                return Ok(None);
            }
        }
        if self.journal.view.n_compaction_failed < self.host.config.compact.failures_max
            && let Some(cut) = self.cut_for_summary(aim)
        {
            match self.summarise(&cut, aim).await? {
                Summarised::NotNow(not_now) => return self.not_now(not_now).await,
                Summarised::Text(summary) => {
                    if self.replace(&cut, &summary, aim.goal, aim).await? {
                        return Ok(None);
                    }
                }
                Summarised::Failed(reason) => self.note(NOTE_COMPACTION_FAILED, reason).await?,
            }
        }
        if self.reset(aim).await? {
            return Ok(None);
        }
        self.give_up(aim).await
    }

    fn aim(&self) -> Result<Aim, Stop> {
        let facts = self.route()?;
        let config = &self.host.config.compact;
        let before = estimate::prompt(&self.journal.view, self.fixed_bytes, facts, config);
        let threshold = estimate::threshold(facts, config);
        // When the provider refused a context that we thought would fit, our own estimate is the
        // wrong measure; then it must shrink by as much.
        let goal = estimate::share(threshold.min(before), config.progress);
        Ok(Aim { facts, before, threshold, goal })
    }

    /// Replaces old results by stubs. Says whether that was enough.
    async fn stub(&mut self, keep: usize, aim: Aim) -> Result<bool, Stop> {
        let config = self.host.config.compact.clone();
        let Some(cut) = plan::stubs(&self.journal.view, keep, &config) else {
            return Ok(false);
        };
        let mut after = self.journal.view.clone();
        after.stubs.push((cut.from, cut.to));
        after.reported = None;
        let after = estimate::prompt(&after, self.fixed_bytes, aim.facts, &config);
        if after > aim.goal {
            return Ok(false);
        }
        self.record(&cut, None, aim.before, after).await?;
        Ok(true)
    }

    /// The cut that keeps most and leaves room for a summary below the goal.
    fn cut_for_summary(&self, aim: Aim) -> Option<Cut> {
        let config = &self.host.config.compact;
        let summary = estimate::bytes(u64::from(config.summary_tokens_max), aim.facts);
        plan::keeps(config.keep_units).into_iter().find_map(|keep| {
            let cut = plan::older(&self.journal.view, keep)?;
            (self.tokens_after(&cut, summary, aim) <= aim.goal).then_some(cut)
        })
    }

    /// Tokens of the prompt when this many bytes stand for the cut.
    fn tokens_after(&self, cut: &Cut, standing_bytes: u64, aim: Aim) -> u64 {
        let left = plan::bytes_left(&self.journal.view, cut, &self.host.config.compact);
        let request: u64 = self.request_in(cut).iter().map(|entry| entry.bytes).sum();
        estimate::tokens(self.fixed_bytes + left + request + standing_bytes, aim.facts)
    }

    /// The run's own messages of the user inside the cut, or behind a summary that is inside it.
    fn request_in(&self, cut: &Cut) -> Vec<Entry> {
        let sent = &self.claim.run.spec.messages;
        let view = &self.journal.view;
        let left = view.entries.get(cut.entries.end..).unwrap_or_default();
        let is_left = |message: &Message| left.iter().any(|entry| entry.message.id == message.id);
        sent.iter()
            .filter(|message| message.role == Role::User && !is_left(message))
            .map(|message| Entry {
                seq: crate::run::state::Seq::Stored(cut.to),
                run: view.run,
                message: message.clone(),
                bytes: crate::run::state::message_bytes(message),
            })
            .collect()
    }

    async fn summarise(&mut self, cut: &Cut, aim: Aim) -> Result<Summarised, Stop> {
        let slots = self.host.parts.slots.compactor.clone();
        let wait = self.rules.until().since(self.host.now());
        let tenant = self.journal.fence.tenant.clone();
        let slot = match self.unless_stopped(slots.acquire(&tenant, wait)).await? {
            Ok(slot) => slot,
            Err(error) => return Ok(Summarised::Failed(error.message.into_owned())),
        };
        self.journal.check_lease()?;
        let request = self.summary_request(cut, aim);
        let called = self.host.parts.model.call(request, Arc::new(Unwatched));
        let outcome = self.unless_stopped(called).await?;
        drop(slot);
        Ok(self.summarised(outcome, aim))
    }

    fn summary_request(&mut self, cut: &Cut, aim: Aim) -> ModelRequest {
        let config = &self.host.config.compact;
        let view = &self.journal.view;
        let room =
            estimate::share(aim.facts.context_tokens, 0.7).saturating_sub(config.summary_tokens_max.into());
        let room = usize::try_from(estimate::bytes(room, aim.facts)).unwrap_or(usize::MAX);
        let record = text::record(view, cut, room.saturating_sub(text::SYSTEM.len()));
        ModelRequest {
            route: self.agent.route.clone(),
            tenant: self.journal.fence.tenant.clone(),
            run: view.run,
            step: view.step,
            purpose: Purpose::Compaction,
            class: self.rules.class,
            begun: true,
            deadline: self.rules.until(),
            system: text::SYSTEM.to_owned(),
            messages: vec![Message::text("record", Role::User, record)],
            tools: Vec::new(),
            output_tokens_max: config.summary_tokens_max,
            prior_attempts: view.prior_attempts,
            permit: self.permit.take(),
            fallback: true,
        }
    }

    fn summarised(&mut self, outcome: ModelOutcome, aim: Aim) -> Summarised {
        match outcome {
            ModelOutcome::Done(reply) => {
                let ModelReply { message, attempts, .. } = *reply;
                self.stage_attempts(attempts);
                match judged(&message) {
                    Ok(summary) => {
                        let bytes = 2 * estimate::bytes(
                            self.host.config.compact.summary_tokens_max.into(),
                            aim.facts,
                        );
                        Summarised::Text(
                            output::shown(&summary, usize::try_from(bytes).unwrap_or(usize::MAX)).text,
                        )
                    }
                    Err(fault) => Summarised::Failed(format!("The summary was discarded: {fault}.")),
                }
            }
            ModelOutcome::Park { until_hint, reason, attempts } => {
                Summarised::NotNow(NotNow { until_hint, reason, attempts })
            }
            ModelOutcome::ContextTooLong { attempts } => {
                self.stage_attempts(attempts);
                Summarised::Failed("The request for a summary did not fit the window.".to_owned())
            }
            ModelOutcome::Fatal { error, attempts } => {
                self.stage_attempts(attempts);
                Summarised::Failed(format!("No summary: {}", error.message))
            }
        }
    }

    /// Writes the summary if it brings the context to `limit` tokens. Says whether it did.
    async fn replace(&mut self, cut: &Cut, summary: &str, limit: u64, aim: Aim) -> Result<bool, Stop> {
        let request = self.request_in(cut);
        let standing = text::standing(&request.iter().collect::<Vec<_>>(), summary);
        let left = plan::bytes_left(&self.journal.view, cut, &self.host.config.compact);
        let bytes = self.fixed_bytes + left + u64::try_from(standing.len()).unwrap_or(u64::MAX);
        let after = estimate::tokens(bytes, aim.facts);
        if after > limit {
            return Ok(false);
        }
        self.record(cut, Some(standing), aim.before, after).await?;
        Ok(true)
    }

    /// The ways without a model: stubs for all but the newest result, else a digest for everything
    /// old. Says whether the context is below the threshold now.
    async fn reset(&mut self, aim: Aim) -> Result<bool, Stop> {
        let keeps = plan::keeps(self.host.config.compact.keep_units);
        for keep in keeps.iter().filter(|keep| **keep > 0) {
            if self.stub(*keep, aim).await? {
                return Ok(true);
            }
        }
        for limit in [aim.goal, aim.threshold.min(aim.before.saturating_sub(1))] {
            for keep in &keeps {
                let Some(cut) = plan::older(&self.journal.view, *keep) else { continue };
                let room = limit.saturating_sub(self.tokens_after(&cut, 0, aim)) / 2;
                let bytes = usize::try_from(estimate::bytes(room, aim.facts)).unwrap_or(usize::MAX);
                let digest = text::digest(&self.journal.view, &cut, bytes);
                if self.replace(&cut, &digest, limit, aim).await? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Nothing helped: the call is tried as it is if the window may take it.
    async fn give_up(&mut self, aim: Aim) -> Result<Option<Left>, Stop> {
        if aim.before <= aim.facts.context_tokens && !self.journal.view.too_long {
            let text = "Nothing is left to compact; the context is sent as it is.".to_owned();
            self.note(NOTE_COMPACTION_EXHAUSTED, text).await?;
            return Ok(None);
        }
        self.end(Ending::failed(does_not_fit(self.journal.view.step, aim))).await.map(Some)
    }

    async fn note(&mut self, kind: &str, text: String) -> Result<(), Stop> {
        self.journal.stage(EventBody::Noted { kind: kind.to_owned(), text });
        self.journal.flush().await
    }

    async fn record(
        &mut self,
        cut: &Cut,
        summary: Option<String>,
        before: u64,
        after: u64,
    ) -> Result<(), Stop> {
        self.host.count(|counters| counters.n_compactions += 1);
        self.journal.stage(EventBody::Compacted {
            from: cut.from,
            to: cut.to,
            summary,
            tokens_before: before,
            tokens_after: after,
        });
        self.journal.flush().await
    }
}

/// The summary's text, if it is one.
fn judged(message: &Message) -> Result<String, &'static str> {
    if message.tool_calls().next().is_some() {
        return Err("it is a tool call");
    }
    let text = message.joined_text();
    if text.trim().is_empty() { Err("it is empty") } else { Ok(text) }
}

fn does_not_fit(step: u32, aim: Aim) -> Error {
    Error::new(
        Code::ContextTooLong,
        Origin::Client,
        format!(
            "Step {step} needs about {} tokens, and nothing that may be left out brings it below {} of a window of {}.",
            aim.before, aim.threshold, aim.facts.context_tokens
        ),
        "Use a route with a larger window, or send a shorter message.",
    )
}
