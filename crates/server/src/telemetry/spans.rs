//! The journal as spans: one trace per run, with ids that follow from the run's id, so that a run
//! that another process resumes goes on in the same trace.
//!
//! ```text
//! invoke_agent coder            the run
//! ├─ step 1
//! │  ├─ chat large-2            one for each model attempt, also the failed ones
//! │  └─ execute_tool bash       one for each call
//! └─ step 2 ...
//! ```
//! Spans are made from what is committed, at the moment of the commit. Message texts are not put
//! into spans: they are in the journal, under the run's id.

use std::collections::BTreeMap;

use evenkeel_core::Wall;
use evenkeel_core::id::{BlobId, CallId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::{EffectResult, EventBody, NewEvent};
use evenkeel_core::run::{Attempt, Outcome, Run};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};

use super::names;

/// Runs of which something is remembered. Beyond it the oldest is forgotten, and its spans lose
/// their start times and names, nothing else.
const RUNS_MAX: usize = 10_000;

/// What is needed of one committed event.
#[derive(Debug)]
pub(super) enum Fact {
    /// Model attempts, with how the last one finished.
    Attempts(u32, Vec<Attempt>, Option<String>),
    /// A call begins.
    Intended(CallId, String),
    /// A call ended.
    Settled(u32, Box<EffectResult>, usize),
    /// A step is complete.
    Checkpoint(u32),
    /// The run ended.
    Ended(Outcome),
}

/// Whose facts.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    pub(super) tenant: TenantId,
    pub(super) thread: ThreadId,
    pub(super) run: RunId,
}

/// What is remembered of a run between its commits.
#[derive(Debug, Default)]
struct Remembered {
    assistant: Option<String>,
    created_at: Option<Wall>,
    traceparent: Option<String>,
    attempt: u32,
    step_began: BTreeMap<u32, Wall>,
    tools: BTreeMap<CallId, String>,
}

/// Makes spans from facts.
#[derive(Debug, Default)]
pub(super) struct Spans {
    runs: BTreeMap<RunId, Remembered>,
}

/// The facts in events that are about to be committed.
pub(super) fn facts(events: &[NewEvent]) -> Vec<Fact> {
    let fact = |event: &NewEvent| match &event.body {
        EventBody::AssistantMessage { attempts, finish, .. } => {
            Some(Fact::Attempts(event.step, attempts.clone(), Some(finish.clone())))
        }
        EventBody::ModelAttempts { attempts } => Some(Fact::Attempts(event.step, attempts.clone(), None)),
        EventBody::EffectIntended(intent) => {
            Some(Fact::Intended(intent.call_id.clone(), intent.tool.clone()))
        }
        EventBody::EffectSettled(result) => {
            let n_chars = result.text.chars().count();
            let result = EffectResult { text: String::new(), ..result.clone() };
            Some(Fact::Settled(event.step, Box::new(result), n_chars))
        }
        EventBody::Checkpoint { .. } => Some(Fact::Checkpoint(event.step)),
        _ => None,
    };
    events.iter().filter_map(fact).collect()
}

impl Spans {
    /// Remembers a run that was accepted or claimed here.
    pub(super) fn saw(&mut self, run: &Run) {
        let remembered = self.runs.entry(run.id).or_default();
        remembered.assistant = Some(run.spec.assistant.clone());
        remembered.created_at = Some(run.created_at);
        remembered.attempt = run.attempt;
        let traceparent = run.spec.request.get("traceparent").and_then(|text| text.as_str());
        remembered.traceparent = traceparent.map(str::to_owned);
        while self.runs.len() > RUNS_MAX {
            // Ids of version 7 sort by age.
            self.runs.pop_first();
        }
    }

    /// The spans that these facts complete.
    pub(super) fn of(&mut self, whose: &Whose, facts: Vec<Fact>, now: Wall) -> Vec<Span> {
        let remembered = self.runs.entry(whose.run).or_default();
        let mut spans = Vec::new();
        let mut ended = false;
        for fact in facts {
            match fact {
                Fact::Attempts(step, attempts, finish) => {
                    let began = attempts.first().map_or(now, |attempt| attempt.started_at);
                    remembered.step_began.entry(step).or_insert(began);
                    spans.extend(
                        attempts.iter().map(|attempt| model_call(whose, step, attempt, finish.as_deref())),
                    );
                }
                Fact::Intended(call, tool) => {
                    remembered.tools.insert(call, tool);
                }
                Fact::Settled(step, result, n_chars) => {
                    let began = Wall(now.0.saturating_sub(result.ms));
                    remembered.step_began.entry(step).or_insert(began);
                    let tool = remembered.tools.remove(&result.call_id);
                    spans.push(tool_call(whose, step, &result, tool.as_deref(), n_chars, now));
                }
                Fact::Checkpoint(number) => {
                    let began = remembered.step_began.remove(&number).unwrap_or(now);
                    spans.push(step(whose, number, began, now));
                }
                Fact::Ended(outcome) => {
                    let open = std::mem::take(&mut remembered.step_began);
                    spans.extend(open.into_iter().map(|(number, began)| step(whose, number, began, now)));
                    spans.push(run(whose, remembered, &outcome, now));
                    ended = true;
                }
            }
        }
        if ended {
            self.runs.remove(&whose.run);
        }
        spans
    }
}

