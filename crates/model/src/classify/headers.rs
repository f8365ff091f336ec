//! What response headers say of waiting and of limits.

use std::time::Duration;

use evenkeel_core::Wall;
use http::HeaderMap;

/// `retry-after-ms`, or `retry-after` in seconds or as an HTTP date.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: Wall) -> Option<Duration> {
    if let Some(ms) = text(headers, "retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return seconds(ms / 1000.0);
    }
    let text = text(headers, "retry-after")?;
    match text.parse::<f64>() {
        Ok(n) => seconds(n),
        Err(_) => http_date(text).map(|at| now.until(at)),
    }
}

/// One limit as headers tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hint {
    /// Per minute.
    pub limit: Option<u64>,
    /// What is left.
    pub remaining: Option<u64>,
    /// Until it is full again.
    pub reset: Option<Duration>,
}

/// All limits as headers tell them, on either wire.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hints {
    /// Calls.
    pub calls: Hint,
    /// Input tokens, or all tokens where the provider does not tell them apart.
    pub tokens: Hint,
}

impl Hints {
    /// Reads `x-ratelimit-*` and `anthropic-ratelimit-*`.
    #[must_use]
    pub fn read(headers: &HeaderMap, now: Wall) -> Self {
        let hint = |names: [&str; 3]| Hint {
            limit: text(headers, names[0]).and_then(|text| text.parse().ok()),
            remaining: text(headers, names[1]).and_then(|text| text.parse().ok()),
            reset: text(headers, names[2]).and_then(|text| reset(text, now)),
        };
        let openai = |what: &str| {
            hint([
                &format!("x-ratelimit-limit-{what}"),
                &format!("x-ratelimit-remaining-{what}"),
                &format!("x-ratelimit-reset-{what}"),
            ])
        };
        let anthropic = |what: &str| {
            hint([
                &format!("anthropic-ratelimit-{what}-limit"),
                &format!("anthropic-ratelimit-{what}-remaining"),
                &format!("anthropic-ratelimit-{what}-reset"),
            ])
        };
        let or = |a: Hint, b: Hint| if a == Hint::default() { b } else { a };
        Self {
            calls: or(openai("requests"), anthropic("requests")),
            tokens: or(openai("tokens"), or(anthropic("input-tokens"), anthropic("tokens"))),
        }
    }

    /// When a limit that is used up is full again: what to wait for when nothing else is said.
    #[must_use]
    pub fn exhausted_until(&self) -> Option<Duration> {
        let of = |hint: Hint| (hint.remaining == Some(0)).then_some(hint.reset).flatten();
        of(self.calls).max(of(self.tokens))
    }
}

/// A Go-style duration (`6m0s`, `12ms`), seconds, or an RFC 3339 instant.
fn reset(text: &str, now: Wall) -> Option<Duration> {
    if let Ok(n) = text.parse::<f64>() {
        return seconds(n);
    }
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(now.until(Wall(u64::try_from(at.as_millisecond()).ok()?)));
    }
    go_duration(text)
}

fn go_duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let split = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, after) = rest.split_at(split);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    seconds(total)
}

fn http_date(text: &str) -> Option<Wall> {
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    u64::try_from(at.as_millisecond()).ok().map(Wall)
}

fn seconds(n: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(n).ok()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}
