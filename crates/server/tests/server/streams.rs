//! Streams: what is sent, byte for byte, and what a client that was cut off gets.

use std::time::Duration;

use evenkeel_core::port::feed::Provisional;
use evenkeel_core::{Code, Error};
use expect_test::expect;
use http::Method;
use serde_json::json;

use crate::world::{Sse, World, cancel_in_store, chat, outline};

const MODES: &str = "values,updates,messages-tuple,messages,custom,tasks,checkpoints,debug,events";

/// A piece of text behind `offset` bytes of its reply.
fn said(offset: usize, text: &str) -> Provisional {
    Provisional::Text { offset, text: text.to_owned() }
}

/// Replaces what differs from run to run.
fn steady(text: &str, world: &[(&str, &str)]) -> String {
    let mut text = text.replace("\r\n", "\\r\\n\n");
    for (from, to) in world {
        text = text.replace(from, to);
    }
    text
}

#[tokio::test]
async fn a_run_is_shown_byte_for_byte() {
    let world = World::new().await;
    let thread = world.thread().await;
    let body = json!({
        "assistant_id": "chat",
        "input": { "messages": [{ "role": "user", "content": "hi", "id": "u1" }] },
        "stream_mode": ["values", "messages-tuple"],
    });
    let path = format!("/threads/{thread}/runs/stream");
    let response = world.open(Method::POST, &path, &[], &body.to_string()).await;
    let mut stream = Sse::new(response);
    let player = world.player().await;
    let run = player.run().to_string();

    let header = |name: &str| stream.headers.get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "text/event-stream; charset=utf-8");
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(header("x-accel-buffering"), "no");
    assert_eq!(
        header("location"),
        format!("/threads/{thread}/runs/{run}/stream?after=0&stream_mode=values,messages-tuple")
    );
    assert_eq!(header("content-location"), format!("/threads/{thread}/runs/{run}"));

    let mut bytes = stream.next_raw().await.unwrap();
    bytes += &stream.next_raw().await.unwrap();
    player.piece(1, 1, said(0, "Hel"));
    bytes += &stream.next_raw().await.unwrap();
    player.finish(1, "Hello").await;
    while let Some(raw) = stream.next_raw().await {
        bytes += &raw;
    }
    expect![[r#"
        event: metadata\r\n
        data: {"run_id":"RUN","attempt":1}\r\n
        id: 1-0\r\n
        \r\n
        event: values\r\n
        data: {"messages":[{"type":"human","id":"u1","content":"hi","name":null,"additional_kwargs":{},"response_metadata":{}}]}\r\n
        id: 2-0\r\n
        \r\n
        event: messages\r\n
        data: [{"type":"AIMessageChunk","id":"run-RUN-1-1","content":"Hel","name":null,"additional_kwargs":{},"response_metadata":{},"tool_calls":[],"invalid_tool_calls":[],"usage_metadata":null,"tool_call_chunks":[],"chunk_position":null},{"run_id":"RUN","langgraph_node":"agent","langgraph_step":1,"attempt":1,"provisional":true}]\r\n
        \r\n
        event: messages\r\n
        data: [{"type":"AIMessageChunk","id":"run-RUN-1-1","content":"lo","name":null,"additional_kwargs":{},"response_metadata":{"finish_reason":"stop","model_name":"large","model_provider":"acme"},"tool_calls":[],"invalid_tool_calls":[],"usage_metadata":{"input_tokens":10,"output_tokens":2,"total_tokens":12},"tool_call_chunks":[],"chunk_position":"last"},{"run_id":"RUN","langgraph_node":"agent","langgraph_step":1}]\r\n
        id: 3-0\r\n
        \r\n
        event: values\r\n
        data: {"messages":[{"type":"human","id":"u1","content":"hi","name":null,"additional_kwargs":{},"response_metadata":{}},{"type":"ai","id":"run-RUN-1-1","content":"Hello","name":null,"additional_kwargs":{},"response_metadata":{"finish_reason":"stop","model_name":"large","model_provider":"acme"},"tool_calls":[],"invalid_tool_calls":[],"usage_metadata":{"input_tokens":10,"output_tokens":2,"total_tokens":12}}]}\r\n
        id: 4-0\r\n
        \r\n
        event: values\r\n
        data: {"messages":[{"type":"human","id":"u1","content":"hi","name":null,"additional_kwargs":{},"response_metadata":{}},{"type":"ai","id":"run-RUN-1-1","content":"Hello","name":null,"additional_kwargs":{},"response_metadata":{"finish_reason":"stop","model_name":"large","model_provider":"acme"},"tool_calls":[],"invalid_tool_calls":[],"usage_metadata":{"input_tokens":10,"output_tokens":2,"total_tokens":12}}],"result":"Hello"}\r\n
        id: 5-0\r\n
        \r\n
        event: end\r\n
        data: {"status":"success"}\r\n
        \r\n
    "#]]
    .assert_eq(&steady(&bytes, &[(run.as_str(), "RUN")]));
}

#[tokio::test]
async fn a_client_cut_off_after_any_event_gets_exactly_the_rest() {
    let world = World::new().await;
    let thread = world.thread().await;
    // A first run on the thread: its events must not show in the second one's stream.
    world.run(&thread, "before").await;
    world.player().await.finish(1, "done before").await;
    let run = world.run(&thread, "now").await;
    let player = world.player().await;
    player.tool_step(1, "looking").await;
    player.tool_step(2, "").await;
    player.finish(3, "all good").await;

    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode={MODES}");
    let whole = world.stream(&path, &[("last-event-id", "-1")]).await.all().await;
    assert_eq!(whole.first().unwrap().event, "metadata");
    assert_eq!(whole.last().unwrap().event, "end");
    assert_eq!(whole.last().unwrap().data, json!({ "status": "success" }));
    let stored: Vec<_> = whole.iter().filter(|got| got.id.is_some()).cloned().collect();
    assert!(stored.len() > 15, "{:?}", outline(&whole));
    for (idx, last) in stored.iter().enumerate() {
        let id = last.id.as_deref().unwrap();
        let rest = world.stream(&path, &[("last-event-id", id)]).await.all().await;
        let rest: Vec<_> = rest.into_iter().filter(|got| got.event != "end").collect();
        assert_eq!(outline(&rest), outline(&stored[idx + 1..]), "after {id}");
        assert_eq!(rest, stored[idx + 1..], "after {id}");
    }
}

#[tokio::test]
async fn a_client_that_reconnects_while_the_run_goes_on_misses_and_repeats_nothing() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "now").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode={MODES}");
    let mut seen = Vec::new();
    let mut cursor = "-1".to_owned();
    let mut stream = world.stream(&path, &[("last-event-id", &cursor)]).await;
    for step in 1..=6 {
        player.tool_step(step, &format!("step {step}")).await;
        for _ in 0..9 {
            let got = stream.next().await.unwrap();
            cursor = got.id.clone().unwrap_or(cursor);
            seen.push(got);
        }
        drop(stream);
        stream = world.stream(&path, &[("last-event-id", &cursor)]).await;
    }
    player.finish(7, "done").await;
    seen.extend(stream.all().await);
    let whole = world.stream(&path, &[("last-event-id", "-1")]).await.all().await;
    assert_eq!(outline(&seen), outline(&whole));
}

