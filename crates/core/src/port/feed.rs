//! The feed port: tells local listeners that a thread's log grew, and passes provisional text on.

use std::ops::RangeInclusive;

use crate::id::{RunId, ThreadId};

/// A piece of a reply that is not committed yet. Never stored; a listener that missed one gets the
/// whole message from the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Provisional {
    /// Text of the reply.
    Text {
        /// Bytes of the reply's text before this piece: a listener that joined later, or missed one,
        /// sees that it has not got the beginning.
        offset: usize,
        /// The piece.
        text: String,
    },
    /// A call's name and a piece of its arguments.
    ToolCall {
        /// Which call of the message.
        call_idx: u32,
        /// The tool's name, in the first piece.
        name: Option<String>,
        /// A piece of the JSON arguments.
        args_piece: String,
    },
    /// What came from this attempt is void; drop it.
    Reset {
        /// Why.
        reason: String,
    },
}

/// Where the harness announces progress. Calls return at once and never block; a slow listener
/// loses provisional pieces, never stored events.
pub trait Feed: Send + Sync {
    /// Events up to `seq_last` of this thread are durable.
    fn committed(&self, thread: ThreadId, seq_last: u64);

    /// These events of this thread are durable, and those that this run has in them are all that it
    /// has behind what was announced of it before. Who waits for another run need not look.
    fn committed_by(&self, thread: ThreadId, run: RunId, seqs: RangeInclusive<u64>) {
        let _ = run;
        self.committed(thread, *seqs.end());
    }

    /// A provisional piece of attempt `attempt` in step `step`.
    fn provisional(&self, thread: ThreadId, run: RunId, step: u32, attempt: u32, piece: Provisional);
}
