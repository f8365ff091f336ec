//! The edge as its clients see it: a served address, a store in memory, and runs that the test
//! itself plays by writing the journal as a harness would.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod approvals;
mod bad_input;
mod clients;
mod config;
mod door;
mod end_to_end;
mod failover;
mod fake;
mod field;
mod gateway;
mod keys;
mod policies;
mod postgres;
mod replay;
mod replicas;
mod streams;
mod threads;
mod traces;
mod upstream;
mod world;
