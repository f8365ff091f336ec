//! What this host enforces: every mechanism, why it is missing, and what to do about it.
//!
//! Nothing is believed: the helper makes a real sandbox, runs a command in it, and looks at what
//! the kernel says about that command.

use std::collections::BTreeSet;
use std::fmt;

use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::process;
use serde::{Deserialize, Serialize};

use crate::config::{Degradable, SandboxConfig};
use crate::wire::{EXAMINE_ARGUMENT, Failure, HELPER_ARGUMENT, Step};

/// What this host enforces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Whether commands can be isolated here at all.
    pub usable: bool,
    /// The kernel's release.
    pub kernel: String,
    /// Every mechanism.
    pub findings: Vec<Finding>,
}

/// One mechanism.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Its name.
    pub mechanism: String,
    /// Whether it holds.
    pub state: State,
    /// What was seen.
    pub detail: String,
    /// What to do when it does not hold; empty otherwise.
    pub remedy: String,
    /// The name by which the configuration may allow its absence; none when it is indispensable.
    pub degradable: Option<Degradable>,
}

/// Whether a mechanism holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It holds.
    Enforced,
    /// It does not hold; others still do.
    Missing,
    /// Nothing closes it on any host; said so that it can be taken into account.
    Open,
}

/// Examines the host with this program as the helper.
#[must_use]
pub fn examine() -> Report {
    examine_with(&SandboxConfig::default())
}

/// Examines the host with the configured helper.
#[must_use]
pub fn examine_with(config: &SandboxConfig) -> Report {
    ask_helper(config).unwrap_or_else(|failure| Report {
        usable: false,
        kernel: String::new(),
        findings: vec![Finding {
            mechanism: "helper".to_owned(),
            state: State::Missing,
            detail: failure.to_string(),
            remedy: "Check that the program can start itself again through /proc/self/exe.".to_owned(),
            degradable: None,
        }],
    })
}

fn ask_helper(config: &SandboxConfig) -> Result<Report, Failure> {
    let mut command = process::command(config.helper.path()).into_std();
    let paths = serde_json::to_string(&config.read_only_paths).step("name the read-only paths")?;
    let isolation = serde_json::to_string(&config.isolation).step("name the isolation")?;
    command.args([HELPER_ARGUMENT, EXAMINE_ARGUMENT, &paths, &isolation]);
    let output = command.output().step("start the sandbox helper")?;
    serde_json::from_slice(&output.stdout).step("understand the sandbox helper")
}

impl Report {
    /// Refuses a host that lacks something indispensable, or something not allowed to be absent.
    ///
    /// # Errors
    /// `sandbox-unavailable`, naming every mechanism that is missing.
    pub fn admit(&self, allowed: &BTreeSet<Degradable>) -> Result<(), Error> {
        let refused: Vec<&Finding> =
            self.findings.iter().filter(|finding| finding.refuses(allowed)).collect();
        let Some(first) = refused.first() else {
            return Ok(());
        };
        let names: Vec<String> =
            refused.iter().map(|finding| format!("{} ({})", finding.mechanism, finding.detail)).collect();
        let remedy = match first.degradable {
            Some(name) => format!(
                "{} Or allow its absence: add \"{}\" to sandbox.allow_degraded.",
                first.remedy,
                name.as_str()
            ),
            None => format!(
                "{} Only on a host that is itself thrown away, set sandbox.isolation = \"none\".",
                first.remedy
            ),
        };
        let message = format!("This host does not enforce: {}.", names.join(", "));
        Err(Error::new(Code::SandboxUnavailable, Origin::Ours, message, remedy))
    }

    /// The finding of the named mechanism.
    #[must_use]
    pub fn finding(&self, mechanism: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.mechanism == mechanism)
    }
}

impl Finding {
    fn refuses(&self, allowed: &BTreeSet<Degradable>) -> bool {
        self.state == State::Missing && !self.degradable.is_some_and(|name| allowed.contains(&name))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.usable { "commands are isolated" } else { "commands CANNOT be isolated" };
        writeln!(f, "Sandbox on Linux {}: {verdict}", self.kernel)?;
        let width = self.findings.iter().map(|finding| finding.mechanism.len()).max().unwrap_or(0);
        for finding in &self.findings {
            let mark = match finding.state {
                State::Enforced => "yes ",
                State::Missing => "NO  ",
                State::Open => "open",
            };
            writeln!(f, "  {mark}  {:width$}  {}", finding.mechanism, finding.detail)?;
            if !finding.remedy.is_empty() {
                writeln!(f, "        {:width$}  -> {}", "", finding.remedy)?;
            }
        }
        Ok(())
    }
}
