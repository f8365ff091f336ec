//! Assistants as the dialect shows them.

use evenkeel_core::agent::Agent;
use serde_json::{Value, json};
use uuid::Uuid;

/// The namespace of assistants' ids; fixed for ever, so that ids are the same after a restart.
const NAMESPACE: Uuid = Uuid::from_u128(0x6ba7_b821_9dad_11d1_80b4_00c0_4fd4_30c8);

/// The id of an assistant: the same on every server, for ever.
#[must_use]
pub(crate) fn assistant_id(name: &str) -> Uuid {
    Uuid::new_v5(&NAMESPACE, name.as_bytes())
}

/// An assistant.
pub(crate) fn assistant(agent: &Agent, since: &str) -> Value {
    json!({
        "assistant_id": assistant_id(&agent.name),
        "graph_id": agent.name,
        "config": {},
        "context": {},
        "metadata": { "created_by": "system" },
        "name": agent.name,
        "description": agent.description,
        "version": 1,
        "created_at": since,
        "updated_at": since,
    })
}

/// Its graph: the loop that every assistant is.
pub(crate) fn graph(agent: &Agent) -> Value {
    let node =
        |id: &str| json!({ "id": id, "type": "runnable", "data": { "id": ["evenkeel", id], "name": id } });
    let mut nodes = vec![node("__start__"), node("agent"), node("__end__")];
    let mut edges = vec![
        json!({ "source": "__start__", "target": "agent" }),
        json!({ "source": "agent", "target": "__end__", "conditional": true }),
    ];
    if !agent.tools.is_empty() {
        nodes.insert(2, node("tools"));
        edges.push(json!({ "source": "agent", "target": "tools", "conditional": true }));
        edges.push(json!({ "source": "tools", "target": "agent" }));
    }
    json!({ "nodes": nodes, "edges": edges })
}

/// JSON schemas of its input and state.
pub(crate) fn schemas(agent: &Agent) -> Value {
    let messages = json!({ "type": "array", "items": { "type": "object" } });
    let mut input = json!({ "messages": messages });
    if agent.workspace {
        input["repository"] = json!({
            "type": "object",
            "properties": { "directory": { "type": "string" }, "url": { "type": "string" } },
        });
    }
    let text = json!({ "type": "string" });
    let state = json!({
        "type": "object",
        "properties": { "messages": messages, "result": text, "diff": text },
    });
    json!({
        "graph_id": agent.name,
        "input_schema": { "type": "object", "properties": input, "required": ["messages"] },
        "output_schema": state,
        "state_schema": state,
        "config_schema": { "type": "object", "properties": {} },
        "context_schema": { "type": "object", "properties": {} },
    })
}
