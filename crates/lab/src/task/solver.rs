//! The solver: plays a task's moves back and reacts to what the tools return.
//!
//! It is a pure function of the conversation. Where it stands it reads from its own last words,
//! which survive compaction; so a call that is made again gets the same answer, and a run that
//! resumes goes on where it was. Each answer carries a hash of the turns it was shown: the stored
//! thread itself proves on which state a reply was computed.

use super::script::{Move, Script, Shape, Step, all};
use super::{Conversation, Item, Reply, SolverCall, chat};
use crate::provider::Brain;
use serde_json::json;

/// Answers coding tasks of the lab with their moves, compaction requests with a summary, chat turns
/// and anything else with an echo.
pub struct Solver;

/// What a task's first message says to the solver.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tag {
    task: String,
    tokens: usize,
    looks: usize,
}

/// Where the solver stands: after this step, with this many surprises since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    step: usize,
    n_surprises: usize,
}

const N_SURPRISES_MAX: usize = 2;

impl Solver {
    /// The first message of a task: what the user asks, and the tag by which the solver knows it.
    /// `n` makes each message of a load its own.
    #[must_use]
    pub fn ask(script: &Script, shape: Shape, n: usize) -> String {
        let (tokens, looks) = (shape.tokens_per_reply(), shape.looks());
        format!("{}\n\n[lab task={} tokens={tokens} looks={looks} n={n}]", script.request, script.name)
    }

    /// The looks after each step that a task's first message asks for; none if it is no task's.
    #[must_use]
    pub fn looks(first_message: &str) -> usize {
        Tag::read(first_message).map_or(0, |tag| tag.looks)
    }
}

impl Brain for Solver {
    fn answer(&self, conversation: &Conversation) -> Reply {
        if let Some(reply) = chat::answer(conversation) {
            return reply;
        }
        let Some(tag) = Tag::find(conversation) else { return echo(conversation) };
        let Some(script) = all().iter().find(|script| script.name == tag.task) else {
            return echo(conversation);
        };
        let place = Place::find(conversation);
        if conversation.tools.is_empty() {
            return summary(script, &tag, place, conversation);
        }
        let surprise = surprise(script, &tag, place, conversation);
        let mut reply = match (surprise, script.step(place.step + 1, tag.looks)) {
            (Some(what), _) => off_script(place, &what),
            (None, Some(step)) => next_step(&step, &tag, place.step + 1),
            (None, None) => done(place),
        };
        reply.text = format!("{} [seen {}]", reply.text, conversation.echo());
        reply
    }
}

fn done(place: Place) -> Reply {
    let text = format!("Everything is done already. {}", place.marker());
    Reply { text, calls: Vec::new() }
}

fn next_step(step: &Step, tag: &Tag, step_idx: usize) -> Reply {
    let place = Place { step: step_idx, n_surprises: 0 };
    let thought = thought(&tag.task, step_idx, tag.tokens);
    Reply {
        text: format!("{thought}{} {}", step.say, place.marker()),
        calls: step.calls.iter().map(Move::call).collect(),
    }
}

/// Something is not as the script has it: look closer, then stop and say so.
fn off_script(place: Place, what: &str) -> Reply {
    let next = Place { n_surprises: place.n_surprises + 1, ..place };
    let text = format!("That is a surprise: {what} {}", next.marker());
    let look = vec![
        SolverCall { name: "git_status".to_owned(), args: json!({}) },
        SolverCall { name: "read_file".to_owned(), args: json!({"path": super::script::EFFECTS}) },
    ];
    let give_up = vec![SolverCall {
        name: "finish".to_owned(),
        args: json!({"summary": format!("Stopped at step {}: {what}", place.step)}),
    }];
    Reply { text, calls: if next.n_surprises < N_SURPRISES_MAX { look } else { give_up } }
}

/// What is not as expected in the results of the last step.
fn surprise(script: &Script, tag: &Tag, place: Place, conversation: &Conversation) -> Option<String> {
    if place.n_surprises > 0 {
        return Some("I looked closer, and it is still not as it should be.".to_owned());
    }
    if !has_own_words(conversation) {
        // A summary stands for everything, the last results too. Later steps still count effects.
        return None;
    }
    let step = script.step(place.step, tag.looks)?;
    if !conversation.items.iter().any(|item| matches!(item, Item::Assistant(_))) {
        // A summary took the last step along with its results; the next one shows whether its
        // effects are there.
        return None;
    }
    let results = last_results(conversation);
    if results.len() != step.calls.len() {
        return Some(format!("{} calls were answered by {} results.", step.calls.len(), results.len()));
    }
    step.calls.iter().zip(results).find_map(|(call, (text, is_error))| {
        if is_error && !call.may_fail {
            return Some(format!("{} failed: {}", call.call().name, first_line(text)));
        }
        let missing = call.expect.iter().find(|wanted| !text.contains(wanted.as_str()))?;
        Some(format!("{} did not show '{missing}'.", call.call().name))
    })
}

