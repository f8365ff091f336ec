//! The table. In order; the first rule whose conditions all hold decides.

use super::{Class, Facts};

/// A condition left empty always holds; a list holds when one of its entries does.
struct Rule {
    status: &'static [u16],
    /// Exact `code` or `type`.
    codes: &'static [&'static str],
    /// Parts of the lower-case message.
    message: &'static [&'static str],
    class: Class,
    weight: f64,
}

const fn rule(
    status: &'static [u16],
    codes: &'static [&'static str],
    message: &'static [&'static str],
    class: Class,
    weight: f64,
) -> Rule {
    Rule { status, codes, message, class, weight }
}

const NONE: f64 = 0.0;
const FULL: f64 = 1.0;
const HALF: f64 = 0.5;

/// Out of credit comes first, because providers say it with 400, 402, 403 and 429; context and
/// content come before the plain statuses that carry them.
static RULES: &[Rule] = &[
    rule(
        &[],
        &[
            "insufficient_quota",
            "credit_balance_exhausted",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "payment_required",
            "quota_exceeded",
        ],
        &[],
        Class::QuotaDead,
        NONE,
    ),
    rule(&[402], &[], &[], Class::QuotaDead, NONE),
    rule(
        &[400, 403, 429],
        &[],
        &[
            "credit balance is too low",
            "exceeded your current quota",
            "insufficient credit",
            "insufficient balance",
            "out of credit",
            "spend limit",
            "spending limit",
            "billing hard limit",
            "usage limits",
        ],
        Class::QuotaDead,
        NONE,
    ),
    rule(
        &[],
        &[
            "context_length_exceeded",
            "exceed_context_size_error",
            "string_above_max_length",
            "request_too_large",
        ],
        &[],
        Class::ContextTooLong,
        NONE,
    ),
    rule(&[413], &[], &[], Class::ContextTooLong, NONE),
    rule(
        &[400, 422, 500],
        &[],
        &[
            "prompt is too long",
            "maximum context length",
            "exceed context limit",
            "exceeds the context",
            "exceeds the available context",
            "context window",
            "context_length",
            "context length",
            "input tokens exceed the configured limit",
            "input is too long",
            "is longer than the model's context",
            "too many input tokens",
            "reduce the length of the messages",
        ],
        Class::ContextTooLong,
        NONE,
    ),
    rule(
        &[],
        &["content_filter", "content_policy_violation", "responsibleaipolicyviolation", "moderation_blocked"],
        &[],
        Class::Rejected,
        NONE,
    ),
    rule(
        &[400],
        &[],
        &[
            "invalid `signature`",
            "signature: field required",
            "invalid signature",
            "encrypted_content",
            "encrypted content",
        ],
        Class::ForeignItems,
        NONE,
    ),
    rule(&[], &["model_not_found", "deploymentnotfound", "not_found_error"], &[], Class::ModelUnknown, NONE),
    rule(&[404], &[], &[], Class::ModelUnknown, NONE),
    rule(&[401, 403], &[], &[], Class::AuthDead, NONE),
    rule(
        &[],
        &["authentication_error", "permission_error", "invalid_api_key", "account_deactivated"],
        &[],
        Class::AuthDead,
        NONE,
    ),
    rule(&[], &["slow_down"], &[], Class::Overloaded, HALF),
    rule(&[429, 503], &[], &["slow down"], Class::Overloaded, HALF),
    rule(&[429], &[], &[], Class::RateLimited, NONE),
    rule(&[], &["rate_limit_error", "rate_limit_exceeded", "rate_limited"], &[], Class::RateLimited, NONE),
    rule(
        &[],
        &["overloaded_error", "overloaded", "server_is_overloaded", "server_overloaded", "engine_overloaded"],
        &[],
        Class::Overloaded,
        FULL,
    ),
    rule(&[503, 529], &[], &[], Class::Overloaded, FULL),
    rule(&[408, 409, 425, 500, 502, 504, 520, 521, 522, 523, 524], &[], &[], Class::Transient, FULL),
    rule(
        &[],
        &["api_error", "server_error", "internal_error", "internal_server_error", "timeout_error"],
        &[],
        Class::Transient,
        FULL,
    ),
    rule(&[], &["invalid_request_error", "invalid_argument"], &[], Class::BadRequest, NONE),
];

/// The class and breaker weight of an error, if the table knows it.
pub(super) fn find(facts: &Facts, extra_context_too_long: &[String]) -> Option<(Class, f64)> {
    let is_extra = |text: &String| !text.is_empty() && facts.message.contains(&text.to_lowercase());
    if extra_context_too_long.iter().any(is_extra) {
        return Some((Class::ContextTooLong, NONE));
    }
    RULES.iter().find(|rule| holds(rule, facts)).map(|rule| (rule.class, rule.weight))
}

fn holds(rule: &Rule, facts: &Facts) -> bool {
    let status = rule.status.is_empty() || facts.status.is_some_and(|status| rule.status.contains(&status));
    let code = rule.codes.is_empty() || facts.codes.iter().any(|code| rule.codes.contains(&code.as_str()));
    let message = rule.message.is_empty() || rule.message.iter().any(|part| facts.message.contains(part));
    status && code && message
}
