//! A chat turn: what a user writes, and what the echo model answers.
//!
//! Each message bears the number of its turn, and each reply says which message it answers and a
//! hash of everything that the model was shown. The stored thread itself therefore proves on which
//! state a reply was computed, and a client can tell its own reply from any other.

use super::{Conversation, Item, Reply};

/// The script's name that the turns of a chat bear in a history.
pub(crate) const CHAT: &str = "chat";

/// What the user writes in turn `turn`; the reply will have about `n_tokens` tokens.
pub(crate) fn ask(turn: usize, n_tokens: usize) -> String {
    format!("Please say something about number {turn}. {}", mark(turn, n_tokens))
}

fn mark(turn: usize, n_tokens: usize) -> String {
    format!("[lab turn={turn} tokens={n_tokens}]")
}

/// The turn that a user's message belongs to.
pub(crate) fn turn_of(message: &str) -> Option<usize> {
    let (_, mark) = message.rsplit_once("[lab turn=")?;
    mark.split(' ').next()?.parse().ok()
}

/// The turn that a reply says it answers.
pub(crate) fn answered_by(reply: &str) -> Option<usize> {
    let (_, rest) = reply.rsplit_once("[re ")?;
    rest.split_once(']')?.0.parse().ok()
}

/// The hash that a reply carries of what the model was shown.
pub(crate) fn seen_by(reply: &str) -> Option<&str> {
    reply.rsplit_once("[seen ")?.1.strip_suffix(']')
}

/// The answer, if the last words of the conversation are a chat turn of the lab.
pub(super) fn answer(conversation: &Conversation) -> Option<Reply> {
    let Some(Item::User(message)) = conversation.items.last() else { return None };
    let turn = turn_of(message)?;
    let n_tokens = message.rsplit_once("tokens=")?.1.trim_end_matches(']').parse().ok()?;
    let end = format!("[re {turn}] [seen {}]", conversation.echo());
    Some(Reply { text: format!("{}{end}", filler(turn, n_tokens, end.len())), calls: Vec::new() })
}

/// Words that make the reply `n_tokens` tokens long together with its end.
fn filler(turn: usize, n_tokens: usize, n_end: usize) -> String {
    const WORDS: [&str; 12] =
        ["well", "this", "is", "a", "number", "that", "many", "have", "thought", "about", "before", "you"];
    let n_chars = (n_tokens * 4).saturating_sub(n_end);
    let mut text = String::with_capacity(n_chars + 16);
    let mut idx = turn;
    while text.len() < n_chars {
        text.push_str(WORDS[idx % WORDS.len()]);
        text.push(' ');
        idx += 1;
    }
    text
}
