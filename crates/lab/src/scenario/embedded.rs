//! The scenarios that ship, from `scenarios/` at the root of the tree.

use serde::Serialize;

use super::read::parse;

macro_rules! embedded {
    ($($name:literal)*) => {
        pub(super) const EMBEDDED: &[(&str, &str)] = &[$(
            ($name, include_str!(concat!("../../../../scenarios/", $name, ".toml")))
        ),*];
    };
}

embedded! {
    "system1-as-given"
    "system1-long"
    "system1-peak"
    "system1-slow-store"
    "system1-slow-model"
    "system1-harness-killed"
    "system1-kill-loop"
    "system1-second-provider-down"
    "system1-partial-outage"
    "system1-brownout"
    "system1-rate-limit-storm"
    "system1-stream-cut"
    "system1-stall"
    "system1-outage-60s"
    "system1-single-provider"
    "system1-store-restart"
    "system1-replica-killed"
    "system2-as-given"
    "system2-peak"
    "system2-slow-store"
    "system2-slow-model"
    "system2-server-dies"
    "system2-zombie"
    "system2-partition"
    "system2-store-restart"
    "system2-hot-thread"
    "system2-burst"
    "system2-duplicates"
    "system2-disconnects"
    "system2-rolling-deploy"
    "system2-model-outage"
    "smoke-system1"
    "smoke-system2"
}

/// One scenario in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub about: String,
}

/// The scenarios that ship.
///
/// # Panics
/// Never in a tested build: the embedded files are parsed by a test.
#[must_use]
pub fn list() -> Vec<Listed> {
    let read = |(name, text): &(&str, &str)| {
        let scenario = parse(name, text).expect("the embedded scenarios are tested");
        Listed { name: scenario.name, about: scenario.about }
    };
    EMBEDDED.iter().map(read).collect()
}
