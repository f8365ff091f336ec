//! Memory and CPU of the router with many streams open at the same time.

use std::time::Duration;

use anyhow::Result;
use evenkeel_env::Env;
use tokio::task::JoinSet;

use crate::aim::judge;
use crate::child;
use crate::latency::{router, through};

/// Words of an answer and words a second: each stream lives for forty seconds.
const WORDS: &str = "200";
const WORDS_PER_S: &str = "5";
const SETTLE: Duration = Duration::from_secs(4);
const WATCH: Duration = Duration::from_secs(8);

/// Measures and prints.
pub(crate) async fn measure(env: &Env) -> Result<()> {
    println!("\nstreams: router only, the provider in its own process; each stream 5 words/s for 40 s");
    println!("  streams  memory added MiB  KiB/stream  CPU cores  failed");
    let me = std::process::id();
    for n in [600_u32, 3000] {
        let provider = child::start(&["as-provider", WORDS, "300", WORDS_PER_S]).await?;
        let router = router(env, &provider.address)?;
        let before = child::rss_mib(me);
        let mut calls = JoinSet::new();
        for _ in 0..n {
            calls.spawn(through(env.clone(), router.clone()));
            // Faster would measure the backlog of the provider's listener.
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        tokio::time::sleep(SETTLE).await;
        let cpu = child::cpu_s(me);
        tokio::time::sleep(WATCH).await;
        let cores = (child::cpu_s(me) - cpu) / WATCH.as_secs_f64();
        let added = child::rss_mib(me) - before;
        let mut causes = Vec::new();
        while let Some(done) = calls.join_next().await {
            causes.extend(done?.err());
        }
        let failed = causes.len();
        if let Some(cause) = causes.first() {
            println!("  the first failure: {cause:#}");
        }
        println!(
            "  {n:>7}  {added:>16.1}  {:>10.1}  {cores:>9.2}  {failed:>6}",
            added * 1024.0 / f64::from(n)
        );
        if n == 3000 {
            judge("memory of 3,000 streams", added, 150.0, "MiB");
        }
    }
    Ok(())
}
