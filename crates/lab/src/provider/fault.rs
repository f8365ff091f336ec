//! What can be wrong with a provider. Any number of faults can be active at once; each request
//! meets the first one, in the order of [`Fault::rank`], that applies to it.

use serde::{Deserialize, Serialize};

/// One thing that is wrong. Times are in the units their names say; `p` is the share of calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Nothing answers: live connections are cut, and new ones are closed as soon as they open.
    /// They are accepted first so that calls while down are counted exactly.
    Down,
    /// Every call is answered 503 at once; streams that already run go on.
    Down503,
    /// Connections are accepted and requests read, but nothing is ever answered.
    BlackHole,
    /// A share of calls is answered with a server error.
    Errors {
        /// Share of calls.
        p: f64,
        /// The status, 500 unless said.
        #[serde(default = "status_500")]
        status: u16,
    },
    /// Everything takes `factor` times as long, streams that already run included.
    Slow {
        /// How many times as long.
        factor: f64,
    },
    /// After the first piece one byte every `every_ms` comes.
    SlowDrip {
        /// Milliseconds between bytes.
        #[serde(default = "drip_ms")]
        every_ms: u64,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// Calls are answered 429.
    RateLimit {
        /// The `Retry-After` header in seconds; none if absent.
        #[serde(default)]
        retry_after_s: Option<f64>,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// The connection breaks after some pieces of the stream.
    Cut {
        /// Pieces that still come.
        #[serde(default = "pieces")]
        after_pieces: usize,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// The stream ends without its terminator, but cleanly as far as HTTP goes.
    CleanEnd {
        /// Pieces that still come.
        #[serde(default = "pieces")]
        after_pieces: usize,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// An error event comes inside the stream of a 200 answer.
    ErrorEvent {
        /// Pieces that come before it.
        #[serde(default = "pieces")]
        after_pieces: usize,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// Headers come and then nothing.
    Stall {
        /// Pieces that come before the silence.
        #[serde(default)]
        after_pieces: usize,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// Only keep-alive comments (OpenAI wire) or pings (Anthropic wire) come.
    KeepAlive {
        /// Milliseconds between them.
        #[serde(default = "keep_alive_ms")]
        every_ms: u64,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// One event of the stream is not JSON, and the answer ends there.
    MalformedJson {
        /// Pieces that come before it.
        #[serde(default = "pieces")]
        after_pieces: usize,
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// The arguments of tool calls are cut so that they are not JSON.
    BrokenArguments {
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// Tool calls carry ids that repeat or are missing.
    WrongToolIds {
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// The account is out of credit.
    OutOfCredit,
    /// The key is not accepted.
    BadKey,
    /// Every call is refused as too long for the window.
    ContextTooLong {
        /// Share of calls.
        #[serde(default = "always")]
        p: f64,
    },
    /// More calls than a rising allowance are answered 429, as after an outage.
    Acceleration {
        /// Calls a second allowed when the fault begins.
        start_per_s: f64,
        /// Calls a second by which the allowance grows each second.
        #[serde(default = "growth")]
        growth_per_s: f64,
    },
}

fn always() -> f64 {
    1.0
}

fn status_500() -> u16 {
    500
}

fn drip_ms() -> u64 {
    5_000
}

fn keep_alive_ms() -> u64 {
    1_000
}

fn pieces() -> usize {
    3
}

fn growth() -> f64 {
    4.0
}

impl Fault {
    /// Its name in scenario files and reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Down503 => "down503",
            Self::BlackHole => "black_hole",
            Self::Errors { .. } => "errors",
            Self::Slow { .. } => "slow",
            Self::SlowDrip { .. } => "slow_drip",
            Self::RateLimit { .. } => "rate_limit",
            Self::Cut { .. } => "cut",
            Self::CleanEnd { .. } => "clean_end",
            Self::ErrorEvent { .. } => "error_event",
            Self::Stall { .. } => "stall",
            Self::KeepAlive { .. } => "keep_alive",
            Self::MalformedJson { .. } => "malformed_json",
            Self::BrokenArguments { .. } => "broken_arguments",
            Self::WrongToolIds { .. } => "wrong_tool_ids",
            Self::OutOfCredit => "out_of_credit",
            Self::BadKey => "bad_key",
            Self::ContextTooLong { .. } => "context_too_long",
            Self::Acceleration { .. } => "acceleration",
        }
    }

    /// Whether nothing at all can be had from the provider while it lasts.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Down | Self::Down503 | Self::BlackHole)
    }

    /// The share of calls that it hits.
    #[must_use]
    pub fn share(&self) -> f64 {
        match self {
            Self::Errors { p, .. }
            | Self::SlowDrip { p, .. }
            | Self::RateLimit { p, .. }
            | Self::Cut { p, .. }
            | Self::CleanEnd { p, .. }
            | Self::ErrorEvent { p, .. }
            | Self::Stall { p, .. }
            | Self::KeepAlive { p, .. }
            | Self::MalformedJson { p, .. }
            | Self::BrokenArguments { p }
            | Self::WrongToolIds { p }
            | Self::ContextTooLong { p } => *p,
            _ => 1.0,
        }
    }

    /// Faults of the connection come before those of the account, and these before those of one
    /// answer: the order in which a real provider would meet them.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Down => 0,
            Self::BlackHole => 1,
            Self::Down503 => 2,
            Self::BadKey | Self::OutOfCredit => 3,
            Self::RateLimit { .. } | Self::Acceleration { .. } => 4,
            Self::ContextTooLong { .. } => 5,
            Self::Errors { .. } => 6,
            Self::Slow { .. } => 8,
            _ => 7,
        }
    }

    /// Values that make no sense, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        let share = self.share();
        if !(share > 0.0 && share <= 1.0) {
            return Some(format!("p is {share}, but it is a share of calls: more than 0, at most 1"));
        }
        match self {
            Self::Slow { factor } if *factor < 1.0 => {
                Some(format!("factor is {factor}, but a slow provider takes at least 1 time as long"))
            }
            Self::Errors { status, .. } if !(400..600).contains(status) => {
                Some(format!("status is {status}, but an error has a status from 400 to 599"))
            }
            Self::Acceleration { start_per_s, growth_per_s } if *start_per_s < 0.0 || *growth_per_s < 0.0 => {
                Some("an allowance cannot be negative".to_owned())
            }
            _ => None,
        }
    }
}
