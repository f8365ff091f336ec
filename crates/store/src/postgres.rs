//! PostgreSQL: what the engine for several replicas runs on.
//!
//! [`local`] starts a server of the machine's own programs, for tests and the lab.

pub mod local;
