//! Runs that wait for a person, at every door: the dialect's interrupt and resume, and `/v1/approvals`.

use evenkeel_core::approval::Approval;
use evenkeel_core::id::{ApprovalId, CallId};
use evenkeel_core::journal::unanswered::NOT_BEGUN;
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::message::{Block, Message, Role, ToolCall};
use evenkeel_core::port::store::{Park, Written};
use evenkeel_core::run::WaitReason;
use http::Method;
use serde_json::{Value, json};

use crate::world::{Player, Sse, World, attempt, chat, outline};

/// Plays a claim up to a reply with these calls, all of which a person decides on.
async fn asks(world: &World, player: Player, commands: &[&str]) -> Vec<Approval> {
    let (run, now) = (player.run(), world.env.wall());
    let calls: Vec<ToolCall> = (0_u32..)
        .zip(commands)
        .map(|(idx, command)| ToolCall {
            id: CallId::of(run, 1, idx),
            name: "bash".into(),
            args: json!({ "command": command }),
            wire_id: None,
        })
        .collect();
    let blocks = calls.iter().cloned().map(Block::ToolCall).collect();
    let message = Message { id: "m1".into(), role: Role::Assistant, blocks };
    let finish = "tool_calls".into();
    player.commit(1, vec![EventBody::AssistantMessage { message, attempts: vec![attempt(1)], finish }]).await;
    let approvals: Vec<Approval> = (0_u32..)
        .zip(&calls)
        .map(|(idx, call)| Approval {
            id: ApprovalId::of(run, 1, idx, "0123456789abcdef"),
            step: 1,
            call_id: call.id.clone(),
            tool: "bash".into(),
            digest: "0123456789abcdef".into(),
            reason: "it reaches the network".into(),
            args_shown: "{…".into(),
            policies: vec!["ask".into()],
            asked_at: now,
            expires_at: now.after(std::time::Duration::from_secs(600)),
            answer: None,
        })
        .collect();
    let requested = approvals.iter().cloned().map(EventBody::ApprovalRequested);
    let park = Park {
        fence: player.claim.fence.clone(),
        on: WaitReason::Approval,
        reason: "bash waits for an approval".into(),
        until_hint: Some(now.after(std::time::Duration::from_secs(600))),
        route: None,
        approvals: approvals.clone(),
        events: requested.map(|body| NewEvent { step: 1, body }).collect(),
    };
    match world.store.park(park).await.unwrap() {
        Written::Done { seq_last, .. } => {
            use evenkeel_core::port::feed::Feed;
            world.hub.committed(player.thread(), seq_last);
        }
        other => panic!("{other:?}"),
    }
    approvals
}

fn resume(value: Value) -> Value {
    json!({ "assistant_id": "chat", "command": { "resume": value }, "stream_mode": ["updates", "values"] })
}

#[tokio::test]
async fn a_stream_ends_with_the_interrupt_and_a_resume_streams_the_rest() {
    let world = World::new().await;
    let thread = world.thread().await;
    let mut body = chat("go");
    body["stream_mode"] = json!(["updates", "values"]);
    let path = format!("/threads/{thread}/runs/stream");
    let first = Sse::new(world.open(Method::POST, &path, &[], &body.to_string()).await);
    let approvals = asks(&world, world.player().await, &["curl x", "curl y"]).await;
    let events = first.all().await;
    let names: Vec<&str> = events.iter().map(|got| got.event.as_str()).collect();
    assert_eq!(
        names,
        ["metadata", "values", "updates", "updates", "values", "end"],
        "{:?}",
        outline(&events)
    );
    assert_eq!(events[5].data, json!({ "status": "interrupted" }));
    let interrupt = &events[3].data["__interrupt__"][0];
    assert_eq!(events[4].data["__interrupt__"][0], *interrupt);
    let actions = &interrupt["value"]["action_requests"];
    assert_eq!(actions[0]["args"], json!({ "command": "curl x" }), "whole arguments, not their beginning");
    assert_eq!(interrupt["value"]["approvals"][1]["id"], json!(approvals[1].id));

    let shown = world.get(&format!("/threads/{thread}")).await.json();
    assert_eq!(
        (shown["status"].as_str(), shown["interrupts"].as_object().map(|map| map.len())),
        (Some("interrupted"), Some(1))
    );
    let state = world.get(&format!("/threads/{thread}/state")).await.json();
    assert_eq!((&state["next"], &state["interrupts"][0]), (&json!(["tools"]), interrupt));
    assert_eq!(state["tasks"][0]["interrupts"][0], *interrupt);
    assert_eq!(state["values"]["messages"][1]["tool_calls"][0]["name"], "bash");
    let run = events[0].data["run_id"].as_str().unwrap();
    let listed = world.get(&format!("/threads/{thread}/runs?status=interrupted")).await.json();
    assert_eq!(
        (listed[0]["run_id"].as_str(), listed[0]["status"].as_str()),
        (Some(run), Some("interrupted"))
    );
    assert_eq!(world.get(&format!("/threads/{thread}/runs?status=running")).await.json(), json!([]));
    for (status, n) in [("interrupted", 1), ("busy", 0), ("idle", 0)] {
        let found = world.post("/threads/search", &json!({ "status": status })).await.json();
        assert_eq!(found.as_array().map(Vec::len), Some(n), "{status}");
    }

    let decisions = json!({ "decisions": [{ "type": "approve" }, { "type": "reject", "message": "not y" }] });
    let rest = Sse::new(world.open(Method::POST, &path, &[], &resume(decisions).to_string()).await);
    let player = world.claim_ready().await.expect("it is queued again");
    assert_eq!(player.run().to_string(), run, "the same run goes on");
    player.finish(1, "done").await;
    let rest = rest.all().await;
    assert_eq!(rest[0].data, json!({ "run_id": run, "attempt": 2 }), "{:?}", outline(&rest));
    assert_eq!(rest.last().unwrap().data, json!({ "status": "success" }));
    assert!(rest.iter().all(|got| got.data.get("__interrupt__").is_none()));
    // From the start the whole run is one stream: the pause that is over does not end it.
    let whole = world
        .stream(
            &format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates"),
            &[("last-event-id", "-1")],
        )
        .await;
    assert_eq!(whole.all().await.last().unwrap().data, json!({ "status": "success" }));
    let told = world.get(&format!("/v1/approvals/{}", approvals[1].id)).await.json();
    assert_eq!((told["state"].as_str(), told["answer"]["note"].as_str()), (Some("denied"), Some("not y")));
    assert_eq!(told["args"], json!({ "command": "curl y" }));
}

