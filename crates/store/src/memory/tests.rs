//! Each check of the fence does its work with the others off. That the suite notices when one is gone is
//! a row of the mutation matrix, in `tests/store/mutation.rs`.

use evenkeel_core::journal::{EventBody, counting};
use evenkeel_core::port::store::{Claim, Steal, TurnCommitted, Written};

use super::MemoryStore;
use crate::Guards;
use crate::conformance::{self, Stage};

fn stage(guards: Guards) -> Stage {
    let (env, clock) = conformance::world(7);
    Stage::new(MemoryStore::with_guards(&env, guards), env, clock)
}

/// A claim whose run another replica has stolen.
async fn robbed(stage: &Stage) -> Claim {
    let (zombie, thief) = (stage.replica().await, stage.replica().await);
    let claim = stage.begin(stage.new_thread(), "hello", zombie).await;
    let stolen = stage.store.steal(Steal { me: thief, dead: vec![zombie], limit: 1 }).await;
    assert_eq!(stolen.map(|claims| claims.len()), Ok(1));
    claim
}

#[tokio::test]
async fn without_any_check_a_zombie_writes() {
    let stage = stage(Guards::NONE);
    let claim = robbed(&stage).await;
    assert!(matches!(stage.step(&claim.fence, Vec::new()).await, Written::Done { .. }));
    assert!(matches!(stage.commit(&claim.fence, 99, false).await, TurnCommitted::Done { .. }));
}

#[tokio::test]
async fn the_epoch_alone_stops_a_zombie() {
    let stage = stage(Guards { epoch: true, ..Guards::NONE });
    let claim = robbed(&stage).await;
    assert_eq!(stage.step(&claim.fence, Vec::new()).await, Written::Fenced);
    assert_eq!(stage.commit(&claim.fence, claim.version, false).await, TurnCommitted::Fenced);
    assert_eq!(stage.park(&claim.fence, "main").await, Written::Fenced);
    assert_eq!(stage.release(&claim.fence).await, Written::Fenced);
}

#[tokio::test]
async fn the_status_alone_stops_a_writer_without_a_claim() {
    let stage = stage(Guards { status: true, ..Guards::NONE });
    let me = stage.replica().await;
    for give_up in ["park", "release", "finish"] {
        let claim = stage.begin(stage.new_thread(), "hello", me).await;
        match give_up {
            "park" => drop(stage.park(&claim.fence, "main").await),
            "release" => drop(stage.release(&claim.fence).await),
            _ => drop(stage.finish(&claim, false).await),
        }
        assert_eq!(stage.step(&claim.fence, Vec::new()).await, Written::Fenced, "after {give_up}");
        assert_eq!(stage.commit(&claim.fence, 0, false).await, TurnCommitted::Fenced, "after {give_up}");
    }
}

#[tokio::test]
async fn the_version_alone_stops_a_turn_on_an_old_state() {
    let stage = stage(Guards { version: true, ..Guards::NONE });
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { version: 1, .. }));
    assert_eq!(stage.finish(&claim, false).await, TurnCommitted::VersionConflict);
}

/// What the lab compares with: a turn that began later and ended later takes the one beside it away.
#[tokio::test]
async fn without_protection_the_last_write_wins() {
    let stage = stage(Guards::PLAIN);
    let me = stage.replica().await;
    let thread = stage.new_thread();
    let first = stage.begin(thread, "one", me).await;
    let second = stage.begin(thread, "two", me).await;
    let texts = async || {
        let events = stage.events(thread).await;
        let messages = counting(&events).into_iter().filter_map(|event| match &event.body {
            EventBody::UserMessage { message } => Some(message.joined_text()),
            _ => None,
        });
        messages.collect::<Vec<_>>()
    };
    assert_eq!(texts().await, ["two"], "the second turn reads a state without the first");
    assert!(matches!(stage.finish(&first, false).await, TurnCommitted::Done { version: 1, .. }));
    assert_eq!(texts().await, ["one"]);
    assert!(matches!(stage.finish(&second, false).await, TurnCommitted::Done { version: 2, .. }));
    assert_eq!(texts().await, ["two"], "the first turn is lost");
    let third = stage.begin(thread, "three", me).await;
    assert!(matches!(stage.finish(&third, false).await, TurnCommitted::Done { version: 3, .. }));
    assert_eq!(texts().await, ["two", "three"]);
}
