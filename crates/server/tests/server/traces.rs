//! Spans: what a collector gets, and that its absence costs nothing.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::Wall;
use evenkeel_core::id::{CallId, EffectId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EventBody, NewEvent};
use evenkeel_core::message::{Message, Role};
use evenkeel_core::port::store::{CommitStep, CommitTurn, Op, Reply, TurnCommitted, Written};
use evenkeel_core::run::{Outcome, RunState};
use evenkeel_env::Env;
use evenkeel_server::telemetry::Exporter;
use evenkeel_server::{Config, Overrides};
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::sync::mpsc;

use crate::world::{World, attempt};

/// A collector on a free port.
async fn collector(env: &Env) -> (String, mpsc::Receiver<ExportTraceServiceRequest>) {
    let mut listener = env.net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_address().unwrap().to_string();
    let (send, receive) = mpsc::channel(16);
    let inner = env.clone();
    let accept = async move {
        while let Ok((io, _)) = listener.accept().await {
            let send = send.clone();
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let send = send.clone();
                async move {
                    assert_eq!(request.uri().path(), "/v1/traces");
                    let body = request.into_body().collect().await?.to_bytes();
                    send.send(ExportTraceServiceRequest::decode(body).unwrap()).await.unwrap();
                    Ok::<_, hyper::Error>(http::Response::new(Full::new(Bytes::new())))
                }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(io), service);
            inner.spawner.spawn("collector", Box::pin(async move { drop(connection.await) }));
        }
    };
    env.spawner.spawn("collector", Box::pin(accept));
    (format!("http://{address}"), receive)
}

fn exporter(env: &Env, endpoint: &str, slots: usize) -> Exporter {
    let overrides = Overrides::default()
        .with("telemetry.otlp_endpoint", endpoint)
        .with("limits.tracing.slots", slots.to_string());
    Exporter::start(env, &Config::parse("test.toml", "", &overrides).unwrap()).unwrap()
}

/// Tells the exporter of a run with one tool step and a reply, as the store's front does.
async fn play(exporter: &Exporter, world: &World) -> evenkeel_core::id::RunId {
    let thread = world.thread().await;
    world.run(&thread, "hi").await;
    let player = world.player().await;
    let claim = player.claim.clone();
    let (run, call) = (claim.run.id, CallId::of(claim.run.id, 1, 0));
    let reply = |text| EventBody::AssistantMessage {
        message: Message::text("m", Role::Assistant, text),
        attempts: vec![attempt(1)],
        finish: "stop".into(),
    };
    let intent = EffectIntent {
        effect: EffectId::of(run, 1, 0),
        call_id: call,
        tool: "bash".into(),
        args_hash: String::new(),
        class: EffectClass::Pure,
        guards: Vec::new(),
        snapshot: None,
        policies: Vec::new(),
        approval: None,
    };
    let bodies = [
        reply("look"),
        EventBody::EffectIntended(intent),
        player.settled(1),
        EventBody::Checkpoint { snapshot: None },
    ];
    let events = bodies.into_iter().map(|body| NewEvent { step: 1, body }).collect();
    let now = Wall(50_000);
    let step = Op::CommitStep(CommitStep { fence: claim.fence.clone(), seq_base: 0, events });
    let tapped = exporter.tap(&step).unwrap();
    exporter.committed(
        tapped,
        &Reply::CommitStep(Written::Done { seq_last: 9, cancelling: false, steered: false }),
        now,
    );
    let outcome = Outcome {
        state: RunState::Completed,
        reason: None,
        error: None,
        text: "done".into(),
        diff: None,
        delivered: None,
    };
    let events = vec![NewEvent { step: 2, body: reply("done") }];
    let turn =
        Op::CommitTurn(CommitTurn { fence: claim.fence, version: 0, events, outcome, take_next: false });
    let tapped = exporter.tap(&turn).unwrap();
    exporter.committed(
        tapped,
        &Reply::CommitTurn(TurnCommitted::Done { version: 1, seq_last: 12, next: None }),
        now,
    );
    run
}

fn spans(request: &ExportTraceServiceRequest) -> Vec<Span> {
    request.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|s| &s.spans).cloned().collect()
}

#[tokio::test]
async fn a_run_is_one_trace_with_steps_attempts_and_calls() {
    let world = World::new().await;
    let (endpoint, mut received) = collector(&world.env).await;
    let exporter = exporter(&world.env, &endpoint, 1000);
    play(&exporter, &world).await;
    exporter.flush().await;
    let spans = spans(&received.recv().await.unwrap());
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(
        names,
        ["chat large", "execute_tool bash", "step 1", "chat large", "step 2", "invoke_agent unknown"]
    );
    let root = spans.last().unwrap();
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id && span.trace_id.len() == 16));
    let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| span.span_id.clone()).collect();
    assert_eq!(ids.len(), spans.len(), "ids of spans are distinct");
    assert_eq!(spans[0].parent_span_id, spans[2].span_id);
    assert_eq!(spans[2].parent_span_id, root.span_id);
    assert_eq!(root.parent_span_id, Vec::<u8>::new());
    assert_eq!(exporter.stats().exported, 6);
    assert_eq!(exporter.stats().dropped, 0);
}

#[tokio::test]
async fn a_collector_that_is_away_costs_a_bounded_queue_and_a_count() {
    let world = World::new().await;
    // Nothing listens there.
    let exporter = exporter(&world.env, "http://127.0.0.1:9", 20);
    let begun = tokio::time::Instant::now();
    for _ in 0..200 {
        play(&exporter, &world).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "the exporter held the runs up");
    let stats = exporter.stats();
    assert!(stats.dropped >= 500, "{stats:?}");
    assert_eq!(stats.exported, 0);
}
