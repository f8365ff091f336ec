//! The commands. Each reads its arguments, does one thing, and gives an exit code.

pub(crate) mod approvals;
pub(crate) mod ask;
pub(crate) mod chat;
pub(crate) mod check;
pub(crate) mod configure;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod explain;
pub(crate) mod keys;
pub(crate) mod lab;
pub(crate) mod mcp;
pub(crate) mod policy;
pub(crate) mod replicas;
pub(crate) mod router;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod threads;

use std::process::ExitCode;

use evenkeel_env::Env;

use crate::cli::{Cli, Command};

/// How a command ended, or the error to print.
pub(crate) type Done = anyhow::Result<ExitCode>;

/// Carries out what was typed.
pub(crate) async fn run(cli: Cli) -> Done {
    let env = Env::real();
    match cli.command {
        Command::Demo(args) => demo::run(env, args).await,
        Command::Lab(args) => lab::run(&env, args).await,
        Command::Serve(args) => serve::run(env, args).await,
        Command::Run(args) => run::run(env, args).await,
        Command::Chat(args) => chat::run(env, args).await,
        Command::Threads(args) => threads::run(&env, args).await,
        Command::Check(args) => check::run(&args),
        Command::Keys(args) => keys::run(&env, args).await,
        Command::Mcp(args) => mcp::run(&env, args).await,
        Command::Policy(args) => policy::run(&env, args).await,
        Command::Explain(args) => explain::run(&env, args).await,
        Command::Doctor(args) => doctor::run(args),
        Command::Runs(args) => runs::run(&env, args).await,
        Command::Approvals(args) => approvals::run(&env, args).await,
        Command::Replicas(args) => replicas::run(&env, args).await,
        Command::Drain(args) => drain::run(&env, args).await,
        Command::Router(args) => router::run(&env, args).await,
    }
}

/// Worker threads that the configuration of the command asks for; one for each core without it.
pub(crate) fn workers(cli: &Cli) -> Option<usize> {
    match &cli.command {
        Command::Serve(args) => args.workers(),
        _ => None,
    }
}
