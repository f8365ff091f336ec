//! `[git]`: hosts that need a login, and where their tokens come from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `[git]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GitConfig {
    /// By their name in URLs: `[git.hosts."github.com"]`.
    pub hosts: BTreeMap<String, HostConfig>,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// Where a token comes from, each time that one is minted: `env:NAME`, `file:PATH`, or
    /// `command:PROGRAM ARGUMENT...`, which prints one.
    pub token: String,
    /// How long a token is used before another one is minted, in seconds.
    #[serde(default = "minutes")]
    pub token_s_max: u64,
    /// Where the forge's REST API is, for pull requests; GitHub's is known.
    #[serde(default)]
    pub api: Option<String>,
    /// The user's name that goes with a token over git's own protocol.
    #[serde(default = "user")]
    pub user: String,
    /// `https`, or `http` for a host on a network of one's own.
    #[serde(default = "https")]
    pub scheme: String,
}

fn minutes() -> u64 {
    300
}

fn user() -> String {
    "x-access-token".to_owned()
}

fn https() -> String {
    "https".to_owned()
}

impl HostConfig {
    /// The address of the REST API, without a slash at the end.
    pub(super) fn api_of(&self, host: &str) -> Option<String> {
        let known = || (host == "github.com").then(|| "https://api.github.com".to_owned());
        self.api.as_ref().map(|api| api.trim_end_matches('/').to_owned()).or_else(known)
    }
}
