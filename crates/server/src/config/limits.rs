//! `[limits]`: one table with the limit of every component.
//!
//! The defaults are the limits that the two systems name for each component. The model's limits
//! are not here: they belong to each deployment.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::runner::RunnerLimits;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::invalid;

/// The limit of every component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request body.
    pub body_bytes_max: usize,
    /// Characters of one message.
    pub message_chars_max: usize,
    /// Messages of one request.
    pub messages_max: usize,
    /// Turns that may wait on one thread.
    pub waiting_per_thread_max: u32,
    /// Messages of the policy `merge` wait until no further one came for this long.
    pub merge_quiet: DurationText,
    /// They wait at most this long from the first of them.
    pub merge_cap: DurationText,
    /// Where traffic enters.
    pub gateway: GatewayLimits,
    /// Accepts runs and reads of them.
    pub api: ApiLimits,
    /// Runs at work at once.
    pub harness: HarnessLimits,
    /// Calls judged at once.
    pub policy: SlotLimits,
    /// Tool calls at once.
    pub tools: SlotLimits,
    /// Sandboxes at once.
    pub sandbox: SlotLimits,
    /// Summaries at once.
    pub compactor: SlotLimits,
    /// Store operations at once.
    pub store: SlotLimits,
    /// Spans that may wait for the collector.
    pub tracing: TracingLimits,
}

/// A component whose only limit is its slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotLimits {
    /// Callers served at once.
    pub slots: usize,
}

/// The gateway's limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayLimits {
    /// Open connections.
    pub slots: usize,
    /// Requests per minute over all keys.
    pub calls_per_min: u32,
    /// Time for a client to send a request's headers.
    pub header_timeout: DurationText,
    /// Header lines of one request.
    pub headers_max: usize,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            slots: 100_000,
            calls_per_min: 60_000,
            header_timeout: DurationText(Duration::from_secs(10)),
            headers_max: 100,
        }
    }
}

/// The agent API's limits. A connection that waits or streams holds no slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiLimits {
    /// Requests handled at once.
    pub slots: usize,
    /// Time until a request is answered, waiting for a slot included.
    pub timeout: DurationText,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self { slots: 500, timeout: DurationText(Duration::from_secs(240)) }
    }
}

/// The harness's limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HarnessLimits {
    /// Runs at work at once.
    pub slots: usize,
    /// Steps a run may take, for assistants that say nothing of their own.
    pub steps_max: u32,
}

impl Default for HarnessLimits {
    fn default() -> Self {
        Self { slots: 1000, steps_max: 200 }
    }
}

/// Tracing's limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracingLimits {
    /// Spans that may wait for the collector; more are dropped and counted.
    pub slots: usize,
    /// Spans per minute; more are dropped and counted.
    pub calls_per_min: u32,
}

impl Default for TracingLimits {
    fn default() -> Self {
        Self { slots: 5000, calls_per_min: 6_000_000 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 4 << 20,
            message_chars_max: 400_000,
            messages_max: 1000,
            waiting_per_thread_max: 100,
            merge_quiet: DurationText(Duration::from_secs(3)),
            merge_cap: DurationText(Duration::from_secs(30)),
            gateway: GatewayLimits::default(),
            api: ApiLimits::default(),
            harness: HarnessLimits::default(),
            policy: SlotLimits { slots: 4000 },
            tools: SlotLimits { slots: 2000 },
            sandbox: SlotLimits { slots: 400 },
            compactor: SlotLimits { slots: 200 },
            store: SlotLimits { slots: 2000 },
            tracing: TracingLimits::default(),
        }
    }
}

impl Limits {
    /// Refuses limits with which nothing could be served.
    pub(super) fn check(&self) -> Result<(), Error> {
        let values = [
            ("body_bytes_max", self.body_bytes_max),
            ("message_chars_max", self.message_chars_max),
            ("messages_max", self.messages_max),
            ("waiting_per_thread_max", self.waiting_per_thread_max as usize),
            ("gateway.slots", self.gateway.slots),
            ("gateway.calls_per_min", self.gateway.calls_per_min as usize),
            ("gateway.headers_max", self.gateway.headers_max),
            ("api.slots", self.api.slots),
            ("harness.slots", self.harness.slots),
            ("harness.steps_max", self.harness.steps_max as usize),
            ("policy.slots", self.policy.slots),
            ("tools.slots", self.tools.slots),
            ("sandbox.slots", self.sandbox.slots),
            ("compactor.slots", self.compactor.slots),
            ("store.slots", self.store.slots),
            ("tracing.slots", self.tracing.slots),
        ];
        for (key, value) in values {
            possible(key, value)?;
        }
        let durations =
            [("gateway.header_timeout", self.gateway.header_timeout), ("api.timeout", self.api.timeout)];
        match durations.iter().find(|(_, duration)| duration.0.is_zero()) {
            Some((key, _)) => Err(invalid(
                format!("limits.{key} is 0, so nothing could be served."),
                "Write a duration such as \"10s\", or remove the key for the default.",
            )),
            None => Ok(()),
        }
    }
}

/// Refuses limits under which no command could begin.
pub(super) fn check_commands(section: &str, limits: &RunnerLimits) -> Result<(), Error> {
    let values = [
        ("wall_ms", limits.wall_ms),
        ("cpu_s", limits.cpu_s),
        ("memory_bytes", limits.memory_bytes),
        ("processes", limits.processes),
        ("open_files", limits.open_files),
        ("workspace_bytes", limits.workspace_bytes),
        ("workspace_files", limits.workspace_files),
        ("cpu_percent", limits.cpu_percent),
    ];
    match values.iter().find(|(_, value)| *value == 0) {
        Some((key, _)) => Err(invalid(
            format!("{section}.{key} is 0, so no command could run."),
            "Give a limit of at least 1, or remove the key for the default.",
        )),
        None => Ok(()),
    }
}

/// The largest limit: beyond it a number is a slip of the pen, and no machine holds as many.
const LIMIT_MAX: usize = u32::MAX as usize;

fn possible(key: &str, value: usize) -> Result<(), Error> {
    match value {
        0 => Err(invalid(
            format!("limits.{key} is 0, so nothing could be served."),
            "Give a limit of at least 1, or remove the key for the default.",
        )),
        1..=LIMIT_MAX => Ok(()),
        _ => Err(invalid(
            format!("limits.{key} is {value}; the largest limit is {LIMIT_MAX}."),
            "Give a smaller limit, or remove the key for the default.",
        )),
    }
}

/// A duration as people write it: `500ms`, `240s`, `10m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationText(pub Duration);

impl FromStr for DurationText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.chars().take_while(char::is_ascii_digit).count();
        let number: String = text.chars().take(digits).collect();
        let unit: String = text.chars().skip(digits).collect();
        let ms_per_unit = match unit.as_str() {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => {
                return Err(format!(
                    "`{text}` is not a duration; write one such as \"500ms\", \"240s\" or \"10m\""
                ));
            }
        };
        let number: u64 = number.parse().map_err(|_| format!("`{text}` has no number before its unit"))?;
        number
            .checked_mul(ms_per_unit)
            .map(|ms| Self(Duration::from_millis(ms)))
            .ok_or_else(|| format!("`{text}` is too long"))
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        if ms.is_multiple_of(1000) { write!(f, "{}s", ms / 1000) } else { write!(f, "{ms}ms") }
    }
}

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
