//! The sandbox of a virtual run: commands take time, leave their effect, and say what they would say.
//!
//! No program is started. A task's command appends its line to the file of effects, as its shell
//! would, and then prints what the script expects of it if the files are those of the rehearsal. A
//! process that is killed in the middle of a command has left the effect and knows no result.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::runner::{Command, Exit, Runner};
use evenkeel_core::{Error, Generator};
use tokio::time::sleep;

use super::log::Log;
use super::rehearse::{Part, Rehearsal};
use crate::task::EFFECTS;

/// A command takes this long, and up to as much again.
const TAKES_MS: u64 = 60;

/// Runs the commands of rehearsed tasks.
pub(super) struct PaperRunner {
    pub(super) rehearsal: Option<Arc<Rehearsal>>,
    pub(super) generator: Generator,
    pub(super) log: Log,
    pub(super) name: Arc<str>,
}

impl PaperRunner {
    async fn carry_out(&self, command: Command) -> Result<Exit, Error> {
        let ms = TAKES_MS + self.generator.below(TAKES_MS);
        sleep(Duration::from_millis(ms / 2)).await;
        let task = self.rehearsal.as_ref().and_then(|rehearsal| rehearsal.task_in(&command.workspace));
        let (code, text) = match (task, shell(&command)) {
            (None, _) => (127, "There is no task here.\n".to_owned()),
            (Some(task), Some(script)) => task.run(script, &command.workspace),
            (Some(task), None) => (0, task.git(&command)),
        };
        self.log.line(&self.name, format_args!("command {:?}: {code}", command.argv.last()));
        sleep(Duration::from_millis(ms - ms / 2)).await;
        Ok(Exit { code: Some(code), stdout: text.into_bytes(), ms, ..Exit::default() })
    }
}

impl Runner for PaperRunner {
    fn run(&self, command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        Box::pin(self.carry_out(command))
    }
}

/// The script that a shell is to run, if it is one of a task.
fn shell(command: &Command) -> Option<&str> {
    match command.argv.as_slice() {
        [_, flag, script] if flag == "-c" => Some(script),
        _ => None,
    }
}

impl Part {
    /// What a command of the task leaves, returns and prints.
    fn run(&self, command: &str, workspace: &Path) -> (i32, String) {
        let calls = self.script.steps.iter().flat_map(|step| &step.calls);
        let mut calls = calls.filter(|call| call.call().args["command"] == command);
        let (Some(call), Some(fits)) = (calls.next(), self.is_as_rehearsed(command, workspace)) else {
            return (127, "No such command.\n".to_owned());
        };
        let Some(n_effects) = call.effect.as_deref().and_then(|line| leave(line, workspace)) else {
            return (1, "The effect could not be left.\n".to_owned());
        };
        let mut text = format!("effects: {n_effects}\n");
        if !fits {
            text.push_str("The files are not as they should be.\n");
            return (1, text);
        }
        for line in call.expect.iter().filter(|line| !line.starts_with("effects: ")) {
            text.push_str(line);
            text.push('\n');
        }
        (i32::from(call.may_fail), text)
    }

    /// What git prints: whatever the task wants to see of it.
    fn git(&self, command: &Command) -> String {
        let words = ["status", "diff", "log", "git_commit"];
        let word = words.iter().find(|word| command.argv.iter().any(|argument| argument == *word));
        let tool = word.map_or("", |word| word.trim_start_matches("git_"));
        let calls = self.script.steps.iter().flat_map(|step| &step.calls);
        let calls = calls.filter(|call| call.call().name.strip_prefix("git_") == Some(tool));
        let lines: Vec<&str> = calls.flat_map(|call| &call.expect).map(String::as_str).collect();
        format!("git {tool}\n{}\n", lines.join("\n"))
    }
}

/// Appends a line to the effects, and says how many there are.
fn leave(line: &str, workspace: &Path) -> Option<usize> {
    let path = workspace.join(EFFECTS);
    let mut file = std::fs::File::options().create(true).append(true).open(&path).ok()?;
    writeln!(file, "{line}").ok()?;
    Some(std::fs::read_to_string(&path).ok()?.lines().count())
}
