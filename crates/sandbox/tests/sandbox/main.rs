//! The sandbox from outside: every promise, as whoever runs the tests and, when that is root, as
//! an ordinary user as well.

#![expect(clippy::unwrap_used, reason = "a test whose preparation fails has failed")]

mod attacks;
mod bubblewrap;
mod config;
mod crowd;
mod host;
mod life;
mod limits;
mod network;
mod view;
