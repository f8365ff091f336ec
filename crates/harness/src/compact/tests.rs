//! Whatever the journal, wherever the cut, whatever was lost in a crash: the prompt is valid.

use std::collections::BTreeSet;

use evenkeel_core::Wall;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::message::{Message, Role, Usage};
use proptest::prelude::*;

use super::plan;
use crate::config::CompactConfig;
use crate::run::prompt;
use crate::run::state::View;
use crate::run::tests::{calls, results, run_id};

/// One piece of a journal.
#[derive(Clone, Debug)]
enum Piece {
    User,
    Answer,
    /// This many calls, of which the last ones have no result.
    Step {
        n_calls: usize,
        n_lost: usize,
        message_lost: bool,
    },
    /// Results of a call that is not there.
    Orphan,
    Checkpoint,
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        2 => Just(Piece::User),
        2 => Just(Piece::Answer),
        6 => (1usize..5, 0usize..2, prop::bool::weighted(0.1))
            .prop_map(|(n_calls, n_lost, message_lost)| Piece::Step { n_calls, n_lost, message_lost }),
        1 => Just(Piece::Orphan),
        2 => Just(Piece::Checkpoint),
    ]
}

fn bodies(idx: usize, piece: &Piece) -> Vec<EventBody> {
    let user = |text: &str| Message::text(format!("u{idx}").as_str(), Role::User, text);
    let assistant =
        |message| EventBody::AssistantMessage { message, attempts: Vec::new(), finish: "stop".into() };
    match piece {
        Piece::User => vec![EventBody::UserMessage { message: user("please") }],
        Piece::Answer => vec![assistant(Message::text("a", Role::Assistant, "here"))],
        Piece::Orphan => vec![EventBody::ToolMessage { message: results(&["nobody"]) }],
        Piece::Checkpoint => vec![EventBody::Checkpoint { snapshot: None }],
        Piece::Step { n_calls, n_lost, message_lost } => {
            let ids: Vec<String> = (0..*n_calls).map(|call| format!("c{idx}-{call}")).collect();
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let given = ids.get(..n_calls.saturating_sub(*n_lost)).unwrap_or_default();
            let mut bodies = vec![assistant(calls(&ids))];
            if !message_lost {
                bodies.push(EventBody::ToolMessage { message: results(given) });
            }
            bodies
        }
    }
}

fn events(bodies: Vec<EventBody>) -> Vec<Event> {
    let thread = "01890000-0000-7000-8000-000000000002".parse().unwrap();
    let event = |(seq, body)| Event { thread, seq, run: run_id(), step: 1, at: Wall(0), body };
    (1..).zip(bodies).map(event).collect()
}

fn view(events: &[Event]) -> View {
    View::of(run_id(), 0, Usage::default(), events)
}

fn assert_valid(messages: &[Message]) {
    let mut seen = BTreeSet::new();
    for (idx, message) in messages.iter().enumerate() {
        assert!(!message.blocks.is_empty());
        let calls: Vec<_> = message.tool_calls().map(|call| &call.id).collect();
        assert!(calls.iter().all(|id| seen.insert((*id).clone())), "a call id twice");
        if !calls.is_empty() {
            let next = messages.get(idx + 1).expect("calls have results after them");
            assert_eq!(calls, next.tool_results().map(|result| &result.call_id).collect::<Vec<_>>());
        }
        if message.role == Role::Tool {
            assert!(idx > 0 && messages[idx - 1].tool_calls().next().is_some(), "results follow calls");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// C01, C02: compacted at a random place, several times, with a crash that cuts the journal at
    /// a random event, read from the start or from behind the newest summary.
    #[test]
    fn every_cut_of_every_journal_gives_a_valid_prompt(
        pieces in proptest::collection::vec(piece(), 1..40),
        cuts in proptest::collection::vec((0usize..20, any::<bool>(), 0usize..40), 0..4),
        crash in 0.0f64..1.0,
    ) {
        let config = CompactConfig { stub_bytes_min: 0, ..CompactConfig::default() };
        let mut journal: Vec<EventBody> = vec![EventBody::UserMessage {
            message: Message::text("first", Role::User, "go"),
        }];
        journal.extend(pieces.iter().enumerate().flat_map(|(idx, piece)| bodies(idx, piece)));
        for (keep, is_summary, at) in cuts {
            let now = view(&events(journal.clone()));
            let cut = if is_summary { plan::older(&now, keep) } else { plan::stubs(&now, keep, &config) };
            let Some(cut) = cut else { continue };
            let standing = is_summary.then(|| "the summary".to_owned());
            journal.push(EventBody::Compacted { from: cut.from, to: cut.to, summary: standing, tokens_before: 2, tokens_after: 1 });
            journal.extend(bodies(1_000 + at, &Piece::Step { n_calls: 2, n_lost: 0, message_lost: false }));
            if is_summary {
                journal.extend(bodies(2_000 + at, &Piece::User));
            }
        }
        let mut seen = BTreeSet::new();
        journal.retain(|body| !matches!(body, EventBody::AssistantMessage { message, .. }
            if message.tool_calls().any(|call| !seen.insert(call.id.clone()))));
        let all = events(journal);
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a share of a short list")]
        let kept = ((all.len() as f64 * crash) as usize).max(1);
        let stored = &all[..kept];
        let whole = view(stored);
        assert_valid(&prompt::messages(&whole, 0));

        // Reading from behind the newest summary gives the same prompt.
        let from = whole.summary.as_ref().map_or(1, |summary| summary.to + 1);
        let tail: Vec<Event> = stored.iter().filter(|event| event.seq >= from).cloned().collect();
        let short = view(&tail);
        prop_assert_eq!(prompt::messages(&short, 0), prompt::messages(&whole, 0));
    }
}

#[test]
fn fewer_units_are_kept_by_halves_down_to_none() {
    assert_eq!(plan::keeps(6), [6, 3, 1, 0]);
    assert_eq!(plan::keeps(0), [0]);
}
