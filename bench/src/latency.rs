//! What the router adds to a call: the fake provider called directly, streaming and not, and through
//! the router, under the same open load.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::message::{Message, Role};
use evenkeel_core::port::model::{Model, ModelOutcome, ModelRequest, Purpose, Unwatched};
use evenkeel_core::run::Class;
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use evenkeel_model::{ProviderKeys, Router, RouterConfig};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;

use crate::aim::judge;
use crate::child;
use crate::load::{self, Measured};

const FOR_S: u64 = 8;

/// Measures and prints.
pub(crate) async fn measure(env: &Env) -> Result<()> {
    let provider = child::start(&["as-provider", "20", "0", "1000000"]).await?;
    let router = router(env, &provider.address)?;
    let client = Client::new(env, Duration::from_secs(2));
    println!(
        "\nlatency: one call of a 20-word answer, milliseconds; {FOR_S} s each, provider in its own process"
    );
    println!("  calls/s  way                    p50     p99    p99.9  failed");
    for per_s in [100, 1000] {
        let direct = |stream: bool| {
            let (client, base) = (client.clone(), provider.address.clone());
            move || direct(client.clone(), base.clone(), stream)
        };
        // Connections and code are warm before anything counts.
        load::run(per_s, 1, direct(true)).await?;
        let plain = load::run(per_s, FOR_S, direct(false)).await?;
        show(per_s, "direct, whole", &plain);
        let streamed = load::run(per_s, FOR_S, direct(true)).await?;
        show(per_s, "direct, streaming", &streamed);
        load::run(per_s, 1, || through(env.clone(), router.clone())).await?;
        let routed = load::run(per_s, FOR_S, || through(env.clone(), router.clone())).await?;
        show(per_s, "through the router", &routed);
        println!(
            "  {per_s:>7}  added to streaming  {:>6.2}  {:>6.2}",
            routed.ms(0.5) - streamed.ms(0.5),
            routed.ms(0.99) - streamed.ms(0.99)
        );
        if per_s == 1000 {
            let added = routed.ms(0.99) - streamed.ms(0.99);
            judge("p99 added at 1,000 calls/s", added, 1.0, "ms");
        }
    }
    Ok(())
}

fn show(per_s: u64, way: &str, measured: &Measured) {
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| measured.ms(quantile));
    println!("  {per_s:>7}  {way:<18}  {p50:>6.2}  {p99:>6.2}  {p999:>7.2}  {:>6}", measured.failed());
}

/// A router with the provider as its only deployment.
pub(crate) fn router(env: &Env, base_url: &str) -> Result<Arc<Router>> {
    let config: RouterConfig = toml::from_str(&child::config(base_url, ""))?;
    let keys = ProviderKeys::read_with(&config, |_| None)?;
    Ok(Router::start(env, config, keys)?)
}

/// One call through the router.
pub(crate) async fn through(env: Env, router: Arc<Router>) -> Result<()> {
    let request = ModelRequest {
        route: "default".to_owned(),
        tenant: TenantId::from("bench"),
        run: RunId::new(env.wall(), &env.generator),
        step: 1,
        purpose: Purpose::Step,
        class: Class::Batch,
        begun: true,
        deadline: env.wall().after(Duration::from_secs(120)),
        system: "You are measured.".to_owned(),
        messages: vec![Message::text("m", Role::User, question())],
        tools: Vec::new(),
        output_tokens_max: 4096,
        prior_attempts: 0,
        permit: None,
        fallback: true,
    };
    match router.call(request, Arc::new(Unwatched)).await {
        ModelOutcome::Done(_) => Ok(()),
        other => anyhow::bail!("no answer: {other:?}"),
    }
}

fn question() -> String {
    "Say a few words. ".repeat(64)
}

async fn direct(client: Client, base: String, stream: bool) -> Result<()> {
    let body = json!({
        "model": "bench", "stream": stream, "max_tokens": 4096,
        "messages": [
            { "role": "system", "content": "You are measured." },
            { "role": "user", "content": question() },
        ],
    });
    let request = Request::post(format!("{base}/chat/completions"))
        .header("content-type", "application/json")
        .body(Bytes::from(body.to_string()))?;
    let response = client.send(request).await?;
    ensure!(response.status().is_success(), "the provider answered {}", response.status());
    response.into_body().collect().await?;
    Ok(())
}
