//! What 100,000 parked runs cost: memory of a server that has them, and bytes on disk.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use evenkeel_env::Env;
use evenkeel_store::conformance::{Stage, world};
use evenkeel_store::sqlite::{SqliteOptions, SqliteStore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::aim::judge;
use crate::child;

const N: usize = 100_000;
const WRITERS: usize = 128;

/// Measures and prints.
pub(crate) async fn measure(_env: &Env) -> Result<()> {
    println!("\nparked: {N} runs that wait for a model, in the store of a running server");
    // Nothing answers there, so nothing is woken.
    let dead = "http://127.0.0.1:9/v1";
    let empty = tempfile::tempdir()?;
    let without = server_memory(empty.path(), dead).await?;
    let full = tempfile::tempdir()?;
    let data = full.path().join("data");
    let begun = Instant::now();
    fill(&data).await?;
    println!("  stored (accept, claim, park) in {:.1} s", begun.elapsed().as_secs_f64());
    let with = server_memory(full.path(), dead).await?;
    let bytes =
        std::fs::metadata(data.join(evenkeel_store::sqlite::FILE)).map(|file| file.len()).unwrap_or(0);
    println!(
        "  server memory: {without:.1} MiB without, {with:.1} MiB with: {:.1} MiB for all of them",
        with - without
    );
    judge("memory of 100,000 parked runs", with - without, 100.0, "MiB");
    println!("  on disk: {} bytes a run", bytes / N as u64);
    Ok(())
}

async fn server_memory(folder: &std::path::Path, base_url: &str) -> Result<f64> {
    let data = folder.join("data").display().to_string();
    let config = folder.join("evenkeel.toml");
    let head = format!("[server]\nlisten = \"127.0.0.1:0\"\ndata_dir = \"{data}\"\n");
    std::fs::write(&config, child::config(base_url, &head))?;
    let server = child::start(&["as-server", &config.display().to_string()]).await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    Ok(child::rss_mib(server.process.id().context("the server ended")?))
}

async fn fill(data: &std::path::Path) -> Result<()> {
    let (env, clock) = world(1);
    let store = SqliteStore::open(&env, data, SqliteOptions::default())?;
    let stage = Arc::new(Stage::new(store, env, clock));
    let me = stage.replica().await;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let stage = stage.clone();
        writers.spawn(async move {
            for _ in 0..N / WRITERS + 1 {
                let claim = stage.begin(stage.new_thread(), "wait for the model", me).await;
                stage.park(&claim.fence, "default").await;
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done?;
    }
    Ok(())
}
