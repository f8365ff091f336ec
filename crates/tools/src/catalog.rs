//! The table of built-in tools: name, where it runs, effect class, schema, and words for the model.

use evenkeel_core::journal::EffectClass;
use evenkeel_core::message::ToolSpec;
use serde_json::{Value, json};

use crate::mcp::ServerKind;

/// Where a built-in tool runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// One of the built-in MCP servers.
    Server(ServerKind),
    /// A command in the sandbox.
    Shell,
    /// Ends the run; runs nothing.
    Finish,
}

/// A built-in tool.
pub(crate) struct BuiltinTool {
    pub(crate) name: &'static str,
    pub(crate) home: Home,
    pub(crate) class: EffectClass,
    pub(crate) description: &'static str,
    /// The properties of the arguments object.
    properties: fn() -> Value,
    required: &'static [&'static str],
}

impl BuiltinTool {
    /// JSON Schema of the arguments.
    pub(crate) fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": (self.properties)(),
            "required": self.required,
            "additionalProperties": false,
        })
    }

    pub(crate) fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            input_schema: self.schema(),
        }
    }
}

/// The built-in tool of this name.
pub(crate) fn find(name: &str) -> Option<&'static BuiltinTool> {
    BUILTIN.iter().find(|tool| tool.name == name)
}

/// The tools of one built-in server.
pub(crate) fn of_server(kind: ServerKind) -> impl Iterator<Item = &'static BuiltinTool> {
    BUILTIN.iter().filter(move |tool| tool.home == Home::Server(kind))
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn count(description: &str, minimum: u64, maximum: u64) -> Value {
    json!({"type": "integer", "description": description, "minimum": minimum, "maximum": maximum})
}