#[tokio::test]
async fn a_cursor_at_the_end_of_a_long_log_starts_behind_it() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "long").await;
    let player = world.player().await;
    let notes = || {
        let note = |n| evenkeel_core::journal::EventBody::Noted { kind: "note".into(), text: format!("{n}") };
        (0..100).map(note).collect()
    };
    let mut last = 0;
    for _ in 0..100 {
        last = player.commit(1, notes()).await;
    }
    player.finish(2, "done").await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=custom");
    let after = (last - 10).to_string();
    let rest = world.stream(&path, &[("last-event-id", &after)]).await.all().await;
    let notes = rest.iter().filter(|got| got.data["type"] == "noted").count();
    assert_eq!(notes, 10, "{:?}", outline(&rest));
    assert_eq!(rest.last().unwrap().event, "end");
    // A replay never waits for an announcement between its pages.
    let replay = async { world.stream(&path, &[("last-event-id", "-1")]).await.all().await };
    let whole = tokio::time::timeout(Duration::from_secs(10), replay).await.unwrap();
    assert_eq!(whole.iter().filter(|got| got.data["type"] == "noted").count(), 10_000);
}

#[tokio::test]
async fn events_are_found_without_any_announcement() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "quiet").await;
    let mut player = world.player().await;
    player.announce = false;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates");
    let mut stream = world.stream(&path, &[("last-event-id", "-1")]).await;
    assert_eq!(stream.next().await.unwrap().event, "metadata");
    player.finish(1, "found").await;
    let rest = outline(&stream.all().await);
    assert_eq!(rest.last().unwrap(), "- end", "{rest:?}");
}

