//! What breaks when: the `[[fault]]` tables of a scenario file.

use serde::Deserialize;

use super::trouble::Trouble;
use crate::link;
use crate::provider::Fault;

/// What a fault is done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The provider of this name.
    Provider(String),
    /// The product's process; of several replicas, any one.
    Process,
    /// The replica of this number, counted from 1.
    Replica(usize),
    /// All replicas, one after the other.
    Replicas,
    /// The store.
    Store,
    /// A connection between two components.
    Link(Link),
}

/// Between which components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// From clients to where traffic enters.
    Clients,
    /// From the gateway to a replica; to all without a number.
    Gateway(Option<usize>),
    /// From a replica to the store; from all without a number.
    Store(Option<usize>),
    /// From a replica to the providers; from all without a number.
    Providers(Option<usize>),
}

impl Link {
    fn parse(text: &str) -> Option<Self> {
        let replica = |word: &str| match word.strip_prefix("replica")? {
            "s" => Some(None),
            n => n.parse().ok().filter(|n| *n > 0).map(Some),
        };
        match text.split_once('-')? {
            ("client", "gateway") => Some(Self::Clients),
            ("gateway", to) => replica(to).map(Self::Gateway),
            (from, "store") => replica(from).map(Self::Store),
            (from, "provider") => replica(from).map(Self::Providers),
            _ => None,
        }
    }

    /// Whether a fault on this link is a fault on `one`.
    pub(crate) fn covers(self, one: Self) -> bool {
        let all = match one {
            Self::Clients => Self::Clients,
            Self::Gateway(_) => Self::Gateway(None),
            Self::Store(_) => Self::Store(None),
            Self::Providers(_) => Self::Providers(None),
        };
        self == one || self == all
    }

    fn name(self) -> String {
        let replica = |n: Option<usize>| n.map_or("replicas".to_owned(), |n| format!("replica{n}"));
        match self {
            Self::Clients => "client-gateway".to_owned(),
            Self::Gateway(n) => format!("gateway-{}", replica(n)),
            Self::Store(n) => format!("{}-store", replica(n)),
            Self::Providers(n) => format!("{}-provider", replica(n)),
        }
    }
}

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Something is wrong with a provider.
    Provider(Fault),
    /// The process is killed with SIGKILL, and started again after `down_s`, `times` times at
    /// random moments of the fault's time.
    Kill {
        /// How often.
        times: u32,
        /// Seconds until it is started again.
        down_s: f64,
    },
    /// The process is stopped with SIGSTOP for the fault's time.
    Stop,
    /// Every operation of the store takes `factor` times as long.
    SlowStore {
        /// How many times as long.
        factor: f64,
        /// Milliseconds that an operation counts as having taken at least.
        base_ms: u64,
    },
    /// The store's process is killed and started again; with SQLite that is the product's own.
    RestartStore {
        /// Seconds until it is started again.
        down_s: f64,
    },
    /// Something is wrong with a simulated store.
    Trouble(Trouble),
    /// The clock of a simulated host is wrong by this much for the fault's time.
    Clock {
        /// Seconds; forward, or back if negative.
        by_s: f64,
    },
    /// Each replica in turn is drained and started again.
    RollingRestart {
        /// Seconds between a replica's start and the drain of the next.
        pause_s: f64,
    },
    /// Something is wrong with a connection.
    Link(link::Fault),
}

/// One fault on the time line.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedFault {
    /// Seconds after the load began.
    pub at_s: f64,
    /// How long it lasts.
    pub for_s: f64,
    /// Seconds between the beginnings of its repetitions, and how many there are.
    pub repeat: Option<(f64, u32)>,
    /// What it is done to.
    pub target: Target,
    /// What is done.
    pub action: Action,
}

impl PlannedFault {
    /// The target in the words of the file.
    #[must_use]
    pub fn target_name(&self) -> String {
        match &self.target {
            Target::Provider(name) => format!("provider:{name}"),
            Target::Process => "process".to_owned(),
            Target::Replica(n) => format!("replica:{n}"),
            Target::Replicas => "replicas".to_owned(),
            Target::Link(link) => format!("link:{}", link.name()),
            Target::Store => "store".to_owned(),
        }
    }

