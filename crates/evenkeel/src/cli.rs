//! What can be typed. Each command's own arguments stand with the command.

use clap::{Parser, Subcommand};

use crate::cmd;

/// An agent platform that carries runs through outages.
#[derive(Parser)]
#[command(
    name = "evenkeel",
    version,
    about = "An agent platform that carries runs through outages",
    max_term_width = 100,
    after_help = "\
Try it, no keys needed:   evenkeel demo
A server:                 evenkeel serve
A conversation:           evenkeel chat
One coding task:          evenkeel run \"make the tests pass\" --repo .
What an error means:      evenkeel explain CODE
Your own configuration:   evenkeel check && evenkeel lab run system1-as-given"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// See it work: a fake provider goes down and every task finishes; no keys needed
    Demo(cmd::demo::Args),
    /// Start the platform: gateway, API, harness, router, tools, sandbox and store in one process
    Serve(cmd::serve::Args),
    /// Run one coding task, with live progress and the diff at the end
    Run(cmd::run::Args),
    /// Talk to an assistant in the terminal or from a pipe
    Chat(cmd::chat::Args),
    /// Say what an error code means, or every decision made in a run
    Explain(cmd::explain::Args),
    /// Validate the configuration, print its effective values and what is unwise about it
    Check(cmd::check::Args),
    /// Say what isolation this machine can enforce on what a run executes
    Doctor(cmd::doctor::Args),
    /// List, show, follow and cancel runs
    Runs(cmd::runs::Args),
    /// List, show and remove threads
    Threads(cmd::threads::Args),
    /// List what runs ask of a person, approve it or deny it
    Approvals(cmd::approvals::Args),
    /// Show the model router; drain, enable or probe a deployment
    Router(cmd::router::Args),
    /// List the replicas of a platform and how they are
    Replicas(cmd::replicas::Args),
    /// End a process in order: its runs and clients go on elsewhere
    Drain(cmd::drain::Args),
    /// Run scenarios: what happens here when something breaks
    Lab(cmd::lab::Args),
    /// Make, list and revoke API keys
    Keys(cmd::keys::Args),
    /// Check tool policies, say what they decide about a call, or test them by a table of cases
    Policy(cmd::policy::Args),
    /// Serve a built-in tool server to any MCP client
    Mcp(cmd::mcp::Args),
}
