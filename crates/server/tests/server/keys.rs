//! Who may call, how often, and what a foreign id shows.

use evenkeel_core::Wall;
use evenkeel_core::id::TenantId;
use evenkeel_core::port::store::ApiKey;
use http::Method;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::world::{World, chat};

const KEYS: &str = r#"
[auth]
mode = "keys"
[auth.keys.acme]
key = "env:ACME_KEY"
tenant = "acme"
[auth.keys.other]
key = "env:OTHER_KEY"
tenant = "other"
[auth.keys.slow]
key = "env:SLOW_KEY"
tenant = "slow"
calls_per_min = 60
[auth.keys.operator]
key = "env:OPERATOR_KEY"
tenant = "operator"
"#;

async fn world() -> World {
    let environment = [("ACME_KEY", "ka"), ("OTHER_KEY", "ko"), ("SLOW_KEY", "ks"), ("OPERATOR_KEY", "kop")];
    World::with(KEYS, &environment).await
}

#[tokio::test]
async fn a_key_is_needed_in_either_header() {
    let world = world().await;
    let table: [(&[(&str, &str)], &str); 6] = [
        (&[], "401 unauthenticated"),
        (&[("x-api-key", "wrong")], "401 unauthenticated"),
        (&[("authorization", "Basic ka")], "401 unauthenticated"),
        (&[("x-api-key", "")], "401 unauthenticated"),
        (&[("x-api-key", "ka")], "200 -"),
        (&[("authorization", "Bearer ka")], "200 -"),
    ];
    for (headers, expected) in table {
        let answered = world.ask(Method::POST, "/threads", headers, "{}").await;
        assert_eq!(answered.refusal(), expected, "{headers:?}");
    }
    for open in ["/ok", "/info", "/healthz", "/readyz"] {
        assert_eq!(world.get(open).await.status, 200, "{open}");
    }
    assert_eq!(world.get("/metrics").await.status, 401);
}

#[tokio::test]
async fn stored_keys_expire() {
    let world = world().await;
    let hash = |key: &str| Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (key, expires_at) in [("fresh", None), ("stale", Some(Wall(1)))] {
        let stored = ApiKey {
            hash: hash(key),
            tenant: TenantId::from("stored"),
            name: key.into(),
            calls_per_min: None,
            expires_at,
            created_at: Wall(0),
        };
        world.store.put_key(stored).await.unwrap();
    }
    let ask =
        async |key| world.ask(Method::POST, "/threads", &[("x-api-key", key)], "{}").await.status.as_u16();
    assert_eq!((ask("fresh").await, ask("stale").await), (200, 401));
}

