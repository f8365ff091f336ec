//! Threads as clients change, list and remove them; their state, and what is streamed of them.

use http::Method;
use serde_json::{Value, json};

use crate::world::{World, chat, outline};

async fn patch(world: &World, path: &str, body: Value) -> crate::world::Answered {
    world.ask(Method::PATCH, path, &[], &body.to_string()).await
}

async fn delete(world: &World, path: &str) -> u16 {
    world.ask(Method::DELETE, path, &[], "").await.status.as_u16()
}

#[tokio::test]
async fn metadata_is_merged_and_a_policy_is_kept() {
    let world = World::new().await;
    let made =
        world.post("/threads", &json!({ "metadata": { "a": 1 }, "multitask_strategy": "reject" })).await;
    let thread = format!("/threads/{}", made.json()["thread_id"].as_str().unwrap());
    assert_eq!(made.json()["multitask_strategy"], "reject");
    let patched = patch(&world, &thread, json!({ "metadata": { "b": [2] } })).await.json();
    assert_eq!(patched["metadata"], json!({ "a": 1, "b": [2] }));
    assert_eq!(patched["multitask_strategy"], "reject", "what is not named is kept");
    let patched = patch(&world, &thread, json!({ "multitask_strategy": "latest" })).await.json();
    assert_eq!(patched["multitask_strategy"], "latest");
    let refused = patch(&world, &thread, json!({ "multitask_strategy": "shout" })).await;
    assert_eq!(refused.refusal(), "422 bad-request");
}

#[tokio::test]
async fn the_policy_is_the_requests_else_the_threads_else_the_assistants() {
    let world = World::with("[assistants.chat]\nbusy_policy = \"latest\"", &[]).await;
    for (of_thread, of_request, expected) in [
        (None, None, "latest"),
        (Some("merge"), None, "merge"),
        (Some("merge"), Some("steer"), "steer"),
        (None, Some("enqueue"), "enqueue"),
    ] {
        let thread = world.post("/threads", &json!({ "multitask_strategy": of_thread })).await.json();
        let mut body = chat("hi");
        body["multitask_strategy"] = json!(of_request);
        let base = format!("/threads/{}/runs", thread["thread_id"].as_str().unwrap());
        world.post(&base, &body).await;
        let shown = world.get(&base).await.json();
        assert_eq!(shown[0]["multitask_strategy"], expected, "{of_thread:?} {of_request:?}");
        // The same on a streaming entry.
        drop(world.open(Method::POST, &format!("{base}/stream"), &[], &body.to_string()).await);
        let shown = world.get(&base).await.json();
        assert_eq!(shown[0]["multitask_strategy"], expected, "streamed: {of_thread:?} {of_request:?}");
    }
}

