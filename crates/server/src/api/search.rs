//! Lists of threads.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::Error;
use evenkeel_core::id::{TenantId, ThreadId};
use evenkeel_core::port::store::{ListThreads, ThreadSort};
use evenkeel_core::run::RunState;
use evenkeel_core::thread::Thread;
use serde_json::{Map, Value, json};

use super::{Answer, newest_run, thread_id, threads};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::route::Sent;
use crate::wire;
use crate::wire::refusal::malformed;
use crate::wire::state::holds;

/// Threads of one answer.
const LIMIT_MAX: u64 = 1000;
/// Threads that are read for one answer at most, where the store alone cannot tell which are meant.
const SCAN_MAX: u32 = 10_000;
/// Threads read at once.
const PAGE: u32 = 500;

/// What is searched for.
struct Search {
    list: ListThreads,
    /// What the store cannot judge: the dialect's status, and the values.
    status: Option<String>,
    values: Value,
    select: Option<Vec<String>>,
}

pub(super) async fn search(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let search = Search::parse(&sent.json()?, caller.tenant)?;
    let found = search.find(&shared).await?;
    let mut page = Vec::with_capacity(found.threads.len());
    for thread in &found.threads {
        page.push(search.show(&shared, thread).await?);
    }
    let end = search.list.offset as usize + page.len();
    let mut response = ([("x-pagination-total", found.n_total.to_string())], Json(page)).into_response();
    if (end as u64) < found.n_total {
        response.headers_mut().insert("x-pagination-next", (end as u64).into());
    }
    Ok(response)
}

pub(super) async fn count(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let mut search = Search::parse(&sent.json()?, caller.tenant)?;
    (search.list.offset, search.list.limit) = (0, 0);
    Ok(Json(search.find(&shared).await?.n_total).into_response())
}

/// A page of threads, and how many there are in all.
struct Found {
    threads: Vec<Thread>,
    n_total: u64,
}

impl Search {
    fn parse(body: &Value, tenant: TenantId) -> Result<Self, Error> {
        let status = word(body, "status", &["idle", "busy", "interrupted", "error"])?;
        let sort =
            match word(body, "sort_by", &["thread_id", "created_at", "updated_at", "state_updated_at"])? {
                Some("thread_id") => ThreadSort::Id,
                Some("updated_at" | "state_updated_at") => ThreadSort::UpdatedAt,
                _ => ThreadSort::CreatedAt,
            };
        let list = ListThreads {
            tenant,
            ids: ids(body)?,
            metadata: object(body, "metadata")?,
            busy: status.and_then(may_be_busy),
            newest: status.map(newest_states).unwrap_or_default(),
            sort,
            descending: word(body, "sort_order", &["asc", "desc"])? != Some("asc"),
            limit: u32::try_from(number(body, "limit", 10)?.clamp(1, LIMIT_MAX)).unwrap_or(u32::MAX),
            offset: u32::try_from(number(body, "offset", 0)?).unwrap_or(u32::MAX),
        };
        let values = object(body, "values")?;
        Ok(Self { list, status: status.map(str::to_owned), values, select: select(body)? })
    }

    /// Whether the store's own conditions say it all.
    fn is_plain(&self) -> bool {
        let no_values = self.values.as_object().is_none_or(Map::is_empty);
        no_values && self.status.is_none()
    }

    async fn find(&self, shared: &Shared) -> Result<Found, Error> {
        if !self.is_plain() {
            return self.scan(shared).await;
        }
        let n_total = shared.store.count_threads(self.list.clone()).await?;
        let threads = match self.list.limit {
            0 => Vec::new(),
            _ => shared.store.list_threads(self.list.clone()).await?,
        };
        Ok(Found { threads, n_total })
    }

