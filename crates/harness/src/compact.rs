//! Keeps the context inside the model's window.
//!
//! What a provider refuses for ever is a call without its result or a result without its call, so
//! the smallest thing that is moved is a *unit*: one message, or an assistant's message with calls
//! together with all its results. Cuts lie between units only.
//!
//! Three ways, tried in this order; each must bring the context to at most `progress` (0.6) of the
//! threshold, because a smaller gain would only be paid again at the next step:
//! 1. **Stubs**: results older than the newest units are replaced by one line each. Needs no model,
//!    cannot fail, works while the model is down.
//! 2. **Summary**: the model summarises everything older than the newest units; fewer units are
//!    kept when that is not enough. The request offers no tools and is itself cut to fit. A summary
//!    that is empty or is a call is a failure; after three in a run no more are asked for.
//! 3. **Reset**: a digest made without the model stands for everything old.
//!
//! When nothing brings it below the threshold, the call is tried as it is if the window may take
//! it, else the run fails with `context-too-long`.
//!
//! Compaction is append-only: a `Compacted` event says which range is shown how, and the prompt
//! stays a pure function of the journal. The words of the run's own request are never summarised:
//! they stand in every summary as they were sent.

pub(crate) mod carry_out;
pub(crate) mod estimate;
pub(crate) mod plan;
pub(crate) mod text;

#[cfg(test)]
mod tests;
