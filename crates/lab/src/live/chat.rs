//! The load of a chat: an open loop of turns over many threads, through the primary door.

mod client;
mod harvest;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Generator;
use evenkeel_core::id::ThreadId;
use futures_util::future::join_all;
use tokio::time::Instant;

pub(super) use harvest::all as harvest;

use super::Run;
use crate::scenario::{Chat, Traffic};
use client::{Client, Doors};

/// When each turn of a load comes, in seconds, and on which thread.
pub(crate) fn arrivals(traffic: &Traffic, chat: &Chat, generator: &Generator) -> Vec<(f64, usize)> {
    let turns = plan::draw(traffic, chat, generator);
    turns.into_iter().map(|turn| (turn.at_ms as f64 / 1_000.0, turn.thread)).collect()
}

/// Starts every turn at its time and waits until all clients have their answer, or time is up.
pub(super) async fn run(run: &Run) {
    let scenario = &run.plan.scenario;
    let began = Instant::now();
    let until = began + run.limit();
    let generator = run.env.generator.part("chat");
    let turns = plan::draw(&scenario.traffic, &scenario.chat, &generator);
    let n_threads = turns.iter().map(|turn| turn.thread).max().map_or(0, |last| last + 1);
    let threads: Vec<String> =
        (0..n_threads).map(|_| ThreadId::new(run.env.wall(), &generator).to_string()).collect();
    let doors = Arc::new(Doors::new(&run.env, run.fleet.entry(), &scenario.chat));
    let mut ends = Vec::with_capacity(turns.len());
    for (turn, planned) in turns.into_iter().enumerate() {
        tokio::time::sleep_until(began + Duration::from_millis(planned.at_ms)).await;
        let client = Client {
            turn,
            planned,
            thread: threads[planned.thread].clone(),
            key: format!("lab-{}-{turn}", run.plan.seed),
            doors: doors.clone(),
            recorder: run.recorder.clone(),
        };
        let (done, ended) = tokio::sync::oneshot::channel();
        let work = async move {
            // Time that is up leaves the turn without an end, which the checker then finds.
            drop(tokio::time::timeout_at(until, client.all()).await);
            // Nobody listens if the lab itself was given up.
            let _ = done.send(());
        };
        run.env.spawner.spawn("lab-client", Box::pin(work));
        ends.push(ended);
    }
    join_all(ends).await;
}
