//! A thread on a server: messages go in, the stream of all its runs comes out, whatever happens to
//! the connection.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_core::id::ThreadId;
use evenkeel_core::{Code, Error, Retry};
use evenkeel_env::{Env, sse};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Events, Server};
use crate::cmd::ask::{self, Question, Said};

/// A server that cannot be reached for this long is given up; what runs there goes on.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);

/// One event of the stream.
pub(super) struct Heard {
    pub(super) name: String,
    pub(super) data: Value,
    pub(super) id: Option<String>,
}

impl Heard {
    /// Whether it says that a run waits for a person.
    pub(super) fn asks(&self) -> bool {
        self.name == "custom" && self.data["type"] == "waiting" && self.data["on"] == "approval"
    }
}

/// A message that was accepted.
pub(super) struct Sent {
    /// Its run.
    pub(super) run: String,
    /// Why it is not answered at once, if it is not.
    pub(super) waits_because: Option<String>,
}

/// A conversation.
pub(super) struct Session {
    env: Env,
    server: Server,
    /// Its thread.
    pub(super) thread: String,
    assistant: String,
    /// The last id that was heard.
    after: String,
    events: Option<Events>,
    lost_at: Option<Instant>,
    /// Runs that were accepted here and have not ended.
    open: BTreeSet<String>,
}

impl Session {
    /// A new thread, or one that exists, from its end on.
    pub(super) async fn open(
        env: &Env,
        server: Server,
        thread: Option<ThreadId>,
        assistant: String,
    ) -> Result<Self, Error> {
        let (thread, after) = match thread {
            Some(thread) => {
                let stored = server.get(&format!("/v1/threads/{thread}")).await?;
                (thread.to_string(), stored["seq_last"].as_u64().unwrap_or(0).to_string())
            }
            None => {
                let made = server.post("/threads", &json!({})).await?;
                (made["thread_id"].as_str().unwrap_or_default().to_owned(), "-1".to_owned())
            }
        };
        let (env, open) = (env.clone(), BTreeSet::new());
        Ok(Self { env, server, thread, assistant, after, events: None, lost_at: None, open })
    }

    /// Whether everything that was sent has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Sends a message. It may be sent again without being answered twice: its key stands for it.
    pub(super) async fn say(&mut self, text: &str, policy: Option<&str>) -> Result<Sent, Error> {
        let key = evenkeel_core::id::uuid_v7(self.env.wall(), &self.env.generator).to_string();
        let body = json!({
            "assistant_id": self.assistant,
            "input": { "messages": [{ "role": "user", "content": text }] },
            "stream_mode": ["messages-tuple", "custom"],
            "multitask_strategy": policy,
        });
        let path = format!("/threads/{}/runs", self.thread);
        let begun = Instant::now();
        let run = loop {
            let headers = [("idempotency-key", key.as_str())];
            match self.server.json(http::Method::POST, &path, Some(&body), &headers).await {
                Err(error) if is_passing(&error) && begun.elapsed() < GIVE_UP_AFTER => {
                    tokio::time::sleep(PAUSE).await;
                }
                answer => break answer?,
            }
        };
        let id = run["run_id"].as_str().unwrap_or_default().to_owned();
        self.open.insert(id.clone());
        let waits = run["evenkeel"]["waits_because"].as_str().map(str::to_owned);
        Ok(Sent { run: id, waits_because: waits })
    }

    /// Stops what was sent and has not ended; `false` if there is nothing.
    pub(super) async fn cancel(&mut self) -> Result<bool, Error> {
        let runs: Vec<&String> = self.open.iter().collect();
        if runs.is_empty() {
            return Ok(false);
        }
        let body = json!({ "thread_id": self.thread, "run_ids": runs });
        match self.server.post("/runs/cancel", &body).await {
            Err(error) if error.code == Code::RunEnded => Ok(true),
            answer => answer.map(|_| true),
        }
    }

    /// What its run asks of a person now.
    pub(super) async fn questions(&self) -> Result<Vec<Question>, Error> {
        ask::open(&self.server, &self.thread).await
    }

    /// Answers a question; `false` if that is too late.
    pub(super) async fn answer(&self, question: &Question, said: &Said) -> Result<bool, Error> {
        ask::answer(&self.server, &question.id, said).await
    }

    /// The next event; opens the stream again where it broke. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Heard, Error> {
        loop {
            match self.hear().await {
                Ok(Some(event)) => {
                    self.lost_at = None;
                    let data = serde_json::from_str(&event.data).unwrap_or_default();
                    return Ok(Heard { name: event.name, data, id: event.id });
                }
                // The server closes its streams when it stops: they go on where it is next.
                Ok(None) => {}
                Err(error) if !is_passing(&error) => return Err(error),
                Err(error) if self.lost_at.get_or_insert_with(Instant::now).elapsed() > GIVE_UP_AFTER => {
                    return Err(error);
                }
                Err(_) => {}
            }
            self.events = None;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn hear(&mut self) -> Result<Option<sse::Event>, Error> {
        if self.events.is_none() {
            let path = format!("/threads/{}/stream", self.thread);
            self.events = Some(self.server.events(&path, &self.after).await?);
        }
        match &mut self.events {
            Some(events) => events.next().await,
            None => Ok(None),
        }
    }

    /// Remembers where the stream stands; a run that is done is no longer open.
    pub(super) fn seen(&mut self, heard: &Heard) {
        if let Some(id) = &heard.id {
            self.after.clone_from(id);
        }
        if heard.name == "metadata" && heard.data["status"] == "run_done" {
            self.open.remove(heard.data["run_id"].as_str().unwrap_or_default());
        }
    }
}

/// Whether the same may go well a moment later.
fn is_passing(error: &Error) -> bool {
    error.retry != Retry::No || matches!(error.code, Code::ServerUnreachable | Code::Draining)
}