    /// Reads the threads that may be meant and judges each.
    async fn scan(&self, shared: &Shared) -> Result<Found, Error> {
        let mut found = Found { threads: Vec::new(), n_total: 0 };
        let mut n_read = 0;
        while n_read < SCAN_MAX {
            let list = ListThreads { limit: PAGE, offset: n_read, ..self.list.clone() };
            let page = shared.store.list_threads(list).await?;
            let is_last = page.len() < PAGE as usize;
            n_read += PAGE;
            for thread in page {
                if self.matches(shared, &thread).await? {
                    found.n_total += 1;
                    let in_page = found.n_total > u64::from(self.list.offset)
                        && found.threads.len() < self.list.limit as usize;
                    found.threads.extend(in_page.then_some(thread));
                }
            }
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    async fn matches(&self, shared: &Shared, thread: &Thread) -> Result<bool, Error> {
        if let Some(wanted) = &self.status {
            // How a run was cancelled decides what its thread is; of other ends the state says it.
            let newest = match thread.newest_state {
                Some(RunState::Cancelled) => newest_run(shared, thread).await?,
                _ => None,
            };
            if wire::thread::status(thread, newest.as_ref()) != wanted.as_str() {
                return Ok(false);
            }
        }
        if self.values.as_object().is_none_or(Map::is_empty) {
            return Ok(true);
        }
        let shown = threads::shown(shared, thread).await?;
        Ok(shown.get("values").is_some_and(|values| holds(values, &self.values)))
    }

    /// The thread, or those of its members that were asked for.
    async fn show(&self, shared: &Shared, thread: &Thread) -> Result<Value, Error> {
        let Some(select) = &self.select else {
            return threads::shown(shared, thread).await;
        };
        let shown = if select.iter().any(|name| name == "values") {
            threads::shown(shared, thread).await?
        } else {
            threads::shown_without_values(shared, thread).await?
        };
        let members = select.iter().filter_map(|name| Some((name.clone(), shown.get(name)?.clone())));
        Ok(Value::Object(members.collect()))
    }
}

/// Whether the threads of a status have an open run; `None` where some have. A thread that waits for
/// a person has one, and is `interrupted`.
fn may_be_busy(status: &str) -> Option<bool> {
    (status != "interrupted").then_some(status == "busy")
}

/// The states of the newest run that a thread's status may stand for; empty where there may be none.
fn newest_states(status: &str) -> Vec<RunState> {
    match status {
        "interrupted" => vec![RunState::Cancelled, RunState::Waiting, RunState::Queued],
        "error" => vec![RunState::Failed, RunState::Expired],
        _ => Vec::new(),
    }
}

fn word<'a>(body: &'a Value, key: &str, words: &[&str]) -> Result<Option<&'a str>, Error> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if words.contains(&word.as_str()) => Ok(Some(word)),
        Some(other) => Err(malformed(
            format!("`{key}` is {other}; it may be {}.", words.join(", ")),
            "Send one of these words.",
        )),
    }
}

fn number(body: &Value, key: &str, default: u64) -> Result<u64, Error> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_u64()
            .ok_or_else(|| malformed(format!("`{key}` is not a number from 0 up."), "Send a whole number.")),
    }
}

fn object(body: &Value, key: &str) -> Result<Value, Error> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(json!({})),
        Some(object @ Value::Object(_)) => Ok(object.clone()),
        Some(_) => Err(malformed(format!("`{key}` is not an object."), "Send a JSON object.")),
    }
}

fn texts(body: &Value, key: &str) -> Result<Option<Vec<String>>, Error> {
    let wrong = || malformed(format!("`{key}` is not a list of strings."), "Send a list of strings.");
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(values)) => {
            let texts = values.iter().map(|value| value.as_str().map(str::to_owned).ok_or_else(wrong));
            texts.collect::<Result<_, _>>().map(Some)
        }
        Some(_) => Err(wrong()),
    }
}

fn ids(body: &Value) -> Result<Vec<ThreadId>, Error> {
    texts(body, "ids")?.unwrap_or_default().iter().map(|id| thread_id(id)).collect()
}

fn select(body: &Value) -> Result<Option<Vec<String>>, Error> {
    Ok(texts(body, "select")?.filter(|names| !names.is_empty()))
}
