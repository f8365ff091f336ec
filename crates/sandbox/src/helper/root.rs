//! What a command sees of the file system.
//!
//! A fresh root in memory holds read-only views of the system directories, a few generated files
//! in `/etc`, five devices, a private `/tmp`, its own `/proc`, and the workspace. Nothing else of
//! the host exists in it, and the old root is unmounted before anything of the command runs.
//!
//! What commands have in common is built ahead ([`Sources::gather`], [`build`]); a command's own
//! places are added when it comes ([`complete`]). Under a server that runs as root the keeper takes
//! the views, because the sandbox's user may not even reach the workspace's path on the host; the
//! old root is then left ahead ([`enter`]), which waits for all processors and is the slow part.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, statat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};
use rustix::process::{fchdir, pivot_root};

use super::sys::{self, MountChange};
use crate::wire::{Failure, Step};

pub(super) const WORKSPACE: &str = evenkeel_core::port::runner::WORKSPACE;

/// Shown when they exist: as the same link, or as a read-only view.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Directories of `/etc` without which programs under `/usr` do not work. None holds a secret.
const ETC_DIRECTORIES: &[&str] = &[
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/fonts",
];

/// Files of `/etc` that are copied.
const ETC_COPIES: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/os-release",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/openssl.cnf",
    "/etc/inputrc",
];

/// Files of `/etc` that say nothing about the host.
const ETC_GENERATED: &[(&str, &str)] = &[
    (
        "/etc/passwd",
        "root:x:0:0:root:/tmp:/usr/sbin/nologin\n\
         sandbox:x:1000:1000:sandbox:/tmp:/bin/bash\n\
         nobody:x:65534:65534:nobody:/tmp:/usr/sbin/nologin\n",
    ),
    ("/etc/group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("/etc/hostname", "sandbox\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("/etc/resolv.conf", ""),
    ("/etc/shells", "/bin/sh\n/bin/bash\n"),
];

pub(super) const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

pub(super) const LINKS: &[(&str, &str)] = &[
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    // One private directory with one size limit is enough.
    ("/tmp", "/dev/shm"),
    ("/proc/mounts", "/etc/mtab"),
];

/// Parts of `/proc` through which the host could be changed if file permissions failed to hold.
const PROC_READ_ONLY: &[&str] = &["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"];

/// Where the new root is mounted until it takes the old one's place: a directory that exists on
/// every host and under which no workspace lies, because it is hidden from then on.
const STAGES: [&str; 2] = ["/sys", "/usr"];

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const WRITABLE: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const DEVICE: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;

/// What is the same for every command; read once.
pub(super) struct Plan {
    links: Vec<(PathBuf, &'static str)>,
    directories: Vec<PathBuf>,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Plan {
    /// Looks at the host. Paths that do not exist are left out.
    pub(super) fn new(extra: &[PathBuf]) -> Self {
        let mut plan = Self { links: Vec::new(), directories: Vec::new(), files: Vec::new() };
        for path in SYSTEM {
            match fs::read_link(path) {
                Ok(target) => plan.links.push((target, path)),
                Err(_) => plan.directories.extend(directory(Path::new(path))),
            }
        }
        plan.directories.extend(ETC_DIRECTORIES.iter().filter_map(|path| directory(Path::new(path))));
        plan.directories.extend(java_configuration());
        plan.directories.extend(extra.iter().filter_map(|path| directory(path)));
        let copies = ETC_COPIES.iter().filter_map(|path| Some((*path, fs::read(path).ok()?)));
        plan.files.extend(copies);
        plan.files.extend(ETC_GENERATED.iter().map(|(path, text)| (*path, text.as_bytes().to_vec())));
        plan
    }
}

impl Plan {
    /// Links: what each leads to, and where it is.
    pub(super) fn links(&self) -> impl Iterator<Item = (&Path, &'static str)> {
        self.links.iter().map(|(target, link)| (target.as_path(), *link))
    }

    /// Directories that are shown read-only at their own path.
    pub(super) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Files with their content.
    pub(super) fn files(&self) -> &[(&'static str, Vec<u8>)] {
        &self.files
    }
}

/// Tightens a view that bubblewrap has made to what [`build`] and [`complete`] make.
pub(super) fn tighten(tmp_bytes: u64) -> Result<(), Failure> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, "/", flags | OFlags::DIRECTORY, Mode::empty()).step("open the root")?;
    for path in DEVICES {
        let device = openat(CWD, *path, flags, Mode::empty()).step(&format!("open {path}"))?;
        let change = MountChange { set: DEVICE, ..MountChange::default() };
        sys::change_mount(&device, change).step(&format!("protect {path}"))?;
    }
    for path in PROC_READ_ONLY {
        protect(&root, Path::new(path)).step("protect /proc")?;
    }
    attach(&private(tmp_bytes).step("mount /tmp")?, &root, Path::new("/tmp")).step("mount /tmp")
}

/// The private directory of one command.
fn private(bytes: u64) -> io::Result<OwnedFd> {
    // An inode costs the kernel about a kilobyte that no size limit counts.
    let n_inodes = (bytes / 4096).clamp(1024, 1 << 18);
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    memory(&bytes.to_string(), &n_inodes.to_string(), "1777", flags)
}

fn directory(path: &Path) -> Option<PathBuf> {
    path.is_dir().then(|| path.to_owned())
}

/// Debian's Java keeps part of its installation in `/etc`.
fn java_configuration() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        name.starts_with("java-") && path.is_dir()
    })
}

