//! Tenancy: for another tenant nothing is there, whatever the operation.

use evenkeel_core::id::TenantId;
use evenkeel_core::port::store::{
    Admit, Admitted, Cancel, Cancelled, Claim, Fence, ListRuns, ReadEvents, RunRef, ThreadRef, TurnCommitted,
    Written,
};

use super::Stage;
use super::samples::{intend, note};
use super::stage::good;

super::cases! {
    reads_find_nothing_of_another_tenant,
    writes_reach_nothing_of_another_tenant,
    lists_hold_only_their_tenant,
}

async fn reads_find_nothing_of_another_tenant(stage: Stage) {
    let (stage, claim, foreign) = with_foreign_run(stage).await;
    let thread = ThreadRef { tenant: foreign.clone(), thread: claim.fence.thread };
    assert_eq!(good(stage.store.get_thread(thread.clone()).await), None);
    assert!(good(stage.store.read_tails(vec![thread]).await).is_empty());
    let run = RunRef { tenant: foreign.clone(), run: claim.fence.run };
    assert_eq!(good(stage.store.get_run(run.clone()).await), None);
    assert!(good(stage.store.read_effects(run).await).is_empty());
    let range = ReadEvents { tenant: foreign, thread: claim.fence.thread, after_seq: 0, limit: u32::MAX };
    assert!(good(stage.store.read_events(range).await).is_empty());
}

async fn writes_reach_nothing_of_another_tenant(stage: Stage) {
    let (stage, claim, foreign) = with_foreign_run(stage).await;
    let before = stage.log(claim.fence.thread).await;
    for create_thread in [false, true] {
        let admit = Admit {
            tenant: foreign.clone(),
            create_thread,
            ..stage.ask(claim.fence.thread, "from elsewhere")
        };
        assert_eq!(good(stage.store.admit(admit).await), Admitted::ThreadNotFound);
    }
    let fence = Fence { tenant: foreign.clone(), ..claim.fence.clone() };
    assert_eq!(stage.step(&fence, vec![note("x")]).await, Written::Fenced);
    assert_eq!(stage.commit(&fence, claim.version, true).await, TurnCommitted::Fenced);
    assert_eq!(stage.park(&fence, "main").await, Written::Fenced);
    assert_eq!(stage.release(&fence).await, Written::Fenced);
    for force in [false, true] {
        let cancel = Cancel { tenant: foreign.clone(), run: claim.fence.run, force, undo: false };
        assert_eq!(good(stage.store.cancel(cancel).await), Cancelled::NotFound);
    }
    assert_eq!(stage.log(claim.fence.thread).await, before);
    assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { .. }));
}

async fn lists_hold_only_their_tenant(stage: Stage) {
    let (stage, claim, foreign) = with_foreign_run(stage).await;
    let list = |tenant: Option<TenantId>, thread| ListRuns {
        tenant,
        thread,
        states: Vec::new(),
        limit: 9,
        offset: 0,
    };
    let thread = Some(claim.fence.thread);
    assert!(good(stage.store.list_runs(list(Some(foreign.clone()), thread)).await).is_empty());
    assert_eq!(good(stage.store.list_runs(list(Some(foreign), None)).await).len(), 1);
    assert_eq!(good(stage.store.list_runs(list(None, None)).await).len(), 2, "the operator sees all");
}

/// A running run with an effect, and a run of another tenant.
async fn with_foreign_run(stage: Stage) -> (Stage, Claim, TenantId) {
    let claim = stage.begin(stage.new_thread(), "mine", stage.replica().await).await;
    stage.step(&claim.fence, vec![intend("write")]).await;
    let foreign = TenantId::from("other");
    let admit = Admit { tenant: foreign.clone(), ..stage.ask(stage.new_thread(), "theirs") };
    stage.accept(admit).await;
    (stage, claim, foreign)
}
