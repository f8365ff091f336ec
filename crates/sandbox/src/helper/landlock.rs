//! Landlock: the second lock on files. Whatever a mistake in the mounts or the kernel might show,
//! a command writes only to its workspace and its private directories.

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};

use super::root;
use crate::wire::{Failure, Step};

/// The newest version whose rights are asked for; older kernels give what they have.
const NEWEST: ABI = ABI::V6;

/// Restricts this process and all of its children. False when the kernel has no Landlock.
pub(super) fn restrict(workspace_read_only: bool) -> Result<bool, Failure> {
    let read = AccessFs::from_read(NEWEST);
    let all = AccessFs::from_all(NEWEST) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let write_existing = read | AccessFs::WriteFile | AccessFs::Truncate;
    let workspace = if workspace_read_only { read } else { all };
    let rules = [
        ("/", read),
        (root::WORKSPACE, workspace),
        ("/tmp", all),
        ("/dev", write_existing),
        ("/proc", write_existing),
    ];
    restrict_to(&rules).step("restrict files with Landlock")
}

fn restrict_to(rules: &[(&str, BitFlags<AccessFs>)]) -> Result<bool, Box<dyn std::error::Error>> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
        .create()?;
    for (path, access) in rules {
        ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, *access))?;
    }
    Ok(ruleset.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}
