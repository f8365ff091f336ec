//! `/v1/approvals`: what runs ask of a person, and the answers.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::approval::Approval;
use evenkeel_core::id::{ApprovalId, IdempotencyKey, RunId, TenantId};
use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{self, AnswerTaken, ListRuns, OneAnswer, ReadEvents, RunRef};
use evenkeel_core::run::{Run, RunState};
use evenkeel_core::{Code, Error, Wall};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::idempotency_key;
use super::openapi::{Door, gives, lists};
use super::runs::LIST_MAX;
use super::{Answer, GET, POST, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::gateway::route::Sent;
use crate::wire::interrupt;
use crate::wire::refusal::malformed;
use crate::wire::schema;

/// Events that are read at once.
const PAGE: u32 = 512;

pub(super) fn serve(door: Door) -> Door {
    let thread = schema::path_part("thread");
    let one = gives("approval", "One question, with the whole arguments and its answer", "Approval");
    let answer = gives("approval_answer", "Answers a question, once", "Approval").body("ApprovalAnswer");
    door.serve(
        GET,
        "/v1/approvals",
        list,
        lists("approvals", "What runs ask of a person now, oldest run last", "Approval")
            .paged()
            .query("thread", thread),
    )
    .serve(GET, "/v1/approvals/{approval}", get_one, one)
    .serve(POST, "/v1/approvals/{approval}", answer_one, answer)
}

#[derive(Debug, Default, Deserialize)]
struct ListQuery {
    thread: Option<String>,
    limit: Option<u32>,
    offset: Option<u32>,
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
) -> Answer {
    let thread = query.thread.as_deref().map(thread_id).transpose()?;
    let tenant = (!caller.operator).then_some(caller.tenant);
    let (offset, limit) =
        (query.offset.unwrap_or(0) as usize, query.limit.unwrap_or(100).min(LIST_MAX) as usize);
    let now = shared.env.wall();
    let (mut found, mut n_read) = (Vec::new(), 0);
    while found.len() < offset + limit {
        let request = ListRuns {
            tenant: tenant.clone(),
            thread,
            states: vec![RunState::Waiting],
            limit: LIST_MAX,
            offset: n_read,
        };
        let runs = shared.store.list_runs(request).await?;
        let n_found = u32::try_from(runs.len()).unwrap_or(LIST_MAX);
        n_read += n_found;
        for run in &runs {
            let open = run.asks().iter().filter(|asked| asked.is_open(now));
            found.extend(open.map(|asked| shown(run, asked, now, None)));
        }
        if n_found < LIST_MAX {
            break;
        }
    }
    let page: Vec<Value> = found.into_iter().skip(offset).take(limit).collect();
    Ok(Json(page).into_response())
}

/// Whose question it is: only an operator may name a tenant.
#[derive(Debug, Default, Deserialize)]
struct OneQuery {
    tenant: Option<String>,
}

impl OneQuery {
    fn tenant(&self, caller: &Caller) -> Result<TenantId, Error> {
        match &self.tenant {
            Some(tenant) if *tenant != caller.tenant.0 => {
                caller.must_operate()?;
                Ok(TenantId(tenant.clone()))
            }
            _ => Ok(caller.tenant.clone()),
        }
    }
}

async fn get_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<OneQuery>,
) -> Answer {
    let (run, id) = find(&shared, query.tenant(&caller)?, id).await?;
    Ok(Json(told(&shared, &run, &id).await?).into_response())
}

async fn answer_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<OneQuery>,
    headers: HeaderMap,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let body = sent.json()?;
    if body.get("decision").and_then(Value::as_str).is_none() {
        let remedy = "Send {\"decision\":\"approve\"} or {\"decision\":\"deny\",\"note\":\"why\"}.";
        return Err(malformed("`decision` is missing.", remedy).into());
    }
    let (run, id) = find(&shared, query.tenant(&caller)?, id).await?;
    let asked = run.asks().iter().find(|asked| asked.id == id);
    let key = idempotency_key(&headers)?;
    let answers = match asked {
        Some(asked) => vec![interrupt::decision(asked, &body)?],
        // A request that is repeated with its key is known still.
        None if key.is_some() => Vec::new(),
        None => {
            told(&shared, &run, &id).await?;
            return Err(interrupt::closed(id.as_str()).into());
        }
    };
    let given = Answers { by: caller.name.clone(), answers, key };
    let run = give(&shared, &run, given).await?.run;
    Ok(Json(told(&shared, &run, &id).await?).into_response())
}

/// What a person answers.
pub(super) struct Answers {
    /// Who.
    pub(super) by: String,
    /// What.
    pub(super) answers: Vec<OneAnswer>,
    /// The client's key.
    pub(super) key: Option<IdempotencyKey>,
}

