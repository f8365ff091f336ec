//! The dialect's operations: creating, reading, waiting, cancelling, repeating.

use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::world::{World, chat};

#[tokio::test]
async fn a_background_run_goes_from_pending_to_success() {
    let world = World::new().await;
    let thread = world.thread().await;
    let created = world.post(&format!("/threads/{thread}/runs"), &chat("hi")).await;
    let run = created.json();
    let id = run["run_id"].as_str().unwrap();
    assert_eq!(created.header("content-location"), format!("/threads/{thread}/runs/{id}"));
    assert_eq!(run["multitask_strategy"], "enqueue");
    assert_eq!(world.get(&format!("/threads/{thread}")).await.json()["status"], "busy");
    world.player().await.finish(1, "hello").await;
    let run = world.get(&format!("/threads/{thread}/runs/{id}")).await.json();
    assert_eq!((&run["status"], &run["thread_id"]), (&json!("success"), &json!(thread)));
    let shown = world.get(&format!("/threads/{thread}")).await.json();
    assert_eq!(shown["status"], "idle");
    assert_eq!(shown["values"]["messages"][1]["content"], "hello");
    assert_eq!(shown["values"]["result"], "hello");
    let listed = world.get(&format!("/threads/{thread}/runs?status=success")).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn state_and_history_follow_the_journal() {
    let world = World::new().await;
    let thread = world.thread().await;
    let empty = world.get(&format!("/threads/{thread}/state")).await.json();
    assert_eq!((&empty["values"], &empty["checkpoint"]), (&json!({}), &Value::Null));
    world.run(&thread, "hi").await;
    let player = world.player().await;
    player.tool_step(1, "look").await;
    let state = world.get(&format!("/threads/{thread}/state")).await.json();
    assert_eq!(state["next"], json!(["agent"]));
    assert_eq!(state["values"]["messages"].as_array().unwrap().len(), 3);
    player.finish(2, "done").await;
    let history = world.post(&format!("/threads/{thread}/history"), &json!({ "limit": 100 })).await.json();
    let sizes: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["values"]["messages"].as_array().unwrap().len())
        .collect();
    assert_eq!(sizes, [4, 4, 3, 1]);
    let newest = &history[0];
    assert_eq!(newest["next"], json!([]));
    assert_eq!(newest["parent_checkpoint_id"], history[1]["checkpoint_id"]);
    let before = newest["checkpoint_id"].as_str().unwrap();
    let older = world.get(&format!("/threads/{thread}/history?before={before}")).await.json();
    assert_eq!(older[0]["checkpoint_id"], history[1]["checkpoint_id"]);
}

#[tokio::test]
async fn waiting_gives_values_errors_and_a_way_back() {
    let world = World::new().await;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs/wait");
    let body = chat("hi").to_string();
    let (answered, ()) = tokio::join!(world.ask(Method::POST, &path, &[], &body), async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        world.player().await.finish(1, "hello").await;
    });
    assert!(answered.header("location").ends_with("/join"));
    assert!(answered.body.starts_with(b"\n"), "a long wait is kept alive: {:?}", answered.body);
    assert_eq!(answered.json()["messages"][1]["content"], "hello");

    let run = world.run(&thread, "fail").await;
    let error = evenkeel_core::Error::internal("It broke.");
    world.player().await.fail(error).await;
    let joined = world.get(&format!("/threads/{thread}/runs/{run}/join")).await;
    assert_eq!((joined.status.as_u16(), &joined.json()["__error__"]["message"]), (200, &json!("It broke.")));
    assert_eq!(world.get(&format!("/threads/{thread}")).await.json()["status"], "error");
}

#[tokio::test]
async fn the_same_key_is_the_same_run() {
    let world = World::new().await;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs");
    let key = [("idempotency-key", "k-1")];
    let first = world.ask(Method::POST, &path, &key, &chat("hi").to_string()).await;
    assert_eq!(first.header("idempotent-replayed"), "");
    let again = world.ask(Method::POST, &path, &key, &chat("hi").to_string()).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(first.json()["run_id"], again.json()["run_id"]);
    let other = world.ask(Method::POST, &path, &key, &chat("ho").to_string()).await;
    assert_eq!(other.refusal(), "422 idempotency-key-reused");
    // Key order is not a difference.
    let reordered = r#"{"input":{"messages":[{"content":"hi","role":"user"}]},"assistant_id":"chat"}"#;
    let again = world.ask(Method::POST, &path, &key, reordered).await;
    assert_eq!(first.json()["run_id"], again.json()["run_id"]);
    // On threads of their own as well.
    let first = world.ask(Method::POST, "/runs", &key, &chat("hi").to_string()).await;
    let again = world.ask(Method::POST, "/runs", &key, &chat("hi").to_string()).await;
    assert_eq!(first.json()["thread_id"], again.json()["thread_id"]);
    assert_eq!(again.header("idempotent-replayed"), "true");
    // A message id of the client's own names its run.
    let own = json!({ "assistant_id": "chat", "input": { "messages": [{ "role": "user", "content": "x", "id": "mine" }] } });
    let first = world.post(&path, &own).await;
    let again = world.post(&path, &own).await;
    assert_eq!(first.json()["run_id"], again.json()["run_id"]);
}

