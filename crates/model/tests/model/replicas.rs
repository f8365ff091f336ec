//! Three replicas over one provider: what one finds, the others hear with their heartbeats.

use std::collections::BTreeMap;

use evenkeel_core::Mono;
use evenkeel_core::id::ReplicaId;
use evenkeel_core::port::model::{Health, PeerHealth};
use evenkeel_model::config::RouterConfig;
use evenkeel_model::router::event::Event;

use crate::simulation::{Behaviour, World, down, p99, single, tiered};

const GOOD: Behaviour = Behaviour::Answers(250, 600);

fn is_down(now: Mono) -> bool {
    (20_000..50_000).contains(&now.0)
}

/// Three worlds in step, and the board on which each writes every second.
struct Fleet<F> {
    worlds: Vec<World<F>>,
    ids: Vec<ReplicaId>,
    board: BTreeMap<usize, Vec<Health>>,
}

impl<F: FnMut(Mono, usize, usize) -> Behaviour> Fleet<F> {
    /// Two tasks a second for 45 s, in turn to each replica.
    fn new(config: &RouterConfig, provider: impl Fn(usize) -> F) -> Self {
        let mut worlds: Vec<_> =
            (0..3).map(|idx| World::new(config, 7 + idx as u64, provider(idx))).collect();
        for n in 0..90 {
            worlds[n % 3].run_at(n as u64 * 500, 8);
        }
        let ids =
            worlds.iter().map(|world| ReplicaId::new(evenkeel_core::Wall(1), &world.generator)).collect();
        Self { worlds, ids, board: BTreeMap::new() }
    }

    /// Goes on to `until_ms`; the replicas in `silent` neither tell nor hear.
    fn until(&mut self, until_ms: u64, silent: &[usize]) {
        let mut round = self.worlds[0].now.0 / 1_000;
        while round * 1_000 < until_ms {
            for idx in 0..3 {
                let at = round * 1_000 + 300 * idx as u64;
                self.worlds[idx].until(at);
                if silent.contains(&idx) {
                    self.board.remove(&idx);
                } else {
                    self.board.insert(idx, self.worlds[idx].machine.health(Mono(at)));
                    let peers = self.peers_of(idx);
                    self.worlds[idx].tell(Event::Heard(peers));
                }
            }
            round += 1;
        }
    }

    /// The first of the worlds goes first, whatever its id.
    fn peers_of(&self, me: usize) -> Vec<PeerHealth> {
        let others = self.board.iter().filter(|(idx, _)| **idx != me);
        let told = |(idx, health): (&usize, &Vec<Health>)| PeerHealth {
            replica: self.ids[*idx],
            goes_first: *idx < me,
            health: health.clone(),
        };
        others.map(told).collect()
    }

    fn calls_while_down(&self) -> Vec<usize> {
        self.worlds.iter().map(|world| world.n_calls(0, 20_000, 50_000)).collect()
    }

    /// From the recovery to the first success of each replica.
    fn recovered_ms(&self) -> Vec<u64> {
        let first = |world: &World<F>| world.successes.iter().find(|at| at.0 >= 50_000).unwrap().0 - 50_000;
        self.worlds.iter().map(first).collect()
    }
}

#[test]
fn an_outage_costs_a_fleet_little_more_calls_than_one_replica() {
    for config in [single(), tiered()] {
        let behave = |_| |now: Mono, lane: usize, _| if lane == 0 && is_down(now) { down() } else { GOOD };
        let mut fleet = Fleet::new(&config, behave);
        fleet.until(600_000, &[]);
        let calls = fleet.calls_while_down();
        println!("{calls:?}");
        assert!(calls.iter().sum::<usize>() < 40, "{calls:?}");
        for world in &fleet.worlds {
            assert!(p99(&world.durations()) <= 51.0, "{}", p99(&world.durations()));
        }
    }
}

#[test]
fn recovery_is_heard_within_seconds() {
    let behave = |_| |now: Mono, _, _| if is_down(now) { down() } else { GOOD };
    let mut fleet = Fleet::new(&single(), behave);
    fleet.until(600_000, &[]);
    // The probe of the first, two heartbeats, the probe of the others, and the call itself.
    let took = fleet.recovered_ms();
    assert!(took[0] <= 2_600 && took.iter().all(|ms| *ms <= 4_600), "{took:?}");
}

#[test]
fn without_word_from_the_prober_the_others_probe_again() {
    let behave = |_| |now: Mono, _, _| if is_down(now) { down() } else { GOOD };
    let mut fleet = Fleet::new(&single(), behave);
    fleet.until(35_000, &[]);
    let before: usize = fleet.calls_while_down()[1..].iter().sum();
    fleet.until(40_000, &[0]);
    let after: usize = fleet.calls_while_down()[1..].iter().sum();
    assert!(after > before, "nobody asked: {before} {after}");
    fleet.until(600_000, &[0]);
    assert!(fleet.recovered_ms().iter().all(|ms| *ms <= 5_600), "{:?}", fleet.recovered_ms());
}

/// The way to the provider may be broken for one replica only.
#[test]
fn what_one_replica_cannot_reach_stays_open_to_the_others() {
    let behave = |idx: usize| move |now: Mono, _, _| if idx == 1 && is_down(now) { down() } else { GOOD };
    let mut fleet = Fleet::new(&single(), behave);
    fleet.until(600_000, &[]);
    let opened: Vec<u64> =
        fleet.worlds.iter_mut().map(|world| world.snapshot().deployments["acme-large"].n_opened).collect();
    assert_eq!(opened, [0, 1, 0]);
}
