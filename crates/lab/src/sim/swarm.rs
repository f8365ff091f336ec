//! The swarm: a scenario that is drawn from the seed instead of read from a file.
//!
//! Each seed leaves most things out and does the rest hard: another topology, another load, another
//! handful of faults, other limits. Many small and different runs find more than many equal ones.
//! A drawn scenario has no goal for success, since its faults may take everything away; what must hold
//! is what the checker says: nothing lost, doubled or forked while things break, and an end for all
//! that was accepted after everything has healed.
//!
//! What a seed draws changes when there is more to draw from, and a seed that once found something
//! would then be another scenario. So there are editions: the tests keep what a seed found together
//! with the edition in which it found it, and commands use the newest.

use evenkeel_core::Generator;
use evenkeel_model::config::DeploymentLimits;
use evenkeel_server::config::Limits;

use crate::link;
use crate::provider::{Fault, Timing, WireKind};
use crate::scenario::{
    Action, Base, Chat, Door, Goals, Link, PlannedFault, Protect, Provider, Scenario, StoreKind, Target,
    Topology, Traffic, Trouble,
};
use crate::task::Shape;

/// The name by which a drawn scenario is asked for.
pub(crate) const SWARM: &str = "swarm";

/// What there is to draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Edition {
    /// Faults of providers, processes and links; a store that is slow or restarts.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests go back to what old seeds found"))]
    First,
    /// Also a store in trouble, wrong clocks, two replicas at once, links that are held one after the
    /// other, outages that come and go or are long, every provider, and every busy policy but `merge`.
    Second,
}

/// The scenario of this seed.
pub(crate) fn draw(seed: u64) -> Scenario {
    draw_of(Edition::Second, seed)
}

/// The scenario of this seed as an edition drew it.
pub(crate) fn draw_of(edition: Edition, seed: u64) -> Scenario {
    let dice = Dice(Generator::from_seed(seed).part("swarm"));
    let is_chat = dice.comes(0.6);
    let topology = topology(&dice);
    let traffic = traffic(&dice, is_chat);
    let of_one = |_| match edition {
        Edition::First => fault(&dice, &topology, traffic.duration_s).into_iter().collect(),
        Edition::Second => faults(&dice, &topology, &traffic),
    };
    let faults = (0..dice.below(5)).flat_map(of_one).collect();
    let mut scenario = Scenario {
        name: SWARM.to_owned(),
        about: format!("Drawn from seed {seed}."),
        seed,
        protect: Protect::Full,
        chat: chat(&dice),
        model: Timing {
            first_token_ms: dice.between(50.0, 900.0),
            tokens_per_s: dice.between(20.0, 200.0),
            jitter: dice.between(0.0, 0.5),
            piece_ms: dice.between(50.0, 500.0),
        },
        provider: providers(&dice),
        limits: limits(&dice),
        topology,
        traffic,
        faults,
        goals: Goals {
            success_min: 0.0,
            p99_max_s: None,
            p99_over_base_max_s: None,
            base: Base::BeforeFault,
            lost_max: 0,
            doubled_max: 0,
            calls_while_down_max: None,
            resumed_min: None,
            parked_min: None,
            fenced_min: None,
            broken_requests_max: None,
        },
    };
    if edition >= Edition::Second {
        if dice.comes(0.3) {
            // Not `merge`: one reply to several turns names only the last of them.
            let policies = ["reject", "interrupt", "rollback", "steer", "latest"];
            policies[dice.number(policies.len()) - 1].clone_into(&mut scenario.chat.busy_policy);
        }
        scenario.traffic.settle_s += one_after_the_other_s(&scenario);
    }
    // What was aimed at a provider that was not drawn afterwards breaks nothing.
    let names: Vec<String> = scenario.provider.iter().map(|provider| provider.name.clone()).collect();
    scenario.faults.retain(|fault| match &fault.target {
        Target::Provider(name) => names.contains(name),
        _ => true,
    });
    scenario
}

