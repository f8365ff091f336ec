//! JSON schemas of everything that the door takes and shows, for the OpenAPI document.
//!
//! They say what is promised, not everything that is shown: objects may gain members.

use serde_json::{Map, Value, json};

/// A reference to one of [`all`]; `Any` for any value.
pub(crate) fn of(name: &str) -> Value {
    if name == "Any" { json!({}) } else { json!({ "$ref": format!("#/components/schemas/{name}") }) }
}

/// A count in a query or a body.
pub(crate) fn number() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": 1_000_000 })
}

/// One of these words.
pub(crate) fn words(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// A part of a path: ids are UUIDs, assistants also have names.
pub(crate) fn path_part(name: &str) -> Value {
    match name {
        "thread" | "run" | "checkpoint" => uuid(),
        _ => json!({ "type": "string", "minLength": 1 }),
    }
}

/// The modes of a run's stream.
pub(crate) const MODES: [&str; 9] =
    ["values", "updates", "messages", "messages-tuple", "custom", "tasks", "checkpoints", "debug", "events"];
/// The modes of a thread's stream.
pub(crate) const THREAD_MODES: [&str; 3] = ["run_modes", "lifecycle", "state_update"];
/// The statuses of runs.
pub(crate) const RUN_STATUS: [&str; 6] = ["pending", "running", "error", "success", "timeout", "interrupted"];
const THREAD_STATUS: [&str; 4] = ["idle", "busy", "interrupted", "error"];
const POLICIES: [&str; 7] = ["enqueue", "reject", "interrupt", "rollback", "steer", "merge", "latest"];

fn uuid() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn map() -> Value {
    json!({ "type": "object" })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn or_null(mut schema: Value) -> Value {
    let kind = schema.get("type").cloned().unwrap_or_default();
    schema["type"] = json!([kind, "null"]);
    schema
}

/// An object with these members, all of them there.
fn shown(members: &[(&str, Value)]) -> Value {
    let required: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    let mut schema = taken(members);
    schema["required"] = json!(required);
    schema
}

/// An object with these members, each of which may be left out.
fn taken(members: &[(&str, Value)]) -> Value {
    let members: Map<String, Value> =
        members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": members })
}

/// All schemas by name.
pub(crate) fn all() -> Value {
    json!({
        "Refusal": shown(&[("detail", text()), ("code", text()), ("message", text()), ("remedy", text())]),
        "Assistant": assistant(),
        "Graph": shown(&[("nodes", list(map())), ("edges", list(map()))]),
        "Schemas": shown(&[("graph_id", text()), ("input_schema", map()), ("state_schema", map())]),
        "AssistantSearch": taken(&[("graph_id", text()), ("name", text()), ("limit", number()), ("offset", number())]),
        "Thread": thread(),
        "ThreadCreate": taken(&[
            ("thread_id", uuid()), ("metadata", map()), ("if_exists", words(&["raise", "do_nothing"])),
            ("multitask_strategy", words(&POLICIES)),
        ]),
        "ThreadPatch": taken(&[("metadata", map()), ("multitask_strategy", words(&POLICIES))]),
        "ThreadSearch": thread_search(),
        "State": state(),
        "Checkpoint": checkpoint(),
        "StateWrite": taken(&[("values", or_null(map())), ("as_node", text()), ("checkpoint", of("Checkpoint"))]),
        "StateWritten": shown(&[("checkpoint", checkpoint())]),
        "StateAt": json!({
            "type": "object", "required": ["checkpoint"], "properties": { "checkpoint": of("Checkpoint") },
        }),
        "History": taken(&[("limit", number()), ("before", of("Checkpoint")), ("metadata", map())]),
        "Run": run(),
        "RunCreate": run_create(),
        "RunsCancel": runs_cancel(),
        "Event": json!({
            "type": "object",
            "required": ["event", "data"],
            "properties": { "event": text(), "data": text(), "id": text() },
        }),
        "Values": map(),
        "Ok": shown(&[("ok", json!({ "type": "boolean" }))]),
        "Info": shown(&[("version", text()), ("flags", map()), ("host", map())]),
        "StoredThread": shown(&[("id", uuid()), ("version", number()), ("seq_last", number())]),
        "StoredRun": shown(&[("id", uuid()), ("thread", uuid()), ("state", text()), ("spec", map())]),
        "Approval": shown(&[
            ("id", text()), ("state", words(&["open", "approved", "denied", "expired", "void"])), ("run_id", uuid()),
            ("thread_id", uuid()), ("tool", text()), ("reason", text()), ("expires_at", time()),
        ]),
        "ApprovalAnswer": json!({
            "type": "object", "required": ["decision"],
            "properties": { "decision": words(&["approve", "deny"]), "note": json!({ "type": "string", "maxLength": 4000 }) },
        }),
        "Events": shown(&[("events", list(map()))]),
    })
}

fn assistant() -> Value {
    shown(&[
        ("assistant_id", uuid()),
        ("graph_id", text()),
        ("config", map()),
        ("context", map()),
        ("metadata", map()),
        ("name", text()),
        ("description", text()),
        ("version", number()),
        ("created_at", time()),
        ("updated_at", time()),
    ])
}

fn thread() -> Value {
    shown(&[
        ("thread_id", uuid()),
        ("created_at", time()),
        ("updated_at", time()),
        ("state_updated_at", time()),
        ("metadata", map()),
        ("status", words(&THREAD_STATUS)),
        ("config", map()),
        ("values", or_null(map())),
        ("error", or_null(map())),
        ("interrupts", map()),
    ])
}

fn thread_search() -> Value {
    taken(&[
        ("ids", list(uuid())),
        ("metadata", map()),
        ("values", map()),
        ("status", words(&THREAD_STATUS)),
        ("limit", json!({ "type": "integer", "minimum": 1, "maximum": 1000 })),
        ("offset", number()),
        ("sort_by", words(&["thread_id", "created_at", "updated_at", "state_updated_at"])),
        ("sort_order", words(&["asc", "desc"])),
        ("select", list(text())),
    ])
}

fn checkpoint() -> Value {
    json!({
        "type": "object",
        "required": ["checkpoint_id"],
        "properties": { "checkpoint_id": uuid(), "thread_id": uuid(), "checkpoint_ns": text() },
    })
}

fn state() -> Value {
    shown(&[
        ("values", map()),
        ("next", list(text())),
        ("tasks", list(map())),
        ("metadata", or_null(map())),
        ("created_at", or_null(time())),
        ("checkpoint", or_null(map())),
        ("parent_checkpoint", or_null(map())),
        ("interrupts", list(map())),
        ("checkpoint_id", or_null(uuid())),
        ("parent_checkpoint_id", or_null(uuid())),
    ])
}

fn run() -> Value {
    shown(&[
        ("run_id", uuid()),
        ("thread_id", uuid()),
        ("assistant_id", uuid()),
        ("metadata", map()),
        ("status", words(&RUN_STATUS)),
        ("kwargs", map()),
        ("multitask_strategy", words(&POLICIES)),
        ("created_at", time()),
        ("updated_at", time()),
    ])
}

fn run_create() -> Value {
    let message = shown(&[
        ("role", words(&["user", "human", "assistant", "ai"])),
        ("content", json!({ "type": "string", "minLength": 1 })),
    ]);
    let messages = json!({ "type": "array", "minItems": 1, "items": message });
    let mut schema = taken(&[
        ("assistant_id", text()),
        (
            "input",
            json!({ "type": "object", "required": ["messages"], "properties": { "messages": messages } }),
        ),
        ("metadata", map()),
        ("config", map()),
        ("context", map()),
        ("checkpoint_id", uuid()),
        ("checkpoint", of("Checkpoint")),
        ("stream_mode", json!({ "anyOf": [words(&MODES), list(words(&MODES))] })),
        ("multitask_strategy", words(&POLICIES)),
        ("if_not_exists", words(&["create", "reject"])),
        ("on_disconnect", words(&["cancel", "continue"])),
        ("on_completion", words(&["delete", "keep"])),
        ("after_seconds", json!({ "type": "number", "minimum": 0, "maximum": 5 })),
    ]);
    schema["properties"]["command"] = json!({
        "type": "object", "required": ["resume"], "properties": { "resume": {} }, "additionalProperties": false,
    });
    schema["required"] = json!(["assistant_id"]);
    schema["oneOf"] = json!([{ "required": ["input"] }, { "required": ["command"] }]);
    schema
}

fn runs_cancel() -> Value {
    json!({
        "anyOf": [
            { "type": "object", "required": ["status"], "properties": { "status": words(&["pending", "running", "all"]) } },
            {
                "type": "object",
                "required": ["thread_id", "run_ids"],
                "properties": { "thread_id": uuid(), "run_ids": { "type": "array", "items": uuid(), "minItems": 1 } },
            },
        ],
    })
}
