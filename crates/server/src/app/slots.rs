//! Slots of every component, made from `[limits]` in one place.

use evenkeel_env::slots::{SlotGauges, Slots};

use crate::config::Limits;

/// Callers that may stand in line before one component. Beyond it they are refused at once.
const LINE_MAX: usize = 100_000;

/// The slots of every component. The model's limits live in its deployments.
#[derive(Clone)]
pub struct ComponentSlots {
    /// Open connections.
    pub gateway: Slots,
    /// Requests handled at once.
    pub api: Slots,
    /// Runs at work at once.
    pub harness: Slots,
    /// Calls judged at once.
    pub policy: Slots,
    /// Tool calls at once.
    pub tools: Slots,
    /// Sandboxes at once.
    pub sandbox: Slots,
    /// Summaries at once.
    pub compactor: Slots,
    /// Store operations at once.
    pub store: Slots,
}

impl ComponentSlots {
    /// Slots with these limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            gateway: Slots::new("gateway", limits.gateway.slots, LINE_MAX),
            api: Slots::new("api", limits.api.slots, LINE_MAX),
            harness: Slots::new("harness", limits.harness.slots, LINE_MAX),
            policy: Slots::new("policy", limits.policy.slots, LINE_MAX),
            tools: Slots::new("tools", limits.tools.slots, LINE_MAX),
            sandbox: Slots::new("sandbox", limits.sandbox.slots, LINE_MAX),
            compactor: Slots::new("compactor", limits.compactor.slots, LINE_MAX),
            store: Slots::new("store", limits.store.slots, LINE_MAX),
        }
    }

    /// Gauges of all components, in the order in which a request meets them.
    #[must_use]
    pub fn gauges(&self) -> Vec<SlotGauges> {
        [
            &self.gateway,
            &self.api,
            &self.harness,
            &self.policy,
            &self.tools,
            &self.sandbox,
            &self.compactor,
            &self.store,
        ]
        .into_iter()
        .map(Slots::gauges)
        .collect()
    }
}