#[tokio::test]
async fn sixteen_equal_requests_at_once_are_one_run() {
    let world = World::new().await;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs");
    let body = chat("hi").to_string();
    let asked = (0..16).map(|_| world.ask(Method::POST, &path, &[("idempotency-key", "same")], &body));
    let answered = futures_util::future::join_all(asked).await;
    let ids: std::collections::BTreeSet<_> =
        answered.iter().map(|a| a.json()["run_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(answered.iter().filter(|a| a.header("idempotent-replayed").is_empty()).count(), 1);
}

#[tokio::test]
async fn a_second_message_waits_its_turn_or_is_refused() {
    let world = World::new().await;
    let thread = world.thread().await;
    world.run(&thread, "first").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs");
    let mut reject = chat("second");
    reject["multitask_strategy"] = json!("reject");
    let refused = world.post(&path, &reject).await;
    assert_eq!(refused.refusal(), "409 thread-busy");
    assert!(refused.json()["detail"].as_str().unwrap().starts_with("Thread is already running a task."));
    assert!(refused.json()["remedy"].as_str().unwrap().contains(&player.run().to_string()));
    let queued = world.run(&thread, "second").await;
    let shown = world.get(&format!("{path}/{queued}")).await.json();
    assert_eq!(shown["status"], "pending");
    let next = player.finish(1, "one").await.expect("the next turn is handed over");
    assert_eq!(next.run.id.to_string(), queued);
    world.play(next).finish(1, "two").await;
    let messages = world.get(&format!("/threads/{thread}/state")).await.json()["values"]["messages"].clone();
    let texts: Vec<_> = messages.as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["first", "one", "second", "two"]);
}

#[tokio::test]
async fn a_full_thread_says_when_to_come_back() {
    let world = World::with("limits.waiting_per_thread_max = 2", &[]).await;
    let thread = world.thread().await;
    for text in ["active", "waits", "waits too"] {
        world.run(&thread, text).await;
    }
    let refused = world.post(&format!("/threads/{thread}/runs"), &chat("one more")).await;
    assert_eq!(refused.refusal(), "503 overloaded");
    assert_eq!(refused.header("retry-after"), "5");
}

#[tokio::test]
async fn cancelling_stores_the_intent_tells_the_owner_and_waits_for_the_stop() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "long").await;
    let player = world.player().await;
    let cancel = format!("/threads/{thread}/runs/{run}/cancel");
    assert_eq!(world.post(&cancel, &json!({})).await.status, 202);
    assert_eq!(world.dispatch.cancelled.lock().unwrap().len(), 1);
    let stopping = world.open(Method::POST, &format!("{cancel}?wait=true"), &[], "").await;
    assert_eq!(stopping.status(), 200, "headers are there before the run has stopped");
    player.cancelled().await;
    let body = stopping.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({}));
    let shown = world.get(&format!("/threads/{thread}/runs/{run}")).await.json();
    assert_eq!(shown["status"], "interrupted");
    let again = world.post(&cancel, &json!({})).await;
    assert_eq!(again.refusal(), "404 run-ended");
    assert_eq!(again.json()["detail"], "No runs found to cancel.");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_only_if_it_asked_for_that() {
    let world = World::new().await;
    for (on_disconnect, cancels) in [("continue", false), ("cancel", true)] {
        let thread = world.thread().await;
        let mut body = chat("hi");
        body["on_disconnect"] = json!(on_disconnect);
        let path = format!("/threads/{thread}/runs/stream");
        let response = world.open(Method::POST, &path, &[], &body.to_string()).await;
        let player = world.player().await;
        drop(response);
        let run = format!("/v1/runs/{}", player.run());
        let mut state = Value::Null;
        for _ in 0..40 {
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
            state = world.get(&run).await.json()["state"].clone();
            if state == "cancelling" {
                break;
            }
        }
        assert_eq!(state == "cancelling", cancels, "{on_disconnect}: {state}");
        if cancels {
            player.cancelled().await
        } else {
            player.finish(1, "done").await
        };
    }
}

