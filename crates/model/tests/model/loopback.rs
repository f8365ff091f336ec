//! The whole router over loopback, in front of scripted providers.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::RunId;
use evenkeel_core::message::{Message, Role, ToolSpec};
use evenkeel_core::port::model::{Model, ModelOutcome, ModelReply, ModelRequest, Purpose, Unwatched};
use evenkeel_core::run::Class;
use evenkeel_env::Env;
use evenkeel_model::Router;
use evenkeel_model::config::{ProviderKeys, RouterConfig};
use serde_json::{Value, json};

use crate::scripted::{Reply, Scripted};

pub(crate) const SHORT: &str = "300ms";

/// A configuration over scripted providers: one tier each, `a`, `b` and so on.
pub(crate) fn config(providers: &[(&str, &Scripted)], router: Value) -> RouterConfig {
    let name = |idx: usize| ["a", "b", "c"][idx];
    let mut config =
        json!({"providers": {}, "deployments": {}, "routes": {"coder": {"tiers": []}}, "router": router});
    for (idx, (kind, provider)) in providers.iter().enumerate() {
        let base = if *kind == "openai" { "/v1" } else { "" };
        config["providers"][name(idx)] = json!({"kind": kind, "base_url": format!("http://{}{base}", provider.address), "keys": ["test:key"]});
        config["deployments"][name(idx)] = json!({"provider": name(idx), "model": "large"});
        config["routes"]["coder"]["tiers"].as_array_mut().unwrap().push(json!([name(idx)]));
    }
    serde_json::from_value(config).unwrap()
}

pub(crate) fn quick() -> Value {
    json!({"timeouts": {"headers": SHORT, "first_content": SHORT, "first_content_max": SHORT, "idle": SHORT,
        "idle_with_pings": "600ms"}})
}

pub(crate) fn start(env: &Env, config: RouterConfig) -> Arc<Router> {
    let keys = ProviderKeys::read(&config).unwrap();
    Router::start(env, config, keys).unwrap()
}

pub(crate) fn request(env: &Env, messages: Vec<Message>) -> ModelRequest {
    ModelRequest {
        route: "coder".to_owned(),
        tenant: "t".into(),
        run: RunId::new(env.wall(), &env.generator),
        step: 2,
        purpose: Purpose::Step,
        class: Class::Batch,
        begun: true,
        deadline: env.wall().after(Duration::from_secs(60)),
        system: "You are a coder.".to_owned(),
        messages,
        tools: vec![ToolSpec {
            name: "grep".to_owned(),
            description: "Searches.".to_owned(),
            input_schema: json!({"type": "object", "properties": {"q": {"type": "string"}}}),
        }],
        output_tokens_max: 1_000,
        prior_attempts: 0,
        permit: None,
        fallback: true,
    }
}

pub(crate) fn hello(env: &Env) -> ModelRequest {
    request(env, vec![Message::text("m1", Role::User, "hi")])
}

pub(crate) async fn done(router: &Router, request: ModelRequest) -> ModelReply {
    match router.call(request, Arc::new(Unwatched)).await {
        ModelOutcome::Done(reply) => *reply,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn outcomes(reply: &ModelReply) -> Vec<&str> {
    reply.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect()
}

/// A router over one provider per kind and script.
pub(crate) struct Bench {
    pub(crate) env: Env,
    pub(crate) router: Arc<Router>,
    pub(crate) providers: Vec<Scripted>,
}

pub(crate) type Script = Box<dyn Fn(usize, &Value) -> Reply + Send + Sync>;

pub(crate) async fn bench(scripts: Vec<(&'static str, Script)>, router: Value) -> Bench {
    let env = Env::seeded(1);
    let mut providers = Vec::new();
    let mut kinds = Vec::new();
    for (kind, script) in scripts {
        providers.push(Scripted::start(&env, script).await);
        kinds.push(kind);
    }
    let pairs: Vec<_> = kinds.into_iter().zip(&providers).collect();
    let router = start(&env, config(&pairs, router));
    Bench { env, router, providers }
}

pub(crate) fn always(reply: Reply) -> Script {
    Box::new(move |_, _| reply.clone())
}

pub(crate) fn first_then(first: Reply, then: Reply) -> Script {
    Box::new(move |n, _| if n == 0 { first.clone() } else { then.clone() })
}
