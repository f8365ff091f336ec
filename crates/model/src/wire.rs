//! What both model APIs demand of a request, as strict validators.
//!
//! The renderers in [`crate::provider`] are property-tested against these, and the lab's fake
//! provider answers 400 with their findings, so a history that a real provider would refuse is
//! refused here first.

pub mod validate;
