//! The tasks that ship with the lab: a small repository with a failing test each, and the moves of
//! a solver. Files are embedded from `assets/tasks/<name>/`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::SolverCall;

/// How long a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// About six seconds with the default model.
    #[serde(rename = "task-short")]
    Short,
    /// About ninety seconds with the default model: two looks around after every step, and more
    /// words in each reply.
    #[serde(rename = "task-long")]
    Long,
    /// No task at all: turns of a chat, many threads and several turns on each.
    #[serde(rename = "chat")]
    Chat,
}

impl Shape {
    /// Output tokens of one reply besides its calls.
    #[must_use]
    pub fn tokens_per_reply(self) -> u32 {
        match self {
            Self::Short => 20,
            Self::Long => 330,
            Self::Chat => 60,
        }
    }

    /// Steps after each step of a task in which the solver only looks around.
    #[must_use]
    pub fn looks(self) -> usize {
        match self {
            Self::Long => 2,
            Self::Short | Self::Chat => 0,
        }
    }
}

/// One task.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its name: the folder under `assets/tasks`.
    pub name: &'static str,
    /// What it is about, in one sentence.
    pub about: String,
    /// The language of its repository.
    pub language: String,
    /// Programs that the machine must have.
    pub needs: Vec<String>,
    /// What the user asks.
    pub request: String,
    /// The command that tells whether the task is done.
    pub test: String,
    /// Whether its tool outputs are big enough to need compaction.
    pub big: bool,
    /// The moves.
    pub steps: Vec<Step>,
    /// The files of the repository.
    pub files: BTreeMap<&'static str, &'static str>,
}

/// One step of a solver.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What the solver says.
    pub say: String,
    /// The calls it makes.
    pub calls: Vec<Move>,
}

/// One call of a step and what should come back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    tool: String,
    #[serde(default = "no_args")]
    args: Value,
    /// What the result must contain.
    #[serde(default)]
    pub(crate) expect: Vec<String>,
    /// Whether the result may be an error (a test that is meant to fail).
    #[serde(default)]
    pub(crate) may_fail: bool,
    /// The line that the call leaves in `EFFECTS`, if it leaves one.
    #[serde(skip)]
    pub(crate) effect: Option<String>,
}

/// A call without arguments still has an object of them.
fn no_args() -> Value {
    Value::Object(serde_json::Map::new())
}

impl Move {
    /// The call itself.
    #[must_use]
    pub fn call(&self) -> SolverCall {
        SolverCall { name: self.tool.clone(), args: self.args.clone() }
    }
}

/// The file in the workspace to which every command of a task appends one line, so that a command
/// that ran twice or never shows.
pub(crate) const EFFECTS: &str = "EFFECTS.log";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    about: String,
    language: String,
    needs: Vec<String>,
    request: String,
    test: String,
    big: bool,
    steps: Vec<Step>,
}

impl Script {
    fn read(name: &'static str, toml: &str, files: &[(&'static str, &'static str)]) -> Self {
        let written: Written = toml::from_str(toml).expect("the embedded task files are tested");
        let mut steps = written.steps;
        let mut n_effects = 0;
        for (step_idx, step) in (1..).zip(&mut steps) {
            for (call_idx, call) in (0..).zip(&mut step.calls) {
                call.leave_effect(&format!("step {step_idx}.{call_idx}"), &mut n_effects);
            }
        }
        Self {
            name,
            about: written.about,
            language: written.language,
            needs: written.needs,
            request: written.request,
            test: written.test,
            big: written.big,
            steps,
            files: files.iter().copied().collect(),
        }
    }

