//! The assistants that ship: `coder` works on a repository, `chat` only talks.

use evenkeel_core::agent::{Agent, RunLimits};

/// Names of the built-in tools in the fixed order in which they are offered.
pub const CODER_TOOLS: &[&str] = &[
    "bash",
    "read_file",
    "write_file",
    "edit_file",
    "apply_patch",
    "grep",
    "glob",
    "list_dir",
    "git_status",
    "git_diff",
    "git_log",
    "git_commit",
    "finish",
];

/// Stands in an agent's list of tools for every tool of every configured MCP server.
pub const ALL_MCP_TOOLS: &str = "mcp:*";

const CODER_PROMPT: &str = include_str!("agents/coder.md");
const CHAT_PROMPT: &str = include_str!("agents/chat.md");

/// The assistants that exist without any configuration. Both use the model route `default`.
#[must_use]
pub fn builtin() -> Vec<Agent> {
    vec![coder(), chat()]
}

fn coder() -> Agent {
    let mut tools: Vec<String> = CODER_TOOLS.iter().map(|name| (*name).to_owned()).collect();
    tools.push(ALL_MCP_TOOLS.to_owned());
    Agent {
        name: "coder".to_owned(),
        description: "Works on a repository: reads, edits, runs commands and tests, commits.".to_owned(),
        system_prompt: CODER_PROMPT.trim_end().to_owned(),
        route: "default".to_owned(),
        tools,
        workspace: true,
        limits: RunLimits::default(),
    }
}

fn chat() -> Agent {
    Agent {
        name: "chat".to_owned(),
        description: "Answers messages; has no tools and no workspace.".to_owned(),
        system_prompt: CHAT_PROMPT.trim_end().to_owned(),
        route: "default".to_owned(),
        tools: Vec::new(),
        workspace: false,
        limits: RunLimits::default(),
    }
}
