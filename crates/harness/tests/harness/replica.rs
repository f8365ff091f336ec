//! A replica among others: leases, zombies, draining.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::id::ReplicaId;
use evenkeel_core::port::store::{Heartbeat, Steal};
use evenkeel_core::run::RunState;
use evenkeel_core::{Mono, Wall};
use evenkeel_env::Clock;
use serde_json::json;

use super::lab::{Bench, Setup, end_of, in_time};
use super::world::{Say, TestModel};

#[test]
fn a_zombie_starts_no_tool_and_writes_nothing() {
    in_time(async {
        let bench = Bench::new(40);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let zombie = bench.start(|_| Say::Calls(vec![("send", json!({"what": "by the zombie"}))]));
        bench.reaches(run, |run| run.state == RunState::Running).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        // While its model call is under way another replica takes over.
        let me = ReplicaId::new(bench.env.wall(), &bench.env.generator);
        let beat =
            Heartbeat { replica: me, address: None, lease_ttl_ms: 60_000, draining: false, health: vec![] };
        bench.client().heartbeat(beat).await.unwrap();
        let steal = Steal { me, dead: vec![zombie.harness.replica()], limit: 10 };
        assert_eq!(bench.client().steal(steal).await.unwrap().len(), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(bench.world.sent.lock().unwrap().is_empty());
        assert_eq!(zombie.harness.stats().n_fenced, 1);
        assert_eq!(zombie.harness.stats().n_running, 0);
    });
}

/// The clock of a machine that is suspended: it stands still, and then goes on from there.
struct Suspended {
    real: Arc<dyn Clock>,
    /// Where it stands; 0 while it goes.
    at: AtomicU64,
}

impl Clock for Suspended {
    fn wall(&self) -> Wall {
        self.real.wall()
    }

    fn mono(&self) -> Mono {
        match self.at.load(Ordering::SeqCst) {
            0 => self.real.mono(),
            at => Mono(at),
        }
    }
}

/// A machine that was suspended does not know it: by its own clock its lease holds. Only the store
/// knows better, and refuses what it writes.
#[test]
fn a_replica_whose_clock_stood_still_writes_with_its_old_claim_and_is_refused() {
    in_time(async {
        let mut bench = Bench::new(45);
        let clock = Arc::new(Suspended { real: bench.env.clock.clone(), at: AtomicU64::new(0) });
        let real = std::mem::replace(&mut bench.env.clock, clock.clone());
        let tune: fn(&mut TestModel) = |model| model.latency = Duration::from_secs(20);
        let zombie = bench.start_with(Setup { tune, ..Setup::default() }, |_| Say::Text("by the zombie"));
        bench.env.clock = real;
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("chat", "go")).await;
        bench.reaches(run, |run| run.state == RunState::Running).await;
        clock.at.store(clock.real.mono().0.max(1), Ordering::SeqCst);
        let heir = bench.start(|_| Say::Text("by the heir"));
        assert_eq!(end_of(&bench.ended(run).await), "completed  by the heir");
        assert!(zombie.harness.stats().lease_held, "it believes in its lease");
        let n_fenced = || zombie.harness.stats().n_fenced;
        assert_eq!((n_fenced(), bench.client().counts(()).await.unwrap().n_fenced), (0, 0));
        while n_fenced() == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(bench.client().counts(()).await.unwrap().n_fenced, 1, "its turn was written and refused");
        let stats = zombie.harness.stats();
        assert_eq!((stats.n_running, stats.n_self_fenced), (0, 0));
        assert_eq!(heir.harness.stats().n_stolen, 1);
        assert_eq!(bench.transcript(thread).await, "User: go\nAssistant: by the heir");
        bench.assert_sound(thread).await;
    });
}

#[test]
fn a_replica_that_cannot_reach_the_store_stops_itself_and_comes_back_as_another() {
    in_time(async {
        let bench = Bench::new(41);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let process = bench.start(|_| Say::Hang);
        bench.reaches(run, |run| run.state == RunState::Running).await;
        let before = process.harness.replica();
        *process.store.stall.lock().unwrap() = Some("all");
        tokio::time::sleep(Duration::from_millis(4_100)).await;
        let stats = process.harness.stats();
        assert_eq!((stats.n_self_fenced, stats.n_running, stats.lease_held), (1, 0, false));
        assert_eq!(process.harness.free_slots(), 0);
        assert_ne!(process.harness.replica(), before);
        let claims = bench.run(run).await.attempt;
        *process.store.stall.lock().unwrap() = None;
        bench.reaches(run, |run| run.attempt > claims && run.owner == Some(process.harness.replica())).await;
        assert!(process.harness.stats().lease_held);
        assert_eq!(process.harness.slots()[0].in_use, 1);
    });
}

#[test]
fn a_stop_shorter_than_the_lease_changes_nothing() {
    in_time(async {
        let bench = Bench::new(42);
        let run = bench.admit(bench.new_thread(), bench.spec("coder", "go")).await;
        let process = bench.start(|_| Say::Text("done"));
        tokio::time::sleep(Duration::from_millis(50)).await;
        *process.store.stall.lock().unwrap() = Some("heartbeat");
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        *process.store.stall.lock().unwrap() = None;
        let ended = bench.ended(run).await;
        assert_eq!((end_of(&ended).as_str(), ended.attempt), ("completed  done", 1));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(process.harness.stats().n_self_fenced, 0);
    });
}

#[test]
fn a_draining_replica_hands_over_between_steps_and_leaves() {
    in_time(async {
        let bench = Bench::new(43);
        let mut runs = Vec::new();
        let script = |request: &evenkeel_core::port::model::ModelRequest| match request.step {
            1..=20 => Say::Calls(vec![("put", json!({"what": request.step}))]),
            _ => Say::Text("done"),
        };
        for _ in 0..5 {
            runs.push(bench.admit(bench.new_thread(), bench.spec("coder", "go")).await);
        }
        let old = bench.start(script);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(old.harness.stats().n_running, 5);
        old.harness.drain().await;
        assert_eq!(old.harness.stats().n_running, 0);
        assert_eq!(old.harness.free_slots(), 0);
        for run in &runs {
            assert_eq!(bench.run(*run).await.state, RunState::Queued);
        }
        let n_before = bench.world.n_executed("put");
        let _new = bench.start(script);
        for run in &runs {
            assert_eq!(end_of(&bench.ended(*run).await), "completed  done");
        }
        assert_eq!(bench.world.n_executed("put"), 100);
        assert!(n_before > 0, "it had begun");
    });
}

#[test]
fn more_runs_than_slots_all_end() {
    in_time(async {
        let bench = Bench::new(44);
        let mut runs = Vec::new();
        for n in 0..50 {
            let thread = if n % 3 == 0 {
                runs.first().map_or_else(|| bench.new_thread(), |(thread, _)| *thread)
            } else {
                bench.new_thread()
            };
            runs.push((thread, bench.admit(thread, bench.spec("chat", "go")).await));
        }
        let process = bench.start_with(Setup { n_slots: 3, ..Setup::default() }, |_| Say::Text("done"));
        for (thread, run) in &runs {
            assert_eq!(end_of(&bench.ended(*run).await), "completed  done");
            bench.assert_sound(*thread).await;
        }
        assert!(process.harness.slots()[0].in_use_peak <= 3);
        assert_eq!(bench.runs().await.len(), 50);
    });
}
