//! What a run asks of a person, asked at the terminal: the question with its whole arguments, and the
//! answer that is typed.

use std::io::IsTerminal as _;
use std::time::Duration;

use evenkeel_core::{Code, Error, Origin};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};

use crate::client::Server;
use crate::output::{self, Paint, Style};

/// How often it is looked whether somebody else has answered.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How a question is answered.
const HOW: &str = "Allow it, once? y / n / n BECAUSE";

/// Said when an answer comes too late.
pub(crate) const CLOSED: &str = "That is answered already, or its time is over.";

/// One question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    /// The id of the approval.
    pub(crate) id: String,
    tool: String,
    reason: String,
    args: Value,
}

impl Question {
    /// What the wire says of it.
    fn read(shown: &Value) -> Self {
        let text = |key: &str| shown[key].as_str().unwrap_or_default().to_owned();
        Self { id: text("id"), tool: text("tool"), reason: text("reason"), args: shown["args"].clone() }
    }

    /// The lines that a person reads before the answer: a person must see what would run, whole.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines =
            vec![format!("{} asks: {}", output::safe(&self.tool), output::safe(self.reason.trim()))];
        let named = self.args.as_object().into_iter().flatten();
        for (name, value) in named {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let mut rows = value.lines().map(output::safe);
            lines.push(format!("  {}: {}", output::safe(name), rows.next().unwrap_or_default()));
            lines.extend(rows.map(|row| format!("    {row}")));
        }
        lines.push(HOW.to_owned());
        lines
    }
}

/// What was typed to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It may run.
    Yes,
    /// It may not, for this reason if one is given.
    No(String),
    /// Neither.
    Unclear,
}

impl Said {
    /// Reads a line. Only a plain yes is one: nothing runs because of a slip.
    pub(crate) fn parse(line: &str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word.to_ascii_lowercase().as_str(), rest.trim()) {
            ("y" | "yes", "") => Self::Yes,
            ("n" | "no", rest) => Self::No(rest.to_owned()),
            _ => Self::Unclear,
        }
    }
}

/// What the thread's run asks now, in the order of its calls.
pub(crate) async fn open(server: &Server, thread: &str) -> Result<Vec<Question>, Error> {
    let listed = server.get(&format!("/v1/approvals?thread={thread}&limit=100")).await?;
    let ids = listed.as_array().into_iter().flatten().filter_map(|asked| asked["id"].as_str());
    let mut questions = Vec::new();
    for id in ids {
        questions.push(Question::read(&server.get(&format!("/v1/approvals/{id}")).await?));
    }
    Ok(questions)
}

/// Answers it. `false` if it was answered by somebody else, or in time by nobody.
pub(crate) async fn answer(server: &Server, id: &str, said: &Said) -> Result<bool, Error> {
    let (decision, note) = match said {
        Said::Yes => ("approve", ""),
        Said::No(note) => ("deny", note.as_str()),
        Said::Unclear => {
            return Err(Error::new(
                Code::BadRequest,
                Origin::Client,
                "The answer is neither yes nor no.",
                "Type y or n.",
            ));
        }
    };
    let body = json!({ "decision": decision, "note": note });
    match server.post(&format!("/v1/approvals/{id}"), &body).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.code, Code::ApprovalClosed | Code::ApprovalExpired) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A person at the terminal.
pub(crate) struct Person {
    lines: Lines<BufReader<Stdin>>,
    is_there: bool,
}

impl Person {
    /// If there is one: somebody who sees the question and can type.
    pub(crate) fn at_the_terminal() -> Option<Self> {
        let sees = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        sees.then(|| Self { lines: BufReader::new(tokio::io::stdin()).lines(), is_there: true })
    }

    /// Asks everything that the thread's run asks now. Returns when nothing is open any more, or when
    /// the person has left. May be dropped and called again.
    pub(crate) async fn decide(&mut self, server: &Server, thread: &str) -> Result<(), Error> {
        let style = Style::stderr();
        while self.is_there
            && let Some(question) = open(server, thread).await?.into_iter().next()
        {
            for line in question.lines() {
                output::aside(format_args!("{}", style.paint(Paint::Yellow, line)));
            }
            let is_taken = match self.said(server, &question).await? {
                Some(said) => answer(server, &question.id, &said).await?,
                None => false,
            };
            if !is_taken && self.is_there {
                output::aside(format_args!("{CLOSED}"));
            }
        }
        Ok(())
    }

    /// What is typed to it; nothing once it is answered by somebody else or the person has left.
    async fn said(&mut self, server: &Server, question: &Question) -> Result<Option<Said>, Error> {
        loop {
            tokio::select! {
                biased;
                line = self.lines.next_line() => match line.ok().flatten() {
                    Some(line) => match Said::parse(&line) {
                        Said::Unclear => output::aside(format_args!("{HOW}")),
                        said => return Ok(Some(said)),
                    },
                    None => {
                        self.is_there = false;
                        return Ok(None);
                    }
                },
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let shown = server.get(&format!("/v1/approvals/{}", question.id)).await?;
                    if shown["state"] != "open" {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
