//! A gateway in front of replicas that refuse, break, hang, drain, and stream slowly.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use evenkeel_server::{Config, Overrides, Running};
use http::Method;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout};

use crate::upstream::{Does, Upstream};
use crate::world::{Answered, Door};

/// A gateway over these replicas, with one more setting per line of `toml`.
pub(crate) async fn gateway(peers: &[String], toml: &str) -> (Running, Door) {
    let env = Env::seeded(99);
    let overrides = Overrides::default()
        .with("server.listen", "127.0.0.1:0")
        .with("server.role", "gateway")
        .with("gateway.peers", format!("{peers:?}"));
    let config = Config::parse("test.toml", toml, &overrides).unwrap();
    let running = evenkeel_server::start(env.clone(), config).await.unwrap();
    let address = running.address().to_string();
    (running, Door { address, client: Client::new(&env, Duration::from_secs(2)) })
}

/// Waits until the gateway shows these standings, in the order of its configuration.
pub(crate) async fn shows(door: &Door, wanted: &[&str]) {
    let looked = async {
        loop {
            let rows = door.ask(Method::GET, "/v1/replicas", &[], "").await.json();
            let standings: Vec<String> = rows
                .as_array()
                .unwrap()
                .iter()
                .map(|row| row["standing"].as_str().unwrap().to_owned())
                .collect();
            if standings == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), looked).await.unwrap_or_else(|_| panic!("never {wanted:?}"));
}

async fn create(door: &Door, headers: &[(&str, &str)]) -> Answered {
    door.ask(Method::POST, "/runs", headers, "{\"assistant_id\":\"chat\"}").await
}

/// Two replicas of which the first gets the first request.
async fn two(first: Does, toml: &str) -> (Upstream, Upstream, Running, Door) {
    let (first, second) = (Upstream::start(first).await, Upstream::start(Does::Answer).await);
    let (running, door) = gateway(&[first.url(), second.url()], toml).await;
    shows(&door, &["up", "up"]).await;
    (first, second, running, door)
}

/// Sends until the first replica was asked, which is at the second request at the latest.
async fn until_asked(first: &Upstream, door: &Door, headers: &[(&str, &str)]) -> Vec<Answered> {
    let mut answers = Vec::new();
    while first.requests().is_empty() {
        assert!(answers.len() < 3, "the first replica is never asked");
        answers.push(create(door, headers).await);
    }
    answers
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_headers_is_tried_elsewhere_with_the_same_key() {
    let (first, second, _running, door) = two(Does::BreakInHeaders, "").await;
    let answers = until_asked(&first, &door, &[]).await;
    assert!(answers.iter().all(|answered| answered.status == 200), "{answers:?}");
    let key = first.requests()[0].header("idempotency-key");
    assert!(key.starts_with("evenkeel-gateway/"), "{key}");
    let again: Vec<_> =
        second.requests().into_iter().filter(|request| request.header("idempotency-key") == key).collect();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].body, "{\"assistant_id\":\"chat\"}");
}

#[tokio::test]
async fn the_clients_own_key_is_kept_and_the_gateways_prefix_refused() {
    let (first, second, _running, door) = two(Does::Break, "").await;
    let answers = until_asked(&first, &door, &[("idempotency-key", "mine")]).await;
    assert!(answers.iter().all(|answered| answered.status == 200), "{answers:?}");
    let requests = [first.requests(), second.requests()].concat();
    assert!(requests.iter().all(|request| request.header("idempotency-key") == "mine"));
    let refused = create(&door, &[("idempotency-key", "evenkeel-gateway/x")]).await;
    assert_eq!(refused.refusal(), "422 bad-request");
}

#[tokio::test]
async fn what_may_have_a_second_effect_is_not_repeated() {
    let (first, second, _running, door) = two(Does::Break, "").await;
    let mut lost = Vec::new();
    for n in 0..2 {
        // Each thread has one owner; both replicas own some.
        for thread in 0..20 {
            let path = format!("/threads/{n}{thread}/state");
            let answered = door.ask(Method::POST, &path, &[], "{}").await;
            if answered.status != 200 {
                lost.push(answered.refusal());
            }
        }
        shows(&door, &["up", "up"]).await;
    }
    assert!(!lost.is_empty() && lost.iter().all(|refusal| refusal == "502 replica-lost"), "{lost:?}");
    let n_sent = first.requests().len() + second.requests().len();
    assert_eq!((n_sent, first.requests().len()), (40, lost.len()), "each was sent once");
}

