//! The harness at its edge: real loops over a store in memory, with a scripted model and tools, in
//! virtual time.

mod compaction;
mod crash;
mod ends;
mod lab;
mod outage;
mod replica;
mod steps;
mod valid;
mod world;
