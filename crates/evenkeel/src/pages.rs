//! The pages of `docs/errors`, embedded, so that `evenkeel explain CODE` works anywhere.

use evenkeel_core::Code;

macro_rules! pages {
    ($($code:literal,)*) => {
        /// The page of a code: Markdown, opening with the code and its title.
        pub(crate) fn page(code: Code) -> &'static str {
            match code.as_str() {
                $($code => include_str!(concat!("../../../docs/errors/", $code, ".md")),)*
                // A test holds the list below against the list of codes.
                _ => "",
            }
        }
    };
}

pages! {
    "bad-request",
    "invalid-json",
    "body-too-large",
    "message-too-large",
    "unauthenticated",
    "forbidden",
    "rate-limited",
    "overloaded",
    "unsupported",
    "not-found",
    "thread-not-found",
    "thread-exists",
    "thread-busy",
    "run-not-found",
    "run-ended",
    "assistant-not-found",
    "idempotency-key-reused",
    "cursor-invalid",
    "draining",
    "no-replica",
    "replica-lost",
    "internal",
    "config-invalid",
    "config-unreadable",
    "provider-key-missing",
    "model-unknown",
    "route-unknown",
    "provider-unreachable",
    "provider-rejected",
    "provider-auth",
    "provider-quota",
    "provider-unavailable",
    "content-rejected",
    "context-too-long",
    "reply-malformed",
    "run-deadline",
    "run-step-limit",
    "run-token-limit",
    "run-repeats",
    "run-panicked",
    "payload-too-large",
    "store-in-use",
    "store-newer",
    "store-corrupt",
    "store-full",
    "store-unavailable",
    "store-login",
    "store-database-missing",
    "store-too-old",
    "store-read-only",
    "store-tls",
    "fenced",
    "version-conflict",
    "blob-not-found",
    "tool-unknown",
    "tool-arguments",
    "tool-timeout",
    "tool-failed",
    "tool-server-lost",
    "policy-invalid",
    "policy-denied",
    "approval-not-found",
    "approval-closed",
    "approval-expired",
    "path-outside",
    "repository-unreadable",
    "delivery-failed",
    "workspace-failed",
    "sandbox-unavailable",
    "sandbox-failed",
    "scenario-invalid",
    "address-refused",
    "address-in-use",
    "server-unreachable",
}

#[cfg(test)]
mod tests;
