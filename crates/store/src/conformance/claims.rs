//! Claims: parks and wakes, releases, leases and stealing.

use std::time::Duration;

use evenkeel_core::id::{ReplicaId, RunId};
use evenkeel_core::port::model::Health;
use evenkeel_core::port::store::{Admit, Claim, Heartbeat, Held, Park, Steal, TurnCommitted, Wake, Written};
use evenkeel_core::run::{Class, RunSpec, RunState, WaitReason};

use super::Stage;
use super::samples::note;
use super::stage::{LEASE_TTL_MS, good};

super::cases! {
    a_parked_run_is_woken_where_it_stopped,
    a_park_says_why,
    urgent_runs_wake_first,
    runs_wake_on_their_route_only,
    a_wake_without_a_route_takes_all,
    a_run_is_woken_once,
    ready_runs_are_claimed_oldest_first,
    a_released_run_runs_before_what_waits,
    a_released_message_is_not_said_twice,
    a_live_owner_is_not_robbed,
    a_lapsed_owner_is_robbed,
    a_named_dead_owner_is_robbed_at_once,
    nobody_robs_itself,
    a_thief_takes_the_oldest_up_to_its_limit,
    one_run_has_one_thief,
    what_a_leaver_held_can_be_stolen,
    an_unknown_replica_has_no_lease,
    a_lapsed_replica_is_told,
    peers_are_seen,
    a_cancelling_run_of_a_dead_owner_ends,
    a_claim_needs_no_lease_of_its_own,
}

async fn a_parked_run_is_woken_where_it_stopped(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "hello", me).await;
    let held = Held { tenant: claim.fence.tenant.clone(), run: claim.fence.run, thread };
    assert_eq!(good(stage.store.list_held(me).await), [held]);
    assert_eq!(
        stage.park(&claim.fence, "main").await,
        Written::Done { seq_last: 3, cancelling: false, steered: false }
    );
    assert_eq!(good(stage.store.list_held(me).await), []);
    let woken = stage.wake(me, "main", 9).await.remove(0);
    assert_eq!((woken.fence.epoch, woken.version, woken.run.attempt), (2, 0, 2));
    assert_eq!((woken.run.state, &woken.run.wait), (RunState::Running, &None));
    let log = ["claimed epoch 1 attempt 1", "user hello", "parked", "claimed epoch 2 attempt 2"];
    assert_eq!(stage.log(thread).await, log);
    stage.check_thread(thread).await;
}

async fn a_park_says_why(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let until = stage.env.wall().after(Duration::from_secs(9));
    let park = Park {
        fence: claim.fence.clone(),
        on: WaitReason::Model,
        reason: "all breakers are open".to_owned(),
        until_hint: Some(until),
        route: Some("main".to_owned()),
        approvals: Vec::new(),
        events: vec![note("before")],
    };
    good(stage.store.park(park).await);
    let run = stage.run(claim.fence.run).await;
    let wait = run.wait.expect("it waits");
    assert_eq!((wait.on, wait.reason.as_str()), (WaitReason::Model, "all breakers are open"));
    assert_eq!((wait.until_hint, wait.route.as_deref()), (Some(until), Some("main")));
    assert_eq!((wait.since, run.owner), (stage.env.wall(), None));
    let counts = good(stage.store.counts(()).await);
    assert_eq!(counts.parked, [("main".to_owned(), 1)]);
    assert_eq!(good(stage.store.count_parked(()).await), counts.parked);
    let last = stage.log(claim.fence.thread).await.split_off(2);
    assert_eq!(last, ["note before", "parked"]);
    stage.check_thread(claim.fence.thread).await;
}

async fn urgent_runs_wake_first(stage: Stage) {
    let me = stage.replica().await;
    // Class and seconds to the deadline; the order in which they must wake is in the text.
    let rows = [
        (Class::Batch, 10, "fourth"),
        (Class::Interactive, 50, "third"),
        (Class::Interactive, 20, "first"),
        (Class::Interactive, 20, "second"),
        (Class::Batch, 30, "fifth"),
    ];
    for (class, deadline_s, text) in rows {
        let admit = stage.ask(stage.new_thread(), text);
        let deadline = stage.env.wall().after(Duration::from_secs(deadline_s));
        let spec = RunSpec { class, deadline, ..admit.spec.clone() };
        let admit = Admit { spec, claim_for: Some(me), ..admit };
        let claim = stage.accept(admit).await.1.expect("the thread is free");
        stage.park(&claim.fence, "main").await;
    }
    let texts = |claims: Vec<Claim>| -> Vec<String> {
        claims.iter().map(|claim| claim.run.spec.messages.iter().map(|m| m.joined_text()).collect()).collect()
    };
    assert_eq!(texts(stage.wake(me, "main", 2).await), ["first", "second"]);
    assert_eq!(texts(stage.wake(me, "main", 9).await), ["third", "fourth", "fifth"]);
}

