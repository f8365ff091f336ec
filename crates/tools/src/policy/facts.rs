//! Facts: what a call would do, in the words of the policy schema.

use cedar_policy::RestrictedExpression;
use evenkeel_core::port::runner::HostRule;

use super::shell::Part;

/// One thing that a call would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// Reads what is at a resolved path.
    Read(String),
    /// Writes or deletes what is at a resolved path.
    Write(String),
    /// Commits what is at a path.
    Commit(String),
    /// Reads or writes, by a redirection of the shell, what is at a path that only the shell knows.
    Unknown { path: String, writes: bool },
    /// Runs one simple command.
    Exec(Part, Network),
    /// Lets a command reach a host on its list.
    Connect(HostRule),
    /// Calls a tool of a foreign server.
    Call { server: String, tool: String, read_only: bool },
}

/// What a command may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Nothing.
    None,
    /// The hosts on a list.
    Listed,
}

impl Network {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Listed => "listed",
        }
    }
}

impl Fact {
    pub(crate) fn read(path: &str) -> Self {
        Self::Read(path.to_owned())
    }

    pub(crate) fn write(path: &str) -> Self {
        Self::Write(path.to_owned())
    }

    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Commit(_) => "commit",
            Self::Unknown { writes: false, .. } => "read",
            Self::Unknown { writes: true, .. } => "write",
            Self::Exec(..) => "exec",
            Self::Connect(_) => "connect",
            Self::Call { .. } => "call",
        }
    }

    pub(super) fn resource_type(&self) -> &'static str {
        match self {
            Self::Read(_) | Self::Write(_) | Self::Commit(_) | Self::Unknown { .. } => "Path",
            Self::Exec(..) => "Command",
            Self::Connect(_) => "Host",
            Self::Call { .. } => "McpTool",
        }
    }

    /// The resource as it is named in reasons, and as its id.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Read(path) | Self::Write(path) | Self::Commit(path) => shown_path(path).to_owned(),
            Self::Unknown { path, .. } => path.clone(),
            Self::Exec(part, _) => format!("`{}`", part.line().chars().take(200).collect::<String>()),
            Self::Connect(rule) => rule.to_string(),
            Self::Call { server, tool, .. } => format!("{server}/{tool}"),
        }
    }

    pub(super) fn attributes(&self) -> Vec<(String, RestrictedExpression)> {
        match self {
            Self::Read(path) | Self::Write(path) | Self::Commit(path) => path_attributes(path, true),
            Self::Unknown { path, .. } => path_attributes(path, false),
            Self::Connect(rule) => vec![
                pair("name", text(&rule.name)),
                pair("below", flag(rule.below)),
                // Without a port of its own a rule is for both of the web's; the one with TLS stands for them.
                pair("port", RestrictedExpression::new_long(rule.port.unwrap_or(443).into())),
                pair("private", flag(rule.private)),
            ],
            Self::Exec(part, _) => vec![
                pair("program", text(&part.program)),
                pair("name", text(crate::beneath::split(&part.program).1)),
                pair("args", RestrictedExpression::new_set(part.args.iter().map(|arg| text(arg)))),
                pair("line", text(&part.line())),
                pair("parsed", flag(part.parsed)),
                pair("credential", flag(part.args.iter().any(|arg| names_credential(arg)))),
            ],
            Self::Call { server, tool, read_only } => vec![
                pair("server", text(server)),
                pair("tool", text(tool)),
                pair("read_only", flag(*read_only)),
            ],
        }
    }

    pub(super) fn context(&self, tool: &str) -> Vec<(String, RestrictedExpression)> {
        let mut pairs = vec![pair("tool", text(tool))];
        if let Self::Exec(_, network) = self {
            pairs.push(pair("network", text(network.as_str())));
        }
        pairs
    }
}

fn path_attributes(path: &str, is_known: bool) -> Vec<(String, RestrictedExpression)> {
    vec![
        pair("path", text(shown_path(path))),
        pair("name", text(crate::beneath::split(path).1)),
        pair("known", flag(is_known)),
        pair("git_dir", flag(is_git_dir(path))),
        pair("credential", flag(is_credential(path))),
    ]
}

fn pair(name: &str, value: RestrictedExpression) -> (String, RestrictedExpression) {
    (name.to_owned(), value)
}

fn text(text: &str) -> RestrictedExpression {
    RestrictedExpression::new_string(text.to_owned())
}

fn flag(flag: bool) -> RestrictedExpression {
    RestrictedExpression::new_bool(flag)
}

fn shown_path(path: &str) -> &str {
    if path.is_empty() { "." } else { path }
}

fn is_git_dir(path: &str) -> bool {
    path.split('/').any(|part| part.eq_ignore_ascii_case(".git"))
}

const CREDENTIAL_DIRECTORIES: &[&str] =
    &[".ssh", ".aws", ".gnupg", ".kube", ".azure", ".docker", ".config/gcloud"];

const CREDENTIAL_NAMES: &[&str] = &[
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "credentials.json",
    "service-account.json",
];

const KEY_ENDINGS: &[&str] = &[".pem", ".p12", ".pfx", ".ppk", ".keystore", ".jks"];

/// Whether a path looks like a file that holds a key or a password. `.env` is not among them:
/// agents are asked to write and repair it, and it is in the repository because its owner put it
/// there.
pub(crate) fn is_credential(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let name = crate::beneath::split(&path).1;
    is_credential_place(&path) || KEY_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The same for an argument of a command, which may be anything: key files by their ending are
/// not counted, because commands also make such files and name patterns of them.
fn names_credential(arg: &str) -> bool {
    let arg = arg.to_ascii_lowercase();
    let value = arg.rsplit_once(['=', '@', ':']).map_or(arg.as_str(), |(_, value)| value);
    !value.starts_with('-') && is_credential_place(value.trim_start_matches("./"))
}

fn is_credential_place(path: &str) -> bool {
    let inside = |directory: &&str| {
        path.starts_with(&format!("{directory}/")) || path.contains(&format!("/{directory}/"))
    };
    let name = crate::beneath::split(path).1;
    CREDENTIAL_NAMES.contains(&name)
        || CREDENTIAL_DIRECTORIES.iter().any(inside)
        || path == ".git/config"
        || path.ends_with("/.git/config")
        || path.ends_with(".git/credentials")
}
