//! The last steps of a command's own process, and the jump into its program.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evenkeel_core::port::runner::RunnerLimits;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{priority, sys};
use crate::config::Isolation;
use crate::wire::Request;

const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of every command; its own variables come on top.
const BASE_ENVIRONMENT: &[(&str, &str)] =
    &[("PATH", SEARCH_PATH), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8"), ("TERM", "dumb")];

/// Exit codes of shells for a program that cannot be run, and for one that does not exist.
const CANNOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Standard input, output and error.
pub(super) type Stdio = [OwnedFd; 3];

/// What cannot be told by an exit status alone, said on the command's own stderr.
struct Refusal {
    code: i32,
    message: String,
}

/// Becomes the program. Everything that isolates is in force already.
pub(super) fn become_program(
    request: &Request,
    stdio: &Stdio,
    isolation: Isolation,
    memory_bounded: bool,
) -> ! {
    let refusal = match prepare(request, stdio, isolation, memory_bounded) {
        Ok(never) => match never {},
        Err(refusal) => refusal,
    };
    eprintln!("sandbox: {}", refusal.message);
    sys::exit_now(refusal.code)
}

fn prepare(
    request: &Request,
    stdio: &Stdio,
    isolation: Isolation,
    memory_bounded: bool,
) -> Result<std::convert::Infallible, Refusal> {
    // A session of its own: no terminal, and signals to its group reach nobody else.
    let _ = rustix::process::setsid();
    priority::stand_in_line();
    sys::reset_signals();
    for (target, fd) in (0..).zip(stdio) {
        sys::become_stdio(fd, target).map_err(|error| refusal("its pipes", &error))?;
    }
    let base = match isolation {
        Isolation::Native | Isolation::Bubblewrap => Path::new(super::root::WORKSPACE),
        Isolation::None => request.workspace.as_path(),
    };
    let cwd = base.join(&request.cwd);
    rustix::process::chdir(&cwd)
        .map_err(|error| refusal(&format!("the directory {}", cwd.display()), &error))?;
    // When memory runs out, the kernel takes the command before its keeper.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let (program, argv, env) = arguments(request)?;
    limit(&request.limits, memory_bounded).map_err(|error| refusal("its limits", &error))?;
    sys::close_from_at_exec(3);
    Err(refusal(&program.to_string_lossy(), &sys::exec(&program, &argv, &env)))
}

fn refusal(what: &str, error: &dyn std::fmt::Display) -> Refusal {
    Refusal { code: CANNOT_RUN, message: format!("{what}: {error}") }
}

type Arguments = (CString, Vec<CString>, Vec<CString>);

fn arguments(request: &Request) -> Result<Arguments, Refusal> {
    let name = request.argv.first().map(String::as_str).unwrap_or_default();
    let program = find(name)
        .ok_or_else(|| Refusal { code: NOT_FOUND, message: format!("{name}: command not found") })?;
    let argv = request.argv.iter().map(c_string).collect::<Result<_, _>>()?;
    Ok((c_string(program.as_os_str())?, argv, environment(&request.env)?))
}

fn environment(own: &[(String, String)]) -> Result<Vec<CString>, Refusal> {
    let is_own = |name: &str| own.iter().any(|(own_name, _)| own_name == name);
    let base = BASE_ENVIRONMENT.iter().copied().filter(|(name, _)| !is_own(name));
    let own = own.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    base.chain(own).map(|(name, value)| c_string(format!("{name}={value}"))).collect()
}

fn c_string(text: impl AsRef<OsStr>) -> Result<CString, Refusal> {
    CString::new(text.as_ref().as_bytes()).map_err(|error| refusal("an argument or a variable", &error))
}

/// The file that a program name means; relative to the current directory if it has a slash.
fn find(name: &str) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    if name.contains('/') {
        // What is not there or not a program is told by exec, more exactly.
        return Path::new(name).exists().then(|| PathBuf::from(name));
    }
    SEARCH_PATH.split(':').map(|directory| Path::new(directory).join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn limit(limits: &RunnerLimits, memory_bounded: bool) -> rustix::io::Result<()> {
    let set = |resource, soft: u64, hard: u64| {
        // An ordinary user's own hard limit may already be lower; it stays.
        let cap = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let (current, maximum) = (Some(soft.min(cap)), Some(hard.min(cap)));
        setrlimit(resource, Rlimit { current, maximum })
    };
    // At the soft limit comes a signal that says why, one second later one that cannot be ignored.
    set(Resource::Cpu, limits.cpu_s, limits.cpu_s.saturating_add(1))?;
    // One file may not be larger than everything together: that much of it the kernel itself bounds.
    let file_bytes = limits.file_bytes.min(limits.workspace_bytes);
    set(Resource::Fsize, file_bytes, file_bytes)?;
    set(Resource::Nofile, limits.open_files, limits.open_files)?;
    set(Resource::Core, 0, 0)?;
    set(Resource::Memlock, 64 << 10, 64 << 10)?;
    set(Resource::Msgqueue, 64 << 10, 64 << 10)?;
    if !memory_bounded {
        // What a process may write to; reserved address space, which many runtimes take by the
        // gigabyte and never use, does not count.
        set(Resource::Data, limits.memory_bytes, limits.memory_bytes)?;
    }
    // Counted in the sandbox's own user namespace; pid 1 is one of them.
    let processes = limits.processes.saturating_add(1);
    set(Resource::Nproc, processes, processes)
}