    /// The kind in the words of the file.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.action {
            Action::Provider(fault) => fault.name(),
            Action::Kill { .. } => "kill",
            Action::Stop => "stop",
            Action::SlowStore { .. } => "slow",
            Action::RestartStore { .. } => "restart",
            Action::Trouble(trouble) => trouble.name(),
            Action::Clock { .. } => "clock",
            Action::RollingRestart { .. } => "rolling_restart",
            Action::Link(fault) => fault.name(),
        }
    }

    /// Begin and end of each time that it happens, in seconds.
    #[must_use]
    pub fn spans(&self) -> Vec<(f64, f64)> {
        let (every_s, n) = self.repeat.unwrap_or((0.0, 1));
        (0..n).map(|idx| self.at_s + every_s * f64::from(idx)).map(|at_s| (at_s, at_s + self.for_s)).collect()
    }

    /// For a fault that only a simulation has: what a live run can do in its place, in words.
    pub(crate) fn live_instead(&self) -> Option<&'static str> {
        match &self.action {
            Action::Trouble(trouble) => Some(trouble.live_instead()),
            Action::Clock { .. } => Some("leave the fault out"),
            _ => None,
        }
    }
}

/// The keys that every `[[fault]]` has; the others belong to its kind.
const COMMON: [&str; 5] = ["at_s", "for_s", "target", "every_s", "repeats"];

