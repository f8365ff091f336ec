//! Appending to a thread's log, and what the store reads from the bodies.

use std::collections::BTreeSet;

use evenkeel_core::id::{EffectId, RunId};
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::message::Message;
use evenkeel_core::run::{EndReason, Outcome};

use super::Context;
use crate::record::{RunRow, ThreadRow};
use crate::rows::{EffectSide, Entry, Rowed};

/// Appends an event of a run and keeps what follows from its body, for the thread and for the run:
/// its step and usage. The rows are changed in place; the caller saves them.
pub(super) fn append(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    step: u32,
    body: &EventBody,
) -> Rowed<()> {
    write(ctx, thread, Author { n: run.n, id: run.id }, step, body)?;
    match body {
        EventBody::Checkpoint { .. } => run.step = step,
        EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } => {
            for attempt in attempts {
                run.usage.add(attempt.usage);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Who wrote an event: a run, or the writer of a change of state.
#[derive(Clone, Copy)]
pub(super) struct Author {
    pub(super) n: u64,
    pub(super) id: RunId,
}

/// Appends one event and keeps what follows from it for the thread: the effect table, and where the
/// context begins.
pub(super) fn write(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    author: Author,
    step: u32,
    body: &EventBody,
) -> Rowed<()> {
    thread.seq_last += 1;
    let entry = Entry {
        thread_n: thread.n,
        thread: thread.id,
        seq: thread.seq_last,
        run_n: author.n,
        run: author.id,
        step,
        at: ctx.now.wall,
        body,
    };
    ctx.rows.append(&entry)?;
    match body {
        EventBody::EffectIntended(intent) => {
            ctx.rows.mark_effect(&entry, &intent.effect, EffectSide::Intended)?;
        }
        EventBody::EffectSettled(result) => {
            ctx.rows.mark_effect(&entry, &result.effect, EffectSide::Settled)?;
        }
        EventBody::Compacted { from, to, summary: Some(_), .. } => move_context(thread, *from, *to),
        EventBody::Rewound { to, .. } => rewind_context(thread, *to),
        _ => {}
    }
    Ok(())
}

/// Moves the start of the context behind a range that a summary replaced. The summary itself comes
/// later in the log, so it stays inside. A range that begins after the context's start leaves
/// something before it in use; then the start stays, which costs a longer read and loses nothing.
fn move_context(thread: &mut ThreadRow, from: u64, to: u64) {
    if from <= thread.context_from {
        thread.context_from = to.saturating_add(1).clamp(thread.context_from, thread.seq_last);
        thread.context_at = thread.seq_last;
    }
}

/// The context of an earlier state. Where it began is known back to the event that set it last;
/// before that it is read from the start, which costs time and loses nothing.
fn rewind_context(thread: &mut ThreadRow, to: u64) {
    if to < thread.context_at {
        thread.context_from = 1;
        thread.context_at = thread.seq_last;
    }
}

/// Appends all events in order.
pub(super) fn append_all(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    events: &[NewEvent],
) -> Rowed<()> {
    for event in events {
        append(ctx, thread, run, event.step, &event.body)?;
    }
    Ok(())
}

/// The messages of a turn enter the log.
pub(super) fn append_messages(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    step: u32,
    messages: Vec<Message>,
) -> Rowed<()> {
    for message in messages {
        append(ctx, thread, run, step, &EventBody::UserMessage { message })?;
    }
    Ok(())
}

/// The first effect of the batch whose intent, or result, exists already or comes twice.
pub(super) fn effect_conflict(
    ctx: &mut Context<'_>,
    run: &RunRow,
    events: &[NewEvent],
) -> Rowed<Option<EffectId>> {
    let mut intended = BTreeSet::new();
    let mut settled = BTreeSet::new();
    for event in events {
        let conflict = match &event.body {
            EventBody::EffectIntended(intent) => {
                let stored = ctx.rows.effect(run.n, &intent.effect)?;
                // An intent after its result would claim that the call has yet to run.
                let late = stored.intended || stored.settled || settled.contains(&intent.effect);
                (late || !intended.insert(&intent.effect)).then_some(&intent.effect)
            }
            EventBody::EffectSettled(result) => {
                let stored = ctx.rows.effect(run.n, &result.effect)?;
                (stored.settled || !settled.insert(&result.effect)).then_some(&result.effect)
            }
            _ => None,
        };
        if let Some(effect) = conflict {
            return Ok(Some(effect.clone()));
        }
    }
    Ok(None)
}

/// Ends a run: its last event, its state, its outcome. One that is undone takes the conversation back
/// to where it began first. Hands nothing over and saves nothing but the
/// outcome; whoever ends the active run also calls `hand_over`.
pub(super) fn end(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    outcome: &Outcome,
) -> Rowed<()> {
    let step = run.step;
    if outcome.reason.is_some_and(EndReason::undoes)
        && let Some(base) = run.base
    {
        let back = EventBody::Rewound { to: base.seq, cause: "rollback".to_owned() };
        append(ctx, thread, run, step, &back)?;
        (thread.context_from, thread.context_at) = (base.context_from, thread.seq_last);
    }
    append(ctx, thread, run, step, &EventBody::RunEnded { outcome: outcome.clone() })?;
    thread.asks &= thread.active != Some(run.id);
    run.state = outcome.state;
    run.ready = false;
    run.wait = None;
    run.owner = None;
    ctx.rows.save_outcome(run.n, outcome)
}

/// Stores both rows with the time of this operation.
pub(super) fn save(ctx: &mut Context<'_>, thread: &mut ThreadRow, run: &mut RunRow) -> Rowed<()> {
    thread.updated_at = ctx.now.wall;
    run.updated_at = ctx.now.wall;
    ctx.rows.save_run(run)?;
    ctx.rows.save_thread(thread)
}
