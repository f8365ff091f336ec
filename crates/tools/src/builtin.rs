//! The built-in tool servers: one MCP handler type for files, grep and git.
//!
//! A server is bound to one workspace. What blocks runs on the pool's threads and stops when its
//! caller goes away; what executes anything runs in the sandbox through the runner.

pub(crate) mod files;
mod git;
mod grep;
mod server;

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Runner, RunnerLimits};
use serde_json::{Map, Value};

use crate::beneath::{Refusal, Root};
use crate::blocking::{Blocking, Cancel};
use crate::mcp::ServerKind;

pub(crate) use server::Server;

/// Bytes of text that a call returns at most, whatever it read.
pub(crate) const OUTPUT_BYTES_MAX: usize = 8 << 20;

/// Decides whether the content of a file may be shown; takes its resolved path.
pub(crate) type Readable = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What a built-in server works with.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) tenant: TenantId,
    pub(crate) run: RunId,
    pub(crate) workspace: PathBuf,
    pub(crate) pool: Blocking,
    pub(crate) runner: Option<Arc<dyn Runner>>,
    pub(crate) limits: RunnerLimits,
    pub(crate) readable: Readable,
}

/// What a built-in tool returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) is_error: bool,
    pub(crate) facts: Value,
}

impl Outcome {
    pub(crate) fn ok(text: impl Into<String>, facts: Value) -> Self {
        Self { text: text.into(), is_error: false, facts }
    }

    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true, facts: Value::Null }
    }
}

impl From<Result<Self, Refusal>> for Outcome {
    fn from(result: Result<Self, Refusal>) -> Self {
        result.unwrap_or_else(|refusal| Self::error(refusal.0))
    }
}

/// Arguments that were checked against the tool's schema.
pub(crate) struct Args<'a>(pub(crate) &'a Map<String, Value>);

impl Args<'_> {
    pub(crate) fn text(&self, name: &str) -> &str {
        self.optional_text(name).unwrap_or_default()
    }

    pub(crate) fn optional_text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(crate) fn count(&self, name: &str, default: usize) -> usize {
        self.optional_count(name).and_then(|n| usize::try_from(n).ok()).unwrap_or(default)
    }

    pub(crate) fn optional_count(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(|value| value.as_u64().or_else(|| whole(value)))
    }
}

/// `3.0` is an integer to JSON Schema.
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_f64().filter(|n| *n >= 0.0 && *n <= 1e15)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
    Some(number as u64)
}

/// Runs one tool of a built-in server.
pub(crate) async fn call(
    kind: ServerKind,
    context: &Context,
    name: &str,
    args: Map<String, Value>,
) -> Outcome {
    if kind == ServerKind::Git {
        return git::call(context, name, &Args(&args)).await;
    }
    let cancel = Cancel::default();
    let _stop = cancel.on_drop();
    let (name, workspace, readable) = (name.to_owned(), context.workspace.clone(), context.readable.clone());
    let work = context.pool.run(move || {
        let root = match Root::open(&workspace) {
            Ok(root) => root,
            Err(refusal) => return Outcome::error(refusal.0),
        };
        let args = Args(&args);
        match kind {
            ServerKind::Grep => grep::call(&root, &args, &readable, &cancel).into(),
            _ => files::call(&root, &name, &args, &cancel).into(),
        }
    });
    work.await.unwrap_or_else(|_| Outcome::error("The tool failed inside; this is a fault of Evenkeel."))
}
