//! The forge port: a run's result as a branch, and a pull request for it.

use futures_util::future::BoxFuture;

use crate::Error;
use crate::id::{RunId, ThreadId};
use crate::run::{Deliver, Delivered};

/// One result to be delivered. Asked for again after a failure or a crash, it is the same in every
/// field, and delivering it twice is delivering it once.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Whose result.
    pub run: RunId,
    /// The thread; its branch, if none is named, is the same for all its runs.
    pub thread: ThreadId,
    /// The repository's URL.
    pub url: String,
    /// What was asked for.
    pub wanted: Deliver,
    /// What the run changed, as a unified diff.
    pub diff: String,
    /// The run's answer.
    pub text: String,
    /// When the run was accepted, in seconds since 1970: the date of the commit.
    pub at_s: u64,
}

/// Where repositories live and are changed by others too.
pub trait Forge: Send + Sync {
    /// Makes the branch, and the pull request if wanted, and looks that they are there.
    ///
    /// # Errors
    /// `delivery-failed`; `retry` says whether it may succeed later.
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'_, Result<Delivered, Error>>;
}