    /// The lines that must be in `EFFECTS` when the task is done, in order.
    pub fn effects(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|step| &step.calls).filter_map(|call| call.effect.as_deref())
    }

    /// Programs that it needs and this machine's sandbox path has not.
    #[must_use]
    pub fn missing(&self) -> Vec<&str> {
        let dirs = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];
        let there = |program: &str| dirs.iter().any(|dir| Path::new(dir).join(program).exists());
        let needs = self.needs.iter().map(String::as_str).chain(["git", "sh"]);
        needs.filter(|program| !there(program)).collect()
    }

    /// The transcript of a run without any surprise: every call in order.
    pub fn calls(&self, looks: usize) -> impl Iterator<Item = SolverCall> {
        let steps = (1..=self.n_steps(looks)).filter_map(move |idx| self.step(idx, looks));
        steps.flat_map(|step| step.calls.iter().map(Move::call).collect::<Vec<_>>())
    }

    /// Steps of a run with so many looks after each step but the last.
    #[must_use]
    pub fn n_steps(&self, looks: usize) -> usize {
        self.steps.len() + self.steps.len().saturating_sub(1) * looks
    }

    /// One step of such a run, counted from 1.
    #[must_use]
    pub fn step(&self, step_idx: usize, looks: usize) -> Option<Cow<'_, Step>> {
        let idx = step_idx.checked_sub(1).filter(|_| step_idx <= self.n_steps(looks))?;
        match idx % (looks + 1) {
            0 => self.steps.get(idx / (looks + 1)).map(Cow::Borrowed),
            look => Some(Cow::Owned(self.look(idx / (looks + 1) + look))),
        }
    }

    /// A step that changes nothing: one of the files again, or what there is.
    fn look(&self, n: usize) -> Step {
        let files: Vec<&&str> = self.files.keys().collect();
        let (tool, args) = match files.get(n % (files.len() + 1)) {
            Some(file) => ("read_file", json!({ "path": file })),
            None => ("list_dir", json!({})),
        };
        let look = Move { tool: tool.to_owned(), args, expect: Vec::new(), may_fail: false, effect: None };
        Step { say: "Before I go on I look again.".to_owned(), calls: vec![look] }
    }
}

impl Move {
    /// Makes a command append its line first and say how many lines there are, so that the solver
    /// itself sees a lost or doubled effect in the next result.
    fn leave_effect(&mut self, line: &str, n_effects: &mut u32) {
        if self.tool != "bash" {
            return;
        }
        *n_effects += 1;
        let command = self.args["command"].as_str().unwrap_or_default();
        self.args["command"] =
            format!("echo '{line}' >> {EFFECTS}; echo \"effects: $(wc -l < {EFFECTS})\"; {command}").into();
        self.expect.push(format!("effects: {n_effects}"));
        self.effect = Some(line.to_owned());
    }
}

macro_rules! tasks {
    ($($name:literal [$($file:literal),* $(,)?])*) => {
        static ALL: LazyLock<Vec<Script>> = LazyLock::new(|| vec![$(Script::read(
            $name,
            include_str!(concat!("../../assets/tasks/", $name, "/task.toml")),
            &[$(($file, include_str!(concat!("../../assets/tasks/", $name, "/repo/", $file)))),*],
        )),*]);
    };
}

tasks! {
    "sh-greet" ["greet.sh", "run_tests.sh"]
    "py-slugify" ["slugify.py", "test_slugify.py", "run_tests.sh"]
    "c-ringbuf" ["ring.c", "ring.h", "test.c", "run_tests.sh"]
    "pl-wordcount" ["WordCount.pm", "test.pl", "run_tests.sh"]
    "py-roman" ["roman.py", "table.py", "test_roman.py", "run_tests.sh"]
    "sh-rotate" ["rotate.sh", "run_tests.sh"]
    "c-trim" ["trim.c", "trim.h", "test.c", "run_tests.sh"]
    "py-intervals" ["intervals.py", "test_intervals.py", "run_tests.sh"]
    "pl-ini" ["Ini.pm", "test.pl", "run_tests.sh"]
    "sh-csv-sum" ["sum.sh", "run_tests.sh"]
    "pl-primes" ["primes.pl", "run_tests.sh"]
    "py-lru" ["lru.py", "test_lru.py", "run_tests.sh"]
    "c-bitset" ["bitset.c", "bitset.h", "test.c", "run_tests.sh"]
}

/// All tasks.
#[must_use]
pub fn all() -> &'static [Script] {
    &ALL
}

/// The tasks that this machine can run, and for each of the others a sentence that says what is
/// missing.
#[must_use]
pub fn available() -> (Vec<&'static Script>, Vec<String>) {
    let (there, absent): (Vec<_>, Vec<_>) = all().iter().partition(|script| script.missing().is_empty());
    let sentence = |script: &Script| {
        format!("The task {} is left out: {} is not installed.", script.name, script.missing().join(", "))
    };
    (there, absent.into_iter().map(sentence).collect())
}
