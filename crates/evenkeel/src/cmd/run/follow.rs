//! Follows a run on the server's stream to its end, whatever happens to the connection.

use std::time::Duration;

use evenkeel_core::run::Delivered;
use evenkeel_core::{Error, Retry};
use evenkeel_env::sse::Event;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::progress::Progress;
use crate::client::{Events, Server};
use crate::cmd::ask::Person;
use crate::cmd::serve::Stop;

/// A server that cannot be reached for this long is given up; the run goes on there.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);

/// How a run ended, as its client knows it.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) thread: String,
    pub(crate) run: String,
    /// completed, failed, cancelled or expired.
    pub(crate) state: String,
    pub(crate) steps: u64,
    pub(crate) ms: u64,
    pub(crate) text: String,
    pub(crate) diff: Option<String>,
    pub(crate) delivered: Option<Delivered>,
    pub(crate) error: Option<Error>,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

impl Ended {
    /// For scripts.
    pub(crate) fn json(&self) -> Value {
        json!({
            "run_id": self.run, "thread_id": self.thread, "state": self.state, "steps": self.steps, "ms": self.ms,
            "input_tokens": self.input_tokens, "output_tokens": self.output_tokens,
            "text": self.text, "diff": self.diff, "delivered": self.delivered, "error": self.error,
        })
    }
}

/// Follows to the end. The first signal cancels the run, the second leaves. What the run asks of a
/// person is asked at the terminal, if somebody is there; else it waits for an answer from elsewhere.
pub(crate) async fn follow(
    server: &Server,
    thread: &str,
    run: &str,
    stop: &mut Stop,
    quiet: bool,
) -> Result<Ended, Error> {
    let begun = Instant::now();
    let mut progress = Progress::new(quiet);
    progress.begin(server.address(), thread, run);
    let mut person = Person::at_the_terminal().filter(|_| !quiet);
    let mut n_stops = 0;
    let word = loop {
        let mut reading = std::pin::pin!(read(server, (thread, run), &mut progress, &mut person));
        let done = tokio::select! {
            biased;
            () = stop.wait() => None,
            word = &mut reading => Some(word?),
        };
        match done {
            Some(word) => break word,
            None if n_stops > 0 => return Err(left(server, run)),
            None => {
                n_stops += 1;
                eprintln!("cancelling; what was changed is kept (ctrl-c again to leave at once)");
                cancel(server, thread, run).await?;
            }
        }
    };
    let state = server.get(&format!("/threads/{thread}/state")).await?;
    let values = |key: &str| state["values"][key].as_str().map(str::to_owned);
    Ok(Ended {
        thread: thread.to_owned(),
        run: run.to_owned(),
        state: our_word(&word).to_owned(),
        steps: progress.step,
        ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        text: values("result").unwrap_or_default(),
        diff: values("diff"),
        delivered: serde_json::from_value(state["values"]["delivered"].clone()).ok(),
        error: progress.error.take(),
        input_tokens: progress.input_tokens,
        output_tokens: progress.output_tokens,
    })
}

/// The wire's word for an end, in ours.
fn our_word(status: &str) -> &str {
    match status {
        "success" => "completed",
        "error" => "failed",
        "interrupted" => "cancelled",
        "timeout" => "expired",
        other => other,
    }
}

/// A run that ended in the same moment needs no cancel.
async fn cancel(server: &Server, thread: &str, run: &str) -> Result<(), Error> {
    match server.post(&format!("/threads/{thread}/runs/{run}/cancel"), &json!({})).await {
        Err(error) if error.code != evenkeel_core::Code::RunEnded => Err(error),
        _ => Ok(()),
    }
}

fn left(server: &Server, run: &str) -> Error {
    Error::client(
        evenkeel_core::Code::ServerUnreachable,
        format!("Left while run {run} was still being cancelled."),
        format!("evenkeel runs show {run} --server {}", server.address()),
    )
}

/// Reads until the run's end and gives its status; opens the stream again where it broke. The
/// progress remembers the last id, so dropping this and calling it again loses nothing.
async fn read(
    server: &Server,
    (thread, run): (&str, &str),
    progress: &mut Progress,
    person: &mut Option<Person>,
) -> Result<String, Error> {
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=custom,updates");
    let mut last_good = Instant::now();
    loop {
        let outcome = match server.events(&path, &progress.last_id).await {
            Ok(events) => {
                last_good = Instant::now();
                pump(events, progress, &mut last_good).await
            }
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Ok(Some(status)) if status == "interrupted" && waits(server, thread, run).await? => {
                asked(server, thread, person).await.map(|()| None)
            }
            other => other,
        };
        match outcome {
            Ok(Some(status)) => return Ok(status),
            // The server closes a stream without an end when it stops: the next one goes on there. So
            // does the stream of a run that a person has answered.
            Ok(None) => {}
            Err(error)
                if error.retry == Retry::No && error.code != evenkeel_core::Code::ServerUnreachable =>
            {
                return Err(error);
            }
            Err(error) if last_good.elapsed() > GIVE_UP_AFTER => return Err(error),
            Err(error) => progress.say(&format!("the connection broke, trying again: {}", error.message)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Has the person at the terminal decide, if there is one.
async fn asked(server: &Server, thread: &str, person: &mut Option<Person>) -> Result<(), Error> {
    match person {
        Some(person) => person.decide(server, thread).await,
        None => Ok(()),
    }
}

/// Whether a run that is said to be interrupted waits for a person: then it goes on when answered.
async fn waits(server: &Server, thread: &str, run: &str) -> Result<bool, Error> {
    let run = server.get(&format!("/threads/{thread}/runs/{run}")).await?;
    Ok(run["evenkeel"]["state"] == "waiting")
}

async fn pump(
    mut events: Events,
    progress: &mut Progress,
    last_good: &mut Instant,
) -> Result<Option<String>, Error> {
    while let Some(Event { name, data, id }) = events.next().await? {
        *last_good = Instant::now();
        let value: Value = serde_json::from_str(&data).unwrap_or_default();
        if name == "end" {
            return Ok(Some(value["status"].as_str().unwrap_or_default().to_owned()));
        }
        progress.event(&name, &value);
        if let Some(id) = id {
            progress.last_id = id;
        }
    }
    Ok(None)
}