/// Views of the host's system directories and devices, not mounted anywhere yet.
pub(super) struct Sources {
    views: Vec<View>,
}

/// A view of one directory or file.
pub(super) struct View {
    tree: OwnedFd,
    target: PathBuf,
    is_directory: bool,
}

impl Sources {
    /// Takes every view that commands have in common.
    pub(super) fn gather(plan: &Plan) -> Result<Self, Failure> {
        let mut views = Vec::new();
        for path in &plan.directories {
            let change = MountChange { set: READ_ONLY, recursive: true, id_map: None };
            views.push(View::take(path, path, change)?);
        }
        for path in DEVICES {
            let change = MountChange { set: DEVICE, ..MountChange::default() };
            views.push(View { is_directory: false, ..View::take(Path::new(path), Path::new(path), change)? });
        }
        Ok(Self { views })
    }
}

/// Takes the view of a command's workspace. With a map it translates the owners of files.
pub(super) fn view_workspace(
    path: &Path,
    read_only: bool,
    id_map: Option<&OwnedFd>,
) -> Result<OwnedFd, Failure> {
    let read_only = if read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
    let change = MountChange { set: WRITABLE | read_only, id_map, recursive: id_map.is_none() };
    Ok(View::take(path, Path::new(WORKSPACE), change)?.tree)
}

impl View {
    fn take(path: &Path, target: &Path, change: MountChange<'_>) -> Result<Self, Failure> {
        let step = || format!("show {}", path.display());
        let recursive = if change.recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | recursive;
        let tree = open_tree(CWD, path, flags).step(&step())?;
        sys::change_mount(&tree, change).step(&step())?;
        Ok(Self { tree, target: target.to_owned(), is_directory: true })
    }
}

/// What every root of one keeper shows, mounted nowhere and never written to again.
pub(super) struct Template {
    tree: OwnedFd,
}

impl Template {
    /// Builds it. Kernels before Linux 6.15 cannot work on trees that are mounted nowhere.
    pub(super) fn new(plan: &Plan) -> Result<Self, Failure> {
        let tree = new_root()?;
        furnish(&tree, plan, &Sources::gather(plan)?)?;
        for path in ["/proc", "/tmp", WORKSPACE] {
            make_directory(&tree, Path::new(path)).step("make directories")?;
        }
        let change = MountChange { set: READ_ONLY, ..MountChange::default() };
        sys::change_mount(&tree, change).step("make the new root read-only")?;
        let template = Self { tree };
        template.copy().map(|_| template)
    }

    /// A tree with the same mounts.
    pub(super) fn copy(&self) -> Result<OwnedFd, Failure> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        open_tree(&self.tree, "", flags).step("copy the root")
    }
}

/// What the root of one sandbox is made from.
pub(super) enum Material {
    /// A copy of the keeper's template.
    Copy(OwnedFd),
    /// The views that go into it.
    Views(Sources),
}

