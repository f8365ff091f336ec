//! Cgroups: memory, processes and processor time of a whole command, on version 1 or 2, where we may write.
//!
//! A keeper enters its cgroup once, and every command it runs is born there: moving a process
//! into a cgroup waits for all processors and is the slow part.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_core::port::runner::RunnerLimits;

const ROOT: &str = "/sys/fs/cgroup";
const PARENT: &str = "evenkeel";

/// What the keeper, pid 1 and perhaps bubblewrap themselves need beside the command.
const OWN_MEMORY_BYTES: u64 = 8 << 20;
const OWN_PROCESSES: u64 = 3;

/// Where our cgroups are made.
pub(super) struct Hierarchy {
    version: Version,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    V1,
    V2,
}

/// The cgroup of one keeper.
pub(super) struct Cgroup {
    /// What is set, when it is known.
    limited: Cell<Option<Limits>>,
    version: Version,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
}

/// What a cgroup can limit of a command.
#[derive(Clone, Copy, PartialEq)]
struct Limits {
    memory_bytes: u64,
    processes: u64,
    cpu_percent: u64,
}

impl Limits {
    fn of(limits: &RunnerLimits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes,
            processes: limits.processes,
            cpu_percent: limits.cpu_percent,
        }
    }
}

impl Hierarchy {
    /// The hierarchy of this host, if it has one that we may write to.
    pub(super) fn find() -> Option<Self> {
        let hierarchy = if Path::new(ROOT).join("cgroup.controllers").exists() {
            let parent = unified_parent();
            let cpu = parent.clone().filter(|parent| enabled(parent, "cpu"));
            Self { version: Version::V2, memory: parent.clone(), pids: parent, cpu }
        } else {
            let (memory, pids, cpu) = (v1_parent("memory"), v1_parent("pids"), v1_parent("cpu"));
            Self { version: Version::V1, memory, pids, cpu }
        };
        (hierarchy.memory.is_some() || hierarchy.pids.is_some()).then_some(hierarchy)
    }

    /// Makes the cgroup of a keeper.
    pub(super) fn create(&self, slot: u32) -> io::Result<Cgroup> {
        let name = format!("{}-{slot}", std::process::id());
        let create = |parent: &Option<PathBuf>| {
            let path = parent.as_ref().map(|parent| parent.join(&name));
            path.map(|path| make(&path).map(|()| path)).transpose()
        };
        let (memory, pids, cpu) = (create(&self.memory)?, create(&self.pids)?, create(&self.cpu)?);
        Ok(Cgroup { limited: Cell::new(None), version: self.version, memory, pids, cpu })
    }

    /// Removes what a killed server left behind. Those of a living helper stay: it may just have
    /// made one that its keeper has not entered yet.
    pub(super) fn sweep(&self) {
        for parent in [&self.memory, &self.pids, &self.cpu].into_iter().flatten() {
            let entries = fs::read_dir(parent).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()).filter(|path| !is_of_living_helper(path)) {
                // Fails for files and for cgroups that still have processes, which is right.
                let _ = fs::remove_dir(path);
            }
        }
    }
}

/// The name of a cgroup begins with the pid of the nursery that made it.
fn is_of_living_helper(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split_once('-').is_some_and(|(pid, _)| Path::new("/proc").join(pid).exists())
}

impl Cgroup {
    pub(super) fn bounds_memory(&self) -> bool {
        self.memory.is_some()
    }

    pub(super) fn bounds_processes(&self) -> bool {
        self.pids.is_some()
    }

    pub(super) fn bounds_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Moves this process in; its children are born there.
    pub(super) fn enter(&self) -> io::Result<()> {
        for path in self.paths() {
            fs::write(path.join("cgroup.procs"), "0")?;
        }
        Ok(())
    }

    /// Sets the limits of the next command. Those that the last one had are set already: the kernel
    /// takes its time to set them.
    pub(super) fn limit(&self, limits: &RunnerLimits) -> io::Result<()> {
        let limits = Limits::of(limits);
        if self.limited.take() != Some(limits) {
            self.set(limits)?;
        }
        self.limited.set(Some(limits));
        Ok(())
    }

