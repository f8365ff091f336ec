//! What an operator can choose about the sandbox.

use std::collections::BTreeSet;
use std::path::{Component, PathBuf};

use evenkeel_core::port::runner::RunnerLimits;
use evenkeel_core::{Code, Error, Origin};
use serde::{Deserialize, Serialize};

/// The `[sandbox]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// How commands are isolated.
    pub isolation: Isolation,
    /// Mechanisms that may be absent. With an empty list a host that lacks any one is refused.
    pub allow_degraded: BTreeSet<Degradable>,
    /// What a command may use unless its caller says otherwise.
    pub limits: RunnerLimits,
    /// Directories of the host shown read-only at the same path besides the system directories
    /// (toolchains under `/opt`, for example). Everything in them is readable by every run.
    pub read_only_paths: Vec<PathBuf>,
    /// Keepers held ready between commands.
    pub warm: usize,
    /// The program that runs as the helper; not part of the file.
    #[serde(skip)]
    pub helper: HelperProgram,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            isolation: Isolation::Native,
            allow_degraded: Degradable::ALL.into_iter().collect(),
            limits: RunnerLimits::default(),
            read_only_paths: Vec::new(),
            warm: 16,
            helper: HelperProgram::CurrentExe,
        }
    }
}

/// Places of a sandbox's own, which would hide a directory of the host at the same path.
const OWN_PLACES: [&str; 5] = ["/tmp", "/dev", "/proc", "/etc", evenkeel_core::port::runner::WORKSPACE];

impl SandboxConfig {
    /// Refuses what could not be shown: a run that misses a toolchain fails in ways that name
    /// everything but the cause.
    ///
    /// # Errors
    /// `config-invalid` for the first such directory.
    pub fn check(&self) -> Result<(), Error> {
        for path in &self.read_only_paths {
            let problem = if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir)
            {
                "is not an absolute path without `..`"
            } else if path.parent().is_none() || OWN_PLACES.iter().any(|place| path.starts_with(place)) {
                "is a place of the sandbox's own"
            } else if !path.is_dir() {
                "is not a directory"
            } else {
                continue;
            };
            return Err(Error::new(
                Code::ConfigInvalid,
                Origin::Ours,
                format!("sandbox.read_only_paths names {}, which {problem}.", path.display()),
                "Name directories of toolchains, such as /opt/node, or remove the entry.",
            ));
        }
        Ok(())
    }
}

/// How commands are isolated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Our own launcher: namespaces, a read-only root, Landlock, seccomp, limits.
    #[default]
    Native,
    /// The same view and the same locks, in namespaces that the program `bwrap` makes. Slower, and
    /// without a user of the host for each sandbox; for hosts on which only `bwrap` may make them.
    #[serde(rename = "bwrap")]
    Bubblewrap,
    /// None: commands run as the server's user with its files and network. Limits still hold as
    /// far as resource limits reach. Only for hosts that are themselves thrown away.
    None,
}

/// A mechanism without which the sandbox is weaker but still one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Degradable {
    /// Landlock: the second lock on files, behind the read-only root.
    Landlock,
    /// A cgroup that bounds the memory of all processes of a command together. Without it the
    /// bound holds for each process alone.
    CgroupMemory,
    /// A cgroup that bounds the number of processes. Without it `RLIMIT_NPROC` does.
    CgroupPids,
    /// A cgroup that bounds the processor time of a command in each moment. Without it commands
    /// share the processors as the kernel sees fit.
    CgroupCpu,
    /// A user id of the host that nothing else uses. Without it commands keep the id of the
    /// server's user, without any of its capabilities.
    OwnUser,
}

impl Degradable {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Landlock, Self::CgroupMemory, Self::CgroupPids, Self::CgroupCpu, Self::OwnUser];

    /// The name used in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::CgroupMemory => "cgroup_memory",
            Self::CgroupPids => "cgroup_pids",
            Self::CgroupCpu => "cgroup_cpu",
            Self::OwnUser => "own_user",
        }
    }
}

/// The program that is started as the helper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HelperProgram {
    /// This program again: its `main` calls [`helper_main`](crate::helper_main) first.
    #[default]
    CurrentExe,
    /// Another one, for test binaries, whose `main` is not ours.
    Path(PathBuf),
}

impl HelperProgram {
    /// The `evenkeel-sandbox-helper` that cargo built beside the running test or example.
    #[must_use]
    pub fn beside_current_exe() -> Option<Self> {
        let exe = std::env::current_exe().ok()?;
        exe.ancestors()
            .skip(1)
            .take(3)
            .map(|dir| dir.join("evenkeel-sandbox-helper"))
            .find(|path| path.is_file())
            .map(Self::Path)
    }

    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::CurrentExe => PathBuf::from("/proc/self/exe"),
            Self::Path(path) => path.clone(),
        }
    }
}
