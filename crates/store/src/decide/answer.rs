//! Answers of people to what a waiting run asks.
//!
//! An answer counts once, before its question expires, and only while the run waits for it: a run
//! that was cancelled, has expired or went on has no open question. The answers of one request are
//! taken all or none. When nothing is open any more the run is queued again as the next of its
//! thread, in the same transaction, so that an answer that was taken is never without a runner.

use evenkeel_core::approval::{Answered, Decision};
use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{Answer, AnswerTaken};
use evenkeel_core::run::{RunState, WaitReason, Waiting};

use super::{Context, log, whole_run};
use crate::record::RunRow;
use crate::rows::{Fault, Rowed};

/// Takes answers, or says why not.
pub(super) fn answer(ctx: &mut Context<'_>, request: &Answer) -> Rowed<AnswerTaken> {
    let Some(mut run) = ctx.rows.run(&request.tenant, request.run)? else {
        return Ok(AnswerTaken::NotFound);
    };
    if let Some(known) = by_key(ctx, request, &run)? {
        return Ok(known);
    }
    let Some((wait, told)) = taken(ctx, request, &run)? else {
        return Ok(AnswerTaken::Closed(Box::new(whole_run(ctx.rows, run)?)));
    };
    let mut thread = ctx.rows.thread_of(run.thread_n)?;
    for (step, body) in &told {
        log::append(ctx, &mut thread, &mut run, *step, body)?;
    }
    if let Some(key) = &request.key {
        ctx.rows.insert_key(&request.tenant, Some(run.thread), key, &run)?;
    }
    if wait.approvals.iter().any(|asked| asked.is_open(ctx.now.wall)) {
        run.wait = Some(wait);
    } else {
        thread.asks = false;
        run.state = RunState::Queued;
        run.ready = true;
        run.not_before = None;
        run.wait = None;
    }
    log::save(ctx, &mut thread, &mut run)?;
    let run = Box::new(whole_run(ctx.rows, run)?);
    Ok(AnswerTaken::Done { run, seq_last: thread.seq_last })
}

/// A request that was answered before. A key of the run's own creation names another request.
fn by_key(ctx: &mut Context<'_>, request: &Answer, run: &RunRow) -> Rowed<Option<AnswerTaken>> {
    let Some(key) = &request.key else {
        return Ok(None);
    };
    let Some(known) = ctx.rows.key_run(&request.tenant, Some(run.thread), key)? else {
        return Ok(None);
    };
    let known = ctx.rows.run_of(known)?;
    if known.key.as_ref() == Some(key) {
        return Ok(Some(AnswerTaken::KeyConflict));
    }
    Ok(Some(AnswerTaken::Replayed(Box::new(whole_run(ctx.rows, known)?))))
}

type Told = Vec<(u32, EventBody)>;

/// What the run waits for with the answers in it, and the events that tell of them; `None` if one of
/// them answers nothing that is open.
fn taken(ctx: &Context<'_>, request: &Answer, run: &RunRow) -> Rowed<Option<(Waiting, Told)>> {
    let waits = run.state == RunState::Waiting;
    let wait = run.wait.clone().filter(|wait| waits && wait.on == WaitReason::Approval);
    let Some(mut wait) = wait.filter(|_| !request.answers.is_empty()) else {
        return Ok(None);
    };
    let mut told = Vec::with_capacity(request.answers.len());
    for one in &request.answers {
        if one.decision == Decision::Expire {
            return Err(Fault::Misused("an answer cannot say that none came".to_owned()));
        }
        let asked = wait.approvals.iter_mut().find(|asked| asked.id == one.approval);
        let Some(asked) = asked.filter(|asked| asked.is_open(ctx.now.wall)) else {
            return Ok(None);
        };
        let (decision, by, note) = (one.decision, request.by.clone(), one.note.clone());
        let answer = Answered { decision, by, note, at: ctx.now.wall };
        asked.answer = Some(answer.clone());
        let (approval, call_id) = (asked.id.clone(), asked.call_id.clone());
        told.push((asked.step, EventBody::ApprovalAnswered { approval, call_id, answer }));
    }
    Ok(Some((wait, told)))
}