#[tokio::test]
async fn threads_are_found_by_what_is_known_of_them() {
    let world = World::new().await;
    for n in 0..5 {
        // Of threads made in the same millisecond the ids say the order.
        let id = format!("00000000-0000-4000-8000-00000000000{n}");
        world.post("/threads", &json!({ "thread_id": id, "metadata": { "team": "a", "n": n } })).await;
    }
    let busy =
        world.post("/threads", &json!({ "metadata": { "team": "b", "n": 5 } })).await.json()["thread_id"]
            .clone();
    let busy = busy.as_str().unwrap();
    world.run(busy, "hi").await;
    let failed = world.thread().await;
    world.run(&failed, "fail").await;
    let working = world.player().await;
    world.player().await.fail(evenkeel_core::Error::internal("It broke.")).await;
    let done = world.thread().await;
    world.run(&done, "done").await;
    world.player().await.finish(1, "needle").await;
    let find = async |body: Value| {
        let answered = world.post("/threads/search", &body).await;
        let numbers: Vec<Value> =
            answered.json().as_array().unwrap().iter().map(|t| t["metadata"]["n"].clone()).collect();
        let header = |name| answered.header(name).to_owned();
        (json!(numbers).to_string(), header("x-pagination-total"), header("x-pagination-next"))
    };
    let found =
        |numbers: &str, total: &str, next: &str| (numbers.to_owned(), total.to_owned(), next.to_owned());
    let team = json!({ "team": "a" });
    assert_eq!(find(json!({ "metadata": team, "limit": 2 })).await, found("[4,3]", "5", "2"));
    assert_eq!(find(json!({ "metadata": team, "limit": 2, "offset": 4 })).await, found("[0]", "5", ""));
    let ascending = json!({ "metadata": team, "sort_by": "created_at", "sort_order": "asc", "limit": 1 });
    assert_eq!(find(ascending).await, found("[0]", "5", "1"));
    assert_eq!(find(json!({ "status": "busy" })).await, found("[5]", "1", ""));
    assert_eq!(find(json!({ "status": "error" })).await, found("[null]", "1", ""));
    assert_eq!(find(json!({ "status": "idle", "limit": 3 })).await, found("[null,4,3]", "6", "3"));
    assert_eq!(find(json!({ "values": { "result": "needle" } })).await, found("[null]", "1", ""));
    assert_eq!(find(json!({ "ids": [busy] })).await, found("[5]", "1", ""));
    let count = async |body: Value| world.post("/threads/count", &body).await.json();
    assert_eq!((count(json!({})).await, count(json!({ "status": "idle" })).await), (json!(8), json!(6)));
    let selected =
        world.post("/threads/search", &json!({ "ids": [done], "select": ["status", "values"] })).await.json();
    assert_eq!(selected[0]["values"]["result"], "needle");
    assert_eq!(selected[0].as_object().unwrap().len(), 2);
    for bad in [
        json!({ "status": "odd" }),
        json!({ "limit": "x" }),
        json!({ "ids": ["x"] }),
        json!({ "metadata": 1 }),
    ] {
        assert_eq!(world.post("/threads/search", &bad).await.refusal(), "422 bad-request", "{bad}");
    }
    drop(working);
}

#[tokio::test]
async fn a_removed_thread_is_gone_with_what_was_open_on_it() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "works").await;
    let player = world.player().await;
    world.run(&thread, "waits").await;
    assert_eq!(delete(&world, &format!("/threads/{thread}")).await, 204);
    for path in
        [format!("/threads/{thread}"), format!("/threads/{thread}/runs/{run}"), format!("/v1/runs/{run}")]
    {
        assert_eq!(world.get(&path).await.status, 404, "{path}");
    }
    assert_eq!(delete(&world, &format!("/threads/{thread}")).await, 404);
    assert!(world.claim_ready().await.is_none(), "what waited does not begin");
    drop(player);
}

#[tokio::test]
async fn a_removed_run_leaves_its_words_in_the_thread() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    world.player().await.finish(1, "hello").await;
    let path = format!("/threads/{thread}/runs/{run}");
    assert_eq!(delete(&world, &path).await, 204);
    assert_eq!((world.get(&path).await.status.as_u16(), delete(&world, &path).await), (404, 404));
    assert_eq!(world.get(&format!("/threads/{thread}/runs")).await.json(), json!([]));
    let state = world.get(&format!("/threads/{thread}/state")).await.json();
    assert_eq!(state["values"]["messages"].as_array().unwrap().len(), 2);
    // One that is open is stopped.
    let open = world.run(&thread, "again").await;
    let player = world.player().await;
    assert_eq!(delete(&world, &format!("/threads/{thread}/runs/{open}")).await, 204);
    assert_eq!(world.get(&format!("/threads/{thread}")).await.json()["status"], "idle");
    assert_eq!(world.dispatch.cancelled.lock().unwrap().as_slice(), [player.run()]);
}

