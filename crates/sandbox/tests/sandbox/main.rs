//! The sandbox from outside: every promise, as whoever runs the tests and, when that is root, as
//! an ordinary user as well.

mod attacks;
mod config;
mod host;
mod life;
mod limits;
mod view;
