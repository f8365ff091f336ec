use serde_json::json;

use super::{anthropic, openai};

#[test]
fn openai_wants_every_call_answered_directly() {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": "{}"}}]});
    let answered = json!({"model": "m", "messages": [
        {"role": "user", "content": "hi"}, call, {"role": "tool", "tool_call_id": "call_1", "content": ""}]});
    assert_eq!(openai(&answered), Ok(()));

    let late = json!({"model": "m", "messages": [
        {"role": "user", "content": "hi"}, call, {"role": "user", "content": "well?"}]});
    let findings = openai(&late).unwrap_err();
    assert!(findings[0].starts_with("messages[2]: comes before the calls"), "{findings:?}");

    let orphan = json!({"model": "m", "messages": [
        {"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "call_1", "content": "x"}]});
    assert!(openai(&orphan).unwrap_err()[0].contains("not an open call"));
}

#[test]
fn openai_refuses_unknown_members_and_empty_tools() {
    let body =
        json!({"model": "m", "tools": [], "max_token": 1, "messages": [{"role": "user", "content": ""}]});
    let findings = openai(&body).unwrap_err().join("\n");
    for part in ["unknown member \"max_token\"", "tools: is an empty array", "content is empty"] {
        assert!(findings.contains(part), "{part} in {findings}");
    }
}

#[test]
fn anthropic_wants_alternation_and_results_first() {
    let body = |messages: serde_json::Value| json!({"model": "m", "max_tokens": 9, "messages": messages});
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "grep", "input": {}}]});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": "x"});
    let text = json!({"type": "text", "text": "go on"});

    let good =
        body(json!([{"role": "user", "content": "hi"}, call, {"role": "user", "content": [result, text]}]));
    assert_eq!(anthropic(&good), Ok(()));

    let cases = [
        (
            json!([{"role": "user", "content": "hi"}, call, {"role": "user", "content": [text, result]}]),
            "come first",
        ),
        (json!([{"role": "user", "content": "hi"}, call]), "have no tool_result"),
        (json!([call, {"role": "user", "content": [result]}]), "roles alternate"),
        (json!([{"role": "user", "content": [result]}]), "not an open call of the message before"),
        (json!([{"role": "user", "content": [{"type": "text", "text": " "}]}]), "non-whitespace"),
    ];
    for (messages, expected) in cases {
        let findings = anthropic(&body(messages)).unwrap_err().join("\n");
        assert!(findings.contains(expected), "{expected} in {findings}");
    }
}
