//! What may be set on the harness, with the defaults that ship.

use std::time::Duration;

use evenkeel_core::control::Protect;
use evenkeel_core::control::lease::LeaseTimes;
use serde::{Deserialize, Serialize};

/// Settings of the harness. Counts of slots come with [`crate::HarnessSlots`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HarnessConfig {
    /// How much of the protection is on.
    pub protect: Protect,
    /// Where peers reach this replica; told to them with each heartbeat.
    pub address: Option<String>,
    /// Time between heartbeats, in milliseconds.
    pub beat_every_ms: u64,
    /// How long a lease lasts in the store, in milliseconds.
    pub lease_ttl_ms: u64,
    /// When a replica without a confirmed heartbeat stops by itself, in milliseconds.
    pub fence_after_ms: u64,
    /// Shortest time between two looks for queued runs, in milliseconds.
    pub poll_min_ms: u64,
    /// Longest time between two looks for queued runs, in milliseconds.
    pub poll_max_ms: u64,
    /// How often a parked run of each route is tried without a permit, in milliseconds, so that
    /// none is stranded when a permit is lost.
    pub park_poll_ms: u64,
    /// How long an interactive run may stay parked before it fails, in milliseconds.
    pub interactive_park_ms: u64,
    /// How long a person may take to answer an approval, in milliseconds; never beyond the run's own
    /// deadline.
    pub approval_ms: u64,
    /// What becomes of a call whose approval nobody answered.
    pub approval_on_timeout: OnTimeout,
    /// Grace after a tool's own time limit before the harness drops the call, in milliseconds.
    pub tool_grace_ms: u64,
    /// When and how far context is compacted.
    pub compact: CompactConfig,
}

/// What becomes of a call whose approval nobody answered. That it runs is no choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// It does not run, the model is told so, and the run goes on.
    #[default]
    Deny,
    /// The run fails.
    Fail,
}

/// When and how far context is compacted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactConfig {
    /// Share of the route's window at which compaction begins.
    pub threshold: f64,
    /// A compaction must end at or below this share of the threshold.
    pub progress: f64,
    /// Newest complete units (a message, or a message with calls and all its results) that stay.
    pub keep_units: usize,
    /// Results in older messages longer than this many bytes are shown as stubs.
    pub stub_bytes_min: usize,
    /// Output tokens asked for a summary.
    pub summary_tokens_max: u32,
    /// Failed summaries in one run after which only the deterministic ways are used.
    pub failures_max: u32,
}

impl Default for HarnessConfig {
    fn default() -> Self {
        Self {
            protect: Protect::Full,
            address: None,
            beat_every_ms: 1_000,
            lease_ttl_ms: 4_000,
            fence_after_ms: 3_000,
            poll_min_ms: 20,
            poll_max_ms: 1_000,
            park_poll_ms: 15_000,
            interactive_park_ms: 5_000,
            approval_ms: 24 * 60 * 60 * 1_000,
            approval_on_timeout: OnTimeout::Deny,
            tool_grace_ms: 5_000,
            compact: CompactConfig::default(),
        }
    }
}

impl Default for CompactConfig {
    fn default() -> Self {
        Self {
            threshold: 0.8,
            progress: 0.6,
            keep_units: 6,
            stub_bytes_min: 512,
            summary_tokens_max: 2_048,
            failures_max: 3,
        }
    }
}

impl HarnessConfig {
    /// The durations of the lease.
    #[must_use]
    pub fn lease_times(&self) -> LeaseTimes {
        LeaseTimes {
            beat_every: Duration::from_millis(self.beat_every_ms),
            ttl: Duration::from_millis(self.lease_ttl_ms),
            fence_after: Duration::from_millis(self.fence_after_ms),
        }
    }
}