/// How long the turns of the thread with the most of them take at most once everything is well. They
/// run one after the other, so no platform could end them sooner.
fn one_after_the_other_s(scenario: &Scenario) -> f64 {
    let (chat, model) = (&scenario.chat, &scenario.model);
    let n_turns = chat.hot_share * scenario.traffic.n_tasks() as f64 + chat.burst as f64 + 2.0;
    let turn_s = model.first_token_ms / 1_000.0 + chat.reply_tokens as f64 / model.tokens_per_s;
    2.0 * n_turns * turn_s * (1.0 + model.jitter)
}

struct Dice(Generator);

impl Dice {
    fn comes(&self, share: f64) -> bool {
        self.0.unit() < share
    }

    fn below(&self, n: u64) -> u64 {
        self.0.below(n)
    }

    /// From 1 to `n`.
    fn number(&self, n: usize) -> usize {
        1 + usize::try_from(self.below(n as u64)).unwrap_or_default()
    }

    fn between(&self, low: f64, high: f64) -> f64 {
        // Three digits are enough, and can be read in a log.
        ((low + (high - low) * self.0.unit()) * 1_000.0).round() / 1_000.0
    }

    fn share(&self) -> f64 {
        if self.comes(0.5) { 0.0 } else { self.between(0.05, 0.6) }
    }
}

fn topology(dice: &Dice) -> Topology {
    let replicas = dice.number(3);
    let store = if replicas == 1 && dice.comes(0.6) { StoreKind::Sqlite } else { StoreKind::Postgres };
    Topology { replicas, store }
}

fn traffic(dice: &Dice, is_chat: bool) -> Traffic {
    let (shape, rate_per_s, duration_s) = if is_chat {
        (Shape::Chat, dice.between(5.0, 30.0), dice.between(6.0, 15.0))
    } else {
        (Shape::Short, dice.between(0.5, 2.0), dice.between(6.0, 15.0))
    };
    Traffic { shape, rate_per_s, duration_s, tasks: Vec::new(), settle_s: 180.0 }
}

fn chat(dice: &Dice) -> Chat {
    Chat {
        door: if dice.comes(0.5) { Door::Wait } else { Door::Stream },
        second_share: dice.share(),
        second_within_s: dice.between(0.2, 3.0),
        burst: if dice.comes(0.7) { 1 } else { dice.number(6) },
        hot_share: if dice.comes(0.7) { 0.0 } else { dice.between(0.05, 0.4) },
        duplicate_share: dice.share(),
        disconnect_share: dice.share(),
        reply_tokens: dice.number(80),
        ..Chat::default()
    }
}

fn providers(dice: &Dice) -> Vec<Provider> {
    let names = [("primary", WireKind::Openai), ("secondary", WireKind::Anthropic)];
    let n = if dice.comes(0.3) { 1 } else { 2 };
    let provider = |&(name, wire): &(&str, WireKind)| Provider {
        name: name.to_owned(),
        wire,
        limits: DeploymentLimits::default(),
        context_tokens: 18_000,
    };
    names.iter().take(n).map(provider).collect()
}

fn limits(dice: &Dice) -> Limits {
    let mut limits = Limits::default();
    if dice.comes(0.3) {
        limits.harness.slots = dice.number(40) + 2;
    }
    if dice.comes(0.2) {
        limits.store.slots = dice.number(8);
    }
    if dice.comes(0.2) {
        limits.tools.slots = dice.number(4);
        limits.sandbox.slots = dice.number(4);
    }
    limits
}