    fn set(&self, limits: Limits) -> io::Result<()> {
        if let Some(pids) = &self.pids {
            let max = limits.processes.saturating_add(OWN_PROCESSES);
            fs::write(pids.join("pids.max"), max.to_string())?;
        }
        if let Some(cpu) = &self.cpu {
            limit_cpu(self.version, cpu, limits.cpu_percent)?;
        }
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let max = limits.memory_bytes.saturating_add(OWN_MEMORY_BYTES).to_string();
        match self.version {
            Version::V1 => limit_v1(memory, &max),
            Version::V2 => {
                // Absent without swap.
                let _ = fs::write(memory.join("memory.swap.max"), "0");
                fs::write(memory.join("memory.max"), max)
            }
        }
    }

    /// How many processes the kernel has killed here for memory.
    pub(super) fn n_killed_for_memory(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = self.memory.as_ref().and_then(|memory| fs::read_to_string(memory.join(file)).ok());
        let line =
            text.as_deref().into_iter().flat_map(str::lines).find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes it, after its processes have ended.
    pub(super) fn remove(&self) {
        for path in self.paths() {
            let _ = fs::remove_dir(path);
        }
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let shared = self.version == Version::V2;
        self.memory.iter().chain(self.pids.iter().chain(&self.cpu).filter(move |_| !shared))
    }
}

/// A share of processor time in each period of a tenth of a second.
fn limit_cpu(version: Version, cpu: &Path, percent: u64) -> io::Result<()> {
    const PERIOD_US: u64 = 100_000;
    let quota_us = (PERIOD_US / 100).saturating_mul(percent).max(1_000);
    match version {
        Version::V1 => {
            fs::write(cpu.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(cpu.join("cpu.cfs_quota_us"), quota_us.to_string())
        }
        Version::V2 => fs::write(cpu.join("cpu.max"), format!("{quota_us} {PERIOD_US}")),
    }
}

fn limit_v1(memory: &Path, max: &str) -> io::Result<()> {
    // With swap accounting the limit of both together may never be below that of memory alone.
    let both = memory.join("memory.memsw.limit_in_bytes");
    let only = memory.join("memory.limit_in_bytes");
    if both.exists() {
        let _ = fs::write(&both, "-1");
    }
    if fs::write(&only, max).is_err() {
        // The last command left more in the page cache than this one may use: let go of it.
        fs::write(memory.join("memory.force_empty"), "0")?;
        fs::write(&only, max)?;
    }
    if both.exists() {
        fs::write(&both, max)?;
    }
    Ok(())
}

/// The cgroup of ours on version 1, below our own one, or below what is mounted when that is not
/// visible from here.
fn v1_parent(controller: &str) -> Option<PathBuf> {
    let root = Path::new(ROOT).join(controller);
    let own = own_path(|controllers| controllers.split(',').any(|name| name == controller))?;
    let below = root.join(own.trim_start_matches('/'));
    let parent = if below.is_dir() { below } else { root }.join(PARENT);
    make(&parent).ok()?;
    Some(parent)
}

/// The cgroup of ours on version 2: below our own one, or beside it when processes live there,
/// which the rules of version 2 do not let share.
fn unified_parent() -> Option<PathBuf> {
    let own = own_path(str::is_empty)?;
    let own = Path::new(ROOT).join(own.trim_start_matches('/'));
    let above = own.parent().filter(|above| above.starts_with(ROOT));
    [Some(own.as_path()), above].into_iter().flatten().find_map(with_controllers)
}

fn with_controllers(base: &Path) -> Option<PathBuf> {
    const CONTROLLERS: &str = "+memory +pids";
    // Refused when the base holds processes; they may be enabled already. Processor time is asked
    // for by itself: a host may have kept that one back.
    let _ = fs::write(base.join("cgroup.subtree_control"), CONTROLLERS);
    let _ = fs::write(base.join("cgroup.subtree_control"), "+cpu");
    let parent = base.join(PARENT);
    make(&parent).ok()?;
    if fs::write(parent.join("cgroup.subtree_control"), CONTROLLERS).is_err() {
        let _ = fs::remove_dir(&parent);
        return None;
    }
    let _ = fs::write(parent.join("cgroup.subtree_control"), "+cpu");
    Some(parent)
}

/// Whether the children of a cgroup have this controller.
fn enabled(parent: &Path, controller: &str) -> bool {
    let text = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
    text.split_whitespace().any(|name| name == controller)
}

/// Our own path in the hierarchy whose controllers match.
fn own_path(matches: impl Fn(&str) -> bool) -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        matches(controllers).then(|| path.to_owned())
    })
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
