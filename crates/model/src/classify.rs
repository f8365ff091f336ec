//! The one place that decides what a failure means.
//!
//! Everything that can go wrong with an attempt becomes one [`Failure`] with one [`Class`], by one
//! table of rules over status, code, type and message, in order, first match wins. In-stream
//! errors, which arrive after a `200`, go through the same table as status codes. What follows from
//! a class (retry, failover, breaker weight) is written beside it and nowhere else.

mod headers;
mod rules;

use std::time::Duration;

use evenkeel_core::Wall;
use evenkeel_env::http::ClientError;
use http::HeaderMap;
use serde_json::Value;

pub use headers::{Hints, retry_after};

use crate::stream::watch::Passed;

/// What a failure means.
///
/// | class | same deployment | other deployment | breaker weight |
/// |---|---|---|---|
/// | transient | one retry soon | yes | 1 |
/// | overloaded | no | yes | 1, `slow_down` 0.5 |
/// | rate_limited | not before its time | yes, at once | 0 |
/// | quota_dead | no, disabled | yes | opens at once |
/// | auth_dead | no, the key is disabled | yes | opens the key |
/// | stream_broken | one redo | yes | 1 |
/// | slow | no | yes | 0.5; 1 when there was no content at all |
/// | context_too_long | no | only a larger window | 0 |
/// | rejected | no | no, unless the route says so | 0 |
/// | bad_request | no | no | 0 |
/// | model_unknown | no, disabled | yes | 0 |
/// | foreign_items | once, without them | – | 0 |
/// | overtaken | – | – | 1 for the first attempt of a race, otherwise 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Refused, reset, bad gateway, no headers in time.
    Transient,
    /// The provider says that it is overloaded.
    Overloaded,
    /// Too many calls or tokens for this key.
    RateLimited,
    /// The account is out of credit.
    QuotaDead,
    /// The key is refused.
    AuthDead,
    /// The stream did not become an answer.
    StreamBroken,
    /// Too slow.
    Slow,
    /// The context does not fit the window.
    ContextTooLong,
    /// The content is refused.
    Rejected,
    /// The request is malformed.
    BadRequest,
    /// The provider does not know the model.
    ModelUnknown,
    /// The request held items that only another provider or key can read.
    ForeignItems,
    /// Another attempt of the same call had content first.
    Overtaken,
}

impl Class {
    /// The word in attempts, metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Overloaded => "overloaded",
            Self::RateLimited => "rate_limited",
            Self::QuotaDead => "quota_dead",
            Self::AuthDead => "auth_dead",
            Self::StreamBroken => "stream_broken",
            Self::Slow => "slow",
            Self::ContextTooLong => "context_too_long",
            Self::Rejected => "rejected",
            Self::BadRequest => "bad_request",
            Self::ModelUnknown => "model_unknown",
            Self::ForeignItems => "foreign_items",
            Self::Overtaken => "overtaken",
        }
    }

    /// How much it says of the deployment's health.
    #[must_use]
    pub fn weight(self) -> f64 {
        match self {
            Self::Transient | Self::Overloaded | Self::StreamBroken => 1.0,
            Self::Slow => 0.5,
            _ => 0.0,
        }
    }
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What it means.
    pub class: Class,
    /// In words, without secrets.
    pub cause: String,
    /// How much it says of the deployment's health.
    pub weight: f64,
    /// No connection came about.
    pub connect: bool,
    /// Not before this time, as the provider says.
    pub retry_after: Option<Duration>,
    /// The provider asks not to retry here.
    pub no_retry: bool,
    /// The model's own output was unusable, though the stream was whole.
    pub malformed: bool,
}

impl Failure {
    /// A failure of this class, and nothing else known.
    #[must_use]
    pub fn new(class: Class, cause: impl Into<String>) -> Self {
        Self {
            class,
            cause: cause.into(),
            weight: class.weight(),
            connect: false,
            retry_after: None,
            no_retry: false,
            malformed: false,
        }
    }

    /// No response came.
    #[must_use]
    pub fn of_client(error: &ClientError) -> Self {
        let connect = matches!(error, ClientError::Connect { .. });
        Self { connect, ..Self::new(Class::Transient, error.to_string()) }
    }

