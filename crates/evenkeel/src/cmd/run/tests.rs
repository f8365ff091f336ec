//! What a person sees of a run, from the events on the wire.

use expect_test::expect;
use serde_json::json;

use super::progress::Progress;
use super::repository;

#[test]
fn events_become_lines() {
    let mut progress = Progress::new(true);
    let attempt = |outcome: &str, cause: Option<&str>| {
        json!({
            "attempt": 1, "deployment": "main", "provider": "acme", "model": "large", "started_at": 1,
            "first_content_ms": null, "ms": 12, "outcome": outcome, "cause": cause,
            "usage": { "input_tokens": 10, "output_tokens": 5 },
        })
    };
    let call = json!({ "name": "bash", "args": { "command": "make" }, "id": "c", "type": "tool_call" });
    let stream = [
        ("metadata", json!({ "run_id": "r", "attempt": 1 })),
        (
            "custom",
            json!({ "type": "model_attempts", "step": 1, "attempts": [attempt("transient", Some("connection refused"))] }),
        ),
        (
            "custom",
            json!({ "type": "waiting", "step": 1, "on": "model", "reason": "main is open", "until_hint": null }),
        ),
        ("metadata", json!({ "run_id": "r", "attempt": 2 })),
        (
            "updates",
            json!({ "agent": { "messages": [{ "type": "ai", "content": "I look.\n", "tool_calls": [call] }] } }),
        ),
        (
            "custom",
            json!({ "type": "model_called", "step": 1, "attempts": [attempt("ok", None)], "finish": "tool_calls" }),
        ),
        (
            "custom",
            json!({ "type": "effect_settled", "step": 1, "effect": "e", "call_id": "c", "text": "no rule\u{1b}[2J", "is_error": true, "blob": null, "ms": 40, "settled": "ran" }),
        ),
        (
            "custom",
            json!({ "type": "attempt_reset", "step": 2, "attempt": 1, "reason": "the stream was cut" }),
        ),
        ("custom", json!({ "type": "something_of_a_later_version", "step": 2 })),
        ("values", json!({ "messages": [] })),
        (
            "error",
            json!({ "error": "run-step-limit", "message": "Used up 2 steps.", "remedy": "Raise steps_max." }),
        ),
    ];
    let lines: Vec<String> = stream.iter().flat_map(|(name, data)| progress.lines(name, data)).collect();
    expect![[r#"
        step 1
          model attempt 1 on main (acme, large): transient, connection refused after 12 ms, 15 tokens wasted
          waits for a model deployment: main is open
          resumed from the last checkpoint
          I look.
          -> bash {"command":"make"}
          call ran in 40 ms: error: no rule�[2J
        step 2
          reply dropped: the stream was cut"#]]
    .assert_eq(&lines.join("\n"));
    assert_eq!((progress.step, progress.input_tokens, progress.output_tokens), (2, 20, 10));
    assert_eq!(progress.error.map(|error| error.code), Some(evenkeel_core::Code::RunSteps));
}

#[test]
fn a_repository_is_a_url_or_an_absolute_directory() {
    assert_eq!(repository("https://h/r.git").expect("a URL"), json!({ "url": "https://h/r.git" }));
    let here = std::env::current_dir().expect("a directory");
    assert_eq!(repository(".").expect("a directory"), json!({ "directory": here }));
    let error = repository("no/such/place").expect_err("there is nothing");
    assert_eq!(error.code, evenkeel_core::Code::RepositoryUnreadable);
}