/// Builds what commands have in common of the new root. The old one still surrounds it.
pub(super) fn build(plan: &Plan, material: Material) -> Result<OwnedFd, Failure> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).step("part from the host's mounts")?;
    let (root, sources) = match material {
        Material::Copy(tree) => (tree, None),
        Material::Views(sources) => (new_root()?, Some(sources)),
    };
    let stage = STAGES.into_iter().find(|stage| Path::new(stage).is_dir()).unwrap_or("/usr");
    move_mount(&root, "", CWD, stage, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step("mount the new root")?;
    if let Some(sources) = sources {
        furnish(&root, plan, &sources)?;
    }
    let proc = process_files().step("mount /proc")?;
    attach_directory(&proc, &root, "/proc").step("mount /proc")?;
    for path in PROC_READ_ONLY {
        protect(&root, Path::new(path)).step("protect /proc")?;
    }
    Ok(root)
}

/// Adds what is one command's own. Afterwards the root itself cannot be changed any more.
pub(super) fn complete(root: &OwnedFd, workspace: &OwnedFd, tmp_bytes: u64) -> Result<(), Failure> {
    attach_directory(&private(tmp_bytes).step("mount /tmp")?, root, "/tmp").step("mount /tmp")?;
    attach_directory(workspace, root, WORKSPACE).step("mount the workspace")?;
    // Only this mount itself; what is mounted on it keeps its own attributes.
    let change = MountChange { set: READ_ONLY, ..MountChange::default() };
    sys::change_mount(root, change).step("make the new root read-only")
}

/// Leaves the old root. Afterwards only the new one exists.
pub(super) fn enter(root: &OwnedFd) -> Result<(), Failure> {
    swap(root).step("enter the new root")
}

fn new_root() -> Result<OwnedFd, Failure> {
    memory("16m", "4096", "0755", MountAttrFlags::MOUNT_ATTR_NOSUID).step("mount the new root")
}

/// Puts everything into a new root that is not of one process or one command.
fn furnish(root: &OwnedFd, plan: &Plan, sources: &Sources) -> Result<(), Failure> {
    for (target, link) in &plan.links {
        symlinkat(target, root, relative(Path::new(link))).step("link the system directories")?;
    }
    for view in &sources.views {
        let step = || format!("mount {}", view.target.display());
        make_target(root, view).step(&step())?;
        attach(&view.tree, root, &view.target).step(&step())?;
    }
    fill(root, plan).step("write /etc")
}

fn attach_directory(tree: &OwnedFd, root: &OwnedFd, path: &str) -> io::Result<()> {
    make_directory(root, Path::new(path))?;
    attach(tree, root, Path::new(path))
}

/// Mounts a path of the new root over itself, read-only. Absent paths need no protection.
fn protect(root: &OwnedFd, path: &Path) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let Ok(tree) = open_tree(root, relative(path), flags) else {
        return Ok(());
    };
    let set = READ_ONLY | libc::MOUNT_ATTR_NOEXEC;
    sys::change_mount(&tree, MountChange { set, ..MountChange::default() })?;
    attach(&tree, root, path)
}

/// A file system in memory, not mounted anywhere yet.
fn memory(size: &str, n_inodes: &str, mode: &str, flags: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "size", size)?;
    fsconfig_set_string(&context, "nr_inodes", n_inodes)?;
    fsconfig_set_string(&context, "mode", mode)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

fn process_files() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Mounts a tree at a path of the new root.
fn attach(tree: &OwnedFd, root: &OwnedFd, target: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", root, relative(target), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn make_target(root: &OwnedFd, view: &View) -> io::Result<()> {
    if view.is_directory {
        return make_directory(root, &view.target);
    }
    write(root, &view.target, b"")
}

/// Makes a directory and those above it. One that is there already, perhaps in a view, is fine.
fn make_directory(root: &OwnedFd, path: &Path) -> io::Result<()> {
    let mut so_far = PathBuf::new();
    for part in relative(path) {
        so_far.push(part);
        if statat(root, &so_far, AtFlags::empty()).is_err() {
            mkdirat(root, &so_far, Mode::from(0o755))?;
        }
    }
    Ok(())
}

fn write(root: &OwnedFd, path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        make_directory(root, parent)?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(root, relative(path), flags, Mode::from(0o644))?;
    io::Write::write_all(&mut fs::File::from(file), bytes)
}

fn fill(root: &OwnedFd, plan: &Plan) -> io::Result<()> {
    for (path, bytes) in &plan.files {
        write(root, Path::new(path), bytes)?;
    }
    for (target, link) in LINKS {
        symlinkat(*target, root, relative(Path::new(link)))?;
    }
    Ok(())
}

/// Swaps the roots: the old one is stacked on the new one for a moment and then unmounted.
fn swap(root: &OwnedFd) -> io::Result<()> {
    fchdir(root)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}
