//! Assistants: those of the configuration, read only.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::Error;
use evenkeel_core::agent::Agent;
use evenkeel_core::run::Class;
use serde_json::Value;

use super::Answer;
use crate::app::Shared;
use crate::gateway::given::Path;
use crate::gateway::route::Sent;
use crate::wire;
use crate::wire::input::Assistant;
use crate::wire::refusal::{malformed, no_assistant};

/// An assistant by name or UUID.
pub(super) fn find<'a>(shared: &'a Shared, name_or_id: &str) -> Result<&'a Agent, Error> {
    let by_name = shared.agents.get(name_or_id);
    let id: Option<uuid::Uuid> = name_or_id.parse().ok();
    let by_id =
        || shared.agents.values().find(|agent| id == Some(wire::assistant::assistant_id(&agent.name)));
    by_name.or_else(by_id).ok_or_else(|| match id {
        Some(_) => no_assistant(name_or_id),
        None => malformed(
            format!("There is no assistant `{}`.", name_or_id.chars().take(64).collect::<String>()),
            "POST /assistants/search lists the assistants.",
        ),
    })
}

/// An assistant with what the configuration says of its runs.
pub(super) fn with_rules<'a>(shared: &'a Shared, name_or_id: &str) -> Result<Assistant<'a>, Error> {
    let agent = find(shared, name_or_id)?;
    let section = shared.config.assistants.get(&agent.name);
    // Where a workspace is worked on, nobody sits in front of it.
    let usual = if agent.workspace { Class::Batch } else { Class::Interactive };
    Ok(Assistant {
        agent,
        class: section.and_then(|section| section.class).unwrap_or(usual),
        busy_policy: section.and_then(|section| section.busy_policy).unwrap_or_default(),
    })
}

fn matching<'a>(shared: &'a Shared, body: &Value) -> Vec<&'a Agent> {
    let asked = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    let (graph, name) = (asked("graph_id"), asked("name"));
    let agents = shared.agents.values();
    agents
        .filter(|agent| graph.as_ref().is_none_or(|graph| *graph == agent.name))
        .filter(|agent| name.as_ref().is_none_or(|name| agent.name.contains(name.as_str())))
        .collect()
}

pub(super) async fn search(State(shared): State<Arc<Shared>>, Extension(sent): Extension<Sent>) -> Answer {
    let body = sent.json()?;
    let number = |key: &str, default| {
        body.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(default)
    };
    let found = matching(&shared, &body);
    let since = shared.started_at.iso();
    let page = found.iter().skip(number("offset", 0)).take(number("limit", 10));
    let page: Vec<Value> = page.map(|agent| wire::assistant::assistant(agent, &since)).collect();
    Ok(([("x-pagination-total", found.len().to_string())], Json(page)).into_response())
}

pub(super) async fn count(State(shared): State<Arc<Shared>>, Extension(sent): Extension<Sent>) -> Answer {
    let body = sent.json()?;
    Ok(Json(matching(&shared, &body).len()).into_response())
}

pub(super) async fn get_one(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Answer {
    let agent = find(&shared, &id)?;
    Ok(Json(wire::assistant::assistant(agent, &shared.started_at.iso())).into_response())
}

pub(super) async fn graph(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Answer {
    Ok(Json(wire::assistant::graph(find(&shared, &id)?)).into_response())
}

pub(super) async fn schemas(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Answer {
    Ok(Json(wire::assistant::schemas(find(&shared, &id)?)).into_response())
}