#[tokio::test]
async fn a_silent_stream_has_headers_at_once_and_a_steady_sign_of_life() {
    let world = World::new().await;
    *world.dispatch.free.lock().unwrap() = 0;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs/stream");
    let mut stream = Sse::new(world.open(Method::POST, &path, &[], &chat("wait").to_string()).await);
    assert_eq!(stream.next_raw().await.unwrap(), ": heartbeat\r\n\r\n");
    assert_eq!(stream.next_raw().await.unwrap(), ": heartbeat\r\n\r\n");
    world.claim_ready().await.unwrap().finish(1, "late").await;
    assert_eq!(stream.next().await.unwrap().event, "metadata");
}

#[tokio::test]
async fn pieces_of_a_void_attempt_are_taken_back_and_nothing_is_told_twice() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=messages-tuple,custom");
    let mut stream = world.stream(&path, &[("last-event-id", "-1")]).await;
    assert_eq!(stream.next().await.unwrap().event, "metadata");
    player.piece(1, 1, said(0, "Hol"));
    player.piece(1, 1, Provisional::Reset { reason: "cut".into() });
    player.piece(1, 2, said(0, "Hel"));
    let void = stream.next().await.unwrap();
    let reset = stream.next().await.unwrap();
    let again = stream.next().await.unwrap();
    assert_eq!((void.id, &void.data[0]["content"]), (None, &json!("Hol")));
    assert_eq!((reset.id, &reset.data["type"]), (None, &json!("attempt_reset")));
    assert_eq!(reset.data["message_id"], void.data[0]["id"]);
    assert_ne!(again.data[0]["id"], void.data[0]["id"]);
    let message =
        evenkeel_core::message::Message::text("m1", evenkeel_core::message::Role::Assistant, "Hello");
    let attempts = vec![crate::world::attempt(1), crate::world::attempt(2)];
    let reply =
        evenkeel_core::journal::EventBody::AssistantMessage { message, attempts, finish: "stop".into() };
    player.commit(1, vec![reply]).await;
    // A late piece of a reply that is committed is void.
    player.piece(1, 2, said(3, "lo"));
    let rest = stream.next().await.unwrap();
    assert_eq!(rest.data[0]["id"], again.data[0]["id"]);
    assert_eq!(rest.data[0]["content"], "lo");
    assert_eq!(rest.data[0]["chunk_position"], "last");
    assert!(rest.id.is_some());
    assert_eq!(stream.next().await.unwrap().data["type"], "model_called");
    player.fail(Error::internal("The test ends here.")).await;
    let rest = stream.all().await;
    assert_eq!(rest.iter().map(|got| got.event.as_str()).collect::<Vec<_>>(), ["error", "end"]);
    assert_eq!(rest[0].data["error"], Code::Internal.as_str());
    assert_eq!(rest[1].data, json!({ "status": "error" }));
}

/// A claim that makes a reply anew counts its attempts from one again, and clients add pieces of one id
/// to each other: the second text would be joined to the void first one.
#[tokio::test]
async fn an_attempt_that_a_later_claim_makes_anew_is_shown_whole_and_not_in_pieces() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=messages-tuple,custom");
    let mut stream = world.stream(&path, &[("last-event-id", "-1")]).await;
    assert_eq!(stream.next().await.unwrap().event, "metadata");
    player.piece(1, 1, said(0, "Hel"));
    let void = stream.next().await.unwrap();
    assert_eq!((&void.data[0]["type"], &void.data[0]["content"]), (&json!("AIMessageChunk"), &json!("Hel")));
    player.piece(1, 1, Provisional::Reset { reason: "the claim is lost".into() });
    assert_eq!(stream.next().await.unwrap().data["type"], "attempt_reset");
    player.piece(1, 1, said(0, "Hel"));
    player.piece(1, 1, said(3, "lo"));
    assert_eq!(stream.next_raw().await.unwrap(), ": heartbeat\r\n\r\n", "nothing of it is shown");
    player.finish(1, "Hello").await;
    let all = stream.all().await;
    let shown: Vec<_> = all
        .iter()
        .filter(|got| got.event == "messages")
        .map(|got| (got.data[0]["type"].as_str().unwrap(), got.data[0]["content"].as_str().unwrap()))
        .collect();
    assert_eq!(shown, [("ai", "Hello")]);
}