/// Reads one `[[fault]]` table; the error is in words.
pub(super) fn read(mut table: toml::Table) -> Result<PlannedFault, String> {
    let mut own = toml::Table::new();
    for key in COMMON {
        if let Some(value) = table.remove(key) {
            own.insert(key.to_owned(), value);
        }
    }
    let common: Common = own.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let target = target(&common.target)?;
    let action = action(&target, table)?;
    if common.at_s < 0.0 || common.for_s.is_some_and(|for_s| for_s <= 0.0) {
        return Err("at_s must not be negative and for_s must be more than 0.".to_owned());
    }
    let for_s = match (&action, common.for_s) {
        (_, Some(for_s)) => for_s,
        (Action::Kill { times: 1, down_s } | Action::RestartStore { down_s }, None) => *down_s,
        _ => return Err("for_s is missing: say how long the fault lasts.".to_owned()),
    };
    let repeat = match (common.every_s, common.repeats) {
        (None, None) => None,
        (Some(every_s), Some(n)) if every_s > for_s && n > 0 => Some((every_s, n)),
        _ => return Err("every_s and repeats go together, and every_s must be more than for_s.".to_owned()),
    };
    Ok(PlannedFault { at_s: common.at_s, for_s, repeat, target, action })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Common {
    at_s: f64,
    for_s: Option<f64>,
    target: String,
    every_s: Option<f64>,
    repeats: Option<u32>,
}

fn target(text: &str) -> Result<Target, String> {
    match text.split_once(':') {
        Some(("provider", name)) if !name.is_empty() => Ok(Target::Provider(name.to_owned())),
        Some(("replica", n)) => match n.parse() {
            Ok(n) if n > 0 => Ok(Target::Replica(n)),
            _ => Err(format!("target '{text}': replicas are counted from 1.")),
        },
        Some(("link", ends)) => Link::parse(ends).map(Target::Link).ok_or_else(|| {
            format!(
                "target '{text}' is not one of link:client-gateway, link:gateway-replicaN, \
                 link:replicaN-store, link:replicaN-provider; `replicas` stands for all of them."
            )
        }),
        None if text == "process" => Ok(Target::Process),
        None if text == "replicas" => Ok(Target::Replicas),
        None if text == "store" => Ok(Target::Store),
        _ => Err(format!(
            "target '{text}' is not one of provider:NAME, process, replica:N, replicas, store, link:FROM-TO."
        )),
    }
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum ProcessFault {
    Kill {
        #[serde(default = "once")]
        times: u32,
        #[serde(default = "down_s")]
        down_s: f64,
    },
    Stop {},
    Clock {
        by_s: f64,
    },
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum FleetFault {
    RollingRestart {
        #[serde(default = "pause_s")]
        pause_s: f64,
    },
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum StoreFault {
    Slow {
        factor: f64,
        #[serde(default = "base_ms")]
        base_ms: u64,
    },
    Restart {
        #[serde(default = "down_s")]
        down_s: f64,
    },
    Stall {},
    LoseAnswers {
        #[serde(default = "always")]
        p: f64,
    },
    Errors {
        #[serde(default = "always")]
        p: f64,
    },
    Crowd {
        connections: usize,
    },
    ReadOnly {},
    Clock {
        by_s: f64,
    },
}

/// A clock that is off by more than this is broken in another way.
const OFF_BY_S_MAX: f64 = 86_400.0;

fn once() -> u32 {
    1
}

fn down_s() -> f64 {
    0.5
}

fn pause_s() -> f64 {
    1.0
}

fn base_ms() -> u64 {
    2
}

fn always() -> f64 {
    1.0
}

fn action(target: &Target, table: toml::Table) -> Result<Action, String> {
    let words = |error: toml::de::Error| error.message().to_owned();
    match target {
        Target::Provider(_) => {
            let n_keys = table.len();
            let fault: Fault = table.try_into().map_err(words)?;
            let has_keys = !matches!(
                fault,
                Fault::Down | Fault::Down503 | Fault::BlackHole | Fault::OutOfCredit | Fault::BadKey
            );
            if !has_keys && n_keys > 1 {
                return Err(format!("kind '{}' takes no further keys.", fault.name()));
            }
            fault.problem().map_or(Ok(Action::Provider(fault)), Err)
        }
        Target::Process | Target::Replica(_) => match table.try_into().map_err(words)? {
            ProcessFault::Kill { times: 0, .. } => {
                Err("times is 0: a kill happens at least once.".to_owned())
            }
            ProcessFault::Kill { times, down_s } => Ok(Action::Kill { times, down_s }),
            ProcessFault::Stop {} => Ok(Action::Stop),
            ProcessFault::Clock { by_s } => clock(by_s),
        },
        Target::Store => match table.try_into().map_err(words)? {
            StoreFault::Slow { factor, .. } if factor < 1.0 => {
                Err(format!("factor is {factor}, but slow means at least 1."))
            }
            StoreFault::Slow { factor, base_ms } => Ok(Action::SlowStore { factor, base_ms }),
            StoreFault::Restart { down_s } => Ok(Action::RestartStore { down_s }),
            StoreFault::Stall {} => trouble(Trouble::Stall),
            StoreFault::LoseAnswers { p } => trouble(Trouble::LoseAnswers { p }),
            StoreFault::Errors { p } => trouble(Trouble::Errors { p }),
            StoreFault::Crowd { connections } => trouble(Trouble::Crowd { connections }),
            StoreFault::ReadOnly {} => trouble(Trouble::ReadOnly),
            StoreFault::Clock { by_s } => clock(by_s),
        },
        Target::Replicas => match table.try_into().map_err(words)? {
            FleetFault::RollingRestart { pause_s } => Ok(Action::RollingRestart { pause_s }),
        },
        Target::Link(_) => {
            let fault: link::Fault = table.try_into().map_err(words)?;
            fault.problem().map_or(Ok(Action::Link(fault)), Err)
        }
    }
}

fn trouble(trouble: Trouble) -> Result<Action, String> {
    trouble.problem().map_or(Ok(Action::Trouble(trouble)), Err)
}

fn clock(by_s: f64) -> Result<Action, String> {
    if by_s == 0.0 || !(-OFF_BY_S_MAX..=OFF_BY_S_MAX).contains(&by_s) {
        return Err(format!(
            "by_s is {by_s}, but a clock that is wrong is off by something, and by at most {OFF_BY_S_MAX} s \
             either way."
        ));
    }
    Ok(Action::Clock { by_s })
}
