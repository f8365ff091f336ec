//! One run: what its journal says, what comes next, and carrying that out.
//!
//! ```text
//!           +------------------------ view (state) <------------------ events
//!           v                                                            ^
//!   next(view, rules, now) -> action --- drive carries it out --> staged events --- commit
//! ```
//! Events are staged first and applied to the view at once; they become durable together with the
//! next action that somebody outside could notice: before a tool starts, before the model is asked
//! again, at the end of a step and at the end of the run.

pub(crate) mod approve;
pub(crate) mod attempt;
pub(crate) mod commit;
pub(crate) mod deliver;
pub(crate) mod drive;
pub(crate) mod ending;
pub(crate) mod output;
pub(crate) mod prompt;
pub(crate) mod recover;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod tools;

#[cfg(test)]
pub(crate) mod tests;