#[tokio::test]
async fn a_replica_that_is_gone_is_passed_over_at_once() {
    let (first, second, _running, door) = two(Does::Answer, "").await;
    let gone_at = Instant::now();
    first.stop();
    for n in 0..20 {
        let answered = door.ask(Method::POST, &format!("/threads/{n}/state"), &[], "{}").await;
        assert_eq!(answered.status, 200, "a refused connection took nothing, whatever was asked");
    }
    assert!(gone_at.elapsed() < Duration::from_secs(2), "{:?}", gone_at.elapsed());
    shows(&door, &["down: refused", "up"]).await;
    assert_eq!(second.requests().len(), 20);
}

#[tokio::test]
async fn a_replica_that_hangs_loses_its_requests_to_another() {
    let (first, _second, _running, door) =
        two(Does::Hang, "gateway.probe_every = \"200ms\"\ngateway.probe_timeout = \"200ms\"").await;
    first.hang();
    let answers = until_asked(&first, &door, &[]).await;
    assert!(answers.iter().all(|answered| answered.status == 200), "{answers:?}");
    shows(&door, &["down: silent", "up"]).await;
}

#[tokio::test]
async fn a_refusal_of_a_draining_replica_goes_elsewhere() {
    let (first, _second, _running, door) = two(Does::RefuseDraining, "").await;
    first.drain();
    let answers = until_asked(&first, &door, &[]).await;
    assert!(answers.iter().all(|answered| answered.status == 200), "{answers:?}");
    shows(&door, &["draining", "up"]).await;
    let n_before = first.requests().len();
    for _ in 0..4 {
        assert_eq!(create(&door, &[]).await.status, 200);
    }
    assert_eq!(first.requests().len(), n_before, "it gets nothing new");
}

#[tokio::test]
async fn another_refusal_is_the_answer() {
    let (first, second, _running, door) = two(Does::Refuse, "").await;
    let answers = until_asked(&first, &door, &[]).await;
    let refused: Vec<_> = answers.iter().filter(|answered| answered.status == 503).collect();
    assert_eq!((refused.len(), refused[0].header("retry-after")), (1, "7"));
    assert_eq!(first.requests().len() + second.requests().len(), answers.len());
}

#[tokio::test]
async fn without_a_replica_requests_are_held_and_then_told_when() {
    let first = Upstream::start(Does::Answer).await;
    let (_running, door) = gateway(&[first.url()], "gateway.hold_max = \"400ms\"").await;
    shows(&door, &["up"]).await;
    first.stop();
    shows(&door, &["down: refused"]).await;
    let asked_at = Instant::now();
    let refused = create(&door, &[]).await;
    assert!(asked_at.elapsed() >= Duration::from_millis(400));
    assert_eq!(refused.refusal(), "503 no-replica");
    assert!((1..=2).contains(&refused.header("retry-after").parse::<u64>().unwrap()));
    assert_eq!(door.ask(Method::GET, "/readyz", &[], "").await.status, 503);
    let metrics = door.ask(Method::GET, "/metrics", &[], "").await.body;
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    assert!(metrics.contains("evenkeel_gateway_held_total 1"), "{metrics}");
    assert!(metrics.contains("evenkeel_gateway_no_replica_total 1"), "{metrics}");
}

#[tokio::test]
async fn a_request_that_is_held_goes_on_when_a_replica_comes_back() {
    let first = Upstream::start(Does::Answer).await;
    let (_running, door) = gateway(&[first.url()], "").await;
    shows(&door, &["up"]).await;
    first.stop();
    shows(&door, &["down: refused"]).await;
    let held = create(&door, &[]);
    let back = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Upstream::start_at(first.address(), Does::Answer).await
    };
    let (answered, back) = tokio::join!(held, back);
    assert_eq!(answered.status, 200);
    assert_eq!(back.requests().len(), 1);
}

