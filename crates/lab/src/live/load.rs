//! The load: an open loop of clients through the LangGraph door. A client that gets no answer asks
//! again with the same key, as a careful client does.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::ThreadId;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{Door, Trouble};
use super::{Run, Tasks};
use crate::check::{Entry, Recorder};
use crate::task::Solver;

const ASK_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Starts every client at its time and waits until all have their end, or time is up.
pub(super) async fn run(run: &Run, tasks: &Tasks) {
    let began = Instant::now();
    let until = began + run.limit();
    let traffic = &run.plan.scenario.traffic;
    let door = run.fleet.entry_door();
    let clients = (0..traffic.n_tasks()).map(|task| {
        let client = Client {
            task,
            script: tasks.script(task).name.to_owned(),
            thread: ThreadId::new(run.env.wall(), &run.env.generator).to_string(),
            key: format!("lab-{}-{task}", run.plan.seed),
            ask: ask(run, tasks, task),
            door: door.clone(),
            recorder: run.recorder.clone(),
        };
        let begins = began + Duration::from_secs_f64(task as f64 / traffic.rate_per_s);
        let (done, ended) = tokio::sync::oneshot::channel();
        let work = async move {
            tokio::time::sleep_until(begins).await;
            // Time that is up leaves the task without an end, which the checker then finds.
            drop(tokio::time::timeout_at(until, Arc::new(client).all()).await);
            // Nobody listens if the lab itself was given up.
            let _ = done.send(());
        };
        run.env.spawner.spawn("lab-client", Box::pin(work));
        ended
    });
    let clients: Vec<_> = clients.collect();
    join_all(clients).await;
}

fn ask(run: &Run, tasks: &Tasks, task: usize) -> Value {
    let script = tasks.script(task);
    let directory = tasks.repositories.get(script.name).map(|path| path.display().to_string());
    json!({
        "assistant_id": "coder",
        "input": {
            "messages": [{"role": "user", "content": Solver::ask(script, run.plan.scenario.traffic.shape, task)}],
            "repository": {"directory": directory},
        },
    })
}

struct Client {
    task: usize,
    script: String,
    thread: String,
    key: String,
    ask: Value,
    door: Door,
    recorder: Recorder,
}

impl Client {
    async fn all(self: Arc<Self>) {
        let Some(run) = self.submit().await else { return };
        let task = self.task;
        self.recorder.add(|t| Entry::Accepted { task, run: run.clone(), t });
        let status = self.wait(&run).await;
        self.recorder.add(|t| Entry::Ok { task, run, status, reply: None, t });
    }

    /// Asks until the task is accepted or refused for good.
    async fn submit(&self) -> Option<String> {
        let Self { task, .. } = *self;
        let thread = json!({"thread_id": self.thread, "if_exists": "do_nothing"});
        let runs = format!("/threads/{}/runs", self.thread);
        for attempt in 1.. {
            self.recorder.add(|t| Entry::Invoke {
                task,
                script: self.script.clone(),
                thread: self.thread.clone(),
                key: self.key.clone(),
                attempt,
                t,
            });
            let answer = match self.door.post("/threads", None, &thread).await {
                Ok(_) => self.door.post(&runs, Some(&self.key), &self.ask).await,
                Err(trouble) => Err(trouble),
            };
            match answer {
                Ok(run) => match run["run_id"].as_str() {
                    Some(run) => return Some(run.to_owned()),
                    None => self.unsure("the answer names no run".to_owned()),
                },
                Err(Trouble::Refused(code, text)) if code < 500 && code != 429 => {
                    self.recorder.add(|t| Entry::Fail { task, code, text, t });
                    return None;
                }
                Err(trouble) => self.unsure(trouble.to_string()),
            }
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
        None
    }

    /// Waits until the run has ended, over as many connections as it takes.
    async fn wait(&self, run: &str) -> String {
        let path = format!("/threads/{}/runs/{run}", self.thread);
        loop {
            let joined = self.door.text(&format!("{path}/join")).await;
            if let Err(trouble) = joined {
                self.unsure(trouble.to_string());
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
            match self.door.get(&path).await {
                Ok(run) => {
                    let status = run["status"].as_str().unwrap_or_default();
                    if !["pending", "running"].contains(&status) {
                        return status.to_owned();
                    }
                }
                Err(trouble) => self.unsure(trouble.to_string()),
            }
        }
    }

    fn unsure(&self, why: String) {
        let task = self.task;
        self.recorder.add(|t| Entry::Info { task, why, t });
    }
}
