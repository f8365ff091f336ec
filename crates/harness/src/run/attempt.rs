//! One model call of a step: ask, watch, and stage what became of it.

use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_core::control::Protect;
use evenkeel_core::id::{CallId, MessageId, RunId, ThreadId};
use evenkeel_core::journal::EventBody;
use evenkeel_core::message::{Block, Message, Role};
use evenkeel_core::port::feed::{Feed, Provisional};
use evenkeel_core::port::model::{ModelOutcome, ModelReply, ModelRequest, Progress, Purpose};
use evenkeel_core::port::store::Park;
use evenkeel_core::run::{Attempt, WaitReason};
use evenkeel_core::{Code, Error, Wall};

use super::commit::Stop;
use super::drive::{Driver, Left};
use super::prompt;
use super::state::{NOTE_MALFORMED, NOTE_STEERED, NOTE_TOO_LONG};
use super::step::{Ending, provider_unavailable};

/// The `finish` of text that a cancel cut off; kept so that what was shown is not lost.
const FINISH_CANCELLED: &str = "cancelled";

/// Why a call gave no answer now.
pub(crate) struct NotNow {
    pub(crate) until_hint: Option<Wall>,
    pub(crate) reason: String,
    pub(crate) attempts: Vec<Attempt>,
}

impl Driver {
    /// Asks the model for the next reply. `Some` when the claim ends with it.
    pub(crate) async fn call_model(&mut self) -> Result<Option<Left>, Stop> {
        self.journal.flush().await?;
        self.journal.take_steered().await?;
        if self.journal.view.cancelling {
            return Ok(None);
        }
        if self.drains() {
            self.journal.release().await?;
            return Ok(Some(Left::Released));
        }
        self.note_steered();
        self.journal.check_lease()?;
        let request = self.model_request();
        let watch = Arc::new(Watch::over(self));
        let called = self.unless_stopped(self.host.parts.model.call(request, watch.clone())).await;
        match called {
            Ok(outcome) => self.called(outcome, &watch).await,
            Err(stop) => {
                self.keep_partial(&watch);
                Err(stop)
            }
        }
    }

    /// Says where messages entered the run. It becomes durable with the reply to them.
    fn note_steered(&mut self) {
        let n = self.journal.view.n_steered;
        if n > 0 {
            let text = format!("{n} message(s) entered before step {}.", self.journal.view.step);
            self.journal.stage(EventBody::Noted { kind: NOTE_STEERED.to_owned(), text });
        }
    }

    fn model_request(&mut self) -> ModelRequest {
        let view = &self.journal.view;
        ModelRequest {
            route: self.agent.route.clone(),
            tenant: self.journal.fence.tenant.clone(),
            run: view.run,
            step: view.step,
            purpose: Purpose::Step,
            class: self.rules.class,
            begun: view.step > 1 || view.parked_since.is_some(),
            deadline: self.rules.until(),
            system: self.agent.system_prompt.clone(),
            messages: prompt::messages(view, self.host.config.compact.stub_bytes_min),
            tools: self.tool_specs.clone(),
            output_tokens_max: self.rules.limits.output_tokens_max,
            prior_attempts: view.prior_attempts,
            permit: self.permit.take(),
            fallback: true,
        }
    }

    async fn called(&mut self, outcome: ModelOutcome, watch: &Watch) -> Result<Option<Left>, Stop> {
        if !matches!(outcome, ModelOutcome::Done(_)) {
            watch.reset("the attempt gave no complete reply");
        }
        match outcome {
            ModelOutcome::Done(reply) => {
                self.replied(*reply, watch);
                Ok(None)
            }
            ModelOutcome::Park { until_hint, reason, attempts } => {
                self.not_now(NotNow { until_hint, reason, attempts }).await
            }
            ModelOutcome::ContextTooLong { attempts } => {
                self.stage_attempts(attempts);
                let text = format!(
                    "The provider refused the context of step {} as too long.",
                    self.journal.view.step
                );
                self.journal.stage(EventBody::Noted { kind: NOTE_TOO_LONG.to_owned(), text });
                Ok(None)
            }
            ModelOutcome::Fatal { error, attempts } => {
                self.stage_attempts(attempts);
                let error = self.named(error);
                self.end(Ending::failed(error)).await.map(Some)
            }
        }
    }

    /// Stages the reply, or a note that says what is wrong with it.
    fn replied(&mut self, reply: ModelReply, watch: &Watch) {
        let ModelReply { message, finish, attempts, .. } = reply;
        match self.checked(message) {
            Ok(message) => {
                let attempts = self.numbered(attempts);
                self.journal.stage(EventBody::AssistantMessage { message, attempts, finish });
            }
            Err(fault) => {
                watch.reset(fault);
                self.stage_attempts(attempts);
                let text =
                    format!("Your last reply was discarded: {fault}. Answer the request, or call a tool.");
                self.journal.stage(EventBody::Noted { kind: NOTE_MALFORMED.to_owned(), text });
            }
        }
    }

