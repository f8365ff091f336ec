//! What comes next in a run: a pure function of its view, its rules and the time.
//!
//! The order of the questions is the policy. A stored cancel beats everything. What the model has
//! answered is honoured before limits are looked at, so a run that just finished is not expired.
//! Limits are looked at before money is spent.

use std::time::Duration;

use evenkeel_core::agent::RunLimits;
use evenkeel_core::run::{Class, RunState};
use evenkeel_core::{Code, Error, Origin, Wall};

use super::state::{CallState, Open, View};

/// Identical calls in a row after which the model is warned.
pub(crate) const STREAK_WARNED: u32 = 3;
/// Identical calls in a row at which the run is stopped; the last one does not run.
pub(crate) const STREAK_STOPPED: u32 = 4;
/// Malformed replies in a row at which the run is stopped.
pub(crate) const MALFORMED_STOPPED: u32 = 3;
/// Compactions between two model calls.
pub(crate) const COMPACTIONS_MAX: u32 = 2;
/// Refusals of the context as too long in one step.
pub(crate) const TOO_LONG_MAX: u32 = 3;

/// What does not change while a run is driven.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) limits: RunLimits,
    pub(crate) class: Class,
    /// The request's own deadline: past it the run is `expired`.
    pub(crate) deadline: Wall,
    /// Acceptance plus the wall limit: past it the run has failed.
    pub(crate) wall_until: Wall,
    /// Whether the model is offered tools: a cut answer is then no end.
    pub(crate) has_tools: bool,
    /// How long the run may wait for a model in all.
    pub(crate) park_max: Duration,
}

/// What the driver knows beyond the journal at this moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    /// Estimated tokens of the next prompt.
    pub(crate) estimate: u64,
    /// Tokens at which compaction begins.
    pub(crate) threshold: u64,
    /// Whether the run was woken with a permit that is not used yet.
    pub(crate) permit: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Open the workspace, learn the tools: what a process must have before the first step.
    SetUp,
    /// Make the context smaller.
    Compact,
    /// Ask the model.
    CallModel,
    /// Settle effects that an earlier claim left without a result.
    Settle,
    /// Judge calls, up to the first that must run alone.
    Prepare,
    /// Run what was prepared.
    RunCalls,
    /// Close the step.
    CommitResults,
    /// End the run.
    End(Ending),
}

/// How a run ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) state: RunState,
    pub(crate) text: String,
    pub(crate) error: Option<Error>,
}

impl Ending {
    /// With a result.
    pub(crate) fn completed(text: impl Into<String>) -> Self {
        Self { state: RunState::Completed, text: text.into(), error: None }
    }

    /// With a cause.
    pub(crate) fn failed(error: Error) -> Self {
        Self { state: RunState::Failed, text: String::new(), error: Some(error) }
    }

    fn cancelled() -> Self {
        Self { state: RunState::Cancelled, text: String::new(), error: None }
    }
}

impl Rules {
    /// No work is wanted after this instant.
    pub(crate) fn until(&self) -> Wall {
        self.deadline.min(self.wall_until)
    }
}

/// What comes next.
pub(crate) fn next(view: &View, rules: &Rules, moment: Moment, now: Wall) -> Action {
    if view.cancelling {
        return Action::End(Ending::cancelled());
    }
    let settled = after_open(view, rules, now).or_else(|| after_answer(view, rules));
    if let Some(action) = settled {
        return action;
    }
    match limit_met(view, rules, moment, now) {
        Some(ending) => Action::End(ending),
        None => compact_or_call(view, moment),
    }
}

fn after_open(view: &View, rules: &Rules, now: Wall) -> Option<Action> {
    let open = view.open.as_ref()?;
    if open.truncated {
        return Some(Action::CommitResults);
    }
    if view.streak() >= STREAK_STOPPED {
        return Some(Action::End(Ending::failed(repeats(open))));
    }
    if all_settled(open) {
        return Some(match &view.finished {
            Some(text) => Action::End(Ending::completed(text)),
            None => Action::CommitResults,
        });
    }
    if let Some(ending) = time_is_up(rules, now) {
        return Some(Action::End(ending));
    }
    Some(unsettled(open))
}

fn unsettled(open: &Open) -> Action {
    let any = |wanted: fn(&CallState) -> bool| open.calls.iter().any(|call| wanted(&call.state));
    if any(|state| matches!(state, CallState::Intended { fresh: false, .. })) {
        Action::Settle
    } else if any(|state| matches!(state, CallState::Intended { fresh: true, .. })) {
        Action::RunCalls
    } else {
        Action::Prepare
    }
}

fn all_settled(open: &Open) -> bool {
    open.calls.iter().all(|call| matches!(call.state, CallState::Settled { .. }))
}

