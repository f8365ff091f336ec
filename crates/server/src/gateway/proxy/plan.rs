//! What a request is to the gateway: whose thread it belongs to, whether it may be repeated, how the
//! rest of its answer is had when its replica goes away.

use std::net::IpAddr;

use bytes::Bytes;
use evenkeel_core::Error;
use evenkeel_core::id::uuid_v7;
use evenkeel_env::Env;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use serde::Deserialize;

use super::Client;
use super::headers::towards_replica;
use crate::gateway::route::Sent;
use crate::wire::refusal::malformed;

/// Keys that a gateway made begin with this; a client's may not.
const OWN_KEYS: &str = "evenkeel-gateway/";
const KEY: &str = "idempotency-key";

/// A request that may be sent several times.
pub(super) struct Plan {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
    /// The thread that it belongs to.
    pub(super) thread: Option<String>,
    /// Whether it has no second effect.
    pub(super) is_repeatable: bool,
}

/// How the rest of an answer is had.
pub(super) struct Rest {
    path: String,
    headers: HeaderMap,
    /// The thread that it belongs to.
    pub(super) thread: Option<String>,
    /// The run is cancelled when its client leaves, so a replica that still listens must not be left.
    pub(super) cancels_on_leave: bool,
}

impl Plan {
    pub(super) fn of(env: &Env, parts: Parts, sent: Sent) -> Result<Self, Error> {
        let client: Option<IpAddr> = parts.extensions.get::<Client>().map(|client| client.0);
        let body = sent.bytes();
        let segments: Vec<&str> = parts.uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let thread = thread_of(&segments, &body);
        let creates_run = parts.method == Method::POST && is_creation(&segments);
        let is_repeatable = parts.method != Method::PATCH
            && (parts.method != Method::POST || creates_run || is_harmless(&segments));
        let mut headers = towards_replica(parts.headers, client);
        if headers.get(KEY).is_some_and(|key| key.as_bytes().starts_with(OWN_KEYS.as_bytes())) {
            return Err(malformed(
                format!("An Idempotency-Key that begins with `{OWN_KEYS}` is the gateway's own."),
                "Use a key of your own.",
            ));
        }
        if creates_run && !headers.contains_key(KEY) {
            let key = format!("{OWN_KEYS}{}", uuid_v7(env.wall(), &env.generator));
            if let Ok(key) = HeaderValue::try_from(key) {
                headers.insert(KEY, key);
            }
        }
        let path = parts.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        Ok(Self { method: parts.method, path, headers, body, thread, is_repeatable })
    }

    /// The request for the replica at `base`.
    pub(super) fn request(&self, base: &str) -> Result<Request<Bytes>, Error> {
        built(self.method.clone(), base, &self.path, self.headers.clone(), self.body.clone())
    }

    /// How the rest of this answer is had: from where it says it can be had.
    pub(super) fn rest(&self, answer: &HeaderMap) -> Option<Rest> {
        let place = answer.get(header::LOCATION)?.to_str().ok()?.to_owned();
        let cancels_on_leave = cancels_on_leave(&self.path, &self.body);
        let more = if place.contains('?') { '&' } else { '?' };
        let path = if cancels_on_leave { format!("{place}{more}cancel_on_disconnect=true") } else { place };
        let mut headers = self.headers.clone();
        for name in [KEY, "content-type", "last-event-id"] {
            headers.remove(name);
        }
        let thread = self.thread.clone().or_else(|| {
            let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            thread_of(&segments, &Bytes::new())
        });
        Some(Rest { path, headers, thread, cancels_on_leave })
    }
}

impl Rest {
    /// The request for what follows the event `after`, from the replica at `base`.
    pub(super) fn request(&self, base: &str, after: Option<&str>) -> Result<Request<Bytes>, Error> {
        let mut headers = self.headers.clone();
        if let Some(after) = after.and_then(|after| HeaderValue::try_from(after).ok()) {
            headers.insert("last-event-id", after);
        }
        built(Method::GET, base, &self.path, headers, Bytes::new())
    }
}

fn built(
    method: Method,
    base: &str,
    path: &str,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Request<Bytes>, Error> {
    let uri: Uri = format!("{base}{path}")
        .parse()
        .map_err(|_| malformed("The path cannot be passed on.", "Send a path in the form of RFC 3986."))?;
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// The thread of a path; of a thread that is being made, the id that the client chose.
fn thread_of(segments: &[&str], body: &Bytes) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        thread_id: Option<String>,
    }
    match segments {
        ["threads", "search" | "count" | "prune"] => None,
        ["threads", thread, ..] => Some((*thread).to_owned()),
        ["threads"] => serde_json::from_slice::<Named>(body).ok()?.thread_id,
        _ => None,
    }
}

/// Whether a POST to this path makes a run, once for each key.
fn is_creation(segments: &[&str]) -> bool {
    matches!(
        segments,
        ["runs"]
            | ["runs", "stream" | "wait"]
            | ["threads", _, "runs"]
            | ["threads", _, "runs", "stream" | "wait"]
    )
}

/// Whether a POST to this path does the same when it is done twice.
fn is_harmless(segments: &[&str]) -> bool {
    matches!(
        segments,
        ["assistants" | "threads", "search" | "count"]
            | ["threads"]
            | ["threads", _, "history"]
            | ["threads", _, "runs", _, "cancel"]
            | ["runs", "cancel"]
            | ["v1", "messages", "count_tokens"]
    )
}

fn cancels_on_leave(path: &str, body: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Asked {
        on_disconnect: Option<String>,
    }
    let query = path.split_once('?').map_or("", |(_, query)| query).to_ascii_lowercase();
    let by_query =
        ["cancel_on_disconnect=true", "cancel_on_disconnect=1"].iter().any(|ask| query.contains(ask));
    by_query
        || serde_json::from_slice::<Asked>(body)
            .is_ok_and(|asked| asked.on_disconnect.as_deref() == Some("cancel"))
}