fn run(whose: &Whose, remembered: &Remembered, outcome: &Outcome, now: Wall) -> Span {
    let assistant = remembered.assistant.as_deref().unwrap_or("unknown");
    let began = remembered.created_at.unwrap_or_else(|| made_at(whose.run));
    let mut span = span(whose, "run", None, format!("invoke_agent {assistant}"), began, now);
    span.attributes.extend([
        text(names::OPERATION, "invoke_agent"),
        text(names::AGENT_NAME, assistant),
        number(names::ATTEMPT, remembered.attempt.into()),
    ]);
    span.links = remembered.traceparent.as_deref().and_then(link).into_iter().collect();
    if let Some(error) = &outcome.error {
        fail(&mut span, error.code.as_str(), &error.message);
    }
    span
}

fn step(whose: &Whose, step: u32, began: Wall, now: Wall) -> Span {
    span(whose, &step_key(step), Some("run"), format!("step {step}"), began, now)
}

fn model_call(whose: &Whose, step: u32, attempt: &Attempt, finish: Option<&str>) -> Span {
    let key = format!("step/{step}/attempt/{}", attempt.attempt);
    let end = Wall(attempt.started_at.0 + attempt.ms);
    let name = format!("chat {}", attempt.model);
    let mut span = span(whose, &key, Some(&step_key(step)), name, attempt.started_at, end);
    span.kind = SpanKind::Client.into();
    span.attributes.extend([
        text(names::OPERATION, "chat"),
        text(names::PROVIDER, &attempt.provider),
        text(names::REQUEST_MODEL, &attempt.model),
        text(names::DEPLOYMENT, &attempt.deployment),
        number(names::STEP, step.into()),
        number(names::ATTEMPT, attempt.attempt.into()),
        number(names::INPUT_TOKENS, attempt.usage.input_tokens),
        number(names::CACHED_TOKENS, attempt.usage.cached_input_tokens),
        number(names::OUTPUT_TOKENS, attempt.usage.output_tokens),
    ]);
    span.attributes.extend(attempt.first_content_ms.map(|ms| number(names::FIRST_CONTENT_MS, ms)));
    if attempt.outcome == "ok" {
        span.attributes.extend(finish.map(|finish| text(names::FINISH_REASONS, finish)));
    } else {
        fail(&mut span, &attempt.outcome, attempt.cause.as_deref().unwrap_or_default());
    }
    span
}

fn tool_call(
    whose: &Whose,
    step: u32,
    result: &EffectResult,
    tool: Option<&str>,
    n_chars: usize,
    now: Wall,
) -> Span {
    let tool = tool.unwrap_or("unknown");
    let began = Wall(now.0.saturating_sub(result.ms));
    let key = format!("step/{step}/effect/{}", result.effect);
    let mut span = span(whose, &key, Some(&step_key(step)), format!("execute_tool {tool}"), began, now);
    span.attributes.extend([
        text(names::OPERATION, "execute_tool"),
        text(names::TOOL_NAME, tool),
        text(names::TOOL_CALL, result.call_id.as_str()),
        text(names::EFFECT, result.effect.as_str()),
        text(names::SETTLED, &result.settled),
        number(names::STEP, step.into()),
        number(names::OUTPUT_CHARS, n_chars as u64),
    ]);
    if result.is_error {
        fail(&mut span, "tool_error", &result.settled);
    }
    span
}

/// A span with what every span has. Identity comes first: a collector that cuts attributes keeps it.
fn span(whose: &Whose, key: &str, parent: Option<&str>, name: String, began: Wall, end: Wall) -> Span {
    Span {
        trace_id: trace_id(whose.run),
        span_id: span_id(whose.run, key),
        parent_span_id: parent.map(|parent| span_id(whose.run, parent)).unwrap_or_default(),
        name,
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: began.0.saturating_mul(1_000_000),
        end_time_unix_nano: end.0.max(began.0).saturating_mul(1_000_000),
        attributes: vec![
            text(names::RUN, &whose.run.to_string()),
            text(names::CONVERSATION, &whose.thread.to_string()),
            text(names::TENANT, whose.tenant.as_str()),
        ],
        ..Span::default()
    }
}

fn step_key(step: u32) -> String {
    format!("step/{step}")
}

/// The trace of a run.
pub(super) fn trace_id(run: RunId) -> Vec<u8> {
    derived(&format!("trace/{run}"), 16)
}

fn span_id(run: RunId, key: &str) -> Vec<u8> {
    derived(&format!("span/{run}/{key}"), 8)
}

fn derived(text: &str, n_bytes: usize) -> Vec<u8> {
    unhex(&BlobId::of(text.as_bytes()).0).into_iter().take(n_bytes).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
}

/// When a run's id was made: version 7 ids begin with the milliseconds.
fn made_at(run: RunId) -> Wall {
    let bytes = run.0.as_bytes();
    Wall(bytes.iter().take(6).fold(0, |ms, byte| ms << 8 | u64::from(*byte)))
}

/// The client's own trace, from `traceparent`.
fn link(traceparent: &str) -> Option<Link> {
    let mut fields = traceparent.split('-').skip(1);
    let trace_id = unhex(fields.next()?);
    let span_id = unhex(fields.next()?);
    (trace_id.len() == 16 && span_id.len() == 8).then(|| Link { trace_id, span_id, ..Link::default() })
}

fn fail(span: &mut Span, kind: &str, message: &str) {
    span.attributes.push(text(names::ERROR_TYPE, kind));
    span.status = Some(Status { code: StatusCode::Error.into(), message: message.to_owned() });
}

/// An attribute of text.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
