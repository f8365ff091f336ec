//! What runs: how many replicas, over which store.

use serde::{Deserialize, Serialize};

/// `[topology]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// Replicas of the platform, unless the command line names another number.
    pub replicas: usize,
    /// The store, unless the command line names another one.
    pub store: StoreKind,
}

impl Default for Topology {
    fn default() -> Self {
        Self { replicas: 1, store: StoreKind::Sqlite }
    }
}

/// A store that the lab can start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// A file of the one replica.
    #[default]
    Sqlite,
    /// A PostgreSQL that is started for the run, with the programs of this machine.
    Postgres,
}

/// The store of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// One that the lab starts.
    Own(StoreKind),
    /// A PostgreSQL that is there already, by its URL. Its database must be empty.
    Url(String),
}

impl StoreChoice {
    /// From the words of the command line.
    ///
    /// # Errors
    /// In words, if it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "sqlite" => Ok(Self::Own(StoreKind::Sqlite)),
            "postgres" => Ok(Self::Own(StoreKind::Postgres)),
            url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Self::Url(url.to_owned()))
            }
            other => Err(format!("{other} is no store. Give sqlite, postgres, or a postgres:// URL.")),
        }
    }

    /// The engine's name in results.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Own(StoreKind::Sqlite) => "sqlite",
            Self::Own(StoreKind::Postgres) | Self::Url(_) => "postgres",
        }
    }
}
