//! Delivering what a run changed to the place where its repository lives: as a commit on a branch,
//! and as a pull request for it.
//!
//! ```text
//!   diff of the run --> a fresh clone of base or branch --> commit --> push --> read back
//!                                     |                               |
//!                                     +------------ broker -----------+--> forge (API: pull request)
//!                                     the only place that has the token
//! ```
//! What holds:
//! - A token is minted when it is used and again when the forge refuses it; it is in no URL,
//!   argument, environment, file or log. Git speaks to the broker on the loopback device.
//! - Nothing that a run wrote is executed here: its workspace is not looked at, only its diff, and
//!   git runs with a configuration of ours (see `git`).
//! - A delivery that is asked for again finds what it made before: the commit by the run that it
//!   names, the pull request by its branch. It has succeeded when the forge shows both.
//! - A branch is added to, never rewritten.

mod broker;
mod commit;
mod config;
mod pull_request;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::forge::{Delivery, Forge};
use evenkeel_core::run::{Deliver, Delivered};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;

pub(crate) use broker::Broker;
pub use config::{GitConfig, HostConfig};
use token::Tokens;

/// Reads a variable of the environment.
pub type Variable = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The hosts of the configuration, and a folder for clones.
pub struct GitForge {
    env: Env,
    folder: PathBuf,
    hosts: Arc<Hosts>,
}

/// Hosts that need a login, by their name as it stands in URLs.
pub struct Hosts {
    env: Env,
    by_name: BTreeMap<String, Host>,
}

/// One host.
struct Host {
    config: HostConfig,
    tokens: Arc<Tokens>,
}

/// A repository at a host that is known.
struct Place<'a> {
    host: &'a Host,
    /// `https://host`.
    base: String,
    /// `owner/name`, without `.git`.
    name: String,
}

impl Hosts {
    /// The hosts of a configuration. `variable` reads the environment.
    ///
    /// # Errors
    /// `config-invalid` if a token is written out, or a source of tokens is not understood.
    pub fn new(env: &Env, config: &GitConfig, variable: Variable) -> Result<Arc<Self>, Error> {
        let mut by_name = BTreeMap::new();
        for (name, host) in &config.hosts {
            let tokens = Tokens::new(env, name, host, variable.clone())?;
            by_name
                .insert(name.to_ascii_lowercase(), Host { config: host.clone(), tokens: Arc::new(tokens) });
        }
        Ok(Arc::new(Self { env: env.part("git"), by_name }))
    }

    /// A way to the repository at this URL that carries a login; none if its host needs none.
    ///
    /// # Errors
    /// When no way can be opened.
    pub(crate) async fn way(&self, url: &str) -> std::io::Result<Option<Broker>> {
        match self.place(url) {
            Some(place) => Broker::start(&self.env, &place).await.map(Some),
            None => Ok(None),
        }
    }

    fn place(&self, url: &str) -> Option<Place<'_>> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_once('/')?;
        let host = self.by_name.get(&authority.to_ascii_lowercase())?;
        if scheme != host.config.scheme {
            return None;
        }
        let name = path.trim_matches('/').trim_end_matches(".git").to_owned();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./~".contains(c);
        let is_good = !name.is_empty() && name.chars().all(is_plain) && !name.contains("..");
        is_good.then(|| Place { host, base: format!("{scheme}://{authority}"), name })
    }
}

impl GitForge {
    /// Delivers to these hosts, with clones below `folder`, which replicas may share.
    #[must_use]
    pub fn new(env: &Env, folder: PathBuf, hosts: Arc<Hosts>) -> Arc<Self> {
        Arc::new(Self { env: env.part("forge"), folder, hosts })
    }

    async fn deliver_to(&self, delivery: &Delivery) -> Result<Delivered, Error> {
        let place = self.hosts.place(&delivery.url).ok_or_else(|| no_host(&delivery.url))?;
        let way = Broker::start(&self.env, &place).await;
        let way = way.map_err(|error| later(format!("The broker does not start: {error}.")))?;
        let branch = branch_of(delivery)?;
        let made = {
            let clone = commit::Clone::new(&self.folder, delivery, &branch, &way);
            let made = clone.make().await;
            clone.remove().await;
            made?
        };
        let mut delivered = Delivered { branch, commit: made.commit, pull_request: None };
        if delivery.wanted.pull_request {
            let requests = pull_request::PullRequests::new(&self.env, &place)?;
            delivered.pull_request = Some(requests.open(delivery, &delivered.branch, &made.base).await?);
        }
        tracing::info!(run = %delivery.run, branch = delivered.branch, commit = delivered.commit, "delivered");
        Ok(delivered)
    }
}

impl Forge for GitForge {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'_, Result<Delivered, Error>> {
        Box::pin(async move { self.deliver_to(&delivery).await })
    }
}

impl GitConfig {
    /// Looks whether a result can be asked to be delivered there, before any work is done for it.
    ///
    /// # Errors
    /// `bad-request` for a name that is none of a branch, or a host without a login.
    pub fn check(&self, wanted: &Deliver, url: &str) -> Result<(), Error> {
        let names = [("branch", &wanted.branch), ("base", &wanted.base)];
        for (key, name) in names {
            if let Some(name) = name.as_ref().filter(|name| !is_branch(name)) {
                return Err(Error::client(
                    Code::BadRequest,
                    format!("`input.deliver.{key}` is {name:?}, which is not a name of a branch."),
                    "Use letters, digits, dots, dashes, underscores and slashes.",
                ));
            }
        }
        let host = url.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
        if self.hosts.keys().any(|name| name.eq_ignore_ascii_case(host)) {
            return Ok(());
        }
        let gone = no_host(url);
        Err(Error::client(Code::BadRequest, gone.message, gone.remedy))
    }
}

/// The branch that was asked for, or the thread's own.
fn branch_of(delivery: &Delivery) -> Result<String, Error> {
    match &delivery.wanted.branch {
        None => Ok(format!("evenkeel/{}", delivery.thread)),
        Some(branch) if is_branch(branch) => Ok(branch.clone()),
        Some(branch) => Err(never(
            format!("{branch:?} is not a name of a branch."),
            "Use letters, digits, dots, dashes, underscores and slashes.",
        )),
    }
}

/// Whether git takes it as a branch, and no program takes it as an option.
pub(crate) fn is_branch(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let part_is_good = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    name.chars().all(is_plain)
        && !name.starts_with('-')
        && !name.contains("..")
        && !name.ends_with('.')
        && name.split('/').all(part_is_good)
}

fn no_host(url: &str) -> Error {
    never(
        format!("There is no login for the host of {url}."),
        "Configure the host and where its token comes from under [git.hosts].",
    )
}

/// A delivery that will not succeed however often it is asked for.
fn never(message: String, remedy: &'static str) -> Error {
    Error::new(Code::DeliveryFailed, Origin::Tool, message, remedy)
}

/// A delivery that may succeed later.
fn later(message: String) -> Error {
    Error::new(
        Code::DeliveryFailed,
        Origin::Tool,
        message,
        "It is tried again until the run's time is up; look at the forge and at the way to it.",
    )
    .retryable()
}
