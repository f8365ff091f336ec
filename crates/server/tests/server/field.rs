//! What has gone wrong at the doors of comparable systems, each with its input.

use evenkeel_core::port::feed::Provisional;
use futures_util::future::join_all;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::replicas::two;
use crate::world::{Answered, Got, Sse, World, chat};

fn with(text: &str, policy: &str) -> Value {
    let mut body = chat(text);
    body["multitask_strategy"] = json!(policy);
    body
}

/// What was said in a thread, as it counts.
async fn said(world: &World, thread: &str) -> Vec<String> {
    let state = world.get(&format!("/threads/{thread}/state")).await.json();
    let messages = state["values"]["messages"].as_array().cloned().unwrap_or_default();
    messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

/// Two clients stream on one thread at once: the second waits, and neither sees the other's reply.
#[tokio::test]
async fn two_streams_on_one_thread_carry_each_their_own_run() {
    let world = World::new().await;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs/stream");
    let open = async |tag: &str| {
        let mut body = chat(tag);
        body["stream_mode"] = json!(["messages-tuple", "updates", "custom", "tasks"]);
        let response = world.open(Method::POST, &path, &[], &body.to_string()).await;
        let place = response.headers()["content-location"].to_str().unwrap().to_owned();
        (tag.to_owned(), place.rsplit('/').next().unwrap().to_owned(), Sse::new(response))
    };
    let (one, other) = tokio::join!(open("tag-one"), open("tag-other"));
    let mut player = world.player().await;
    for turn in 0..2 {
        let asked = player.claim.run.spec.messages[0].joined_text();
        let text = format!("reply to {asked}");
        player.piece(1, 1, Provisional::Text { offset: 0, text: text.clone() });
        let next = player.finish(1, &text).await;
        match (turn, next) {
            (0, Some(next)) => player = world.play(next),
            (1, None) => break,
            (_, next) => panic!("turn {turn}: {next:?}"),
        }
    }
    let ids = [one.1.clone(), other.1.clone()];
    for (tag, run, stream) in [one, other] {
        let all = stream.all().await;
        let raw: String = all.iter().map(|got| got.raw.as_str()).collect();
        assert!(raw.contains(&format!("reply to {tag}")), "{raw}");
        let foreign = ["tag-one", "tag-other"].into_iter().find(|other| *other != tag).unwrap();
        assert!(!raw.contains(foreign), "{tag} got words of {foreign}: {raw}");
        let foreign = ids.iter().find(|id| **id != run).unwrap();
        assert!(!raw.contains(foreign.as_str()), "{tag} got an event of the other run: {raw}");
        assert_eq!(all.last().unwrap().data, json!({ "status": "success" }));
    }
}

/// Three blocking calls, each to take the place of the one before: the last is answered, and the
/// input of the others is gone.
#[tokio::test]
async fn of_three_waiting_calls_that_roll_back_the_last_is_answered() {
    let world = World::new().await;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs/wait");
    let mut calls = Vec::new();
    let mut first = None;
    for text in ["one", "two", "three"] {
        let call = world.open(Method::POST, &path, &[], &with(text, "rollback").to_string()).await;
        let place = call.headers()["content-location"].to_str().unwrap().to_owned();
        calls.push((place, call));
        if first.is_none() {
            first = Some(world.player().await);
        }
    }
    let next = first.unwrap().cancelled().await.expect("the last call's turn");
    assert_eq!(next.run.spec.messages[0].joined_text(), "three");
    let last = next.run.id;
    assert!(world.play(next).finish(1, "answer").await.is_none(), "nothing else waits");
    assert_eq!(said(&world, &thread).await, ["three", "answer"]);
    for (idx, (place, call)) in calls.into_iter().enumerate() {
        let body = call.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(body.contains("answer"), idx == 2, "{body}");
        let run = place.rsplit('/').next().unwrap();
        let stored = world.get(&format!("/v1/runs/{run}")).await.json();
        if idx < 2 {
            assert_eq!(stored["outcome"]["reason"]["reason"], "rolled_back", "{stored}");
            assert_eq!(world.get(&place).await.refusal(), "404 run-not-found");
        } else {
            assert_eq!((&stored["state"], run), (&json!("completed"), last.to_string().as_str()));
        }
    }
}

/// Requests that reach two processes in one moment, each to be refused where the thread is busy: one
/// is accepted, and the conversation has one beginning.
#[tokio::test]
async fn of_rejecting_calls_at_once_one_is_accepted_and_nothing_forks() {
    let (one, other, _) = two().await;
    let thread = one.thread().await;
    let path = format!("/threads/{thread}/runs");
    let texts: Vec<String> = (0..16).map(|n| format!("call {n}")).collect();
    let calls = texts.iter().enumerate().map(|(n, text)| {
        let world = if n.is_multiple_of(2) { &one } else { &other };
        let body = with(text, "reject").to_string();
        let path = &path;
        async move { world.ask(Method::POST, path, &[], &body).await }
    });
    let answered = join_all(calls).await;
    let accepted: Vec<usize> = (0..16).filter(|n| answered[*n].status == 200).collect();
    assert_eq!(accepted.len(), 1, "{answered:?}");
    let run = answered[accepted[0]].json()["run_id"].as_str().unwrap().to_owned();
    for refused in answered.iter().filter(|answered| answered.status != 200) {
        assert_eq!(refused.refusal(), "409 thread-busy");
        assert!(refused.json()["remedy"].as_str().unwrap().contains(&run), "it names the active run");
    }
    let at = if accepted[0].is_multiple_of(2) { &one } else { &other };
    at.player().await.finish(1, "answer").await;
    assert_eq!(said(&other, &thread).await, [texts[accepted[0]].as_str(), "answer"]);
}

/// A client is told why it was refused, and of nothing else: a busy thread is not a quota.
#[tokio::test]
async fn a_refusal_names_its_own_cause() {
    let busy = World::new().await;
    let full = World::with("limits.waiting_per_thread_max = 1", &[]).await;
    let hasty = World::with("limits.gateway.calls_per_min = 30", &[]).await;
    let path = async |world: &World| format!("/threads/{}/runs", world.thread().await);
    let (at_busy, at_full) = (path(&busy).await, path(&full).await);
    busy.post(&at_busy, &chat("first")).await;
    full.post(&at_full, &chat("first")).await;
    full.post(&at_full, &chat("waits")).await;
    hasty.post("/assistants/search", &json!({})).await;
    let table = [
        (busy.post(&at_busy, &with("second", "reject")).await, "409 thread-busy", "already running a task"),
        (full.post(&at_full, &chat("one more")).await, "503 overloaded", "turns wait on this thread"),
        (
            hasty.post("/assistants/search", &json!({})).await,
            "429 rate-limited",
            "no more requests this minute",
        ),
    ];
    for (refused, expected, cause) in table {
        assert_eq!(refused.refusal(), expected);
        assert_eq!(refused.status == 409, refused.header("retry-after").is_empty(), "{expected}");
        let shown = refused.json();
        let text = format!("{} {}", shown["message"], shown["remedy"]);
        assert!(text.contains(cause), "{expected}: {text}");
        for other in ["quota", "credit", "budget", "running a task", "wait on this thread", "minute"] {
            assert!(cause.contains(other) || !text.contains(other), "{expected} speaks of {other}: {text}");
        }
    }
}

/// An id is a string of one shape: neither a number nor its spelling is taken for one.
#[tokio::test]
async fn an_id_is_never_taken_for_another_type() {
    let world = World::new().await;
    for id in [json!(1), json!("1"), json!(1.5), json!(true), json!([1]), json!({ "id": 1 }), json!("")] {
        let refused = world.post("/threads", &json!({ "thread_id": id })).await;
        assert_eq!(refused.refusal(), "422 bad-request", "{id}");
        let run = json!({ "thread_id": id, "run_ids": [id] });
        assert_eq!(world.post("/runs/cancel", &run).await.refusal(), "422 bad-request", "{id}");
        let search = json!({ "ids": [id] });
        assert_eq!(world.post("/threads/search", &search).await.refusal(), "422 bad-request", "{id}");
    }
    assert_eq!(world.get("/threads/1").await.refusal(), "422 bad-request");
    assert_eq!(world.post("/threads/search", &json!({})).await.json(), json!([]), "nothing was made");
}

/// More calls at once than a thread takes: those that fit run one after the other, the others are
/// told when to come again.
#[tokio::test]
async fn calls_beyond_a_threads_line_are_told_when_to_come_again() {
    let world = World::with("limits.waiting_per_thread_max = 2", &[]).await;
    let thread = world.thread().await;
    let path = format!("/threads/{thread}/runs");
    let bodies: Vec<Value> = (0..5).map(|n| chat(&format!("call {n}"))).collect();
    let answered = join_all(bodies.iter().map(|body| world.post(&path, body))).await;
    let n_accepted = answered.iter().filter(|answered| answered.status == 200).count();
    assert_eq!(n_accepted, 3, "{answered:?}");
    for refused in answered.iter().filter(|answered| answered.status != 200) {
        assert_eq!(refused.refusal(), "503 overloaded");
        assert!(refused.header("retry-after").parse::<u64>().unwrap() > 0);
    }
    let mut next = world.player().await.finish(1, "answer").await;
    let mut n_answered = 1;
    while let Some(claim) = next {
        n_answered += 1;
        next = world.play(claim).finish(1, "answer").await;
    }
    assert_eq!(n_answered, 3);
    assert_eq!(said(&world, &thread).await.len(), 6);
}

/// The same key five times is one run, on every way in that makes runs.
#[tokio::test]
async fn the_same_key_five_times_is_one_run_on_every_entry() {
    let world = World::new().await;
    let thread = world.thread().await;
    let own = format!("/threads/{thread}/runs");
    let entries = [own.clone(), format!("{own}/stream"), format!("{own}/wait")];
    let free = ["/runs", "/runs/stream", "/runs/wait"].map(str::to_owned);
    for (n, entry) in entries.into_iter().chain(free).enumerate() {
        let key = format!("key-{n}");
        let body = chat(&format!("message {n}")).to_string();
        let headers = [("idempotency-key", key.as_str())];
        let calls = join_all((0..5).map(|_| world.open(Method::POST, &entry, &headers, &body))).await;
        let mut places: Vec<_> = calls
            .iter()
            .map(|call| call.headers()["content-location"].to_str().unwrap().to_owned())
            .collect();
        let n_replayed =
            calls.iter().filter(|call| call.headers().contains_key("idempotent-replayed")).count();
        places.sort();
        places.dedup();
        assert_eq!((places.len(), n_replayed), (1, 4), "{entry}");
        let player = world.player().await;
        assert!(places[0].ends_with(&player.run().to_string()), "{entry}");
        player.finish(1, "answer").await;
    }
    assert_eq!(world.get("/v1/runs").await.json().as_array().unwrap().len(), 6);
    assert_eq!(said(&world, &thread).await.len(), 6, "three turns of two messages");
}

/// After a restart every client sends its request once more: no run is doubled, and a backlog that
/// nobody wants any more is cancelled with one call.
#[tokio::test]
async fn a_restart_doubles_no_run_and_a_backlog_is_cancelled_with_one_call() {
    const N: usize = 60;
    let (mut old, new, _) = two().await;
    let thread = old.thread().await;
    let own = format!("/threads/{thread}/runs");
    old.run(&thread, "active").await;
    let keys: Vec<String> = (0..N).map(|n| format!("key-{n}")).collect();
    let send = async |world: &World, n: usize| -> Answered {
        // Some wait on one busy thread, the others have threads of their own.
        let path = if n.is_multiple_of(6) { own.as_str() } else { "/runs" };
        let body = chat(&format!("message {n}")).to_string();
        world.ask(Method::POST, path, &[("idempotency-key", &keys[n])], &body).await
    };
    let before = join_all((0..N).map(|n| send(&old, n))).await;
    old.running.take().unwrap().shutdown().await;
    let again = join_all((0..N * 3).map(|n| send(&new, n % N))).await;
    for (n, answered) in again.iter().enumerate() {
        assert_eq!(answered.header("idempotent-replayed"), "true", "{n}: {:?}", answered.body);
        assert_eq!(answered.json()["run_id"], before[n % N].json()["run_id"]);
    }
    let runs = new.get("/v1/runs?limit=1000").await.json();
    assert_eq!(runs.as_array().unwrap().len(), N + 1);
    assert_eq!(new.post("/runs/cancel", &json!({ "status": "all" })).await.status, 204);
    let open: Vec<Value> = new.get("/v1/runs?limit=1000").await.json().as_array().unwrap().clone();
    let states: std::collections::BTreeSet<_> =
        open.iter().map(|run| run["state"].as_str().unwrap().to_owned()).collect();
    assert!(states.iter().all(|state| state == "cancelled" || state == "cancelling"), "{states:?}");
}

/// A cursor is a place in one thread's log: shown to another thread it gives nothing of the first.
#[tokio::test]
async fn a_cursor_of_another_thread_shows_nothing_of_it() {
    let world = World::new().await;
    let (long, short) = (world.thread().await, world.thread().await);
    let mut cursors = Vec::new();
    for n in 0..3 {
        let run = world.run(&long, &format!("secret {n}")).await;
        world.player().await.finish(1, "secret reply").await;
        let path = format!("/threads/{long}/runs/{run}/stream?stream_mode=updates,custom");
        let all = world.stream(&path, &[("last-event-id", "-1")]).await.all().await;
        cursors.extend(all.into_iter().filter_map(|got: Got| got.id));
    }
    let run = world.run(&short, "plain").await;
    world.player().await.finish(1, "plain reply").await;
    let path = format!("/threads/{short}/runs/{run}/stream?stream_mode=updates,custom");
    let (mut n_shown, mut n_refused) = (0, 0);
    for cursor in cursors {
        let answered = world.ask(Method::GET, &path, &[("last-event-id", &cursor)], "").await;
        let body = String::from_utf8_lossy(&answered.body).into_owned();
        assert!(!body.contains("secret"), "{cursor}: {body}");
        match answered.status.as_u16() {
            200 => n_shown += 1,
            _ => {
                assert_eq!(answered.refusal(), "400 cursor-invalid", "{cursor}");
                n_refused += 1;
            }
        }
    }
    assert!(n_shown > 0 && n_refused > 0, "{n_shown} {n_refused}");
}

/// A client that comes back in the very moment in which its run ends has the end and the reply, and
/// the state that it reads then has the reply too.
#[tokio::test]
async fn a_client_that_comes_back_at_the_end_has_the_whole_answer() {
    let world = World::new().await;
    for n in 0..40 {
        let thread = world.thread().await;
        let run = world.run(&thread, "hi").await;
        let player = world.player().await;
        let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates,messages-tuple");
        let mut stream = world.stream(&path, &[("last-event-id", "-1")]).await;
        let cursor = stream.next().await.unwrap().id.unwrap();
        player.piece(1, 1, Provisional::Text { offset: 0, text: "the ".into() });
        drop(stream);
        let back = async {
            // From before the end is stored to after it was told.
            for _ in 0..n {
                tokio::task::yield_now().await;
            }
            world.stream(&path, &[("last-event-id", &cursor)]).await.all().await
        };
        let (rest, _) = tokio::join!(back, player.finish(1, "the whole answer"));
        assert_eq!(rest.last().unwrap().data, json!({ "status": "success" }), "{n}");
        let told = rest.iter().filter(|got| got.event == "updates").map(|got| got.raw.as_str());
        assert_eq!(told.filter(|raw| raw.contains("the whole answer")).count(), 1, "{n}: {rest:?}");
        assert_eq!(said(&world, &thread).await, ["hi", "the whole answer"], "{n}");
    }
}