/// All of them, in the order in which they are offered.
pub(crate) static BUILTIN: &[BuiltinTool] = &[
    BuiltinTool {
        name: "bash",
        home: Home::Shell,
        class: EffectClass::Workspace,
        description: "Runs a shell command in a fresh sandbox that sees only the workspace (at /workspace) and the \
            installed programs; no network. Returns stdout, stderr and the exit code. `cd` and variables do not \
            last to the next call; background processes are killed when the command ends.",
        properties: || {
            json!({
                "command": text("The command, as for bash -c."),
                "cwd": text("Directory to start in, relative to the workspace. Default: the workspace."),
                "timeout_s": count("Seconds after which everything is killed. Default: the run's own limit.", 1, 3600),
            })
        },
        required: &["command"],
    },
    BuiltinTool {
        name: "read_file",
        home: Home::Server(ServerKind::Files),
        class: EffectClass::Pure,
        description: "Reads a text file with line numbers. At most 2000 lines at once; use offset and limit for more.",
        properties: || {
            json!({
                "path": text("Path relative to the workspace."),
                "offset": count("First line, from 1.", 1, u64::from(u32::MAX)),
                "limit": count("Lines to return.", 1, 10_000),
            })
        },
        required: &["path"],
    },
    BuiltinTool {
        name: "write_file",
        home: Home::Server(ServerKind::Files),
        class: EffectClass::Guarded,
        description: "Writes a whole file, new or not; missing directories are made. To change part of a file use \
            edit_file.",
        properties: || {
            json!({
                "path": text("Path relative to the workspace."),
                "content": text("The whole content."),
            })
        },
        required: &["path", "content"],
    },
    BuiltinTool {
        name: "edit_file",
        home: Home::Server(ServerKind::Files),
        class: EffectClass::Guarded,
        description: "Replaces text in a file. old_text must occur exactly once (or set replace_all) and match \
            exactly, white space included, without line numbers. Line endings, BOM and mode are kept.",
        properties: || {
            json!({
                "path": text("Path relative to the workspace."),
                "old_text": text("The text to replace."),
                "new_text": text("What replaces it."),
                "replace_all": {"type": "boolean", "description": "Replace every occurrence. Default: false."},
                "expected_hash": text("Refuse unless the file's hash, as read_file showed it, begins with this."),
            })
        },
        required: &["path", "old_text", "new_text"],
    },
    BuiltinTool {
        name: "apply_patch",
        home: Home::Server(ServerKind::Files),
        class: EffectClass::Guarded,
        description: "Applies a patch to several files: all of it, or nothing. Takes a unified diff, or the form \
            `*** Begin Patch` with `*** Add File: p`, `*** Delete File: p`, `*** Update File: p` (optionally \
            `*** Move to: q`), hunks introduced by `@@`, lines that begin with ` `, `-` or `+`, and `*** End Patch`.",
        properties: || json!({"patch": text("The patch.")}),
        required: &["patch"],
    },
    BuiltinTool {
        name: "grep",
        home: Home::Server(ServerKind::Grep),
        class: EffectClass::Pure,
        description: "Searches files for a regular expression (Rust syntax, as ripgrep), ignoring what .gitignore \
            names. Returns path:line:text.",
        properties: || {
            json!({
                "pattern": text("The regular expression."),
                "path": text("File or directory to search. Default: the workspace."),
                "glob": text("Only files whose path matches, for example **/*.rs"),
                "ignore_case": {"type": "boolean", "description": "Ignore case. Default: false."},
                "context": count("Lines to show before and after each match.", 0, 20),
                "max_matches": count("Matches at most. Default: 200.", 1, 2000),
            })
        },
        required: &["pattern"],
    },
    BuiltinTool {
        name: "glob",
        home: Home::Server(ServerKind::Files),
        class: EffectClass::Pure,
        description: "Finds files by pattern (*, **, ?, [ab], {a,b}), ignoring what .gitignore names.",
        properties: || {
            json!({
                "pattern": text("The pattern, for example src/**/*.py"),
                "path": text("Directory to look in. Default: the workspace."),
            })
        },
        required: &["pattern"],
    },
    BuiltinTool {
        name: "list_dir",
        home: Home::Server(ServerKind::Files),
        class: EffectClass::Pure,
        description: "Lists one directory: name, kind and size, hidden files included.",
        properties: || json!({"path": text("Directory relative to the workspace. Default: the workspace.")}),
        required: &[],
    },
    BuiltinTool {
        name: "git_status",
        home: Home::Server(ServerKind::Git),
        class: EffectClass::Pure,
        description: "Shows the branch and the changed, staged and untracked files.",
        properties: || json!({}),
        required: &[],
    },
    BuiltinTool {
        name: "git_diff",
        home: Home::Server(ServerKind::Git),
        class: EffectClass::Pure,
        description: "Shows changes as a unified diff: of the files against the index, of the index with staged, or \
            between revisions.",
        properties: || {
            json!({
                "staged": {"type": "boolean", "description": "Show what is staged. Default: false."},
                "revision": text("A revision, or two as a..b, to compare with."),
                "path": text("Only this file or directory."),
            })
        },
        required: &[],
    },
    BuiltinTool {
        name: "git_log",
        home: Home::Server(ServerKind::Git),
        class: EffectClass::Pure,
        description: "Lists commits, newest first.",
        properties: || {
            json!({
                "limit": count("Commits at most. Default: 20.", 1, 500),
                "revision": text("Where to start. Default: HEAD."),
                "path": text("Only commits that touch this file or directory."),
                "patch": {"type": "boolean", "description": "Show each commit's diff. Default: false."},
            })
        },
        required: &[],
    },
    BuiltinTool {
        name: "git_commit",
        home: Home::Server(ServerKind::Git),
        class: EffectClass::Workspace,
        description: "Commits all changes, or only those of the paths given.",
        properties: || {
            json!({
                "message": text("The commit message."),
                "paths": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Files and directories to commit. Default: everything that changed.",
                },
            })
        },
        required: &["message"],
    },
    BuiltinTool {
        name: "finish",
        home: Home::Finish,
        class: EffectClass::Pure,
        description: "Ends the task. Call it once, last, when the work is done and checked, or cannot be done.",
        properties: || json!({"summary": text("What was changed, how it was checked, what is open.")}),
        required: &["summary"],
    },
];
