//! The store of a run: SQLite in the one replica, a PostgreSQL of the lab's own, or one that is there.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_env::Env;
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres, Stop};
use tokio::sync::Mutex;

use crate::scenario::{StoreChoice, StoreKind};
use crate::sim::{Twin, World};

/// The database of a PostgreSQL that the lab starts.
const DATABASE: &str = "evenkeel";
/// What System 2 grants its thread state.
const CONNECTIONS_MAX: u32 = 200;

/// The store, as a component that can be restarted.
pub(super) enum Database {
    /// Inside the replica's process.
    Sqlite,
    /// Started for this run.
    Own { server: Mutex<LocalPostgres>, port: u16 },
    /// Somebody else's; it is neither started nor stopped.
    Url(String),
    /// Simulated. `inside`: it counts as a part of the one replica, as SQLite is.
    Twin { twin: Arc<Twin>, inside: bool },
}

impl Database {
    /// Starts what has to be started.
    pub(super) async fn start(
        env: &Env,
        choice: &StoreChoice,
        world: Option<&Arc<World>>,
    ) -> anyhow::Result<Self> {
        if let Some(world) = world {
            return Ok(Self::Twin { twin: world.twin().clone(), inside: choice.engine() == "sqlite" });
        }
        Ok(match choice {
            StoreChoice::Own(StoreKind::Sqlite) => Self::Sqlite,
            StoreChoice::Url(url) => Self::Url(url.clone()),
            StoreChoice::Own(StoreKind::Postgres) => {
                let options = LocalOptions { max_connections: CONNECTIONS_MAX, ..LocalOptions::default() };
                let server = LocalPostgres::start(env, options).await.context("start PostgreSQL")?;
                server.create_database(DATABASE).await.context("make the database of the run")?;
                let port = server.port();
                Self::Own { server: Mutex::new(server), port }
            }
        })
    }

    /// The port of a server that the lab can put a link in front of.
    pub(super) fn port(&self) -> Option<u16> {
        match self {
            Self::Own { port, .. } => Some(*port),
            _ => None,
        }
    }

    /// The URL for a replica, through the link that listens on `port` if there is one; none for SQLite.
    pub(super) async fn url(&self, port: Option<u16>) -> Option<String> {
        match self {
            Self::Sqlite => None,
            Self::Twin { .. } => Some("memory".to_owned()),
            Self::Own { server, port: own } => {
                Some(server.lock().await.url_at(port.unwrap_or(*own), DATABASE))
            }
            Self::Url(url) => Some(url.clone()),
        }
    }

    /// Whether it ends and starts with the replica's process.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self, Self::Sqlite | Self::Twin { inside: true, .. })
    }

    /// Kills the server and starts it again after `down`. `down_now` and `up_again` are told when.
    pub(super) async fn restart(&self, down: Duration, mut note: impl FnMut(bool)) -> anyhow::Result<()> {
        if let Self::Twin { twin, .. } = self {
            twin.set_up(false);
            note(true);
            tokio::time::sleep(down).await;
            twin.set_up(true);
            note(false);
        }
        let Self::Own { server, .. } = self else { return Ok(()) };
        let mut server = server.lock().await;
        server.stop(Stop::Immediate).await.context("kill PostgreSQL")?;
        note(true);
        tokio::time::sleep(down).await;
        server.resume().await.context("start PostgreSQL again")?;
        note(false);
        Ok(())
    }
}