/// What one throw breaks; nothing if what was drawn does not exist in this topology.
fn faults(dice: &Dice, topology: &Topology, traffic: &Traffic) -> Vec<PlannedFault> {
    let load_s = traffic.duration_s;
    let (at_s, for_s) = (dice.between(0.5, load_s), dice.between(0.5, 12.0));
    let n = dice.number(topology.replicas);
    let one = |target, action| vec![PlannedFault { at_s, for_s, repeat: None, target, action }];
    match dice.below(15) {
        0 | 1 => one(Target::Store, Action::Trouble(trouble(dice))),
        2 => {
            let by_s = dice.between(1.0, 900.0) * if dice.comes(0.5) { 1.0 } else { -1.0 };
            let of_store = topology.store == StoreKind::Postgres && dice.comes(0.3);
            let process = if topology.replicas == 1 { Target::Process } else { Target::Replica(n) };
            // A store's clock that is far off ends every lease and every deadline: seconds are enough.
            let by_s = if of_store { by_s / 60.0 } else { by_s };
            one(if of_store { Target::Store } else { process }, Action::Clock { by_s })
        }
        3 if topology.replicas > 1 => two_at_once(dice, topology, at_s),
        // A provider that comes and goes.
        4 => {
            let (for_s, every_s) = (dice.between(0.5, 5.0), dice.between(6.0, 9.0));
            let (target, action) = (any_provider(dice), Action::Provider(of_provider(dice)));
            let repeat = Some((every_s, 2 + u32::from(dice.comes(0.5))));
            vec![PlannedFault { at_s, for_s, repeat, target, action }]
        }
        5 => one(any_provider(dice), Action::Provider(of_model(dice, traffic.shape))),
        6 => {
            let action = Action::Provider(of_provider(dice));
            // Sometimes for as long as an outage takes that makes it into the news.
            let for_s = if dice.comes(0.3) { for_s * 10.0 } else { for_s };
            let names = ["primary", "secondary"].map(|name| Target::Provider(name.to_owned()));
            let of = |target| PlannedFault { at_s, for_s, repeat: None, target, action: action.clone() };
            names.into_iter().map(of).collect()
        }
        7 | 8 => match of_link(dice, topology, n) {
            Some(link) => one(Target::Link(link), Action::Link(on_link(dice))),
            None => Vec::new(),
        },
        9 if topology.store == StoreKind::Postgres => swizzle(dice, topology, at_s),
        _ => fault(dice, topology, load_s).into_iter().collect(),
    }
}

fn any_provider(dice: &Dice) -> Target {
    Target::Provider(if dice.comes(0.6) { "primary" } else { "secondary" }.to_owned())
}

/// The links of the replicas to their store are held one after the other, and let go in another order.
fn swizzle(dice: &Dice, topology: &Topology, at_s: f64) -> Vec<PlannedFault> {
    let fault = |n| PlannedFault {
        at_s: at_s + dice.between(0.0, 3.0),
        for_s: dice.between(1.0, 9.0),
        repeat: None,
        target: Target::Link(Link::Store(Some(n))),
        action: Action::Link(link::Fault::Hold {}),
    };
    (1..=topology.replicas).map(fault).collect()
}

/// Two replicas that die or fall silent in the same moment.
fn two_at_once(dice: &Dice, topology: &Topology, at_s: f64) -> Vec<PlannedFault> {
    let (down_s, stops) = (dice.between(0.2, 5.0), dice.comes(0.3));
    let first = dice.number(topology.replicas);
    let second = first % topology.replicas + 1;
    let action = if stops { Action::Stop } else { Action::Kill { times: 1, down_s } };
    let fault = |n| PlannedFault {
        at_s,
        for_s: down_s,
        repeat: None,
        target: Target::Replica(n),
        action: action.clone(),
    };
    vec![fault(first), fault(second)]
}

/// What is wrong with what a provider says, besides everything that can be wrong with how.
fn of_model(dice: &Dice, shape: Shape) -> Fault {
    let p = dice.between(0.05, 0.5);
    match dice.below(8) {
        0 => Fault::BrokenArguments { p },
        1 => Fault::WrongToolIds { p },
        // Not of coding tasks: where the request for a summary is too long as well, the fake solver finds
        // no mark of its place in what stands for the past, and begins its task anew.
        2 if shape == Shape::Chat => Fault::ContextTooLong { p },
        3 => {
            Fault::Acceleration { start_per_s: dice.between(0.5, 4.0), growth_per_s: dice.between(0.5, 4.0) }
        }
        _ => of_provider(dice),
    }
}

