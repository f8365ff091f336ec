//! What the launcher and the helper say to each other.
//!
//! Frames on a stream socket: four bytes of length, little endian, then JSON. Descriptors travel
//! with the first byte of a frame. While a command runs, the launcher may send the empty frame
//! [`KILL`]; closing the socket means the same, and that the keeper is not wanted any more. An
//! empty frame that arrives when nothing runs means nothing: the command had just ended.

use std::collections::BTreeSet;
use std::path::PathBuf;

use evenkeel_core::port::runner::RunnerLimits;
use serde::{Deserialize, Serialize};

use crate::config::{Degradable, Isolation};

/// The first argument that makes a program the helper.
pub(crate) const HELPER_ARGUMENT: &str = "sandbox-helper";

/// The second argument that makes the helper examine the host and print a report.
pub(crate) const EXAMINE_ARGUMENT: &str = "examine";

/// The second argument that makes the helper pid 1 of a sandbox that bubblewrap has made.
pub(crate) const INSIDE_ARGUMENT: &str = "inside";

/// Asks a keeper to kill what it runs.
pub(crate) const KILL: [u8; 4] = [0; 4];

/// Longest frame: arguments and environment of a command have the kernel's own limit below it.
pub(crate) const FRAME_MAX: usize = 8 << 20;

/// Asks the nursery for a keeper; the keeper's end of its socket travels along.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raise {
    /// Number of the keeper, unique among the living ones of this nursery.
    pub(crate) slot: u32,
    /// Whether commands are isolated at all.
    pub(crate) isolation: Isolation,
    /// Mechanisms that may be absent; a command is refused when another one is.
    pub(crate) allow_degraded: BTreeSet<Degradable>,
    /// Extra directories to show.
    pub(crate) read_only_paths: Vec<PathBuf>,
}

/// Asks a keeper to run a command; stdin, stdout and stderr travel along, and with `network` the
/// channel through which pid 1 hands out the socket of the proxy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) argv: Vec<String>,
    pub(crate) workspace: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) cwd: String,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) limits: RunnerLimits,
    pub(crate) network: bool,
}

/// How a command ended, or why it never began.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It ran.
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
        /// The kernel killed a process of it for memory.
        out_of_memory: bool,
        /// Its workspace outgrew what it may hold, and it was killed for that.
        workspace_full: bool,
        /// CPU time of all of its processes that were waited for.
        cpu_ms: u64,
    },
    /// The sandbox could not be made.
    Failed(Failure),
}

/// Which step of making a sandbox failed, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {cause}")]
pub(crate) struct Failure {
    pub(crate) step: String,
    pub(crate) cause: String,
}

/// Names the step that an error came from.
pub(crate) trait Step<T> {
    fn step(self, step: &str) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> Step<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure { step: step.to_owned(), cause: error.to_string() })
    }
}

/// Encodes a frame.
pub(crate) fn frame(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let body = serde_json::to_vec(value).step("encode a frame")?;
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= FRAME_MAX);
    let length = length.ok_or(format!("{} bytes are too many", body.len())).step("encode a frame")?;
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}