/// Whoever comes in the middle of a reply may have its beginning from an earlier connection, or
/// nothing: the end of the text alone is worth nothing to either, and the whole of it under the same
/// id would be added to what the first one has.
#[tokio::test]
async fn a_reply_that_was_joined_in_the_middle_is_shown_whole_and_once() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=messages-tuple");
    let mut early = world.stream(&path, &[("last-event-id", "-1")]).await;
    assert_eq!(early.next().await.unwrap().event, "metadata");
    player.piece(1, 1, said(0, "a"));
    assert_eq!(early.next().await.unwrap().data[0]["content"], "a");
    let late = world.stream(&path, &[("last-event-id", "2-0")]).await;
    // The same letter again: only its place says that the beginning is missing.
    player.piece(1, 1, said(1, "a"));
    player.finish(1, "aaa").await;
    let texts = |all: &[crate::world::Got]| {
        let messages = all.iter().filter(|got| got.event == "messages");
        messages.map(|got| (got.data[0]["type"].clone(), got.data[0]["content"].clone())).collect::<Vec<_>>()
    };
    // The second piece may come by itself or with the rest.
    let early = texts(&early.all().await);
    assert!(early.iter().all(|(kind, _)| kind == "AIMessageChunk"), "{early:?}");
    assert_eq!(early.iter().filter_map(|(_, text)| text.as_str()).collect::<String>(), "aa");
    assert_eq!(texts(&late.all().await), [(json!("ai"), json!("aaa"))]);
}

#[tokio::test]
async fn who_comes_back_gets_a_reply_whole_that_is_made_anew() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=messages-tuple");
    // It has seen pieces and no event, so it names what its first answer told it, or the last event.
    let places = [(format!("{path}&after=0"), None), (path, Some(("last-event-id", "2-0")))];
    let mut streams = Vec::new();
    for (path, header) in &places {
        streams.push(world.stream(path, header.as_slice()).await);
    }
    // A run that was taken over makes its reply from the beginning, under the same id.
    player.piece(1, 1, said(0, "a"));
    player.piece(1, 1, said(1, "b"));
    player.finish(1, "abc").await;
    for stream in streams {
        let all = stream.all().await;
        let messages = all.iter().filter(|got| got.event == "messages" && got.data[0]["type"] != "human");
        let told: Vec<_> = messages.map(|got| (&got.data[0]["type"], &got.data[0]["content"])).collect();
        assert_eq!(told, [(&json!("ai"), &json!("abc"))]);
    }
}

#[tokio::test]
async fn a_stream_that_is_joined_without_a_cursor_shows_what_is_new() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    let player = world.player().await;
    player.tool_step(1, "old").await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates");
    let mut stream = world.stream(&path, &[]).await;
    let first = stream.next().await.unwrap();
    assert_eq!((first.event.as_str(), first.id), ("metadata", None));
    player.finish(2, "new").await;
    let events = outline(&stream.all().await);
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].ends_with("updates") && events[1] == "- end", "{events:?}");
    // Ended: only the end is new.
    assert_eq!(outline(&world.stream(&path, &[]).await.all().await), ["- end"]);
}

#[tokio::test]
async fn a_run_that_ends_unclaimed_ends_its_stream_and_its_waiters() {
    let world = World::new().await;
    *world.dispatch.free.lock().unwrap() = 0;
    let thread = world.thread().await;
    let run = world.run(&thread, "never").await;
    let stream =
        world.stream(&format!("/threads/{thread}/runs/{run}/stream"), &[("last-event-id", "-1")]).await;
    let join = format!("/threads/{thread}/runs/{run}/join");
    let joined = world.get(&join);
    cancel_in_store(&world.store, run.parse().unwrap()).await;
    let events = stream.all().await;
    assert_eq!(events.last().unwrap().data, json!({ "status": "interrupted" }));
    assert_eq!(joined.await.status, 200);
}