#[tokio::test]
async fn a_keys_rate_is_its_own_and_says_when() {
    let world = world().await;
    let slow = [("x-api-key", "ks")];
    let mut refused = None;
    for _ in 0..5 {
        let answered = world.ask(Method::POST, "/assistants/search", &slow, "{}").await;
        if answered.status == 429 {
            refused = Some(answered);
            break;
        }
    }
    let refused = refused.expect("60 a minute allow a burst of two");
    assert_eq!(refused.refusal(), "429 rate-limited");
    assert_eq!(refused.header("retry-after"), "1");
    let other = world.ask(Method::POST, "/assistants/search", &[("x-api-key", "ka")], "{}").await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn the_rate_of_all_is_limited_before_anything_is_looked_up() {
    let world = World::with("limits.gateway.calls_per_min = 30", &[]).await;
    assert_eq!(world.post("/assistants/search", &json!({})).await.status, 200);
    let refused = world.post("/assistants/search", &json!({})).await;
    assert_eq!(refused.refusal(), "429 rate-limited");
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
}

#[tokio::test]
async fn a_foreign_id_is_not_found_for_every_verb() {
    let world = world().await;
    let own = [("x-api-key", "ka")];
    let thread = world.ask(Method::POST, "/threads", &own, "{}").await.json()["thread_id"].clone();
    let thread = thread.as_str().unwrap();
    let path = format!("/threads/{thread}/runs");
    let run = world.ask(Method::POST, &path, &own, &chat("secret canary").to_string()).await.json()["run_id"]
        .clone();
    let run = run.as_str().unwrap();
    world.player().await.finish(1, "secret canary reply").await;
    let create = chat("mine").to_string();
    let mut create_if_missing = chat("mine");
    create_if_missing["if_not_exists"] = json!("create");
    let create_if_missing = create_if_missing.to_string();
    let shown = world.ask(Method::GET, &format!("/threads/{thread}/state"), &own, "").await.json();
    let checkpoint = shown["checkpoint_id"].as_str().unwrap();
    let by_body = json!({ "checkpoint": { "checkpoint_id": checkpoint } }).to_string();
    let named = json!({ "thread_id": thread, "run_ids": [run] }).to_string();
    let claim = json!({ "thread_id": thread, "if_exists": "do_nothing" }).to_string();
    let matrix: Vec<(Method, String, &str, u16)> = vec![
        (Method::GET, format!("/threads/{thread}"), "", 404),
        (Method::GET, format!("/threads/{thread}/state"), "", 404),
        (Method::GET, format!("/threads/{thread}/history"), "", 404),
        (Method::POST, format!("/threads/{thread}/history"), "{}", 404),
        (Method::GET, path.clone(), "", 404),
        (Method::POST, path.clone(), &create, 404),
        (Method::POST, path.clone(), &create_if_missing, 404),
        (Method::POST, format!("{path}/stream"), &create, 404),
        (Method::POST, format!("{path}/wait"), &create, 404),
        (Method::GET, format!("{path}/{run}"), "", 404),
        (Method::GET, format!("{path}/{run}/join"), "", 404),
        (Method::GET, format!("{path}/{run}/stream"), "", 404),
        (Method::POST, format!("{path}/{run}/cancel"), "{}", 404),
        (Method::GET, format!("/v1/runs/{run}"), "", 404),
        (Method::GET, format!("/v1/runs/{run}/events"), "", 404),
        (Method::GET, format!("/v1/runs/{run}?tenant=acme"), "", 403),
        (Method::GET, format!("/v1/threads/{thread}"), "", 404),
        (Method::GET, format!("/v1/threads/{thread}/runs"), "", 404),
        (Method::GET, format!("/v1/threads/{thread}/events"), "", 404),
        (Method::POST, "/threads".to_owned(), &claim, 409),
        (Method::PATCH, format!("/threads/{thread}"), r#"{"metadata":{"mine":1}}"#, 404),
        (Method::DELETE, format!("/threads/{thread}"), "", 404),
        (Method::DELETE, format!("{path}/{run}"), "", 404),
        (Method::GET, format!("/threads/{thread}/stream"), "", 404),
        (Method::POST, format!("/threads/{thread}/state"), r#"{"values":{}}"#, 404),
        (Method::GET, format!("/threads/{thread}/state/{checkpoint}"), "", 404),
        (Method::POST, format!("/threads/{thread}/state/checkpoint"), &by_body, 404),
        (Method::POST, "/runs/cancel".to_owned(), &named, 404),
        (Method::POST, "/runs/cancel".to_owned(), r#"{"status":"all"}"#, 404),
    ];
    for (method, path, body, expected) in matrix {
        let answered = world.ask(method.clone(), &path, &[("x-api-key", "ko")], body).await;
        let text = String::from_utf8_lossy(&answered.body);
        assert_eq!(answered.status.as_u16(), expected, "{method} {path}: {text}");
        assert!(!text.contains("canary"), "{method} {path} tells: {text}");
    }
    let search = json!({ "ids": [thread] }).to_string();
    let found = world.ask(Method::POST, "/threads/search", &[("x-api-key", "ko")], &search).await.json();
    assert_eq!(found, json!([]), "a search by id tells nothing either");
    assert_eq!(
        world.ask(Method::POST, "/threads/count", &[("x-api-key", "ko")], &search).await.json(),
        json!(0)
    );
    assert_eq!(
        world.ask(Method::GET, &format!("/threads/{thread}"), &own, "").await.json()["metadata"],
        json!({})
    );
    // A run of one's own on a foreign thread's path, and the other way round.
    let mine = world.ask(Method::POST, "/runs", &[("x-api-key", "ko")], &create).await.json();
    let mixed = format!("/threads/{thread}/runs/{}", mine["run_id"].as_str().unwrap());
    assert_eq!(world.ask(Method::GET, &mixed, &[("x-api-key", "ko")], "").await.status, 404);
    let listed = world.ask(Method::GET, "/v1/runs", &[("x-api-key", "ko")], "").await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let all = world.ask(Method::GET, "/v1/runs", &[("x-api-key", "kop")], "").await.json();
    assert_eq!(all.as_array().unwrap().len(), 2);
    let read =
        world.ask(Method::GET, &format!("/v1/runs/{run}?tenant=acme"), &[("x-api-key", "kop")], "").await;
    assert_eq!(read.status, 200);
}

#[tokio::test]
async fn levers_are_for_operators() {
    let world = world().await;
    for path in ["/v1/router/main/drain", "/v1/lab/store"] {
        let refused = world.ask(Method::POST, path, &[("x-api-key", "ka")], "{}").await;
        assert_eq!(refused.refusal(), "403 forbidden", "{path}");
    }
    let refused = world.ask(Method::GET, "/v1/stats", &[("x-api-key", "ka")], "").await;
    assert_eq!(refused.refusal(), "403 forbidden");
    let unknown = world.ask(Method::POST, "/v1/router/main/drain", &[("x-api-key", "kop")], "{}").await;
    assert_eq!(unknown.refusal(), "404 not-found");
}