fn after_answer(view: &View, rules: &Rules) -> Option<Action> {
    if let Some(text) = &view.finished {
        return Some(Action::End(Ending::completed(text)));
    }
    let answer = view.answer.as_ref()?;
    Some(match answer.finish.as_str() {
        "refusal" => Action::End(Ending::failed(refused())),
        "length" if rules.has_tools => Action::CommitResults,
        _ => Action::End(Ending::completed(&answer.text)),
    })
}

fn limit_met(view: &View, rules: &Rules, moment: Moment, now: Wall) -> Option<Ending> {
    let limits = &rules.limits;
    let tokens = view.usage.input_tokens + view.usage.output_tokens;
    if view.streak() >= STREAK_STOPPED {
        return Some(Ending::failed(repeats_again()));
    }
    if view.n_malformed >= MALFORMED_STOPPED {
        return Some(Ending::failed(malformed()));
    }
    if let Some(ending) = time_is_up(rules, now) {
        return Some(ending);
    }
    if view.step > limits.steps_max {
        return Some(Ending::failed(steps(limits.steps_max)));
    }
    if tokens >= limits.tokens_max {
        return Some(Ending::failed(tokens_used(tokens, limits.tokens_max)));
    }
    if view.n_too_long >= TOO_LONG_MAX {
        return Some(Ending::failed(too_long(view, moment)));
    }
    waited_too_long(view, rules, moment, now)
}

/// The ending when no time is left.
pub(crate) fn time_is_up(rules: &Rules, now: Wall) -> Option<Ending> {
    if now >= rules.deadline {
        return Some(Ending { state: RunState::Expired, text: String::new(), error: Some(deadline()) });
    }
    (now >= rules.wall_until).then(|| Ending::failed(wall_limit(rules.limits.wall_ms_max)))
}

fn waited_too_long(view: &View, rules: &Rules, moment: Moment, now: Wall) -> Option<Ending> {
    let since = view.parked_since?;
    let waited = now.since(since) >= rules.park_max;
    (waited && !moment.permit).then(|| {
        Ending::failed(provider_unavailable("No deployment of the route answered while the run waited."))
    })
}

fn compact_or_call(view: &View, moment: Moment) -> Action {
    let wanted = view.too_long || moment.estimate > moment.threshold;
    if !wanted || view.compaction_exhausted {
        return Action::CallModel;
    }
    if view.n_compacted < COMPACTIONS_MAX {
        return Action::Compact;
    }
    Action::End(Ending::failed(too_long(view, moment)))
}

fn repeats(open: &Open) -> Error {
    let name = open.calls.last().map_or("", |call| call.call.name.as_str());
    repeats_of(&format!("The model asked for the same call of {name} {STREAK_STOPPED} times in a row."))
}

fn repeats_again() -> Error {
    repeats_of(&format!("The model asked for the same call {STREAK_STOPPED} times in a row."))
}

fn repeats_of(message: &str) -> Error {
    Error::new(
        Code::RunRepeats,
        Origin::Provider,
        message.to_owned(),
        "Look at the result that it did not understand, and ask again in other words.",
    )
}

fn malformed() -> Error {
    Error::new(
        Code::ReplyMalformed,
        Origin::Provider,
        format!(
            "The model's last {MALFORMED_STOPPED} replies were empty, malformed or cut by the token limit."
        ),
        "Raise output_tokens_max, or use another model for this route.",
    )
}

fn refused() -> Error {
    Error::new(
        Code::ContentRejected,
        Origin::Provider,
        "The model refused to answer.",
        "Change the request; its reply is in the thread.",
    )
}

fn deadline() -> Error {
    Error::new(
        Code::RunDeadline,
        Origin::Client,
        "The run's deadline passed before it could finish.",
        "Give the run a later deadline.",
    )
}

fn wall_limit(wall_ms_max: u64) -> Error {
    Error::new(
        Code::RunDeadline,
        Origin::Client,
        format!("The run used up its wall time of {wall_ms_max} ms."),
        "Raise wall_ms_max, or give the run a smaller task.",
    )
}

fn steps(steps_max: u32) -> Error {
    Error::new(
        Code::RunSteps,
        Origin::Client,
        format!("The run used up its {steps_max} steps without an answer."),
        "Raise steps_max, or give the run a smaller task.",
    )
}

fn tokens_used(tokens: u64, tokens_max: u64) -> Error {
    Error::new(
        Code::RunTokens,
        Origin::Client,
        format!("The run used {tokens} tokens of at most {tokens_max}."),
        "Raise tokens_max, or give the run a smaller task.",
    )
}

fn too_long(view: &View, moment: Moment) -> Error {
    Error::new(
        Code::ContextTooLong,
        Origin::Client,
        format!(
            "Step {} needs about {} tokens and cannot be made to fit {}.",
            view.step, moment.estimate, moment.threshold
        ),
        "Use a route with a larger window, or send a shorter message.",
    )
}

/// The failure of a run that may not wait longer for the model.
pub(crate) fn provider_unavailable(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    let remedy = "Try again in a few seconds.";
    Error::new(Code::ProviderUnavailable, Origin::Provider, message, remedy).retryable()
}