#[tokio::test]
async fn a_client_writes_the_state_of_a_thread_that_is_not_busy() {
    let world = World::new().await;
    let thread = world.thread().await;
    world.run(&thread, "hi").await;
    world.player().await.finish(1, "hello").await;
    let path = format!("/threads/{thread}/state");
    let before = world.get(&path).await.json();
    let note = |text: &str| json!({ "values": { "messages": [{ "role": "user", "content": text, "id": "note" }], "mood": "good" } });
    let written = world.post(&path, &note("first")).await;
    assert_eq!(written.status, 200, "{:?}", written.body);
    let first = written.json()["checkpoint"].clone();
    world.post(&path, &note("second")).await;
    let state = world.get(&path).await.json();
    let texts = |state: &Value| {
        let messages = state["values"]["messages"].as_array().unwrap().iter();
        messages.map(|m| m["content"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts(&state), ["hi", "hello", "second"]);
    assert_eq!((&state["values"]["mood"], &state["metadata"]["source"]), (&json!("good"), &json!("update")));
    assert_eq!(state["parent_checkpoint"], first);
    // On top of an earlier checkpoint: what came after it is left, and can still be read.
    let mut earlier = note("other");
    earlier["checkpoint"] = before["checkpoint"].clone();
    assert_eq!(world.post(&path, &earlier).await.status, 200);
    let forked = world.get(&path).await.json();
    assert_eq!(texts(&forked), ["hi", "hello", "other"]);
    assert_eq!(forked["parent_checkpoint"], before["checkpoint"]);
    let left = world.get(&format!("{path}/{}", first["checkpoint_id"].as_str().unwrap())).await.json();
    assert_eq!(texts(&left), ["hi", "hello", "first"]);
    let by_body = world.post(&format!("{path}/checkpoint"), &json!({ "checkpoint": first })).await.json();
    assert_eq!(by_body, left);
    let table = [
        (json!({ "values": [] }), "422 bad-request"),
        (json!({ "values": { "messages": [{ "role": "tool", "content": "x" }] } }), "422 bad-request"),
        (json!({ "values": {}, "as_node": 1 }), "422 bad-request"),
        (json!({ "values": {}, "checkpoint": { "checkpoint_id": "x" } }), "422 bad-request"),
        (json!({ "values": {}, "checkpoint": { "checkpoint_id": thread } }), "404 not-found"),
    ];
    for (body, expected) in table {
        assert_eq!(world.post(&path, &body).await.refusal(), expected, "{body}");
    }
    world.run(&thread, "busy").await;
    let refused = world.post(&path, &note("third")).await;
    assert_eq!(refused.refusal(), "409 thread-busy");
}

#[tokio::test]
async fn history_can_be_limited_to_one_run() {
    let world = World::new().await;
    let thread = world.thread().await;
    let first = world.run(&thread, "one").await;
    world.player().await.finish(1, "1").await;
    world.run(&thread, "two").await;
    world.player().await.finish(1, "2").await;
    let path = format!("/threads/{thread}/history");
    let own = world.post(&path, &json!({ "limit": 100, "metadata": { "run_id": first } })).await.json();
    let own = own.as_array().unwrap();
    assert!(
        !own.is_empty() && own.iter().all(|state| state["metadata"]["run_id"] == json!(first)),
        "{own:?}"
    );
    let newest = world.post(&path, &json!({ "limit": 1 })).await.json();
    let before = json!({ "limit": 1, "before": { "configurable": newest[0]["checkpoint"] } });
    let older = world.post(&path, &before).await.json();
    assert_eq!(older[0]["checkpoint_id"], newest[0]["parent_checkpoint_id"]);
}

#[tokio::test]
async fn several_runs_are_cancelled_at_once() {
    let world = World::new().await;
    let thread = world.thread().await;
    let first = world.run(&thread, "works").await;
    let player = world.player().await;
    let second = world.run(&thread, "waits").await;
    let named = json!({ "thread_id": thread, "run_ids": [first, second] });
    assert_eq!(world.post("/runs/cancel", &named).await.status, 204);
    player.cancelled().await;
    let path = format!("/threads/{thread}/runs");
    for run in [&first, &second] {
        assert_eq!(world.get(&format!("{path}/{run}")).await.json()["status"], "interrupted");
    }
    assert_eq!(world.post("/runs/cancel", &named).await.refusal(), "404 run-ended");
    let other = world.thread().await;
    let third = world.run(&other, "works").await;
    assert_eq!(world.post("/runs/cancel", &json!({ "status": "all" })).await.status, 204);
    world.player().await.cancelled().await;
    assert_eq!(world.get(&format!("/threads/{other}/runs/{third}")).await.json()["status"], "interrupted");
}

#[tokio::test]
async fn a_threads_stream_shows_all_its_runs_and_goes_on_where_it_was_left() {
    let world = World::new().await;
    let thread = world.thread().await;
    let mut updates = chat("one");
    updates["stream_mode"] = json!("updates");
    world.post(&format!("/threads/{thread}/runs"), &updates).await;
    world.player().await.finish(1, "1").await;
    world.run(&thread, "two").await;
    world.player().await.finish(1, "2").await;
    let path = format!("/threads/{thread}/stream");
    let mut stream = world.stream(&path, &[("last-event-id", "-")]).await;
    let mut seen = Vec::new();
    while seen.iter().filter(|got: &&crate::world::Got| got.data["status"] == "run_done").count() < 2 {
        seen.push(stream.next().await.unwrap());
    }
    let names: Vec<_> = seen.iter().map(|got| got.event.as_str()).collect();
    let expected = ["metadata", "updates", "metadata", "metadata", "values", "values", "values", "metadata"];
    assert_eq!(names, expected, "each run in its own modes");
    for (idx, last) in seen.iter().enumerate() {
        let mut rest = world.stream(&path, &[("last-event-id", last.id.as_deref().unwrap())]).await;
        for expected in &seen[idx + 1..] {
            assert_eq!(rest.next().await.as_ref(), Some(expected), "{:?}", outline(&seen));
        }
    }
    // Without a cursor: from now on. Only what was asked for.
    let quiet = format!("{path}?stream_mode=lifecycle&stream_mode=state_update");
    let mut quiet = world.stream(&quiet, &[]).await;
    let note = json!({ "values": { "messages": [{ "role": "user", "content": "note" }] } });
    world.post(&format!("/threads/{thread}/state"), &note).await;
    let update = quiet.next().await.unwrap();
    assert_eq!((update.event.as_str(), &update.data["thread_id"]), ("state_update", &json!(thread)));
    let run = world.run(&thread, "three").await;
    world.player().await.finish(1, "3").await;
    let begun = quiet.next().await.unwrap();
    assert_eq!((begun.event.as_str(), &begun.data["run_id"]), ("metadata", &json!(run)));
    assert_eq!(quiet.next().await.unwrap().data, json!({ "status": "run_done", "run_id": run }));
    // The stream ends when its thread is removed.
    assert_eq!(delete(&world, &format!("/threads/{thread}")).await, 204);
    assert_eq!(quiet.next().await, None);
}

#[tokio::test]
async fn the_thread_of_a_stateless_run_goes_some_time_after_its_end() {
    let world = World::with("server.stateless_keep = \"0s\"", &[]).await;
    let forgotten = world.post("/runs", &chat("hi")).await.json()["thread_id"].clone();
    world.player().await.finish(1, "1").await;
    let mut keep = chat("hi");
    keep["on_completion"] = json!("keep");
    let kept = world.post("/runs", &keep).await.json()["thread_id"].clone();
    world.player().await.finish(1, "2").await;
    let path = format!("/threads/{}", forgotten.as_str().unwrap());
    let gone = async {
        while world.get(&path).await.status != 404 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), gone).await.unwrap();
    assert_eq!(world.get(&format!("/threads/{}", kept.as_str().unwrap())).await.status, 200);
}

#[tokio::test]
async fn every_described_path_is_served_and_every_reference_is_there() {
    let world = World::new().await;
    let document = world.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = std::collections::BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path} {method}");
            let filled = path
                .replace("{thread}", "x")
                .replace("{run}", "x")
                .replace("{checkpoint}", "x")
                .replace("{assistant}", "x");
            let method = method.to_uppercase().parse().unwrap();
            let status = world.ask(method, &filled, &[], "").await.status.as_u16();
            assert!(status != 501 && status < 503, "{path}: {status}");
        }
    }
    assert!(ids.len() >= 38, "{ids:?}");
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name: String = reference.chars().take_while(char::is_ascii_alphanumeric).collect();
        assert!(document["components"]["schemas"].get(&name).is_some(), "{name}");
    }
}