fn trouble(dice: &Dice) -> Trouble {
    let p = if dice.comes(0.3) { 1.0 } else { dice.between(0.05, 0.6) };
    match dice.below(6) {
        0 => Trouble::Stall,
        1 | 2 => Trouble::LoseAnswers { p },
        3 => Trouble::Errors { p },
        4 => Trouble::Crowd { connections: dice.number(4) },
        _ => Trouble::ReadOnly,
    }
}

/// One fault of the first edition; none if what was drawn does not exist in this topology.
fn fault(dice: &Dice, topology: &Topology, load_s: f64) -> Option<PlannedFault> {
    let (at_s, for_s) = (dice.between(0.5, load_s), dice.between(0.5, 12.0));
    let n = dice.number(topology.replicas);
    let process = if topology.replicas == 1 { Target::Process } else { Target::Replica(n) };
    let (target, action) = match dice.below(10) {
        0..=3 => (Target::Provider("primary".to_owned()), Action::Provider(of_provider(dice))),
        4 => (process, Action::Kill { times: 1, down_s: dice.between(0.2, 5.0) }),
        5 => (process, Action::Stop),
        6 => {
            let (factor, base_ms) = (dice.between(2.0, 40.0), 1 + dice.below(20));
            (Target::Store, Action::SlowStore { factor, base_ms })
        }
        7 => (Target::Store, Action::RestartStore { down_s: dice.between(0.2, 5.0) }),
        8 if topology.replicas > 1 => {
            (Target::Replicas, Action::RollingRestart { pause_s: dice.between(0.2, 2.0) })
        }
        8 => return None,
        _ => {
            let link = of_link(dice, topology, n)?;
            (Target::Link(link), Action::Link(on_link(dice)))
        }
    };
    let for_s = match action {
        Action::Kill { down_s, .. } | Action::RestartStore { down_s } => down_s,
        // Each replica takes as long as its runs need to reach the end of their step.
        Action::RollingRestart { .. } => 60.0,
        _ => for_s,
    };
    Some(PlannedFault { at_s, for_s, repeat: None, target, action })
}

fn of_provider(dice: &Dice) -> Fault {
    let p = if dice.comes(0.5) { 1.0 } else { dice.between(0.1, 0.9) };
    let after_pieces = dice.number(4);
    match dice.below(14) {
        0 | 1 => Fault::Down,
        2 => Fault::Down503,
        3 => Fault::BlackHole,
        4 => Fault::Errors { p, status: 500 },
        5 => Fault::Slow { factor: dice.between(2.0, 15.0) },
        6 => Fault::SlowDrip { every_ms: 500 + dice.below(5_000), p },
        7 => Fault::RateLimit { retry_after_s: dice.comes(0.5).then(|| dice.between(1.0, 8.0)), p },
        8 => Fault::Cut { after_pieces, p },
        9 => Fault::CleanEnd { after_pieces, p },
        10 => Fault::ErrorEvent { after_pieces, p },
        11 => Fault::Stall { after_pieces: after_pieces - 1, p },
        12 => Fault::KeepAlive { every_ms: 500 + dice.below(2_000), p },
        _ => Fault::MalformedJson { after_pieces, p },
    }
}

fn of_link(dice: &Dice, topology: &Topology, n: usize) -> Option<Link> {
    let replica = if dice.comes(0.2) { None } else { Some(n) };
    match dice.below(4) {
        0 => Some(Link::Clients),
        1 => (topology.replicas > 1).then_some(Link::Gateway(replica)),
        2 => (topology.store == StoreKind::Postgres).then_some(Link::Store(replica)),
        _ => Some(Link::Providers(replica)),
    }
}

fn on_link(dice: &Dice) -> link::Fault {
    match dice.below(6) {
        0 => link::Fault::Delay { ms: 1 + dice.below(800) },
        1 => link::Fault::Cut {},
        2 => link::Fault::Refuse {},
        3 => link::Fault::Hold {},
        4 => link::Fault::HoldAnswers {},
        _ => link::Fault::Throttle { bytes_per_s: 500 + dice.below(20_000) },
    }
}
