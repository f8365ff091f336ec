//! The ports: what the harness and the edge ask of the other parts.
//!
//! Parts do not know each other; they meet here. All ports are object safe and return boxed
//! futures: the body of an `async fn` would otherwise be compiled in every crate that awaits it.

pub mod feed;
pub mod forge;
pub mod model;
pub mod runner;
pub mod store;
pub mod tools;
pub mod workspace;

pub use futures_util::future::BoxFuture;
