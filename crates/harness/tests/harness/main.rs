//! The harness at its edge: real loops over a store in memory, with a scripted model and tools, in
//! virtual time.

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod approvals;
mod compaction;
mod crash;
mod deliver;
mod ends;
mod field;
mod lab;
mod mutation;
mod outage;
mod peers;
mod policies;
mod recovery;
mod replica;
mod steps;
mod trips;
mod valid;
mod world;
