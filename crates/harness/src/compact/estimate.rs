//! How many tokens the next prompt has: what the provider reported last plus what was added since.

use evenkeel_core::message::Role;
use evenkeel_core::port::model::RouteFacts;

use crate::config::CompactConfig;
use crate::run::prompt;
use crate::run::state::{Entry, Seq, View, message_bytes};

/// Estimated tokens of the next prompt.
pub(crate) fn prompt(view: &View, fixed_bytes: u64, facts: RouteFacts, config: &CompactConfig) -> u64 {
    match view.reported {
        Some(reported) => {
            let added = view.entries.iter().skip(reported.n_entries);
            reported.tokens + tokens(added.map(|entry| entry_bytes(view, entry, config)).sum(), facts)
        }
        None => {
            let entries: u64 = view.entries.iter().map(|entry| entry_bytes(view, entry, config)).sum();
            tokens(fixed_bytes + summary_bytes(view) + entries, facts)
        }
    }
}

fn summary_bytes(view: &View) -> u64 {
    view.summary.as_ref().map_or(0, |summary| u64::try_from(summary.text.len()).unwrap_or(u64::MAX))
}

/// The size of an entry as it is shown: results inside a stubbed range count as their stubs.
pub(crate) fn entry_bytes(view: &View, entry: &Entry, config: &CompactConfig) -> u64 {
    let is_stubbed = match entry.seq {
        Seq::Stored(seq) => view.stubs.iter().any(|(from, to)| (*from..=*to).contains(&seq)),
        Seq::Staged(_) => false,
    };
    if is_stubbed && entry.message.role == Role::Tool {
        return message_bytes(&prompt::stub_message(view, &entry.message, config.stub_bytes_min));
    }
    entry.bytes
}

/// Tokens of this many bytes on the route.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "an estimate"
)]
pub(crate) fn tokens(bytes: u64, facts: RouteFacts) -> u64 {
    (bytes as f64 / facts.bytes_per_token.max(0.25)).ceil() as u64
}

/// Bytes of this many tokens on the route.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "an estimate"
)]
pub(crate) fn bytes(tokens: u64, facts: RouteFacts) -> u64 {
    (tokens as f64 * facts.bytes_per_token.max(0.25)) as u64
}

/// The given share of a number of tokens.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "an estimate"
)]
pub(crate) fn share(tokens: u64, share: f64) -> u64 {
    (tokens as f64 * share) as u64
}

/// Tokens at which compaction begins.
pub(crate) fn threshold(facts: RouteFacts, config: &CompactConfig) -> u64 {
    share(facts.context_tokens, config.threshold)
}