/// What became of it.
pub(super) struct Taken {
    /// The run as it is now.
    pub(super) run: Run,
    /// The newest event of its thread, unless it was answered before.
    pub(super) seq_last: Option<u64>,
}

/// Stores answers and has the run go on.
pub(super) async fn give(shared: &Arc<Shared>, run: &Run, given: Answers) -> Result<Taken, Error> {
    let Answers { by, answers, key } = given;
    let n = answers.len();
    let named = answers.first().map(|one| one.approval.to_string());
    let request = store::Answer { tenant: run.tenant.clone(), run: run.id, answers, by: by.clone(), key };
    match shared.store.answer(request).await? {
        AnswerTaken::Done { run, seq_last } => {
            tracing::info!(run = %run.id, by, n, "approvals answered");
            shared.hub.touch(run.thread);
            shared.dispatch.nudge();
            shared.tell_of(false, &[]);
            Ok(Taken { run: *run, seq_last: Some(seq_last) })
        }
        AnswerTaken::Replayed(run) => Ok(Taken { run: *run, seq_last: None }),
        AnswerTaken::KeyConflict => Err(Error::client(
            Code::KeyReused,
            "This Idempotency-Key was used with another body.",
            "Use a new key for a new request.",
        )),
        AnswerTaken::Closed(_) => {
            Err(named.map_or_else(interrupt::nothing_asked, |id| interrupt::closed(&id)))
        }
        AnswerTaken::NotFound => Err(unknown("of this run")),
    }
}

async fn find(shared: &Shared, tenant: TenantId, id: String) -> Result<(Run, ApprovalId), Error> {
    let id = ApprovalId(id);
    let run: RunId = id.run().ok_or_else(|| unknown(id.as_str()))?;
    let found = shared.store.get_run(RunRef { tenant, run }).await?;
    found.map(|run| (run, id.clone())).ok_or_else(|| unknown(id.as_str()))
}

/// A question with its whole arguments: from the run while it waits, later from its journal.
async fn told(shared: &Shared, run: &Run, id: &ApprovalId) -> Result<Value, Error> {
    let mut asked: Option<Approval> = None;
    let mut calls: Vec<evenkeel_core::message::ToolCall> = Vec::new();
    let mut after_seq = 0;
    loop {
        let (tenant, thread) = (run.tenant.clone(), run.thread);
        let page = shared.store.read_events(ReadEvents { tenant, thread, after_seq, limit: PAGE }).await?;
        for event in page.iter().filter(|event| event.run == run.id) {
            match &event.body {
                EventBody::AssistantMessage { message, .. } if asked.is_none() => {
                    calls = message.tool_calls().cloned().collect();
                }
                EventBody::ApprovalRequested(approval) if approval.id == *id => {
                    asked = Some(approval.clone())
                }
                EventBody::ApprovalAnswered { approval, answer, .. } if approval == id => {
                    if let Some(asked) = &mut asked {
                        asked.answer = Some(answer.clone());
                    }
                }
                _ => {}
            }
        }
        match page.last() {
            Some(last) if page.len() >= PAGE as usize => after_seq = last.seq,
            _ => break,
        }
    }
    let asked = asked.ok_or_else(|| unknown(id.as_str()))?;
    let args = calls.into_iter().find(|call| call.id == asked.call_id).map(|call| call.args);
    Ok(shown(run, &asked, shared.env.wall(), args))
}

fn shown(run: &Run, asked: &Approval, now: Wall, args: Option<Value>) -> Value {
    json!({
        "id": asked.id,
        "state": state(run, asked, now),
        "run_id": run.id,
        "thread_id": run.thread,
        "tenant": run.tenant,
        "assistant": run.spec.assistant,
        "step": asked.step,
        "call_id": asked.call_id,
        "tool": asked.tool,
        "args": args,
        "args_shown": asked.args_shown,
        "digest": asked.digest,
        "reason": asked.reason,
        "policies": asked.policies,
        "asked_at": asked.asked_at.iso(),
        "expires_at": asked.expires_at.iso(),
        "answer": asked.answer.as_ref().map(|answer| json!({
            "decision": answer.decision, "by": answer.by, "note": answer.note, "at": answer.at.iso(),
        })),
    })
}

fn state(run: &Run, asked: &Approval, now: Wall) -> &'static str {
    let waits = run.asks().iter().any(|other| other.id == asked.id);
    match &asked.answer {
        Some(answer) => match answer.decision {
            evenkeel_core::approval::Decision::Approve => "approved",
            evenkeel_core::approval::Decision::Deny => "denied",
            evenkeel_core::approval::Decision::Expire => "expired",
        },
        None if waits && asked.is_open(now) => "open",
        None if waits => "expired",
        None => "void",
    }
}

fn unknown(what: &str) -> Error {
    Error::client(
        Code::ApprovalNotFound,
        format!("There is no approval {what}."),
        "GET /v1/approvals lists what is open.",
    )
}
