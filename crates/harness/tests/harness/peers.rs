//! Replicas that watch each other: what proves that one is dead, and what does not.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::run::{Run, RunState};
use evenkeel_env::{Listener, Net, Stream};
use evenkeel_harness::HarnessConfig;
use serde_json::json;

use super::lab::{Bench, Process, Setup, end_of, in_time};
use super::world::Say;

/// How an address answers.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Listens,
    Refuses,
    Hangs,
}

/// A network of which only the answers to probes are played.
#[derive(Default)]
struct ProbeNet(Mutex<BTreeMap<u16, Answer>>);

impl ProbeNet {
    fn set(&self, port: u16, answer: Answer) {
        self.0.lock().unwrap().insert(port, answer);
    }
}

impl Net for ProbeNet {
    fn connect(&self, _host: String, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let answer = self.0.lock().unwrap().get(&port).copied();
            match answer {
                Some(Answer::Listens) => {}
                Some(Answer::Hangs) => return std::future::pending().await,
                Some(Answer::Refuses) | None => return Err(io::ErrorKind::ConnectionRefused.into()),
            }
            Ok(Box::new(tokio::io::duplex(64).0) as Box<dyn Stream>)
        })
    }

    fn resolve(&self, _host: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn listen(&self, _address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// A bench with a played network.
fn bench(seed: u64) -> (Bench, Arc<ProbeNet>) {
    let mut bench = Bench::new(seed);
    let net = Arc::new(ProbeNet::default());
    bench.env.net = net.clone();
    (bench, net)
}

/// A replica at this port, listening.
fn replica(bench: &Bench, net: &ProbeNet, port: u16, say: fn(&ModelRequest) -> Say) -> Process {
    net.set(port, Answer::Listens);
    let config = HarnessConfig { address: Some(format!("10.0.0.1:{port}")), ..HarnessConfig::default() };
    bench.start_with(Setup { config, ..Setup::default() }, say)
}

/// A run at work at one replica, and a second replica that knows of the first.
async fn working(bench: &Bench, net: &ProbeNet, say: fn(&ModelRequest) -> Say) -> (Process, Process, Run) {
    let run = bench.admit(bench.new_thread(), bench.spec("coder", "go")).await;
    let first = replica(bench, net, 1, say);
    let run = bench.reaches(run, |run| run.state == RunState::Running).await;
    let second = replica(bench, net, 2, |_| Say::Text("done elsewhere"));
    while second.harness.peers().is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (first, second, run)
}

#[test]
fn a_peer_that_refuses_connections_is_taken_over_before_its_lease_lapses() {
    in_time(async {
        let (bench, net) = bench(50);
        let (first, second, run) = working(&bench, &net, |_| Say::Hang).await;
        let dead_at = bench.env.mono();
        drop(first);
        net.set(1, Answer::Refuses);
        let taken = bench.reaches(run.id, |run| run.owner == Some(second.harness.replica())).await;
        let took = bench.env.mono().since(dead_at);
        assert!(took <= Duration::from_millis(1_500), "{took:?}");
        assert_eq!(taken.attempt, 2);
        assert_eq!(end_of(&bench.ended(run.id).await), "completed  done elsewhere");
        assert_eq!(second.harness.stats().n_stolen, 1);
        assert!(second.harness.peers().is_empty(), "it is forgotten");
    });
}

#[test]
fn a_peer_that_does_not_answer_is_taken_over_when_its_lease_lapses() {
    in_time(async {
        let (bench, net) = bench(51);
        let (first, second, run) = working(&bench, &net, |_| Say::Hang).await;
        let dead_at = bench.env.mono();
        drop(first);
        net.set(1, Answer::Hangs);
        bench.reaches(run.id, |run| run.owner == Some(second.harness.replica())).await;
        let took = bench.env.mono().since(dead_at);
        let range = Duration::from_millis(3_000)..=Duration::from_millis(5_000);
        assert!(range.contains(&took), "{took:?}");
    });
}

#[test]
fn a_peer_that_hangs_and_keeps_its_lease_is_left_alone() {
    in_time(async {
        let (bench, net) = bench(52);
        let (first, second, run) = working(&bench, &net, |_| Say::Hang).await;
        net.set(1, Answer::Hangs);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(bench.run(run.id).await.owner, Some(first.harness.replica()));
        assert_eq!(second.harness.stats().n_stolen, 0);
    });
}

#[test]
fn a_false_suspicion_costs_a_call_and_no_turn() {
    in_time(async {
        let (bench, net) = bench(53);
        let step = |request: &ModelRequest| Say::Calls(vec![("put", json!({ "what": request.step }))]);
        let (first, second, run) = working(&bench, &net, step).await;
        // It lives and works, but its peer cannot reach it.
        net.set(1, Answer::Refuses);
        bench.reaches(run.id, |run| run.attempt > 1).await;
        net.set(1, Answer::Listens);
        assert_eq!(end_of(&bench.ended(run.id).await), "completed  done elsewhere");
        tokio::time::sleep(Duration::from_secs(2)).await;
        bench.assert_sound(run.thread).await;
        let stats = first.harness.stats();
        assert_eq!((stats.n_fenced, stats.n_running, stats.lease_held), (1, 0, true));
        assert_eq!(second.harness.stats().n_stolen, 1);
        let peers = second.harness.peers();
        assert_eq!(peers.iter().map(|peer| peer.replica).collect::<Vec<_>>(), [first.harness.replica()]);
    });
}

#[test]
fn a_hint_brings_a_stored_cancel_at_once() {
    in_time(async {
        let (bench, net) = bench(54);
        let (first, _second, run) = working(&bench, &net, |_| Say::Hang).await;
        // Between two beats: the next one is most of a second away.
        let beat_every = 1_000;
        let into = bench.env.mono().0 % beat_every;
        tokio::time::sleep(Duration::from_millis(beat_every - into + 100)).await;
        bench.cancel(run.id).await;
        let at = bench.env.mono();
        first.harness.look();
        let ended = bench.ended(run.id).await;
        assert_eq!(ended.state, RunState::Cancelled);
        let took = bench.env.mono().since(at);
        assert!(took < Duration::from_millis(200), "{took:?}");
    });
}