async fn runs_wake_on_their_route_only(stage: Stage) {
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    stage.park(&claim.fence, "main").await;
    assert!(stage.wake(me, "other", 9).await.is_empty());
    let for_tool = Wake { me, on: WaitReason::Tool, route: None, limit: 9 };
    assert!(good(stage.store.wake(for_tool).await).is_empty());
    assert!(stage.wake(me, "main", 0).await.is_empty());
    assert_eq!(stage.wake(me, "main", 9).await.len(), 1);
}

async fn a_wake_without_a_route_takes_all(stage: Stage) {
    let me = stage.replica().await;
    for route in ["main", "other"] {
        let claim = stage.begin(stage.new_thread(), "hello", me).await;
        stage.park(&claim.fence, route).await;
    }
    let all = Wake { me, on: WaitReason::Model, route: None, limit: 9 };
    assert_eq!(good(stage.store.wake(all).await).len(), 2);
}

async fn a_run_is_woken_once(stage: Stage) {
    let (me, other) = (stage.replica().await, stage.replica().await);
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    stage.park(&claim.fence, "main").await;
    assert_eq!(stage.wake(me, "main", 9).await.len(), 1);
    assert!(stage.wake(other, "main", 9).await.is_empty());
}

async fn ready_runs_are_claimed_oldest_first(stage: Stage) {
    let me = stage.replica().await;
    let mut ids = Vec::new();
    for text in ["one", "two", "three"] {
        ids.push(stage.enqueue(stage.new_thread(), text).await.id);
    }
    assert!(stage.ready(me, 0).await.is_empty());
    let first = runs(&stage.ready(me, 2).await);
    let rest = runs(&stage.ready(me, 9).await);
    assert_eq!([first, rest].concat(), ids);
}

async fn a_released_run_runs_before_what_waits(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "one", me).await;
    let waiting = stage.enqueue(thread, "two").await;
    stage.release(&claim.fence).await;
    let released = stage.run(claim.fence.run).await;
    assert_eq!((released.state, released.owner, released.position), (RunState::Queued, None, 0));
    assert_eq!(stage.run(waiting.id).await.position, 1);
    stage.check_thread(thread).await;
    assert_eq!(runs(&stage.ready(me, 9).await), [claim.fence.run]);
    stage.check_thread(thread).await;
}

async fn a_released_message_is_not_said_twice(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "hello", me).await;
    stage.release(&claim.fence).await;
    let again = stage.ready(me, 1).await.remove(0);
    assert_eq!((again.run.attempt, again.fence.epoch), (2, 2));
    let log = ["claimed epoch 1 attempt 1", "user hello", "claimed epoch 2 attempt 2"];
    assert_eq!(stage.log(thread).await, log);
}

async fn a_live_owner_is_not_robbed(stage: Stage) {
    let (owner, me) = (stage.replica().await, stage.replica().await);
    stage.begin(stage.new_thread(), "hello", owner).await;
    stage.clock.advance(Duration::from_millis(LEASE_TTL_MS));
    assert!(steal(&stage, me, &[], 9).await.is_empty());
    stage.beat(owner).await;
    stage.clock.advance(Duration::from_millis(LEASE_TTL_MS));
    assert!(steal(&stage, me, &[], 9).await.is_empty());
}

async fn a_lapsed_owner_is_robbed(stage: Stage) {
    let (owner, me) = (stage.replica().await, stage.replica().await);
    let claim = stage.begin(stage.new_thread(), "hello", owner).await;
    stage.clock.advance(Duration::from_millis(LEASE_TTL_MS + 1));
    let stolen = steal(&stage, me, &[], 9).await;
    assert_eq!(runs(&stolen), [claim.fence.run]);
    assert_eq!(stolen[0].run.owner, Some(me));
    stage.check_thread(claim.fence.thread).await;
}

async fn a_named_dead_owner_is_robbed_at_once(stage: Stage) {
    let (dead, live, me) = (stage.replica().await, stage.replica().await, stage.replica().await);
    let claim = stage.begin(stage.new_thread(), "hello", dead).await;
    stage.begin(stage.new_thread(), "hello", live).await;
    assert_eq!(runs(&steal(&stage, me, &[dead], 9).await), [claim.fence.run]);
}

async fn nobody_robs_itself(stage: Stage) {
    let me = stage.replica().await;
    stage.begin(stage.new_thread(), "hello", me).await;
    stage.clock.advance(Duration::from_millis(LEASE_TTL_MS + 1));
    assert!(steal(&stage, me, &[me], 9).await.is_empty());
}