#[tokio::test]
async fn assistants_are_found_by_name_and_by_id() {
    let world =
        World::with("[assistants.reviewer]\nroute = \"default\"\nsystem_prompt = \"Review.\"", &[]).await;
    let found = world.post("/assistants/search", &json!({})).await;
    let names: Vec<_> =
        found.json().as_array().unwrap().iter().map(|a| a["graph_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["chat", "coder", "reviewer"]);
    assert_eq!(found.header("x-pagination-total"), "3");
    let id = world.get("/assistants/reviewer").await.json()["assistant_id"].as_str().unwrap().to_owned();
    assert_eq!(world.get(&format!("/assistants/{id}")).await.json()["name"], "reviewer");
    let thread = world.thread().await;
    let mut body = chat("hi");
    body["assistant_id"] = json!(id);
    assert_eq!(world.post(&format!("/threads/{thread}/runs"), &body).await.json()["assistant_id"], json!(id));
}

#[tokio::test]
async fn a_repository_reaches_the_run() {
    let world = World::new().await;
    let thread = world.thread().await;
    let mut body = chat("fix it");
    body["assistant_id"] = json!("coder");
    body["input"]["repository"] = json!({ "directory": "/srv/tool" });
    body["config"] = json!({ "recursion_limit": 7 });
    assert_eq!(world.post(&format!("/threads/{thread}/runs"), &body).await.status, 200);
    let spec = world.player().await.claim.run.spec;
    assert_eq!(spec.repository, Some(evenkeel_core::run::Repository::Directory("/srv/tool".into())));
    assert_eq!(spec.limits.steps_max, 7);
}

#[tokio::test]
async fn a_thread_is_shown_as_it_is_stored() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    world.player().await.finish(1, "hello").await;
    let path = format!("/v1/threads/{thread}");
    assert_eq!(world.get(&path).await.json()["version"], 1);
    let runs = world.get(&format!("{path}/runs")).await.json();
    assert_eq!((runs.as_array().unwrap().len(), &runs[0]["id"]), (1, &json!(run)));
    assert_eq!(world.get(&format!("{path}/runs?offset=1")).await.json(), json!([]));
    let first = world.get(&format!("{path}/events?limit=2")).await.json();
    let rest = world.get(&format!("{path}/events?after={}", first["next_after"])).await.json();
    let kinds = |page: &Value| {
        let events = page["events"].as_array().unwrap().iter();
        events.map(|event| event["body"]["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&first), ["run_claimed", "user_message"]);
    assert_eq!(
        (kinds(&rest).last().map(String::as_str), &rest["next_after"]),
        (Some("run_ended"), &Value::Null)
    );
    assert_eq!(
        world.get("/v1/threads/0197c2c5-0000-7000-8000-000000000000").await.refusal(),
        "404 thread-not-found"
    );
}

#[tokio::test]
async fn operators_see_runs_limits_stats_and_metrics() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    world.player().await.finish(1, "hello").await;
    let listed = world.get("/v1/runs?state=completed").await.json();
    assert_eq!(listed[0]["id"], json!(run));
    let events = world.get(&format!("/v1/runs/{run}/events")).await.json();
    assert_eq!(events["events"][0]["body"]["type"], "run_claimed");
    let limits = world.get("/v1/limits").await.json();
    let names: Vec<_> = limits.as_array().unwrap().iter().map(|g| g["component"].as_str().unwrap()).collect();
    assert_eq!(names, ["gateway", "api", "harness", "policy", "tools", "sandbox", "compactor", "store"]);
    assert_eq!(world.get("/v1/stats").await.json()["runs"]["completed"], 1);
    let metrics = String::from_utf8(world.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        "evenkeel_slots_limit{component=\"sandbox\"} 400",
        "evenkeel_runs{state=\"completed\"} 1",
        "route=\"/threads/{thread}/runs\",method=\"POST\",status=\"200\"",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"));
    assert_eq!(world.get("/v1/lab/store").await.refusal(), "404 not-found");
}

#[tokio::test]
async fn a_drained_server_admits_nothing_new_and_cuts_streams_for_a_resume() {
    let mut world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates");
    let stream = world.stream(&path, &[("last-event-id", "-1")]).await;
    let running = world.running.take().unwrap();
    let (events, ()) = tokio::join!(stream.all(), running.shutdown());
    assert_eq!(events.last().unwrap().event, "metadata", "a stream that was cut has no end");
    drop(player);
}