#[tokio::test]
async fn wait_and_join_answer_with_the_interrupt() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "go").await;
    asks(&world, world.player().await, &["curl x"]).await;
    for _ in 0..2 {
        let joined = world.get(&format!("/threads/{thread}/runs/{run}/join")).await.json();
        assert_eq!(joined["__interrupt__"][0]["value"]["action_requests"][0]["name"], "bash");
    }
    let path = format!("/threads/{thread}/runs/wait");
    let body = resume(json!(true)).to_string();
    let (waited, ()) = tokio::join!(world.ask(Method::POST, &path, &[], &body), async {
        let player = loop {
            match world.claim_ready().await {
                Some(player) => break player,
                None => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        };
        player.finish(1, "done").await;
    });
    assert_eq!(waited.json()["result"], "done");
    assert_eq!(waited.json().get("__interrupt__"), None);
}

/// A run that is cancelled while it asks: each of its calls has a result in the thread's state, as whoever
/// builds a prompt from that state needs it.
#[tokio::test]
async fn a_cancelled_question_leaves_no_call_without_a_result() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "go").await;
    asks(&world, world.player().await, &["ls", "curl x"]).await;
    let state = async || world.get(&format!("/threads/{thread}/state")).await.json();
    let results = |state: &Value| -> Vec<Value> {
        let messages = state["values"]["messages"].as_array().unwrap();
        let results = messages.iter().filter(|message| message["type"] == "tool");
        results.map(|result| json!([result["content"], result["status"]])).collect()
    };
    assert_eq!(results(&state().await), Vec::<Value>::new(), "it waits");
    let cancelled = world.post(&format!("/threads/{thread}/runs/{run}/cancel?wait=true"), &json!({})).await;
    assert!(cancelled.status.is_success(), "{:?}", cancelled.body);
    assert_eq!(
        results(&state().await),
        [json!([NOT_BEGUN, "error"]), json!([NOT_BEGUN, "error"])],
        "{}",
        state().await
    );
}

#[tokio::test]
async fn what_answers_nothing_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs");
    assert_eq!(world.post(&path, &resume(json!(true))).await.refusal(), "409 approval-closed");
    world.run(&thread, "go").await;
    let approvals = asks(&world, world.player().await, &["curl x", "curl y"]).await;
    let id = approvals[0].id.as_str();
    let other =
        ApprovalId::of(evenkeel_core::id::RunId::new(world.env.wall(), &world.env.generator), 1, 0, "x");
    let both = json!({ "assistant_id": "chat", "input": chat("x")["input"], "command": { "resume": true } });
    let goto = json!({ "assistant_id": "chat", "command": { "goto": "end" } });
    for (body, refused) in [
        (resume(json!({ "decisions": [{ "type": "approve" }] })), "422 bad-request"),
        (resume(json!({ "decisions": [{ "type": "edit" }, { "type": "approve" }] })), "422 bad-request"),
        (resume(json!("perhaps")), "422 bad-request"),
        (resume(json!({ other.as_str(): true })), "409 approval-closed"),
        (both, "422 bad-request"),
        (goto, "501 unsupported"),
    ] {
        assert_eq!(world.post(&path, &body).await.refusal(), refused, "{body}");
    }
    assert_eq!(world.post("/runs", &resume(json!(true))).await.refusal(), "422 bad-request");
    let at = |id: &str| format!("/v1/approvals/{id}");
    let approve = json!({ "decision": "approve" });
    assert_eq!(world.post(&at(other.as_str()), &approve).await.refusal(), "404 approval-not-found");
    assert_eq!(world.post(&at("apr_x"), &approve).await.refusal(), "404 approval-not-found");
    assert_eq!(world.post(&at(id), &json!({})).await.refusal(), "422 bad-request");
    let open = world.get("/v1/approvals").await.json();
    assert_eq!(open.as_array().map(Vec::len), Some(2), "nothing was answered");
}

