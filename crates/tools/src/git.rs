//! Git as the host runs it: over a directory of our own, with a configuration of our own, without
//! hooks, monitors, helpers or prompts, and only over the protocols that are named.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// Bytes of git's messages and of its output that are read.
const OUTPUT_MAX: u64 = 1 << 20;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const SETTINGS: [&str; 7] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=true",
    "protocol.ext.allow=never",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=30",
    // A redirect would lead past the checks of the address.
    "http.followRedirects=false",
];

/// One call of git.
pub(crate) struct Git {
    command: Command,
    input: Vec<u8>,
    limit: Duration,
}

impl Git {
    /// Git in this directory, which is also its home, with these protocols (`https`, `file`, ...).
    pub(crate) fn new(directory: &Path, protocols: &str, limit: Duration) -> Self {
        let mut command = evenkeel_env::process::command("git");
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command
            .env("PATH", PATH)
            .env("HOME", directory)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "/bin/false")
            .env("GIT_SSH_COMMAND", "/bin/false")
            .env("GIT_ALLOW_PROTOCOL", protocols)
            .env("GIT_LFS_SKIP_SMUDGE", "1")
            .env("LC_ALL", "C")
            .current_dir(directory)
            .process_group(0);
        Self { command, input: Vec::new(), limit }
    }

    /// One more setting, as `key=value`.
    pub(crate) fn set(mut self, setting: &str) -> Self {
        self.command.args(["-c", setting]);
        self
    }

    /// Further arguments.
    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// A variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// What it reads.
    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// Runs it; what it prints, or why it failed in git's own words.
    pub(crate) async fn run(mut self) -> Result<String, String> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().map_err(|error| format!("git does not start: {error}"))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        let _killed = KillGroup(group);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let talking = async {
            let write = async {
                if let Some(mut stdin) = stdin {
                    // Git may end without having read all; its status tells.
                    let _ = stdin.write_all(&self.input).await;
                }
            };
            let ((), printed, messages) = tokio::join!(write, all(stdout), all(stderr));
            (child.wait().await, printed, messages)
        };
        let ended = tokio::time::timeout(self.limit, talking).await;
        let (status, printed, messages) =
            ended.map_err(|_| format!("it took longer than {} s", self.limit.as_secs()))?;
        match status {
            Ok(status) if status.success() => Ok(String::from_utf8_lossy(&printed).into_owned()),
            Ok(_) => Err(last_line(&messages)),
            Err(error) => Err(error.to_string()),
        }
    }
}

async fn all(from: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = (&mut from).take(OUTPUT_MAX).read_to_end(&mut bytes).await;
        // Whatever more it says is read and thrown away, so that it is not stopped by a full pipe.
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    bytes
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let telling = |line: &&str| line.starts_with("fatal:") || line.starts_with("error:");
    let line = text.lines().rev().find(telling).or_else(|| text.lines().last());
    let line = line.unwrap_or("git gave no reason");
    line.trim_start_matches("fatal: ").trim_start_matches("error: ").trim_end_matches('.').to_owned()
}

/// Kills what git started when it is given up. A group that has ended is not found.
struct KillGroup(Option<rustix::process::Pid>);

impl Drop for KillGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}
