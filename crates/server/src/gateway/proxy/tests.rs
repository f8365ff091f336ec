use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use proptest::prelude::*;

use super::carried::Carried;
use super::headers::{remove_hop_by_hop, towards_replica};

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn events() -> Carried {
    let headers = headers(&[("content-type", "text/event-stream; charset=utf-8"), ("location", "/x/stream")]);
    Carried::of(StatusCode::OK, &headers)
}

#[test]
fn what_belongs_to_one_connection_stays_behind() {
    let mut through = headers(&[
        ("connection", "close, X-Mine"),
        ("x-mine", "1"),
        ("keep-alive", "timeout=5"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "trailers"),
        ("x-yours", "2"),
    ]);
    remove_hop_by_hop(&mut through);
    assert_eq!(through, headers(&[("x-yours", "2")]));
}

#[test]
fn a_replica_is_told_of_the_client() {
    let sent = headers(&[
        ("host", "agents.example.org"),
        ("x-forwarded-for", "10.1.1.1"),
        ("expect", "100-continue"),
        ("content-length", "5"),
        ("traceparent", "00-x"),
        ("x-api-key", "k"),
    ]);
    let told = towards_replica(sent, Some([192, 0, 2, 7].into()));
    let expected = headers(&[
        ("x-forwarded-host", "agents.example.org"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-for", "10.1.1.1, 192.0.2.7"),
        ("traceparent", "00-x"),
        ("x-api-key", "k"),
    ]);
    assert_eq!(told, expected);
}

#[test]
fn a_client_gets_whole_events_only() {
    let mut carried = events();
    let mut pass = |text: &'static str| carried.pass(Bytes::from_static(text.as_bytes()));
    assert_eq!(pass("event: values\r\nda"), "");
    assert_eq!(pass("ta: 1\r\nid: 4\r\n"), "");
    assert_eq!(
        pass("\r\n: heartbeat\r\n\r\nevent: e"),
        "event: values\r\ndata: 1\r\nid: 4\r\n\r\n: heartbeat\r\n\r\n"
    );
    assert_eq!(carried.last_id(), Some("4"));
    assert!(carried.can_go_on() && !carried.is_whole());
    carried.begin_again();
    let whole = "event: end\r\ndata: {}\r\n\r\n";
    assert_eq!(carried.pass(Bytes::from_static(whole.as_bytes())), whole, "half an event was forgotten");
    assert_eq!(carried.last_id(), Some("4"), "a control event has no id and changes none");
    assert!(carried.is_whole() && !carried.can_go_on());
}

#[test]
fn an_event_without_end_is_not_kept_and_cannot_be_continued() {
    let mut carried = events();
    let piece = Bytes::from(vec![b'x'; 100 << 10]);
    let given: Vec<usize> = (0..4).map(|_| carried.pass(piece.clone()).len()).collect();
    assert_eq!(given, [0, 0, 300 << 10, 100 << 10]);
    assert!(!carried.can_go_on());
    assert_eq!(carried.pass(Bytes::from_static(b"\n\nevent: v")), "\n\n");
    assert!(carried.can_go_on(), "the next event is whole again");
}

#[test]
fn a_value_can_be_waited_for_elsewhere_until_it_has_begun() {
    let mut carried = Carried::of(StatusCode::OK, &headers(&[("location", "/threads/t/runs/r/join")]));
    carried.pass(Bytes::from_static(b"\n\n"));
    assert!(carried.can_go_on() && !carried.is_whole());
    carried.pass(Bytes::from_static(b"{"));
    assert!(!carried.can_go_on() && carried.is_whole());
}

#[test]
fn nothing_else_is_continued() {
    let located = [("content-type", "text/event-stream"), ("location", "/x")];
    let table = [
        (StatusCode::OK, &[("content-type", "application/json")][..]),
        (StatusCode::OK, &[("content-type", "text/event-stream")][..]),
        (StatusCode::SERVICE_UNAVAILABLE, &located[..]),
    ];
    for (status, of) in table {
        let mut carried = Carried::of(status, &headers(of));
        assert_eq!(carried.pass(Bytes::from_static(b"event: x\n")), "event: x\n", "{of:?}");
        assert!(!carried.can_go_on() && carried.is_whole(), "{of:?}");
    }
}

proptest! {
    /// However a stream is cut into chunks, all of its whole events come through unchanged.
    #[test]
    fn chunks_do_not_matter(ids in proptest::collection::vec(0u32..1_000, 1..8), cuts in proptest::collection::vec(1usize..40, 1..80)) {
        let text: String = ids.iter().map(|id| format!("event: values\r\ndata: {{\"n\":{id}}}\r\nid: {id}-0\r\n\r\n")).collect();
        let mut rest = Bytes::from(format!("{text}event: half"));
        let mut carried = events();
        let mut given = Vec::new();
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let chunk = rest.split_to(cut.min(rest.len()));
            given.extend_from_slice(&carried.pass(chunk));
        }
        prop_assert_eq!(String::from_utf8(given).unwrap(), text);
        let last = format!("{}-0", ids.last().unwrap());
        prop_assert_eq!(carried.last_id(), Some(last.as_str()));
    }
}
