//! A run and its part of the thread's log, read through the server's door.

use evenkeel_core::id::RunId;
use evenkeel_core::journal::Event;
use evenkeel_core::run::Run;
use evenkeel_core::{Code, Error, Origin};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::Server;

/// A run with its events, in order.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// The run's row.
    pub(crate) run: Run,
    /// Its events.
    pub(crate) events: Vec<Event>,
}

/// Reads a run.
pub(crate) async fn run(server: &Server, id: RunId) -> Result<Run, Error> {
    typed(server.get(&format!("/v1/runs/{id}")).await?)
}

/// Reads a run and all its events.
pub(crate) async fn read(server: &Server, id: RunId) -> Result<Journal, Error> {
    let run = run(server, id).await?;
    let mut events = Vec::new();
    let mut after = Some(0);
    while let Some(seq) = after {
        let page = page(server, id, seq).await?;
        events.extend(page.events);
        after = page.next_after;
    }
    Ok(Journal { run, events })
}

/// A piece of a run's journal.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    /// Events of the run, in order.
    pub(crate) events: Vec<Event>,
    /// Where the next piece begins, if there is one.
    pub(crate) next_after: Option<u64>,
}

/// Reads the events of a run after a place in its thread's log, a piece at most.
pub(crate) async fn page(server: &Server, id: RunId, after: u64) -> Result<Page, Error> {
    typed(server.get(&format!("/v1/runs/{id}/events?after={after}")).await?)
}

/// An answer as the type that it must be.
pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| {
        Error::new(
            Code::ServerUnreachable,
            Origin::Ours,
            format!("The server's answer is not what this version understands: {error}."),
            "Use the same version of `evenkeel` for the server and the command line.",
        )
    })
}