    /// The reply as it is stored: no empty text, calls with ids of our own, arguments objects.
    fn checked(&self, mut message: Message) -> Result<Message, &'static str> {
        message.role = Role::Assistant;
        message.blocks.retain(|block| match block {
            Block::Text { text } => !text.trim().is_empty(),
            Block::ToolResult(_) => false,
            Block::ToolCall(_) | Block::Opaque { .. } => true,
        });
        if message.blocks.iter().all(|block| matches!(block, Block::Opaque { .. })) {
            return Err("it was empty");
        }
        if message.tool_calls().any(|call| call.name.is_empty() || !call.args.is_object()) {
            return Err("a call in it had no name or no JSON object as arguments");
        }
        if message.id.as_str().is_empty() {
            message.id = MessageId(format!("reply-{}-{}", self.journal.view.run, self.journal.view.step));
        }
        self.own_ids(&mut message);
        Ok(message)
    }

    fn own_ids(&self, message: &mut Message) {
        let calls = message.blocks.iter_mut().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            _ => None,
        });
        for (idx, call) in (0u32..).zip(calls) {
            let own = CallId::of(self.journal.view.run, self.journal.view.step, idx);
            let theirs = std::mem::replace(&mut call.id, own);
            if call.wire_id.is_none() && theirs != call.id {
                call.wire_id = Some(theirs.0);
            }
        }
    }

    pub(crate) fn stage_attempts(&mut self, attempts: Vec<Attempt>) {
        if !attempts.is_empty() {
            let attempts = self.numbered(attempts);
            self.journal.stage(EventBody::ModelAttempts { attempts });
        }
    }

    /// The attempts with numbers that no other of the step has.
    fn numbered(&self, mut attempts: Vec<Attempt>) -> Vec<Attempt> {
        let n_before = self.journal.view.n_attempts_before;
        attempts.iter_mut().for_each(|attempt| attempt.attempt = attempt.attempt.saturating_add(n_before));
        attempts
    }

    /// Parks the run, or fails it where parking is off or over.
    pub(crate) async fn not_now(&mut self, not_now: NotNow) -> Result<Option<Left>, Stop> {
        let NotNow { until_hint, reason, attempts } = not_now;
        self.stage_attempts(attempts);
        let since = self.journal.view.parked_since;
        let now = self.host.now();
        let fails_at = self.park_ends_at(since.unwrap_or(now));
        if self.host.config.protect == Protect::None || now >= fails_at {
            let error = provider_unavailable(reason);
            return self.end(Ending::failed(error)).await.map(Some);
        }
        let route = self.agent.route.clone();
        self.journal
            .park(|fence, events| Park {
                fence,
                on: WaitReason::Model,
                reason: reason.clone(),
                until_hint,
                route: Some(route.clone()),
                approvals: Vec::new(),
                events,
            })
            .await?;
        self.host.count(|counters| counters.n_parked += 1);
        Ok(Some(Left::Parked { route, fails_at }))
    }

    /// An interactive turn waits a few seconds, durable work as long as its route allows; neither
    /// beyond its deadline.
    fn park_ends_at(&self, since: Wall) -> Wall {
        since.after(self.rules.park_max).min(self.rules.until())
    }

    /// The text that was shown before a cancel stays in the thread, marked.
    fn keep_partial(&mut self, watch: &Watch) {
        let text = watch.partial();
        let cancelled = self.is_cancelled();
        if !cancelled || text.trim().is_empty() {
            watch.reset("the call was stopped");
            return;
        }
        let id = format!("reply-{}-{}", self.journal.view.run, self.journal.view.step);
        let message = Message::text(id.as_str(), Role::Assistant, text);
        let finish = FINISH_CANCELLED.to_owned();
        self.journal.stage(EventBody::AssistantMessage { message, attempts: Vec::new(), finish });
    }

    /// A payload that no provider takes is named with its step and its size.
    fn named(&self, mut error: Error) -> Error {
        if matches!(error.code, Code::PayloadTooLarge | Code::MessageTooLarge | Code::ContextTooLong) {
            let view = &self.journal.view;
            let bytes: u64 = self.fixed_bytes + view.entries.iter().map(|entry| entry.bytes).sum::<u64>();
            let text =
                format!("{} It was the request of step {} with {bytes} bytes.", error.message, view.step);
            error.message = text.into();
        }
        error
    }
}

/// Passes provisional pieces on, and remembers the text of the attempt that is under way.
struct Watch {
    feed: Arc<dyn Feed>,
    thread: ThreadId,
    run: RunId,
    step: u32,
    /// Attempts of the step that the call under way does not count.
    n_before: u32,
    state: Mutex<Partial>,
}

#[derive(Default)]
struct Partial {
    attempt: u32,
    text: String,
    shown: bool,
}

impl Watch {
    fn over(driver: &Driver) -> Self {
        Self {
            feed: driver.host.parts.feed.clone(),
            thread: driver.journal.fence.thread,
            run: driver.journal.fence.run,
            step: driver.journal.view.step,
            n_before: driver.journal.view.n_attempts_before,
            state: Mutex::default(),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Partial) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn partial(&self) -> String {
        self.with(|partial| partial.text.clone())
    }

    /// Tells listeners to drop what they were shown, if they were shown anything.
    fn reset(&self, reason: &str) {
        let attempt = self.with(|partial| {
            partial.text.clear();
            std::mem::take(&mut partial.shown).then_some(partial.attempt)
        });
        if let Some(attempt) = attempt {
            let piece = Provisional::Reset { reason: reason.to_owned() };
            self.feed.provisional(self.thread, self.run, self.step, attempt, piece);
        }
    }
}

impl Progress for Watch {
    fn piece(&self, attempt: u32, piece: Provisional) {
        // Pieces have the number under which their attempt is stored: clients join both by it.
        let attempt = attempt.saturating_add(self.n_before);
        self.with(|partial| {
            if partial.attempt != attempt {
                *partial = Partial { attempt, ..Partial::default() };
            }
            match &piece {
                Provisional::Text { text, .. } => {
                    partial.text.push_str(text);
                    partial.shown = true;
                }
                Provisional::ToolCall { .. } => partial.shown = true,
                Provisional::Reset { .. } => *partial = Partial { attempt, ..Partial::default() },
            }
        });
        self.feed.provisional(self.thread, self.run, self.step, attempt, piece);
    }
}
