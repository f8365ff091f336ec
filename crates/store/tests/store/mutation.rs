//! The mutation matrix, rows of the store: each planted mistake is found by the conformance suite.
//!
//! The checks of the fence overlap, and a history in which two of them are left shows nothing of the
//! third. So each row of a check also shows it at work with the others off.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{
    Admit, Cancel, Cancelled, Claim, Op, Reply, Steal, Store, TurnCommitted, Written,
};
use evenkeel_store::Guards;
use evenkeel_store::conformance::{self, Stage};
use evenkeel_store::memory::MemoryStore;
use futures_util::FutureExt as _;

/// What the suite says against an engine, which must be something.
async fn found(mutant: impl Fn(&evenkeel_env::Env) -> Arc<dyn Store> + Send + Sync + 'static) -> String {
    let suite = conformance::all(move |env| {
        let store = mutant(&env);
        Box::pin(async move { store })
    });
    says(suite).await.expect("the suite passes with the mistake in it")
}

async fn says(check: impl Future<Output = ()>) -> Option<String> {
    let panic = AssertUnwindSafe(check).catch_unwind().await.err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

async fn found_without(guards: Guards, case: &str) {
    let found = found(move |env| MemoryStore::with_guards(env, guards) as Arc<dyn Store>).await;
    assert!(found.contains(case), "{case} is not among them:\n{found}");
}

fn stage(guards: Guards) -> Stage {
    let (env, clock) = conformance::world(7);
    Stage::new(MemoryStore::with_guards(&env, guards), env, clock)
}

/// Whether an owner whose run was stolen can still write.
async fn a_zombie_writes(guards: Guards) -> bool {
    let stage = stage(guards);
    let (zombie, thief) = (stage.replica().await, stage.replica().await);
    let claim = stage.begin(stage.new_thread(), "hello", zombie).await;
    stage.store.steal(Steal { me: thief, dead: vec![zombie], limit: 1 }).await.unwrap();
    matches!(stage.step(&claim.fence, Vec::new()).await, Written::Done { .. })
}

/// Whether a turn can end on a version that the thread has left.
async fn a_turn_ends_on_an_old_state(guards: Guards) -> bool {
    let (stage, claim) = ended(guards).await;
    matches!(stage.finish(&claim, false).await, TurnCommitted::Done { .. })
}

/// Whether a run that has ended can still be written.
async fn an_ended_run_is_written(guards: Guards) -> bool {
    let (stage, claim) = ended(guards).await;
    matches!(stage.step(&claim.fence, Vec::new()).await, Written::Done { .. })
}

async fn ended(guards: Guards) -> (Stage, Claim) {
    let stage = stage(guards);
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    stage.finish(&claim, false).await;
    (stage, claim)
}

#[tokio::test]
async fn no_epoch_check() {
    assert!(a_zombie_writes(Guards::NONE).await);
    assert!(!a_zombie_writes(Guards { epoch: true, ..Guards::NONE }).await);
    found_without(Guards { epoch: false, ..Guards::ALL }, "a_wrong_epoch_is_fenced_whichever_way").await;
}

#[tokio::test]
async fn no_version_check() {
    assert!(a_turn_ends_on_an_old_state(Guards::NONE).await);
    assert!(!a_turn_ends_on_an_old_state(Guards { version: true, ..Guards::NONE }).await);
    found_without(Guards { version: false, ..Guards::ALL }, "an_old_version_is_a_conflict").await;
}

#[tokio::test]
async fn no_status_check() {
    assert!(an_ended_run_is_written(Guards::NONE).await);
    assert!(!an_ended_run_is_written(Guards { status: true, ..Guards::NONE }).await);
    found_without(Guards { status: false, ..Guards::ALL }, "an_ended_run_is_not_written").await;
}

/// An engine with a mistake in front of it.
struct Bent {
    inner: Arc<MemoryStore>,
    mistake: Mistake,
}

#[derive(Clone, Copy)]
enum Mistake {
    /// The keys of clients are not stored.
    KeyLost,
    /// A forced cancel is acknowledged, and the owner of the run keeps its claim.
    OwnerKeepsItsClaim,
}

impl Store for Bent {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            match (self.mistake, op) {
                (Mistake::KeyLost, Op::Admit(admit)) => {
                    self.inner.apply(Op::Admit(Admit { key: None, ..admit })).await
                }
                (Mistake::OwnerKeepsItsClaim, Op::Cancel(cancel)) if cancel.force => {
                    let reply = self.inner.apply(Op::Cancel(Cancel { force: false, ..cancel })).await?;
                    Ok(match reply {
                        Reply::Cancel(Cancelled::Cancelling) => Reply::Cancel(Cancelled::Done),
                        reply => reply,
                    })
                }
                (_, op) => self.inner.apply(op).await,
            }
        })
    }
}

async fn found_with(mistake: Mistake) -> String {
    found(move |env| Arc::new(Bent { inner: MemoryStore::new(env), mistake }) as Arc<dyn Store>).await
}

#[tokio::test]
async fn idempotency_lost() {
    let found = found_with(Mistake::KeyLost).await;
    assert!(found.lines().filter(|line| line.contains("key")).count() >= 3, "{found}");
}

#[tokio::test]
async fn a_cancelled_run_may_commit() {
    let found = found_with(Mistake::OwnerKeepsItsClaim).await;
    assert!(found.contains("a_forced_cancel_fences_the_owner"), "{found}");
}
