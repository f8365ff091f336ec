//! The sandbox: every command of a run, isolated from the host and from every other run.
//!
//! [`Launcher`] is the [`Runner`](evenkeel_core::port::runner::Runner) of the product. It never
//! forks the multi-threaded server. It re-executes the program as a small single-threaded helper
//! with an empty environment ([`helper_main`]), and talks to it over a socket:
//!
//! ```text
//! server ── Launcher ──socket── nursery            one process; only forks keepers
//!              │                   └─ keeper       one per command at a time, reused; in its own
//!              └────────socket─────────┤             cgroup; watches the socket
//!                                      └─ init     pid 1 of a sandbox, made before its command
//!                                           └─ the command
//! ```
//!
//! What holds, and what the tests in `tests/` show:
//! - A command sees the read-only system directories, its workspace at `/workspace`, a private
//!   `/tmp`, its own processes, and no network; with a list of hosts it also finds a proxy that
//!   reaches those and nothing else. It holds no capability and no descriptor above 2.
//! - When a command ends, runs out of time, or its future is dropped, `init` dies, and with it
//!   the kernel ends every process of its pid namespace, also daemons that forked twice. The
//!   answer is given after that, so a pipe held by a grandchild delays nothing.
//! - When the server dies, however it dies, its sockets close; keepers see that, and everything
//!   below them ends.
//! - Files that a command makes in its workspace belong, seen from outside, to the owner of the
//!   workspace.
//!
//! With `isolation = "bwrap"` the namespaces and the view are made by bubblewrap, and pid 1 is this
//! program again; every lock, limit and promise above is the same ([`Isolation`]).
//!
//! This is the only crate with `unsafe`, all of it in `helper::sys`: system calls for which no
//! safe wrapper exists (and in the program that attacks the sandbox for the tests). [`doctor::examine`] says what of this a host enforces.
//!
//! # Tests of other crates
//! A test binary is not the helper. Build `cargo build -p evenkeel-sandbox` and pass the path of
//! `evenkeel-sandbox-helper` as [`HelperProgram::Path`]; [`HelperProgram::beside_current_exe`]
//! finds it next to (or one directory above) the running binary, where cargo puts it.

mod config;
pub mod doctor;
#[cfg(test)]
#[path = "../../env/src/fuzzing.rs"]
mod fuzzing;
mod helper;
mod launcher;
mod network;
mod wire;

pub use config::{Degradable, HelperProgram, Isolation, SandboxConfig};
pub use helper::helper_main;
pub use launcher::Launcher;
pub use network::NetworkCounts;
