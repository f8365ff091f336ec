//! From kill -9 and a new start to the first step that a run takes again.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use evenkeel_lab::task::{Shape, Solver};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::aim::judge;
use crate::child;

const ROUNDS: usize = 5;

/// Measures and prints.
pub(crate) async fn measure(env: &Env) -> Result<()> {
    println!(
        "\nrestart: kill -9 of a server with a run at work, started again at once, milliseconds from the start"
    );
    println!("  round  listening  run claimed  step committed");
    let provider = child::start(&["as-provider", "solver"]).await?;
    let mut slowest = 0;
    for round in 1..=ROUNDS {
        let folder = tempfile::tempdir()?;
        let (listening, claimed, stepped) = once(env, folder.path(), &provider.address).await?;
        println!("  {round:>5}  {listening:>9}  {claimed:>11}  {stepped:>14}");
        slowest = slowest.max(stepped);
    }
    judge("the slowest restart to a step", slowest as f64 / 1000.0, 2.0, "s");
    Ok(())
}

async fn once(env: &Env, folder: &std::path::Path, base_url: &str) -> Result<(u128, u64, u64)> {
    let config = folder.join("evenkeel.toml").display().to_string();
    let data = folder.join("data").display().to_string();
    let head = format!("[server]\nlisten = \"127.0.0.1:0\"\ndata_dir = \"{data}\"\n");
    std::fs::write(&config, child::config(base_url, &head))?;
    let mut server = child::start(&["as-server", &config]).await?;
    let door = Door { client: Client::new(env, Duration::from_secs(2)) };
    let run = door.begin(&server.address).await?;
    door.wait(&server.address, &run, |events| events.iter().any(|event| is_step(event, 2))).await?;
    server.process.kill().await?;

    let (begun, wall) = (Instant::now(), env.wall());
    let server = child::start(&["as-server", &config]).await?;
    let listening = begun.elapsed().as_millis();
    let events = door.wait(&server.address, &run, |events| stepped_again(events).is_some()).await?;
    let claimed = events.iter().find(|event| is_claim(event)).context("no second claim")?;
    let stepped = stepped_again(&events).context("no step after it")?;
    let ms = |event: &Event| u64::try_from(event.at.since(wall).as_millis()).unwrap_or(u64::MAX);
    Ok((listening, ms(claimed), ms(stepped)))
}

fn is_step(event: &Event, step: u32) -> bool {
    event.step >= step && matches!(event.body, EventBody::Checkpoint { .. })
}

fn is_claim(event: &Event) -> bool {
    matches!(event.body, EventBody::RunClaimed { attempt, .. } if attempt > 1)
}

/// The first checkpoint behind the second claim.
fn stepped_again(events: &[Event]) -> Option<&Event> {
    events.iter().skip_while(|event| !is_claim(event)).find(|event| is_step(event, 1))
}

struct Door {
    client: Client,
}

impl Door {
    /// Sends one long task of the lab and gives its run's id.
    async fn begin(&self, address: &str) -> Result<String> {
        let (scripts, _) = evenkeel_lab::task::available();
        let script = scripts.first().context("no task of the lab can run on this machine")?;
        let body = json!({
            "assistant_id": "coder", "if_not_exists": "create",
            "input": { "messages": [{ "role": "user", "content": Solver::ask(script, Shape::Short, 1) }] },
        });
        let run = self.json(Method::POST, &format!("{address}/runs"), &body).await?;
        run["run_id"].as_str().map(str::to_owned).context("the server gave no run")
    }

    /// Reads the run's events until they are as wanted.
    async fn wait(&self, address: &str, run: &str, wanted: impl Fn(&[Event]) -> bool) -> Result<Vec<Event>> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            let page =
                self.json(Method::GET, &format!("{address}/v1/runs/{run}/events"), &Value::Null).await?;
            let events: Vec<Event> = serde_json::from_value(page["events"].clone())?;
            if wanted(&events) {
                return Ok(events);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("run {run} did not get there within a minute")
    }

    async fn json(&self, method: Method, url: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", "application/json")
            .body(body)?;
        let response = self.client.send(request).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{url} answered {status}: {}", String::from_utf8_lossy(&bytes));
        }
        Ok(serde_json::from_slice(&bytes)?)
    }
}