#[tokio::test]
async fn a_client_cut_off_before_its_first_event_loses_nothing() {
    let world = World::new().await;
    let thread = world.thread().await;
    world.run(&thread, "before").await;
    world.player().await.finish(1, "done before").await;
    let mut body = chat("hi");
    body["stream_mode"] = json!("updates");
    let path = format!("/threads/{thread}/runs/stream");
    let response = world.open(Method::POST, &path, &[], &body.to_string()).await;
    let place = response.headers()["location"].to_str().unwrap().to_owned();
    drop(response);
    world.player().await.finish(1, "all of it").await;
    let events: Vec<_> = world.stream(&place, &[]).await.all().await;
    let names: Vec<_> = events.iter().map(|got| got.event.as_str()).collect();
    assert_eq!(names, ["metadata", "updates", "end"]);
}

#[tokio::test]
async fn many_slow_readers_cost_little_and_hold_no_run_back() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "big").await;
    let player = world.player().await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates");
    let mut readers = Vec::new();
    for _ in 0..50 {
        readers.push(world.stream(&path, &[("last-event-id", "-1")]).await);
    }
    let text = "x".repeat(64 << 10);
    for step in 1..=20 {
        player.tool_step(step, &text).await;
    }
    let finished = tokio::time::timeout(Duration::from_secs(5), player.finish(21, "done")).await;
    assert!(finished.is_ok(), "the run waited for its readers");
    for reader in readers {
        assert_eq!(reader.all().await.last().unwrap().event, "end");
    }
}

#[tokio::test]
async fn each_mode_shows_its_view_of_the_same_run() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    let player = world.player().await;
    let path = |mode: &str| format!("/threads/{thread}/runs/{run}/stream?stream_mode={mode}");
    let mut partial = world.stream(&path("messages"), &[("last-event-id", "-1")]).await;
    let mut calls = world.stream(&path("events"), &[("last-event-id", "-1")]).await;
    assert_eq!(partial.next().await.unwrap().event, "metadata");
    assert_eq!(calls.next().await.unwrap().event, "metadata");
    assert_eq!(calls.next().await.unwrap().data["event"], "on_chain_start");
    player.piece(1, 1, said(0, "Hel"));
    player.piece(1, 1, said(3, "lo"));
    assert_eq!(partial.next().await.unwrap().event, "messages/metadata");
    for text in ["Hel", "Hello"] {
        let got = partial.next().await.unwrap();
        assert_eq!(
            (got.event.as_str(), &got.data[0]["content"], got.id),
            ("messages/partial", &json!(text), None)
        );
    }
    assert_eq!(calls.next().await.unwrap().data["data"]["chunk"]["content"], "Hel");
    player.tool_step(1, "Hello").await;
    player.commit(1, vec![player.settled(1)]).await;
    player.finish(2, "done").await;
    assert_eq!(partial.next().await.unwrap().event, "messages/metadata");
    assert_eq!(partial.next().await.unwrap().event, "messages/complete");
    let all = async |mode: &str| {
        let shown = world.stream(&path(mode), &[("last-event-id", "-1")]).await.all().await;
        shown.into_iter().filter(|got| got.event == mode).collect::<Vec<_>>()
    };
    let tasks = all("tasks").await;
    let names: Vec<_> = tasks.iter().map(|got| got.data["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["agent", "agent", "tools", "agent", "agent"]);
    assert_eq!(tasks[0].data["id"], tasks[1].data["id"]);
    assert_eq!(tasks[1].data["result"]["messages"][0]["content"], "Hello");
    let checkpoints = all("checkpoints").await;
    let history = world.get(&format!("/threads/{thread}/history?limit=100")).await.json();
    let ids =
        |values: &[&serde_json::Value]| values.iter().map(|v| v["checkpoint_id"].clone()).collect::<Vec<_>>();
    let mut past: Vec<_> = history.as_array().unwrap().iter().collect();
    past.reverse();
    assert_eq!(ids(&checkpoints.iter().map(|got| &got.data).collect::<Vec<_>>()), ids(&past));
    assert_eq!(checkpoints[1].data["parent_config"]["configurable"], checkpoints[0].data["checkpoint"]);
    let debug = all("debug").await;
    assert_eq!(debug.len(), tasks.len() + checkpoints.len());
    let events: Vec<_> =
        all("events").await.iter().map(|got| got.data["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        events,
        ["on_chain_start", "on_chat_model_end", "on_tool_end", "on_chat_model_end", "on_chain_end"]
    );
}