    /// A limit on time was passed.
    #[must_use]
    pub fn of_watch(passed: Passed) -> Self {
        match passed {
            Passed::Headers => Self::new(Class::Transient, "no response within the limit for headers"),
            // Silence is worse than an error: it counts in full, only dripping counts half.
            Passed::FirstContent => Self {
                weight: Class::StreamBroken.weight(),
                ..Self::new(Class::Slow, "no content within the limit for the first")
            },
            Passed::Idle => Self::new(Class::StreamBroken, "the stream went silent"),
            Passed::Slow => Self::new(Class::Slow, "content drips too slowly"),
            Passed::Attempt => Self::new(Class::Slow, "the attempt took too long"),
        }
    }
}

/// What is known of a provider's error.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    status: Option<u16>,
    /// `code` and `type` of the error, lower case.
    codes: Vec<String>,
    /// The message, lower case.
    message: String,
}

/// A response with an error status.
#[must_use]
pub fn response(status: u16, headers: &HeaderMap, body: &[u8], extra: &[String], now: Wall) -> Failure {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let error = json.as_ref().map(|json| json.get("error").unwrap_or(json));
    let shown = error.and_then(message_of).unwrap_or_else(|| excerpt(body));
    let facts = facts(Some(status), error, &shown);
    let mut failure = judge(&facts, extra);
    let is_page = content_type(headers).contains("html");
    failure.cause = match headers.get(http::header::LOCATION).and_then(|value| value.to_str().ok()) {
        Some(to) if (300..400).contains(&status) => {
            format!("HTTP {status}: a redirect to {}; {CHECK_BASE_URL}", shorten(to))
        }
        _ if is_page => format!("HTTP {status} with a web page: {}; {CHECK_BASE_URL}", shorten(&shown)),
        _ => format!("HTTP {status}: {}", shorten(&shown)),
    };
    failure.retry_after = retry_after(headers, now).or_else(|| Hints::read(headers, now).exhausted_until());
    match headers.get("x-should-retry").and_then(|value| value.to_str().ok()) {
        Some("true") if failure.class == Class::BadRequest => {
            failure.class = Class::Transient;
            failure.weight = Class::Transient.weight();
        }
        Some("false") => failure.no_retry = true,
        _ => {}
    }
    failure
}

/// An error event inside a stream, after a `200`.
#[must_use]
pub fn in_stream(error: &Value, extra: &[String]) -> Failure {
    let shown = message_of(error).unwrap_or_else(|| shorten(&error.to_string()));
    let status = ["code", "status"]
        .into_iter()
        .filter_map(|key| error.get(key).and_then(Value::as_u64))
        .find_map(|status| u16::try_from(status).ok().filter(|status| (400..600).contains(status)));
    let facts = facts(status, Some(error), &shown);
    let is_known = rules::find(&facts, extra).is_some();
    let mut failure = judge(&facts, extra);
    // A request that was refused as malformed would have been refused before the stream began.
    if !is_known || failure.class == Class::BadRequest {
        failure.class = Class::StreamBroken;
        failure.weight = Class::StreamBroken.weight();
    }
    failure.cause = format!("error in the stream: {}", shorten(&shown));
    failure
}

/// A `200` that is neither a stream nor JSON: a gateway in between.
#[must_use]
pub fn not_an_answer(content_type: &str) -> Failure {
    let cause = format!("the response is {content_type:?}, neither a stream nor JSON; {CHECK_BASE_URL}");
    Failure::new(Class::Transient, cause)
}

/// For answers that no provider's API gives.
const CHECK_BASE_URL: &str = "check the provider's base_url";

fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_lowercase()
}

fn judge(facts: &Facts, extra: &[String]) -> Failure {
    let (class, weight) = rules::find(facts, extra).unwrap_or_else(|| {
        let class = match facts.status {
            Some(400..=499) => Class::BadRequest,
            _ => Class::Transient,
        };
        (class, class.weight())
    });
    Failure { weight, ..Failure::new(class, String::new()) }
}

fn facts(status: Option<u16>, error: Option<&Value>, shown: &str) -> Facts {
    let codes = ["code", "type", "status"]
        .into_iter()
        .filter_map(|key| error?.get(key)?.as_str().map(str::to_lowercase))
        .collect();
    Facts { status, codes, message: shown.to_lowercase() }
}

fn message_of(error: &Value) -> Option<String> {
    match error {
        Value::String(text) => Some(text.clone()),
        _ => ["message", "detail", "error"]
            .into_iter()
            .find_map(|key| error.get(key).and_then(Value::as_str))
            .map(str::to_owned),
    }
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    if text.trim().is_empty() { "no body".to_owned() } else { shorten(&text) }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(300).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests;
