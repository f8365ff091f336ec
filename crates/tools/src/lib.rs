//! Tools, tool policy and workspaces: what a run's calls may do, and doing it.
//!
//! [`Toolbox`] implements the tools port. A call is checked against its tool's schema, judged by
//! policy ([`policy`]) on normalised facts, given an effect class, and then carried out: `bash` and
//! git through the sandbox's runner, everything else through an MCP session ([`mcp`]), where the
//! built-in servers (files, grep, git) and foreign ones take the same path of slots,
//! deadlines, cancel and output caps. [`workspace`] keeps a run's files and their snapshots, and
//! [`forge`] takes what a run changed to where its repository lives.
//!
//! Invariants: nothing changes before `execute`; a call that fails to be judged is denied; files
//! are opened beneath the workspace by descriptor, never by comparing strings; nothing here starts
//! a program of the workspace outside the sandbox; no call runs without a time limit.

pub mod agents;
mod arguments;
mod beneath;
mod blocking;
mod builtin;
mod catalog;
pub mod config;
pub mod forge;
#[cfg(test)]
#[path = "../../env/src/fuzzing.rs"]
mod fuzzing;
mod git;
pub mod mcp;
pub mod policy;
mod toolbox;
pub mod workspace;

pub use config::{
    McpConfig, McpEffect, McpHints, McpServerConfig, NetworkConfig, PolicyConfig, PolicyMode, ToolsConfig,
};
pub use forge::{GitConfig, GitForge, Hosts};
pub use policy::{Judged, Policy};
pub use toolbox::{ToolSlots, Toolbox};
