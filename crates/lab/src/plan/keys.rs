//! `[plan]`: what a file says for `lab plan` alone.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::work::Component;

/// `[plan]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// The share of every limit that must be free at the asked rate.
    pub headroom: f64,
    /// Multiples of the asked rate at which `--check` compares.
    pub check: Vec<f64>,
    /// Commits a second that the store's disk takes, where that was measured.
    pub commits_per_s: Option<f64>,
    /// Milliseconds that a component takes, by its name, where a live system has shown it: in a
    /// virtual run computation takes no time.
    pub service_ms: BTreeMap<String, f64>,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            headroom: 0.2,
            check: vec![1.0, 10.0, 100.0],
            commits_per_s: None,
            service_ms: BTreeMap::new(),
        }
    }
}

impl Keys {
    /// What makes no sense, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        if !(0.0..1.0).contains(&self.headroom) {
            return Some("plan.headroom is a share of a limit: from 0 to less than 1.".to_owned());
        }
        if self.check.iter().any(|multiple| !multiple.is_finite() || *multiple <= 0.0) {
            return Some("plan.check has multiples of the rate: each more than 0.".to_owned());
        }
        if self.commits_per_s.is_some_and(|n| n <= 0.0) {
            return Some("plan.commits_per_s is more than 0.".to_owned());
        }
        let names = || Component::ALL.map(Component::name);
        if let Some(name) = self.service_ms.keys().find(|name| !names().contains(&name.as_str())) {
            let names = names().join(", ");
            return Some(format!("plan.service_ms.{name}: there is no such component, only {names}."));
        }
        let (name, _) = self.service_ms.iter().find(|(_, ms)| !ms.is_finite() || **ms < 0.0)?;
        Some(format!("plan.service_ms.{name} is a time: 0 or more."))
    }
}
