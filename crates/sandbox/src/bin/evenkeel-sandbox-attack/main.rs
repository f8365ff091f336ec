//! Attacks on the sandbox, for the tests: tries each way out and prints what the kernel answered.
//!
//! `evenkeel-sandbox-attack inside PID PORT SOCKET` runs inside a sandbox and prints, under the
//! number and name of each attack, one line per try: its name, and the error, or `ALLOWED`.
//! `evenkeel-sandbox-attack serve BACKEND HOST HELPER WORKSPACE SCRIPT` is a server that runs a script in
//! a sandbox, to be killed; BACKEND is `native` or `bwrap`, HOST is what it may reach, or `-`.

mod attacks;
mod tries;

use std::path::PathBuf;
use std::process::ExitCode;

use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Command, HostRule, Runner, RunnerLimits};
use evenkeel_env::Env;
use evenkeel_sandbox::{HelperProgram, Isolation, Launcher, SandboxConfig};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["inside", pid, port, socket] => attacks::all(&attacks::Outside {
            pid: pid.parse().unwrap_or(0),
            port: (*port).to_owned(),
            socket: (*socket).to_owned(),
        }),
        ["serve", backend, host, helper, workspace, script] => {
            let isolation = if *backend == "bwrap" { Isolation::Bubblewrap } else { Isolation::Native };
            let hosts = Some(*host).filter(|host| *host != "-");
            return serve(isolation, hosts, helper, (workspace, script));
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn serve(
    isolation: Isolation,
    host: Option<&str>,
    helper: &str,
    (workspace, script): (&str, &str),
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async {
        let helper = HelperProgram::Path(PathBuf::from(helper));
        let config = SandboxConfig { helper, isolation, ..SandboxConfig::default() };
        let env = Env::real();
        let launcher = Launcher::start(&env, config).expect("the sandbox is available");
        let exit = launcher
            .run(Command {
                tenant: TenantId("test".to_owned()),
                run: RunId::new(env.wall(), &env.generator),
                argv: ["sh", "-c", script].map(str::to_owned).into(),
                workspace: PathBuf::from(workspace),
                read_only: false,
                cwd: String::new(),
                env: Vec::new(),
                stdin: Vec::new(),
                limits: RunnerLimits::default(),
                hosts: host
                    .map(|host| HostRule::try_from(host.to_owned()).expect("a host"))
                    .into_iter()
                    .collect(),
            })
            .await;
        println!("{exit:?}");
    });
    ExitCode::SUCCESS
}
