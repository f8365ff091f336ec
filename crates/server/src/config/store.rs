//! Where threads and runs are kept: which engine, and for PostgreSQL which database.
//!
//! The URL of a database may hold a password. It is kept as it was typed and shown to nobody: what is
//! printed has `***` in its place. In a file, write `env:NAME` and put the URL into the variable.

use std::fmt;

use evenkeel_core::Error;
use evenkeel_store::postgres::PostgresStore;
use serde::{Deserialize, Serialize};

use super::{Environment, invalid};

/// A store engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StoreEngine {
    /// A file under `server.data_dir`.
    Sqlite,
    /// Nothing survives the process.
    Memory,
    /// A PostgreSQL database, which several processes may share.
    Postgres(StoreUrl),
}

/// A database's URL, or the variable that holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl TryFrom<String> for StoreEngine {
    type Error = String;

    fn try_from(typed: String) -> Result<Self, String> {
        match typed.as_str() {
            "sqlite" => Ok(Self::Sqlite),
            "memory" => Ok(Self::Memory),
            url if ["postgres://", "postgresql://", "env:"].iter().any(|start| url.starts_with(start)) => {
                Ok(Self::Postgres(StoreUrl(typed)))
            }
            _ => Err(
                "not a store; possible are sqlite, memory, a postgres:// URL, and env:NAME for a variable \
                      that holds one"
                    .to_owned(),
            ),
        }
    }
}

impl From<StoreEngine> for String {
    fn from(engine: StoreEngine) -> Self {
        match engine {
            StoreEngine::Sqlite => "sqlite".to_owned(),
            StoreEngine::Memory => "memory".to_owned(),
            StoreEngine::Postgres(url) => url.to_string(),
        }
    }
}

impl StoreUrl {
    /// The URL itself, with its password.
    ///
    /// # Errors
    /// `provider-key-missing` if the variable is not set; `config-invalid` if it holds no URL that
    /// can be used.
    pub fn resolve(&self, environment: &Environment) -> Result<String, Error> {
        use secrecy::ExposeSecret as _;
        let url = match self.0.starts_with("env:") {
            true => environment.secret("server.store", &self.0)?.expose_secret().to_owned(),
            false => self.0.clone(),
        };
        PostgresStore::check_url(&url)?;
        Ok(url)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL with `***` for its password, wherever that stands.
fn without_password(url: &str) -> String {
    let (front, query) = match url.split_once('?') {
        Some((front, query)) => (front, Some(query)),
        None => (url, None),
    };
    let front = match front.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((login, place)) => {
                let user = login.split_once(':').map_or(login.to_owned(), |(user, _)| format!("{user}:***"));
                format!("{scheme}://{user}@{place}")
            }
            None => front.to_owned(),
        },
        None => front.to_owned(),
    };
    let Some(query) = query else {
        return front;
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some(("password", _)) => "password=***",
        _ => pair,
    });
    format!("{front}?{}", pairs.collect::<Vec<_>>().join("&"))
}

/// More connections of one process than any database should be asked for.
const CONNECTIONS_MAX: usize = 200;

/// Refuses a number of connections with which nothing, or everything, could be done.
pub(super) fn check_connections(n: usize) -> Result<(), Error> {
    if (2..=CONNECTIONS_MAX).contains(&n) {
        return Ok(());
    }
    Err(invalid(
        format!("server.store_connections is {n}; possible are 2 to {CONNECTIONS_MAX}."),
        "Remove the key for the default of 10: half of the connections write, the others read.",
    ))
}
