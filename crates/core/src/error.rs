//! Errors that cross a port: a stable code, who caused it, and whether to try again.
//!
//! Inside a part, use a small error type of its own (`thiserror`) and turn it into this one at the
//! port. The text names the cause and the remedy and never repeats its source; the chain is
//! printed once, where it is handled.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Who caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The caller: fix the request.
    Client,
    /// A model provider.
    Provider,
    /// A tool or the sandbox.
    Tool,
    /// The store.
    Store,
    /// Evenkeel itself or its configuration.
    Ours,
}

/// Whether the same request may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// Never.
    No,
    /// Yes, soon.
    Yes,
    /// Yes, not before this many milliseconds.
    AfterMs(u64),
}

macro_rules! codes {
    ($($variant:ident = $text:literal, $status:literal, $title:literal;)*) => {
        /// The stable codes of all errors. Each has a page in `docs/errors/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Code {
            $(#[doc = $title] #[serde(rename = $text)] $variant,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as users see it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The HTTP status that the doors answer with.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// The first line of its page.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

codes! {
    BadRequest = "bad-request", 422, "The request does not have the shape it must have.";
    InvalidJson = "invalid-json", 400, "The body is not valid JSON.";
    BodyTooLarge = "body-too-large", 413, "The body is larger than the limit.";
    MessageTooLarge = "message-too-large", 422, "A message is longer than the limit.";
    Unauthenticated = "unauthenticated", 401, "The API key is missing or not known.";
    Forbidden = "forbidden", 403, "The API key may not do this.";
    RateLimited = "rate-limited", 429, "Too many requests for this key or in all.";
    Overloaded = "overloaded", 503, "A component is full and the wait would pass the deadline.";
    Unsupported = "unsupported", 501, "The operation exists in the dialect but is not offered.";
    NotFound = "not-found", 404, "There is nothing at this path.";
    ThreadNotFound = "thread-not-found", 404, "There is no such thread for this tenant.";
    ThreadExists = "thread-exists", 409, "A thread with this id exists.";
    ThreadBusy = "thread-busy", 409, "The thread has an active run.";
    RunNotFound = "run-not-found", 404, "There is no such run for this tenant.";
    RunEnded = "run-ended", 404, "The run has ended; there is nothing to cancel.";
    AssistantNotFound = "assistant-not-found", 404, "There is no such assistant.";
    KeyReused = "idempotency-key-reused", 422, "The idempotency key was used with another body.";
    CursorInvalid = "cursor-invalid", 400, "The resume cursor is not one of this stream's.";
    Draining = "draining", 503, "The server is draining and admits nothing new.";
    NoReplica = "no-replica", 503, "No replica can take the request now.";
    ReplicaLost = "replica-lost", 502, "The replica went away before it answered.";
    Internal = "internal", 500, "A fault of Evenkeel itself.";

    ConfigInvalid = "config-invalid", 500, "The configuration has an unknown key or an impossible value.";
    ConfigUnreadable = "config-unreadable", 500, "The configuration file cannot be read.";
    KeyMissing = "provider-key-missing", 500, "A provider's key is not set.";
    ModelUnknown = "model-unknown", 500, "The provider does not know the model.";
    RouteUnknown = "route-unknown", 422, "There is no such model route.";
    ProviderUnreachable = "provider-unreachable", 503, "The provider's address cannot be reached.";
    ProviderRejected = "provider-rejected", 500, "The provider refused the request as malformed.";
    ProviderAuth = "provider-auth", 503, "The provider refused the key.";
    ProviderQuota = "provider-quota", 503, "The provider account is out of credit.";
    ProviderUnavailable = "provider-unavailable", 503, "No deployment of the route can answer now.";
    ContentRejected = "content-rejected", 422, "The provider refused the content.";
    ContextTooLong = "context-too-long", 500, "The context does not fit the model's window.";
    ReplyMalformed = "reply-malformed", 500, "The model's replies were malformed three times in a row.";

    RunDeadline = "run-deadline", 504, "The run's wall time is used up.";
    RunSteps = "run-step-limit", 500, "The run used up its steps.";
    RunTokens = "run-token-limit", 500, "The run used up its tokens.";
    RunRepeats = "run-repeats", 500, "The model repeated the same call and was stopped.";
    RunPanicked = "run-panicked", 500, "The run ended by a fault of Evenkeel.";
    PayloadTooLarge = "payload-too-large", 500, "A payload is larger than the provider takes.";

    StoreInUse = "store-in-use", 500, "Another process has the store file open.";
    StoreNewer = "store-newer", 500, "The store was written by a later version.";
    StoreCorrupt = "store-corrupt", 500, "The store file is damaged.";
    StoreFull = "store-full", 507, "The disk that holds the store is full.";
    StoreUnavailable = "store-unavailable", 503, "The store cannot be reached.";
    StoreLogin = "store-login", 500, "The database refused the user or the password.";
    StoreDatabaseMissing = "store-database-missing", 500, "The database server has no database of this name.";
    StoreTooOld = "store-too-old", 500, "The database server is older than Evenkeel needs.";
    StoreReadOnly = "store-read-only", 503, "The database takes no writes.";
    StoreTls = "store-tls", 500, "The connection to the database cannot be secured.";
    Fenced = "fenced", 409, "A later claim took over; this write was refused.";
    VersionConflict = "version-conflict", 409, "The thread changed since it was read.";
    BlobNotFound = "blob-not-found", 404, "There is no such blob.";

    ToolUnknown = "tool-unknown", 500, "There is no such tool.";
    ToolArguments = "tool-arguments", 500, "The arguments do not fit the tool's schema.";
    ToolTimeout = "tool-timeout", 500, "The tool did not answer in time.";
    ToolFailed = "tool-failed", 500, "The tool reported a failure.";
    ToolServerLost = "tool-server-lost", 500, "The MCP server went away.";
    PolicyInvalid = "policy-invalid", 500, "A policy does not parse or does not fit the schema.";
    PolicyDenied = "policy-denied", 403, "Policy does not allow this call.";
    ApprovalNotFound = "approval-not-found", 404, "There is no such approval for this tenant.";
    ApprovalClosed = "approval-closed", 409, "The approval is not open any more.";
    ApprovalExpired = "approval-expired", 500, "Nobody answered an approval in time.";
    PathOutside = "path-outside", 500, "The path leaves the workspace.";
    RepositoryUnreadable = "repository-unreadable", 422, "The repository cannot be read.";
    DeliveryFailed = "delivery-failed", 502, "The result could not be delivered to the forge.";
    WorkspaceFailed = "workspace-failed", 500, "The workspace cannot be prepared or restored.";
    SandboxUnavailable = "sandbox-unavailable", 500, "This host cannot isolate what a run executes.";
    SandboxFailed = "sandbox-failed", 500, "The sandbox could not be started.";

    ScenarioInvalid = "scenario-invalid", 500, "The scenario file has an unknown key or an impossible value.";
    AddressRefused = "address-refused", 500, "The server may not listen on that address.";
    AddressInUse = "address-in-use", 500, "The address is in use by another process.";
    ServerUnreachable = "server-unreachable", 503, "No Evenkeel server answers at the address.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Code {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or(())
    }
}

/// An error that crosses a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Error {
    /// The stable code.
    pub code: Code,
    /// Who caused it.
    pub origin: Origin,
    /// Whether to try again.
    pub retry: Retry,
    /// What was wrong, one sentence, with the values that matter; no secrets.
    pub message: Cow<'static, str>,
    /// What to do about it, one sentence.
    pub remedy: Cow<'static, str>,
}

impl Error {
    /// An error that is not retried.
    pub fn new(
        code: Code,
        origin: Origin,
        message: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { code, origin, retry: Retry::No, message: message.into(), remedy: remedy.into() }
    }

    /// The caller's mistake.
    pub fn client(
        code: Code,
        message: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(code, Origin::Client, message, remedy)
    }

    /// A fault of ours.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Internal, Origin::Ours, message, "Report it with the log of this moment.")
    }

    /// The same error, worth another try soon.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retry = Retry::Yes;
        self
    }

    /// The same error, worth another try after `wait`.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry = Retry::AfterMs(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} [{}]", self.message, self.remedy, self.code)
    }
}

impl std::error::Error for Error {}
