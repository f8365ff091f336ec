//! Identifiers. UUIDs are version 7, made from the injected clock and generator, never ambient.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Generator, Wall};

/// A version 7 UUID (RFC 9562, section 5.7) from the given instant and generator.
#[must_use]
pub fn uuid_v7(now: Wall, generator: &Generator) -> Uuid {
    let random = generator.bytes16();
    let mut tail = [0u8; 10];
    tail.copy_from_slice(random.get(..10).unwrap_or(&[0; 10]));
    uuid::Builder::from_unix_timestamp_millis(now.0, &tail).into_uuid()
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A fresh identifier from the injected clock and generator.
            #[must_use]
            pub fn new(now: Wall, generator: &Generator) -> Self {
                Self(uuid_v7(now, generator))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

uuid_id! {
    /// A thread: a conversation's stored state.
    ThreadId
}
uuid_id! {
    /// A run: one durable execution. A turn on a thread is a run.
    RunId
}
uuid_id! {
    /// One start of one process (an incarnation), never reused. It owns claims.
    ReplicaId
}
text_id! {
    /// The tenant that owns a thread; part of every store predicate.
    TenantId
}
text_id! {
    /// A client's own key for a request: the same key gives the same run.
    IdempotencyKey
}
text_id! {
    /// A message's id; the client may choose it for its own messages.
    MessageId
}
text_id! {
    /// Our own id of a tool call: `call_` and letters, digits, `_`, valid on every provider wire.
    CallId
}
text_id! {
    /// A content-addressed blob: the lower-case hex BLAKE3 hash of its bytes.
    BlobId
}
text_id! {
    /// A workspace snapshot: the BLAKE3 hash of its root directory in the snapshot store, in lower-case
    /// hex; equal workspaces have equal ids.
    SnapshotId
}
text_id! {
    /// An effect: hash of run, step and call index, so that a repeated step names the same effect.
    EffectId
}

text_id! {
    /// An approval: names its run, step, call and what is asked.
    ApprovalId
}

impl ApprovalId {
    /// The id of the question with this digest about call `call_idx` in step `step` of `run`.
    #[must_use]
    pub fn of(run: RunId, step: u32, call_idx: u32, digest: &str) -> Self {
        let asked: String = digest.chars().take(12).collect();
        Self(format!("apr_{}_{step}_{call_idx}_{asked}", run.0.simple()))
    }

    /// The run that it names.
    #[must_use]
    pub fn run(&self) -> Option<RunId> {
        self.0.strip_prefix("apr_")?.split('_').next()?.parse().ok()
    }
}

impl BlobId {
    /// The id of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes).to_hex().to_string())
    }
}

impl EffectId {
    /// The id of call `call_idx` in step `step` of `run`.
    #[must_use]
    pub fn of(run: RunId, step: u32, call_idx: u32) -> Self {
        let hash = blake3::hash(format!("{run}/{step}/{call_idx}").as_bytes());
        Self(hash.to_hex().chars().take(32).collect())
    }
}

impl CallId {
    /// Our id for call `call_idx` in step `step` of `run`: stable when the step is redone and
    /// unique over the whole thread.
    #[must_use]
    pub fn of(run: RunId, step: u32, call_idx: u32) -> Self {
        let run: String = run.0.simple().to_string().chars().skip(12).take(12).collect();
        Self(format!("call_{run}_{step}_{call_idx}"))
    }
}