/// Whether any of the model's own words are left; compaction may have taken them all.
fn has_own_words(conversation: &Conversation) -> bool {
    conversation.items.iter().any(|item| matches!(item, Item::Assistant(text) if Place::read(text).is_some()))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The results that answer the last calls.
fn last_results(conversation: &Conversation) -> Vec<(&str, bool)> {
    let n_before =
        conversation.items.iter().rposition(|item| matches!(item, Item::Call(_) | Item::Assistant(_)));
    let after = conversation.items.iter().skip(n_before.map_or(0, |idx| idx + 1));
    after
        .filter_map(|item| match item {
            Item::Result { text, is_error } => Some((text.as_str(), *is_error)),
            _ => None,
        })
        .collect()
}

fn echo(conversation: &Conversation) -> Reply {
    let words = conversation.items.iter().rev().find_map(|item| match item {
        Item::User(text) => Some(text.as_str()),
        _ => None,
    });
    let start: String = words.unwrap_or_default().chars().take(200).collect();
    Reply { text: format!("You said: {start} [seen {}]", conversation.echo()), calls: Vec::new() }
}

fn summary(script: &Script, tag: &Tag, place: Place, conversation: &Conversation) -> Reply {
    let last = script.step(place.step, tag.looks);
    let text = format!(
        "Summary of the work so far. Task: {} {} steps are done, the last one was: {} {} [seen {}]",
        script.about,
        place.step,
        last.as_ref().map_or("none", |step| step.say.as_str()),
        place.marker(),
        conversation.echo(),
    );
    Reply { text, calls: Vec::new() }
}

/// Filler for long tasks: what a model would think aloud.
fn thought(task: &str, step: usize, n_tokens: usize) -> String {
    const SENTENCES: [&str; 6] = [
        "Let me think about what the test wants here and what the code does instead. ",
        "The names suggest one thing, but the order of the statements says another. ",
        "I should change as little as possible and keep the style of the file. ",
        "If this is right, the next run of the tests will show one failure less. ",
        "I also have to keep the cases in mind that the tests leave out. ",
        "Before I go on I compare this with what I have seen so far. ",
    ];
    let n_chars = (n_tokens * 4).saturating_sub(80);
    let mut text = String::new();
    let mut sentence_idx = task.len() + step;
    while text.len() < n_chars {
        text.push_str(SENTENCES[sentence_idx % SENTENCES.len()]);
        sentence_idx += 1;
    }
    text
}

impl Tag {
    fn find(conversation: &Conversation) -> Option<Self> {
        conversation.items.iter().find_map(|item| match item {
            Item::User(text) => Self::read(text),
            _ => None,
        })
    }

    fn read(text: &str) -> Option<Self> {
        let (_, tag) = text.split_once("[lab task=")?;
        let (tag, _) = tag.split_once(']')?;
        let mut words = tag.split(' ');
        let task = words.next()?.to_owned();
        let tokens = words.next()?.strip_prefix("tokens=")?.parse().ok()?;
        let looks = words.next()?.strip_prefix("looks=")?.parse().ok()?;
        Some(Self { task, tokens, looks })
    }
}

impl Place {
    fn marker(self) -> String {
        format!("[step {}.{}]", self.step, self.n_surprises)
    }

    /// Read from the model's own last words, or, if compaction took them all, from the last marker
    /// anywhere (the summary has one).
    fn find(conversation: &Conversation) -> Self {
        let own = conversation.items.iter().rev().find_map(|item| match item {
            Item::Assistant(text) => Self::read(text),
            _ => None,
        });
        let any = || {
            conversation.items.iter().rev().find_map(|item| match item {
                Item::User(text) | Item::Assistant(text) => Self::read(text),
                _ => None,
            })
        };
        own.or_else(any).unwrap_or(Self { step: 0, n_surprises: 0 })
    }

    fn read(text: &str) -> Option<Self> {
        let (_, marker) = text.rsplit_once("[step ")?;
        let (marker, _) = marker.split_once(']')?;
        let (step, n_surprises) = marker.split_once('.')?;
        Some(Self { step: step.parse().ok()?, n_surprises: n_surprises.parse().ok()? })
    }
}
