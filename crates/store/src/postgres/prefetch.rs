//! What an operation will surely look at: loaded before it is decided, so that one round trip is
//! enough.

use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::port::store::{Admit, Fence, Op};

use super::facts::{Facts, KeyName, Need, Needs, message_word};

/// The thread on which an operation acts, if it names one.
pub(super) fn thread_of(op: &Op) -> Option<ThreadId> {
    match op {
        Op::CreateThread(of) => Some(of.thread),
        Op::UpdateThread(of) => Some(of.thread),
        Op::DeleteThread(of) => Some(of.thread),
        Op::WriteState(of) => Some(of.thread),
        Op::Admit(of) => Some(of.thread),
        Op::CommitStep(of) => Some(of.fence.thread),
        Op::TakeSteered(of) => Some(of.fence.thread),
        Op::CommitTurn(of) => Some(of.fence.thread),
        Op::Park(of) => Some(of.fence.thread),
        Op::Release(of) => Some(of.fence.thread),
        _ => None,
    }
}

/// The needs of a write. `looks` says that nothing may be taken to be missing.
pub(super) fn of_write(op: &Op, candidates: &[RunId], known: &Facts, looks: bool, needs: &mut Needs) {
    match op {
        Op::CreateThread(of) => needs.add(Need::Row(of.tenant.clone(), of.thread)),
        Op::UpdateThread(of) => {
            needs.add(Need::Thread(of.tenant.clone(), of.thread));
            needs.add(Need::Metadata(of.thread));
        }
        Op::DeleteThread(of) => needs.add(Need::Thread(of.tenant.clone(), of.thread)),
        Op::WriteState(of) => {
            needs.add(Need::Thread(of.tenant.clone(), of.thread));
            needs.add(Need::Run(None, of.writer));
        }
        Op::Admit(of) => of_admit(of, known, looks, needs),
        Op::CommitStep(of) => of_fence(&of.fence, &of.events, known, needs),
        Op::CommitTurn(of) => of_fence(&of.fence, &of.events, known, needs),
        Op::Park(of) => of_fence(&of.fence, &of.events, known, needs),
        Op::TakeSteered(of) => of_fence(&of.fence, &[], known, needs),
        Op::Release(of) => of_fence(&of.fence, &[], known, needs),
        Op::Answer(of) => needs.add(Need::Run(Some(of.tenant.clone()), of.run)),
        Op::Cancel(of) => needs.add(Need::Run(Some(of.tenant.clone()), of.run)),
        Op::DeleteRun(of) => needs.add(Need::Run(Some(of.tenant.clone()), of.run)),
        _ => {
            for run in candidates.iter().filter(|run| !known.runs.contains_key(run)) {
                needs.add(Need::Run(None, *run));
            }
        }
    }
}

fn of_admit(of: &Admit, known: &Facts, looks: bool, needs: &mut Needs) {
    let is_known = known.threads.contains_key(&of.thread);
    if !is_known {
        needs.add(Need::Thread(of.tenant.clone(), of.thread));
    }
    if is_known && !looks {
        return;
    }
    if let Some(key) = &of.key {
        let scope = (!of.create_thread).then_some(of.thread);
        needs.add(Need::Key(KeyName::new(&of.tenant, scope, key)));
    }
    needs.add(Need::Run(Some(of.tenant.clone()), of.run));
    for message in &of.spec.messages {
        needs.add(Need::Message(of.thread, message_word(&message.id)));
    }
}

fn of_fence(fence: &Fence, events: &[NewEvent], known: &Facts, needs: &mut Needs) {
    if !known.threads.contains_key(&fence.thread) {
        needs.add(Need::Thread(fence.tenant.clone(), fence.thread));
    }
    let marks =
        |event: &NewEvent| matches!(event.body, EventBody::EffectIntended(_) | EventBody::EffectSettled(_));
    if events.iter().any(marks) && !known.effects.contains_key(&fence.run) {
        needs.add(Need::Effects(fence.run));
    }
}

/// The needs of a read.
pub(super) fn of_read(op: &Op, needs: &mut Needs) {
    match op {
        Op::GetThread(of) => {
            needs.add(Need::Row(of.tenant.clone(), of.thread));
            needs.add(Need::Metadata(of.thread));
        }
        Op::GetRun(of) | Op::ReadEffects(of) => needs.add(Need::Run(Some(of.tenant.clone()), of.run)),
        Op::ReadEvents(of) => {
            needs.add(Need::Row(of.tenant.clone(), of.thread));
            needs.add(Need::Events((of.thread, of.after_seq, of.limit)));
        }
        Op::ReadTails(threads) => {
            threads.iter().for_each(|of| needs.add(Need::Row(of.tenant.clone(), of.thread)));
        }
        Op::ListRuns(list) => needs.add(Need::ListRuns(list.clone())),
        Op::ListThreads(list) => needs.add(Need::ListThreads(list.clone())),
        Op::CountThreads(list) => needs.add(Need::CountThreads(list.clone())),
        Op::Counts(()) => {
            needs.add(Need::ByState);
            needs.add(Need::ByRoute);
        }
        Op::ListHeld(owner) => needs.add(Need::Held(*owner)),
        Op::CountParked(()) => needs.add(Need::ByRoute),
        Op::GetBlob(of) => needs.add(Need::Blob(of.blob.clone())),
        Op::FindKey(hash) => needs.add(Need::ApiKeys(Some(hash.clone()))),
        Op::ListKeys(()) => needs.add(Need::ApiKeys(None)),
        _ => {}
    }
}
