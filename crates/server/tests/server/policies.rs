//! What a second message does on a busy thread, as its clients see it.

use evenkeel_core::port::store::{TakeSteered, Written};
use http::Method;
use serde_json::{Value, json};

use crate::world::{Answered, Got, Player, World, chat, outline};

/// A thread with a run at work on it.
struct Busy {
    world: World,
    runs: String,
    thread: String,
    first: String,
    player: Option<Player>,
}

impl Busy {
    async fn new() -> Self {
        let world = World::with("server.heartbeat = \"200ms\"\nlimits.merge_quiet = \"200ms\"", &[]).await;
        let thread = world.thread().await;
        let first = world.run(&thread, "A").await;
        let player = Some(world.player().await);
        Self { world, runs: format!("/threads/{thread}/runs"), thread, first, player }
    }

    async fn send(&self, text: &str, policy: &str) -> Answered {
        let answered = self.world.post(&self.runs, &with(text, policy)).await;
        assert_eq!(answered.status, 200, "{:?}", answered.body);
        answered
    }

    async fn get(&self, run: &str) -> Answered {
        self.world.get(&format!("{}/{run}", self.runs)).await
    }

    /// The reason and the dialect's status of a run.
    async fn end_of(&self, run: &str) -> (Value, Value) {
        let shown = self.get(run).await.json();
        (shown["status"].clone(), shown["evenkeel"]["reason"].clone())
    }

    async fn said(&self) -> Vec<String> {
        let state = self.world.get(&format!("/threads/{}/state", self.thread)).await.json();
        let messages = state["values"]["messages"].as_array().cloned().unwrap_or_default();
        messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    }

    async fn stream(&self, run: &str, after: &str) -> crate::world::Sse {
        let path = format!("{}/{run}/stream?stream_mode=updates", self.runs);
        self.world.stream(&path, &[("last-event-id", after)]).await
    }

