//! The door and its description in one place: a path is served only together with what is said of
//! it, so that the OpenAPI document and the code cannot part.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use http::Method;
use serde_json::{Map, Value, json};

use crate::app::Shared;
use crate::wire::schema;

/// Paths with their handlers and their description.
#[derive(Default)]
pub(super) struct Door {
    router: Router<Arc<Shared>>,
    paths: BTreeMap<&'static str, Map<String, Value>>,
}

/// What is said of one operation.
pub(super) struct Operation {
    id: &'static str,
    summary: &'static str,
    query: Vec<Value>,
    headers: Vec<Value>,
    body: Option<&'static str>,
    answers: Vec<(u16, Value)>,
    open: bool,
}

/// An operation that answers 200 with a value of this schema; `Any` for any JSON.
pub(super) fn gives(id: &'static str, summary: &'static str, schema: &'static str) -> Operation {
    operation(id, summary).answers(200, json_answer(schema))
}

/// An operation that answers 200 with a list of such values.
pub(super) fn lists(id: &'static str, summary: &'static str, schema: &'static str) -> Operation {
    let list = json!({ "type": "array", "items": schema::of(schema) });
    operation(id, summary).answers(200, answer("As asked.", "application/json", &list))
}

/// An operation that answers with this status and no body.
pub(super) fn does(id: &'static str, summary: &'static str, status: u16) -> Operation {
    operation(id, summary).answers(status, json!({ "description": "Done." }))
}

/// An operation that answers with server-sent events.
pub(super) fn streams(id: &'static str, summary: &'static str) -> Operation {
    operation(id, summary)
        .answers(200, answer("Server-sent events.", "text/event-stream", &schema::of("Event")))
}

fn operation(id: &'static str, summary: &'static str) -> Operation {
    let (query, headers, answers) = (Vec::new(), Vec::new(), Vec::new());
    Operation { id, summary, query, headers, body: None, answers, open: false }
}

impl Operation {
    /// A body of this schema, which may be left out.
    pub(super) fn body(mut self, schema: &'static str) -> Self {
        self.body = Some(schema);
        self
    }

    /// A parameter of the query that may be left out.
    pub(super) fn query(mut self, name: &str, schema: Value) -> Self {
        self.query.push(json!({ "name": name, "in": "query", "required": false, "schema": schema }));
        self
    }

    /// `limit` and `offset`.
    pub(super) fn paged(self) -> Self {
        self.query("limit", schema::number()).query("offset", schema::number())
    }

    /// What every operation that creates a run takes.
    pub(super) fn creates(mut self) -> Self {
        let key = json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" });
        self.headers
            .push(json!({ "name": "Idempotency-Key", "in": "header", "required": false, "schema": key }));
        self.body("RunCreate")
    }

    /// What every operation that opens a stream takes.
    pub(super) fn resumes(mut self, modes: Value) -> Self {
        let id = json!({ "type": "string", "pattern": "^(-1|-|[0-9]{1,18}(-[0-9]{1,9})?)$" });
        self.headers
            .push(json!({ "name": "Last-Event-ID", "in": "header", "required": false, "schema": id }));
        self.query("stream_mode", modes)
    }

    /// A further answer.
    pub(super) fn answers(mut self, status: u16, answer: Value) -> Self {
        self.answers.push((status, answer));
        self
    }

    /// Needs no key.
    fn open(mut self) -> Self {
        self.open = true;
        self
    }

    fn describe(self, path: &str) -> Value {
        let in_path = path.split(['{', '}']).skip(1).step_by(2).map(
            |name| json!({ "name": name, "in": "path", "required": true, "schema": schema::path_part(name) }),
        );
        let parameters: Vec<Value> = in_path.chain(self.query).chain(self.headers).collect();
        let mut responses: Map<String, Value> =
            self.answers.into_iter().map(|(status, answer)| (status.to_string(), answer)).collect();
        responses
            .insert("default".to_owned(), answer("A refusal.", "application/json", &schema::of("Refusal")));
        let mut value = json!({
            "operationId": self.id,
            "summary": self.summary,
            "parameters": parameters,
            "responses": responses,
        });
        if let Some(body) = self.body {
            value["requestBody"] = json!({ "required": false, "content": { "application/json": { "schema": schema::of(body) } } });
        }
        if self.open {
            value["security"] = json!([]);
        }
        value
    }
}

fn json_answer(name: &str) -> Value {
    answer("As asked.", "application/json", &schema::of(name))
}

fn answer(description: &str, kind: &str, schema: &Value) -> Value {
    json!({ "description": description, "content": { kind: { "schema": schema } } })
}

impl Door {
    /// Serves a path.
    pub(super) fn serve<H, T>(
        mut self,
        method: Method,
        path: &'static str,
        handler: H,
        operation: Operation,
    ) -> Self
    where
        H: Handler<T, Arc<Shared>>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::GET);
        self.router = self.router.route(path, on(filter, handler));
        self.tell(method, path, operation);
        self
    }

    /// Describes a path that is served beside this door, without a key.
    pub(super) fn beside(mut self, path: &'static str, operation: Operation) -> Self {
        self.tell(Method::GET, path, operation.open());
        self
    }

    fn tell(&mut self, method: Method, path: &'static str, operation: Operation) {
        let described = operation.describe(path);
        self.paths.entry(path).or_default().insert(method.as_str().to_lowercase(), described);
    }

    /// What is served.
    pub(super) fn router(self) -> Router<Arc<Shared>> {
        self.router
    }

    /// Its description.
    pub(super) fn document(&self) -> Value {
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Evenkeel",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "The LangGraph Agent Server dialect, and Evenkeel's own operations under /v1.",
            },
            "paths": self.paths,
            "components": {
                "schemas": schema::all(),
                "securitySchemes": {
                    "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
                    "bearer": { "type": "http", "scheme": "bearer" },
                },
            },
            "security": [{ "key": [] }, { "bearer": [] }, {}],
        })
    }
}