async fn a_thief_takes_the_oldest_up_to_its_limit(stage: Stage) {
    let (one, two, me) = (stage.replica().await, stage.replica().await, stage.replica().await);
    let mut held = Vec::new();
    for owner in [one, two, one, two] {
        held.push(stage.begin(stage.new_thread(), "hello", owner).await.fence.run);
    }
    assert!(steal(&stage, me, &[one, two], 0).await.is_empty());
    let first = runs(&steal(&stage, me, &[one, two], 3).await);
    let rest = runs(&steal(&stage, me, &[one, two], 3).await);
    assert_eq!((first.len(), [first, rest].concat()), (3, held));
}

async fn one_run_has_one_thief(stage: Stage) {
    let (dead, me, other) = (stage.replica().await, stage.replica().await, stage.replica().await);
    stage.begin(stage.new_thread(), "hello", dead).await;
    assert_eq!(steal(&stage, me, &[dead], 9).await.len(), 1);
    assert!(steal(&stage, other, &[dead], 9).await.is_empty());
}

async fn what_a_leaver_held_can_be_stolen(stage: Stage) {
    let (leaver, me) = (stage.replica().await, stage.replica().await);
    stage.begin(stage.new_thread(), "hello", leaver).await;
    good(stage.store.leave(leaver).await);
    assert!(stage.beat(me).await.peers.is_empty());
    assert_eq!(steal(&stage, me, &[], 9).await.len(), 1);
}

async fn an_unknown_replica_has_no_lease(stage: Stage) {
    let me = stage.replica().await;
    let stranger = ReplicaId::new(stage.env.wall(), &stage.env.generator);
    stage.begin(stage.new_thread(), "hello", stranger).await;
    assert_eq!(steal(&stage, me, &[], 9).await.len(), 1);
}

async fn a_lapsed_replica_is_told(stage: Stage) {
    let me = stage.replica().await;
    assert!(stage.beat(me).await.held);
    stage.clock.advance(Duration::from_millis(LEASE_TTL_MS));
    assert!(stage.beat(me).await.held, "a lease holds to its last millisecond");
    stage.clock.advance(Duration::from_millis(LEASE_TTL_MS + 1));
    assert!(!stage.beat(me).await.held);
    assert!(stage.beat(me).await.held, "the next term has begun");
}

async fn peers_are_seen(stage: Stage) {
    let (me, other) = (stage.replica().await, stage.replica().await);
    let health =
        vec![Health { deployment: "large \u{201c}main\u{201d}".to_owned(), cut: true, probes: false }];
    let beat = Heartbeat {
        replica: other,
        address: Some("10.0.0.2:7070".to_owned()),
        lease_ttl_ms: 100,
        draining: true,
        health: health.clone(),
    };
    good(stage.store.heartbeat(beat).await);
    let peer = stage.beat(me).await.peers.remove(0);
    assert_eq!((peer.replica, peer.address.as_deref()), (other, Some("10.0.0.2:7070")));
    assert_eq!((peer.lapsed, peer.draining, peer.health), (false, true, health));
    stage.clock.advance(Duration::from_millis(101));
    assert!(stage.beat(me).await.peers.remove(0).lapsed);
}

async fn a_cancelling_run_of_a_dead_owner_ends(stage: Stage) {
    let (dead, me) = (stage.replica().await, stage.replica().await);
    let claim = stage.begin(stage.new_thread(), "one", dead).await;
    let waiting = stage.enqueue(claim.fence.thread, "two").await;
    stage.cancel(claim.fence.run).await;
    assert!(steal(&stage, me, &[dead], 9).await.is_empty(), "nobody runs it on");
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Cancelled);
    assert_eq!(stage.finish(&claim, false).await, TurnCommitted::Fenced);
    assert_eq!(runs(&stage.ready(me, 9).await), [waiting.id]);
    stage.check_thread(claim.fence.thread).await;
}

async fn a_claim_needs_no_lease_of_its_own(stage: Stage) {
    let me = stage.replica().await;
    stage.enqueue(stage.new_thread(), "hello").await;
    stage.clock.advance(Duration::from_millis(LEASE_TTL_MS + 1));
    let claim = stage.ready(me, 1).await.remove(0);
    assert!(
        matches!(stage.finish(&claim, false).await, TurnCommitted::Done { .. }),
        "leases give liveness only: until a later claim, the holder of the newest epoch writes"
    );
}

async fn steal(stage: &Stage, me: ReplicaId, dead: &[ReplicaId], limit: u32) -> Vec<Claim> {
    good(stage.store.steal(Steal { me, dead: dead.to_vec(), limit }).await)
}

fn runs(claims: &[Claim]) -> Vec<RunId> {
    claims.iter().map(|claim| claim.fence.run).collect()
}