    /// The next turn of the thread, once it may start.
    async fn next(&self) -> Player {
        for _ in 0..100 {
            if let Some(player) = self.world.claim_ready().await {
                return player;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("no turn became ready");
    }
}

fn with(text: &str, policy: &str) -> Value {
    let mut body = chat(text);
    body["multitask_strategy"] = json!(policy);
    body
}

fn id(answered: &Answered) -> String {
    answered.json()["run_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn interrupt_stops_the_active_run_and_keeps_what_it_said() {
    for entry in ["", "/stream", "/wait"] {
        let mut busy = Busy::new().await;
        let mut stopped = busy.stream(&busy.first, "-1").await;
        assert_eq!(stopped.next().await.unwrap().event, "metadata");
        let body = with("B", "interrupt").to_string();
        let path = format!("{}{entry}", busy.runs);
        let accepted = busy.world.open(Method::POST, &path, &[], &body).await;
        assert_eq!(accepted.status(), 200, "{entry}");
        assert!(accepted.headers().contains_key("evenkeel-position"), "{entry}");
        let player = busy.player.take().unwrap();
        assert_eq!(busy.world.dispatch.cancelled.lock().unwrap().as_slice(), [player.run()], "{entry}");
        assert_eq!(busy.get(&busy.first).await.json()["evenkeel"]["state"], "cancelling");
        let next = player.cancelled().await.expect("the message runs next");
        let second = next.run.id.to_string();
        busy.world.play(next).finish(1, "b").await;
        assert_eq!(busy.said().await, ["A", "B", "b"], "{entry}");
        let reason = json!({ "reason": "interrupted", "by": second });
        assert_eq!(busy.end_of(&busy.first).await, (json!("interrupted"), reason), "{entry}");
        assert_eq!(stopped.all().await.last().unwrap().data, json!({ "status": "interrupted" }));
        drop(accepted);
    }
}

#[tokio::test]
async fn rollback_undoes_the_active_run_and_the_dialect_no_longer_finds_it() {
    let mut busy = Busy::new().await;
    busy.player.as_ref().unwrap().tool_step(1, "half done").await;
    let waiting = busy.world.open(Method::GET, &format!("{}/{}/join", busy.runs, busy.first), &[], "").await;
    let second = id(&busy.send("B", "rollback").await);
    let next = busy.player.take().unwrap().cancelled().await.expect("the message runs next");
    busy.world.play(next).finish(1, "b").await;
    assert_eq!(busy.said().await, ["B", "b"]);
    drop(waiting);
    assert_eq!(busy.get(&busy.first).await.refusal(), "404 run-not-found");
    for path in ["join", "stream"] {
        assert_eq!(busy.get(&format!("{}/{path}", busy.first)).await.refusal(), "404 run-not-found");
    }
    let listed = busy.world.get(&busy.runs).await.json();
    let ids: Vec<_> = listed.as_array().unwrap().iter().map(|run| run["run_id"].clone()).collect();
    assert_eq!(ids, [json!(second)]);
    let ours = busy.world.get(&format!("/v1/runs/{}", busy.first)).await.json();
    assert_eq!(ours["outcome"]["reason"], json!({ "reason": "rolled_back", "by": second }));
    let history = busy.world.get(&format!("/threads/{}/history?limit=100", busy.thread)).await.json();
    let runs: Vec<_> = history.as_array().unwrap().iter().map(|s| s["metadata"]["run_id"].clone()).collect();
    assert!(runs.iter().all(|run| *run == json!(second)), "{runs:?}");
}

#[tokio::test]
async fn a_cancel_with_rollback_leaves_the_thread_as_it_was() {
    let mut busy = Busy::new().await;
    let cancel = format!("{}/{}/cancel?action=rollback&wait=true", busy.runs, busy.first);
    let waiting = busy.world.open(Method::POST, &cancel, &[], "{}").await;
    assert_eq!(waiting.status(), 200);
    busy.player.take().unwrap().cancelled().await;
    assert_eq!(busy.get(&busy.first).await.refusal(), "404 run-not-found");
    assert_eq!(busy.said().await, Vec::<String>::new());
    let thread = busy.world.get(&format!("/threads/{}", busy.thread)).await.json();
    assert_eq!(thread["status"], "idle");
    drop(waiting);
}

#[tokio::test]
async fn latest_replaces_what_waits_and_says_by_whom() {
    let mut busy = Busy::new().await;
    let kept = id(&busy.send("kept", "enqueue").await);
    let old = id(&busy.send("old", "latest").await);
    let joined = busy.world.open(Method::GET, &format!("{}/{old}/join", busy.runs), &[], "").await;
    let new = id(&busy.send("new", "latest").await);
    let reason = json!({ "reason": "superseded", "by": new });
    assert_eq!(busy.end_of(&old).await, (json!("interrupted"), reason));
    assert_eq!(busy.get(&kept).await.json()["evenkeel"]["waits_because"], "waits for a free slot");
    assert_eq!(busy.get(&new).await.json()["evenkeel"]["position"], 1);
    let next = busy.player.take().unwrap().finish(1, "a").await.unwrap();
    let next = busy.world.play(next).finish(1, "k").await.unwrap();
    busy.world.play(next).finish(1, "n").await;
    assert_eq!(busy.said().await, ["A", "a", "kept", "k", "new", "n"]);
    assert_eq!(joined.status(), 200);
}

#[tokio::test]
async fn merged_messages_are_one_turn_and_every_client_gets_its_answer() {
    let mut busy = Busy::new().await;
    let first = busy.send("B", "merge").await;
    assert!(first.header("evenkeel-reason").starts_with("starts not before"), "{:?}", first.headers);
    let (into, joined) = (id(&first), id(&busy.send("C", "merge").await));
    let live = busy.stream(&joined, "-1").await;
    let wait = busy.world.open(Method::GET, &format!("{}/{joined}/join", busy.runs), &[], "").await;
    busy.player.take().unwrap().finish(1, "a").await;
    let player = busy.next().await;
    assert_eq!(player.run().to_string(), into);
    player.finish(1, "both").await;
    assert_eq!(busy.said().await, ["A", "a", "B", "C", "both"]);
    let shown = busy.get(&joined).await.json();
    assert_eq!(shown["evenkeel"]["answered_by"], json!(into));
    answered_by_the_other(&busy, &joined, &into, live, wait).await;
    assert_eq!(busy.world.get(&format!("/threads/{}", busy.thread)).await.json()["status"], "idle");
}

#[tokio::test]
async fn a_steering_message_enters_the_active_run_and_is_answered_by_it() {
    let mut busy = Busy::new().await;
    let steering = id(&busy.send("to the left", "steer").await);
    let live = busy.stream(&steering, "-1").await;
    let wait = busy.world.open(Method::GET, &format!("{}/{steering}/join", busy.runs), &[], "").await;
    let player = busy.player.take().unwrap();
    player.tool_step(1, "looking").await;
    let taken = TakeSteered { fence: player.claim.fence.clone(), step: 2 };
    let taken = busy.world.store.take_steered(taken).await.unwrap();
    assert!(matches!(taken, Written::Done { .. }), "{taken:?}");
    player.finish(2, "left it is").await;
    assert_eq!(busy.said().await, ["A", "looking", "file", "to the left", "left it is"]);
    answered_by_the_other(&busy, &steering, &busy.first.clone(), live, wait).await;
}

/// A client of `run` gets the answer of `other`, is told so, and loses nothing wherever it is cut off.
async fn answered_by_the_other(
    busy: &Busy,
    run: &str,
    other: &str,
    live: crate::world::Sse,
    wait: http::Response<evenkeel_env::http::Body>,
) {
    let seen = live.all().await;
    let told: Vec<&Got> = seen.iter().filter(|got| got.data["answered_by"] == json!(other)).collect();
    assert_eq!(told.len(), 1, "{seen:?}");
    assert_eq!(seen.last().unwrap().data, json!({ "status": "success" }));
    assert!(seen.iter().any(|got| got.event == "updates"), "{seen:?}");
    assert_eq!(outline(&seen), outline(&busy.stream(run, "-1").await.all().await));
    let stored: Vec<&Got> = seen.iter().filter(|got| got.id.is_some()).collect();
    for (idx, last) in stored.iter().enumerate() {
        let rest = busy.stream(run, last.id.as_deref().unwrap()).await.all().await;
        let rest: Vec<&Got> = rest.iter().filter(|got| got.id.is_some()).collect();
        assert_eq!(rest, stored[idx + 1..], "after {:?}", last.id);
    }
    let values = http_body_util::BodyExt::collect(wait.into_body()).await.unwrap().to_bytes();
    let values: Value = serde_json::from_slice(&values).unwrap();
    let joined = busy.get(&format!("{run}/join")).await;
    assert_eq!(joined.header("evenkeel-answered-by"), other);
    assert_eq!(joined.json(), values);
    assert!(values["result"].is_string(), "{values}");
}

#[tokio::test]
async fn a_run_can_build_on_an_earlier_checkpoint() {
    let mut busy = Busy::new().await;
    busy.player.take().unwrap().finish(1, "a").await;
    let state = busy.world.get(&format!("/threads/{}/state", busy.thread)).await.json();
    busy.world.run(&busy.thread, "left").await;
    busy.world.player().await.finish(1, "behind").await;
    let mut fork = chat("forked");
    fork["checkpoint_id"] = state["checkpoint_id"].clone();
    let accepted = busy.world.post(&busy.runs, &fork).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    busy.world.player().await.finish(1, "f").await;
    assert_eq!(busy.said().await, ["A", "a", "forked", "f"]);
    let history = busy.world.get(&format!("/threads/{}/history?limit=100", busy.thread)).await.json();
    let texts = history.to_string();
    assert!(texts.contains("behind"), "what a fork left can still be read");
}

#[tokio::test]
async fn a_delayed_run_keeps_its_place_and_says_when() {
    let world = World::new().await;
    let thread = world.thread().await;
    let mut body = chat("later");
    body["after_seconds"] = json!(0.3);
    let accepted = world.post(&format!("/threads/{thread}/runs"), &body).await;
    assert_eq!(accepted.json()["status"], "pending");
    assert!(accepted.json()["evenkeel"]["not_before"].is_string(), "{:?}", accepted.body);
    assert!(world.claim_ready().await.is_none());
    let busy =
        Busy { runs: format!("/threads/{thread}/runs"), first: id(&accepted), thread, player: None, world };
    busy.next().await.finish(1, "now").await;
    assert_eq!(busy.said().await, ["later", "now"]);
}

/// What a busy thread does with a message: what is answered, and what both runs are then.
async fn effect(busy: &Busy, policy: &str, entry: &str) -> (Option<String>, Value) {
    let path = format!("{}{entry}", busy.runs);
    let answered = busy.world.open(Method::POST, &path, &[], &with("B", policy).to_string()).await;
    let status = answered.status().as_u16();
    let place = answered.headers().get("content-location").map(|place| place.to_str().unwrap().to_owned());
    let second = match &place {
        Some(place) => busy.world.get(place).await.json()["evenkeel"].clone(),
        None => Value::Null,
    };
    let first = busy.get(&busy.first).await.json()["evenkeel"]["state"].clone();
    let shown = json!({
        "status": status,
        "first": first,
        "second": second["state"],
        "position": second["position"],
        "is_held_back": second["not_before"].is_string(),
    });
    (place, shown)
}

/// Each policy does the same on every way in, and no message that was accepted is dropped.
#[tokio::test]
async fn each_policy_is_the_same_on_every_entry_and_drops_nothing() {
    for policy in ["enqueue", "reject", "interrupt", "rollback", "steer", "merge", "latest"] {
        let mut shown = Vec::new();
        for entry in ["", "/stream", "/wait"] {
            let mut busy = Busy::new().await;
            let (place, effect) = effect(&busy, policy, entry).await;
            let player = busy.player.take().unwrap();
            let mut next = match effect["first"].as_str().unwrap() {
                "cancelling" => player.cancelled().await,
                _ => player.finish(1, "a").await,
            };
            shown.push(effect);
            let Some(place) = place else {
                assert_eq!((policy, busy.said().await.join(" ")), ("reject", "A a".to_owned()), "{entry}");
                continue;
            };
            if next.is_none() {
                next = Some(busy.next().await.claim);
            }
            busy.world.play(next.unwrap()).finish(1, "b").await;
            let said = busy.said().await;
            assert_eq!(said[said.len() - 2..], ["B", "b"], "{policy} {entry}");
            assert_eq!(busy.world.get(&place).await.json()["status"], "success", "{policy} {entry}");
        }
        assert!(shown.windows(2).all(|two| two[0] == two[1]), "{policy}: {shown:#?}");
    }
}
