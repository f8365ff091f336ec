//! The harvest of a chat: one more turn on each replica, then every thread as the store holds it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_core::id::ThreadId;
use evenkeel_core::journal::Event;
use evenkeel_core::run::Run as StoredRun;
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use crate::check::Entry;
use crate::live::Run;
use crate::live::client::Door;
use crate::live::harvest::{here, typed};

const PAGE: usize = 1_000;
const N_READ_AT_ONCE: usize = 8;
/// When everything has healed, a replica serves within this time.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Reads everything into the history.
pub(in crate::live) async fn all(run: &Run) -> anyhow::Result<()> {
    for (name, door) in run.fleet.replica_doors() {
        let trouble = serves(run, &door).await.err();
        run.recorder.add(|_| Entry::Tail { replica: name, trouble });
    }
    let door = run.fleet.door();
    let threads: BTreeSet<String> = run
        .recorder
        .history()
        .entries
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Invoke { thread, attempt: 1, .. } => Some(thread),
            _ => None,
        })
        .collect();
    run.plan.progress.say(&format!("Reading {} threads from the store.", threads.len()));
    let read = stream::iter(threads).map(|thread| one(run, &door, thread)).buffer_unordered(N_READ_AT_ONCE);
    let read: Vec<anyhow::Result<()>> = read.collect().await;
    read.into_iter().collect()
}

/// Asks until a turn succeeds. Directly after an outage a replica may still wait for its next probe of
/// a provider, and says so.
async fn serves(run: &Run, door: &Door) -> Result<(), String> {
    let until = Instant::now() + SERVES_WITHIN;
    let mut trouble = "There was no answer in time.".to_owned();
    while let Ok(answer) = timeout_at(until, one_more(run, door)).await {
        match answer {
            Ok(()) => return Ok(()),
            Err(words) => trouble = words,
        }
        if timeout_at(until, sleep(AGAIN_AFTER)).await.is_err() {
            break;
        }
    }
    Err(trouble)
}

/// A turn on a thread of its own.
async fn one_more(run: &Run, door: &Door) -> Result<(), String> {
    let thread = ThreadId::new(run.env.wall(), &run.env.generator);
    let ask = json!({
        "assistant_id": "chat",
        "input": {"messages": [{"role": "user", "content": "Are you there?"}]},
        "if_not_exists": "create",
    });
    let answer = door.post(&format!("/threads/{thread}/runs/wait"), None, &ask).await;
    let answer = answer.map_err(|trouble| trouble.to_string())?;
    let n_replies = answer["messages"].as_array().map_or(0, Vec::len);
    if n_replies == 2 { Ok(()) } else { Err(format!("The answer was {answer}.")) }
}

async fn one(run: &Run, door: &Door, thread: String) -> anyhow::Result<()> {
    let path = format!("/v1/threads/{thread}");
    // A thread that never came to be has no log.
    let Some(stored) = door.read(&path).await? else { return Ok(()) };
    let version = stored["version"].as_u64().context("a thread has a version")?;
    let mut runs: Vec<StoredRun> = Vec::new();
    loop {
        let page = here(door, &format!("{path}/runs?limit={PAGE}&offset={}", runs.len())).await?;
        let page: Vec<StoredRun> = typed(page).context("read the runs of a thread")?;
        let full = page.len() == PAGE;
        runs.extend(page);
        if !full {
            break;
        }
    }
    let mut events: Vec<Event> = Vec::new();
    let mut after = Some(0);
    while let Some(seq) = after {
        let page = here(door, &format!("{path}/events?after={seq}&limit={PAGE}")).await?;
        events.extend(typed::<Vec<Event>>(page["events"].clone()).context("read the events of a thread")?);
        after = page["next_after"].as_u64();
    }
    run.recorder.add(|_| Entry::Log { thread, version, runs, events });
    Ok(())
}