#[tokio::test]
async fn a_stream_is_passed_on_as_it_comes() {
    let upstream = Upstream::start(Does::StreamSlowly).await;
    let (_running, door) = gateway(&[upstream.url()], "").await;
    shows(&door, &["up"]).await;
    let response = door.open(Method::GET, "/anything", &[], "").await;
    let mut body = response.into_body();
    for n in 0..5 {
        upstream.emit(&format!("piece {n}"));
        let frame = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), format!("piece {n}"));
    }
    drop(body);
    timeout(Duration::from_secs(5), upstream.left()).await.expect("the replica sees that the client left");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off_and_costs_little() {
    let upstream = Upstream::start(Does::Flood).await;
    let (_running, door) = gateway(&[upstream.url()], "gateway.client_stall = \"500ms\"").await;
    shows(&door, &["up"]).await;
    let (host, port) = door.address.rsplit_once(':').unwrap();
    let env = Env::seeded(3);
    let mut client = env.net.connect(host.to_owned(), port.parse().unwrap()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut client, b"GET /flood HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    timeout(Duration::from_secs(10), upstream.left()).await.expect("the replica is let go");
    // What lies in buffers: two sockets' worth, and the gateway's own.
    assert!(upstream.n_flooded() < 16 << 20, "{} bytes were taken for nobody", upstream.n_flooded());
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_secs(10), client.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the client's connection is closed");
}

#[tokio::test]
async fn a_replica_gets_the_request_as_the_client_sent_it() {
    let upstream = Upstream::start(Does::Answer).await;
    let (_running, door) = gateway(&[upstream.url()], "").await;
    shows(&door, &["up"]).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        ("x-request-id", "r-17"),
        ("traceparent", trace),
        ("x-api-key", "k"),
        ("connection", "x-private"),
        ("x-private", "1"),
        ("last-event-id", "4-1"),
    ];
    let answered = door.ask(Method::PUT, "/some/path%20x?a=1&b=%2F", &headers, "body").await;
    assert_eq!((answered.status.as_u16(), answered.header("x-request-id")), (200, "r-17"));
    let got = upstream.requests().pop().unwrap();
    assert_eq!(got.line, "PUT /some/path%20x?a=1&b=%2F HTTP/1.1");
    assert_eq!(got.body, "body");
    for (name, value) in
        [("x-request-id", "r-17"), ("traceparent", trace), ("x-api-key", "k"), ("last-event-id", "4-1")]
    {
        assert_eq!(got.header(name), value, "{name}");
    }
    assert_eq!(got.header("x-private"), "");
    assert_eq!(got.header("x-forwarded-for"), "127.0.0.1");
    assert_eq!(got.header("x-forwarded-host"), door.address);
    assert_eq!(got.header("host"), upstream.address().to_string());
}

#[tokio::test]
async fn bodies_beyond_the_limit_and_callers_without_a_key_go_no_further() {
    let upstream = Upstream::start(Does::Answer).await;
    let toml = "limits.body_bytes_max = 100";
    let (_running, door) = gateway(&[upstream.url()], toml).await;
    shows(&door, &["up"]).await;
    let large = json!({ "x": "y".repeat(200) }).to_string();
    assert_eq!(door.ask(Method::POST, "/runs", &[], &large).await.refusal(), "413 body-too-large");
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn a_gateway_needs_replicas_and_a_worker_a_shared_store() {
    let refused = |set: &[(&str, &str)]| {
        let overrides = set.iter().fold(Overrides::default(), |all, (key, value)| all.with(*key, *value));
        Config::parse("test.toml", "", &overrides).unwrap_err().message.into_owned()
    };
    let table: [(&[(&str, &str)], &str); 6] = [
        (&[("server.role", "gateway")], "gateway.peers names no replica"),
        (&[("server.role", "worker")], "nobody would give it work"),
        (&[("gateway.peers", "[\"10.0.0.1:7070\"]")], "not the URL of a replica"),
        (&[("gateway.tries_max", "0")], "gateway.tries_max is 0"),
        (&[("replica.fence_after", "5s")], "each must be longer than the one before"),
        (&[("replica.address", "nowhere")], "replica.address is not an address"),
    ];
    for (set, expected) in table {
        let message = refused(set);
        assert!(message.contains(expected), "{set:?}: {message}");
    }
}

/// Keeps the type of a body in one place.
pub(crate) fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn an_operator_asks_a_gateway_to_end() {
    let upstream = Upstream::start(Does::Answer).await;
    let (running, door) = gateway(&[upstream.url()], "").await;
    shows(&door, &["up"]).await;
    let running = Arc::new(running);
    let answered = door.ask(Method::POST, "/v1/drain", &[], "{}").await;
    assert_eq!((answered.status.as_u16(), text(&answered.body).as_str()), (202, "{\"draining\":true}"));
    timeout(Duration::from_secs(5), running.drain_asked()).await.unwrap();
}