#[tokio::test]
async fn the_operators_door_lists_answers_once_and_lets_the_run_go_on() {
    let world = World::new().await;
    let thread = world.thread().await;
    world.run(&thread, "go").await;
    let approvals = asks(&world, world.player().await, &["curl x", "curl y"]).await;
    let open = world.get(&format!("/v1/approvals?thread={thread}")).await.json();
    assert_eq!(open[0]["id"], json!(approvals[0].id));
    assert_eq!((open[0]["state"].as_str(), open[0]["args_shown"].as_str()), (Some("open"), Some("{…")));
    let at = |idx: usize| format!("/v1/approvals/{}", approvals[idx].id);
    let answer = json!({ "decision": "approve", "note": "fine" }).to_string();
    let key = [("idempotency-key", "answer-1")];
    let told = world.ask(Method::POST, &at(0), &key, &answer).await.json();
    assert_eq!((told["state"].as_str(), told["answer"]["note"].as_str()), (Some("approved"), Some("fine")));
    let again = world.ask(Method::POST, &at(0), &key, &answer).await;
    assert_eq!((again.status.as_u16(), again.json()["state"].as_str()), (200, Some("approved")));
    let late = world.post(&at(0), &json!({ "decision": "deny" })).await;
    assert_eq!(late.refusal(), "409 approval-closed");
    assert!(world.claim_ready().await.is_none(), "the second question is open");
    let told = world.post(&at(1), &json!({ "decision": "deny" })).await.json();
    assert_eq!(told["state"], "denied");
    assert!(world.claim_ready().await.is_some());
    assert_eq!(world.get("/v1/approvals").await.json(), json!([]));
}

#[tokio::test]
async fn a_foreign_tenant_finds_no_question() {
    let keys = "auth.mode = \"keys\"\n[auth.keys.ann]\nkey = \"env:ANN\"\ntenant = \"a\"\n[auth.keys.bob]\nkey = \"env:BOB\"\ntenant = \"b\"\n[auth.keys.op]\nkey = \"env:OP\"\ntenant = \"operator\"";
    let secrets = [
        ("ANN", "ann-key-0123456789abcdef"),
        ("BOB", "bob-key-0123456789abcdef"),
        ("OP", "op-key-0123456789abcdef"),
    ];
    let world = World::with(keys, &secrets).await;
    let as_who = |name: &str| [("x-api-key", secrets.iter().find(|(key, _)| *key == name).unwrap().1)];
    let body = chat("go").to_string();
    let made = world.ask(Method::POST, "/threads", &as_who("ANN"), "{}").await.json();
    let thread = made["thread_id"].as_str().unwrap();
    let path = format!("/threads/{thread}/runs");
    assert_eq!(world.ask(Method::POST, &path, &as_who("ANN"), &body).await.status, 200);
    let approvals = asks(&world, world.player().await, &["curl x"]).await;
    let at = format!("/v1/approvals/{}", approvals[0].id);
    let approve = json!({ "decision": "approve" }).to_string();
    assert_eq!(world.ask(Method::GET, "/v1/approvals", &as_who("BOB"), "").await.json(), json!([]));
    assert_eq!(world.ask(Method::GET, &at, &as_who("BOB"), "").await.refusal(), "404 approval-not-found");
    assert_eq!(
        world.ask(Method::POST, &at, &as_who("BOB"), &approve).await.refusal(),
        "404 approval-not-found"
    );
    let resumed = world.ask(Method::POST, &path, &as_who("BOB"), &resume(json!(true)).to_string()).await;
    assert_eq!(resumed.status, 404);
    // An operator sees all, and says whose it answers.
    let all = world.ask(Method::GET, "/v1/approvals", &as_who("OP"), "").await.json();
    assert_eq!(all[0]["tenant"], "a");
    let told = world.ask(Method::POST, &format!("{at}?tenant=a"), &as_who("OP"), &approve).await.json();
    assert_eq!((told["state"].as_str(), told["answer"]["by"].as_str()), (Some("approved"), Some("op")));
}
