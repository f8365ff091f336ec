use std::time::Duration;

use evenkeel_core::Wall;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use super::{Class, Hints, in_stream, not_an_answer, response, retry_after};

const NOW: Wall = Wall(1_700_000_000_000);

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect()
}

#[test]
fn the_table_of_responses() {
    let openai =
        |code: &str, message: &str| json!({"error": {"message": message, "type": "x", "code": code}});
    let anthropic =
        |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}});
    let cases = [
        (500, openai("", "boom"), Class::Transient),
        (502, json!("<html>"), Class::Transient),
        (504, anthropic("timeout_error", "late"), Class::Transient),
        (503, openai("server_is_overloaded", ""), Class::Overloaded),
        (529, anthropic("overloaded_error", "Overloaded"), Class::Overloaded),
        (429, openai("slow_down", "Slow down"), Class::Overloaded),
        (429, openai("rate_limit_exceeded", "Rate limit reached"), Class::RateLimited),
        (429, anthropic("rate_limit_error", "This request would exceed"), Class::RateLimited),
        (429, openai("insufficient_quota", "You exceeded your current quota"), Class::QuotaDead),
        (402, anthropic("billing_error", ""), Class::QuotaDead),
        (
            400,
            anthropic("invalid_request_error", "You have reached your specified API usage limits."),
            Class::QuotaDead,
        ),
        (400, anthropic("invalid_request_error", "Your credit balance is too low"), Class::QuotaDead),
        (401, anthropic("authentication_error", "invalid x-api-key"), Class::AuthDead),
        (403, openai("", "no"), Class::AuthDead),
        (400, openai("context_length_exceeded", ""), Class::ContextTooLong),
        // As llama.cpp's server says it: the code is a number, the type a word of its own.
        (
            400,
            json!({"error": {
                "code": 400,
                "type": "exceed_context_size_error",
                "message": "request (2678 tokens) exceeds the available context size (2048 tokens)",
            }}),
            Class::ContextTooLong,
        ),
        (
            400,
            anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
            Class::ContextTooLong,
        ),
        (
            400,
            anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit"),
            Class::ContextTooLong,
        ),
        (400, openai("", "Input tokens exceed the configured limit of 272000 tokens"), Class::ContextTooLong),
        (413, anthropic("request_too_large", ""), Class::ContextTooLong),
        (400, openai("content_policy_violation", ""), Class::Rejected),
        (404, openai("model_not_found", ""), Class::ModelUnknown),
        (
            400,
            anthropic("invalid_request_error", "messages.1: Invalid `signature` in `thinking` block"),
            Class::ForeignItems,
        ),
        (400, anthropic("invalid_request_error", "messages: roles must alternate"), Class::BadRequest),
        (422, openai("", "unknown field"), Class::BadRequest),
    ];
    for (status, body, class) in cases {
        let body = serde_json::to_vec(&body).unwrap();
        let failure = response(status, &HeaderMap::new(), &body, &[], NOW);
        assert_eq!(failure.class, class, "{status} {}", String::from_utf8_lossy(&body));
    }
}

#[test]
fn errors_inside_streams_are_judged_alike() {
    let cases = [
        (json!({"type": "overloaded_error", "message": "Overloaded"}), Class::Overloaded),
        (json!({"type": "rate_limit_error", "message": "x"}), Class::RateLimited),
        (json!({"code": "insufficient_quota", "message": "x"}), Class::QuotaDead),
        (json!({"code": 502, "message": "upstream"}), Class::Transient),
        (json!({"message": "something else"}), Class::StreamBroken),
        (json!({"type": "invalid_request_error", "message": "?"}), Class::StreamBroken),
        (json!("text only"), Class::StreamBroken),
    ];
    for (error, class) in cases {
        assert_eq!(in_stream(&error, &[]).class, class, "{error}");
    }
}

#[test]
fn configured_texts_mean_too_long() {
    let extra = ["Zu Lang".to_owned()];
    assert_eq!(response(400, &HeaderMap::new(), b"viel zu lang", &extra, NOW).class, Class::ContextTooLong);
}

#[test]
fn waiting_times_in_every_form() {
    type Pairs = &'static [(&'static str, &'static str)];
    let cases: [(Pairs, Option<u64>); 7] = [
        (&[("retry-after", "5")], Some(5_000)),
        (&[("retry-after", "0.5")], Some(500)),
        (&[("retry-after-ms", "1500"), ("retry-after", "9")], Some(1_500)),
        (&[("retry-after", "Tue, 14 Nov 2023 22:13:50 GMT")], Some(30_000)),
        (&[("retry-after", "Tue, 14 Nov 2023 22:00:00 GMT")], Some(0)),
        (&[("retry-after", "soon")], None),
        (&[], None),
    ];
    for (pairs, ms) in cases {
        assert_eq!(retry_after(&headers(pairs), NOW), ms.map(Duration::from_millis), "{pairs:?}");
    }
}

#[test]
fn limits_of_both_wires() {
    let openai = Hints::read(
        &headers(&[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "6m0s"),
            ("x-ratelimit-reset-tokens", "12ms"),
        ]),
        NOW,
    );
    assert_eq!(openai.calls.limit, Some(60));
    assert_eq!(openai.exhausted_until(), Some(Duration::from_secs(360)));
    assert_eq!(openai.tokens.reset, Some(Duration::from_millis(12)));
    let anthropic = Hints::read(
        &headers(&[
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", "2023-11-14T22:13:40Z"),
        ]),
        NOW,
    );
    assert_eq!(anthropic.exhausted_until(), Some(Duration::from_secs(20)));
}

#[test]
fn the_provider_may_ask_for_or_against_a_retry() {
    let failure = response(400, &headers(&[("x-should-retry", "true")]), b"", &[], NOW);
    assert_eq!(failure.class, Class::Transient);
    assert!(response(500, &headers(&[("x-should-retry", "false")]), b"", &[], NOW).no_retry);
}

#[test]
fn what_no_api_answers_points_to_the_address() {
    let moved = headers(&[("location", "https://example.com/login")]);
    let page = headers(&[("content-type", "text/html; charset=utf-8")]);
    let cases = [
        (response(302, &moved, b"", &[], NOW), "HTTP 302: a redirect to https://example.com/login; "),
        (response(404, &page, b"<h1>Nothing here</h1>", &[], NOW), "HTTP 404 with a web page: <h1>Nothing"),
        (not_an_answer("text/html"), "the response is \"text/html\", neither a stream nor JSON; "),
    ];
    for (failure, cause) in cases {
        assert!(failure.cause.starts_with(cause), "{}", failure.cause);
        assert!(failure.cause.ends_with("check the provider's base_url"), "{}", failure.cause);
    }
    let ordinary = response(404, &HeaderMap::new(), b"{}", &[], NOW);
    assert!(!ordinary.cause.contains("base_url"), "{}", ordinary.cause);
}
