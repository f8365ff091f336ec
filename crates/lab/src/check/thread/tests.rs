use evenkeel_core::id::{CallId, EffectId, ReplicaId, RunId, ThreadId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, Event, EventBody};
use evenkeel_core::message::{Message, Role, Usage};
use evenkeel_core::run::{BusyPolicy, Class, Outcome, Run, RunSpec, RunState};
use evenkeel_core::{Generator, Wall};
use serde_json::Value;

use crate::check::tests::attempt;
use crate::check::{self, Entry, History};
use crate::task::chat;
use crate::task::{Conversation, Item};

/// One thread as the product makes it.
struct Story {
    generator: Generator,
    thread: ThreadId,
    shown: Conversation,
    entries: Vec<Entry>,
    runs: Vec<Run>,
    events: Vec<Event>,
}

impl Story {
    fn new(seed: u64) -> Self {
        let generator = Generator::from_seed(seed);
        Self {
            thread: ThreadId::new(Wall(1), &generator),
            generator,
            shown: Conversation::default(),
            entries: Vec::new(),
            runs: Vec::new(),
            events: Vec::new(),
        }
    }

    fn push(&mut self, run: RunId, body: EventBody) {
        let seq = self.events.len() as u64 + 1;
        self.events.push(Event { thread: self.thread, seq, run, step: 1, at: Wall(1_000 + seq), body });
    }

    /// A turn from its request at `t` to its answer a second later.
    fn turn(mut self, turn: usize, t: u64) -> Self {
        let run = RunId::new(Wall(t), &self.generator);
        let epoch = self.runs.len() as u64 + 1;
        let text = chat::ask(turn, 10);
        self.shown.push_words(Item::User, text.clone());
        let reply = format!("Well. [re {turn}] [seen {}]", self.shown.echo());
        self.shown.push_words(Item::Assistant, reply.clone());
        self.push(run, EventBody::RunClaimed { epoch, attempt: 1 });
        self.push(
            run,
            EventBody::UserMessage { message: Message::text(format!("u{turn}"), Role::User, text) },
        );
        let message = Message::text(format!("a{turn}"), Role::Assistant, reply.clone());
        let (attempts, finish) = (vec![attempt("ok")], "stop".to_owned());
        self.push(run, EventBody::AssistantMessage { message, attempts, finish });
        self.push(run, EventBody::RunEnded { outcome: outcome(&reply) });
        self.tell(turn, run, &reply, t);
        self.runs.push(self.stored(turn, run, epoch));
        self
    }

    fn tell(&mut self, turn: usize, run: RunId, reply: &str, t: u64) {
        let (task, run) = (turn, run.to_string());
        self.entries.extend([
            Entry::Invoke {
                task,
                script: chat::CHAT.to_owned(),
                thread: self.thread.to_string(),
                key: format!("key-{turn}"),
                attempt: 1,
                t,
            },
            Entry::Accepted { task, run: run.clone(), t: t + 10 },
            Entry::Streamed { task, text: reply.to_owned() },
            Entry::Ok {
                task,
                run,
                status: "success".to_owned(),
                reply: Some(reply.to_owned()),
                t: t + 1_000,
            },
        ]);
    }

    fn stored(&self, turn: usize, run: RunId, version: u64) -> Run {
        Run {
            id: run,
            thread: self.thread,
            tenant: "default".into(),
            state: RunState::Completed,
            wait: None,
            not_before: None,
            stop: None,
            position: 0,
            step: 1,
            attempt: 1,
            owner: Some(ReplicaId::new(Wall(1), &self.generator)),
            version: Some(version),
            key: Some(format!("key-{turn}").as_str().into()),
            created_at: Wall(1_000),
            updated_at: Wall(2_000),
            spec: RunSpec {
                assistant: "chat".to_owned(),
                messages: Vec::new(),
                repository: None,
                deliver: None,
                limits: evenkeel_core::agent::RunLimits::default(),
                class: Class::Interactive,
                busy_policy: BusyPolicy::Enqueue,
                deadline: Wall(90_000),
                from_seq: None,
                request: Value::Null,
            },
            outcome: Some(outcome("Well.")),
            usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        }
    }

    fn entries(mut self) -> Vec<Entry> {
        let version = self.runs.iter().filter_map(|run| run.version).max().unwrap_or_default();
        let thread = self.thread.to_string();
        self.entries.push(Entry::Log { thread, version, runs: self.runs, events: self.events });
        self.entries
    }
}

fn outcome(text: &str) -> Outcome {
    Outcome {
        state: RunState::Completed,
        reason: None,
        error: None,
        text: text.to_owned(),
        diff: None,
        delivered: None,
    }
}

/// Two threads, five turns, nothing wrong.
pub(in crate::check) fn good() -> History {
    let begin = Entry::Begin {
        scenario: "mini".to_owned(),
        seed: 1,
        protect: "full".to_owned(),
        answer_within_s: Some(30.0),
    };
    let mut entries = vec![begin];
    entries.extend(Story::new(1).turn(0, 0).turn(1, 300).turn(2, 5_000).entries());
    entries.extend(Story::new(2).turn(3, 100).turn(4, 4_000).entries());
    History { entries }
}

/// The first thread as stored.
fn log(history: &mut History) -> (&mut Vec<Run>, &mut Vec<Event>) {
    let found = history.entries.iter_mut().find_map(|entry| match entry {
        Entry::Log { runs, events, .. } => Some((runs, events)),
        _ => None,
    });
    found.unwrap()
}

/// Puts other words into a stored reply.
pub(in crate::check) fn say(event: &mut Event, words: &str) {
    if let EventBody::AssistantMessage { message, .. } = &mut event.body {
        *message = Message::text("another", Role::Assistant, words.to_owned());
    }
}

fn version(history: &mut History) -> &mut u64 {
    let found = history.entries.iter_mut().find_map(|entry| match entry {
        Entry::Log { version, .. } => Some(version),
        _ => None,
    });
    found.unwrap()
}

/// Puts sequence numbers right again, so that only the planted fault shows.
fn renumber(events: &mut [Event]) {
    (1..).zip(events).for_each(|(seq, event)| event.seq = seq);
}

#[test]
fn a_good_history_has_no_violation() {
    let history = good();
    let checked = check::history(&history);
    assert_eq!(checked.violations, []);
    let counts = checked.counts;
    assert_eq!((counts.submitted, counts.accepted, counts.completed), (5, 5, 5));
    assert_eq!((counts.lost, counts.doubled, counts.failed), (0, 0, 0));
    assert_eq!(History::parse(&history.to_lines().unwrap()).unwrap(), history);
}

/// Plants one violation and demands that exactly the property in question finds it.
fn check_planted(property: &str, plant: impl FnOnce(&mut History)) -> check::Checked {
    let mut history = good();
    plant(&mut history);
    let found = check::history(&history);
    let properties: Vec<&str> = found.violations.iter().map(|violation| violation.property).collect();
    let only = properties.iter().all(|found| *found == property) && !properties.is_empty();
    assert!(only, "{property}: {:?}", found.violations);
    assert!(!found.pass);
    found
}

#[test]
fn p1_the_last_turn_is_gone() {
    let found = check_planted("P1", |history| {
        let (runs, events) = log(history);
        events.truncate(8);
        runs.pop();
        *version(history) = 2;
    });
    assert_eq!((found.counts.lost, found.counts.completed), (1, 4));
    assert_eq!(found.violations[0].turn, "turn 2");
}

#[test]
fn p1_another_write_won_over_an_acknowledged_turn() {
    let found = check_planted("P1", |history| {
        // Turn 2 was computed on the state before turn 1, and its write took turn 1 back.
        let (_, events) = log(history);
        let rewound = EventBody::Rewound { to: 4, cause: "overwritten".to_owned() };
        let at = events[8].clone();
        events.insert(8, Event { body: rewound, ..at });
        renumber(events);
        let mut shown = Conversation::default();
        for event in &events[..4] {
            match &event.body {
                EventBody::UserMessage { message } => shown.push_words(Item::User, message.joined_text()),
                EventBody::AssistantMessage { message, .. } => {
                    shown.push_words(Item::Assistant, message.joined_text());
                }
                _ => {}
            }
        }
        shown.push_words(Item::User, chat::ask(2, 10));
        let words = reply(2, &shown);
        if let EventBody::AssistantMessage { message, .. } = &mut events[11].body {
            *message = Message::text("a2", Role::Assistant, words.clone());
        }
        for entry in &mut history.entries {
            match entry {
                Entry::Ok { task: 2, reply, .. } => *reply = Some(words.clone()),
                Entry::Streamed { task: 2, text } => *text = words.clone(),
                _ => {}
            }
        }
    });
    assert_eq!((found.counts.lost, found.counts.completed), (1, 4));
    assert_eq!(found.violations[0].turn, "turn 1");
}

fn reply(turn: usize, shown: &Conversation) -> String {
    format!("Well. [re {turn}] [seen {}]", shown.echo())
}

#[test]
fn p1_a_turn_that_never_ends() {
    check_planted("P1", |history| {
        history.entries.retain(|entry| !matches!(entry, Entry::Ok { task: 2, .. }));
        let (runs, events) = log(history);
        runs[2].state = RunState::Waiting;
        runs[2].version = None;
        events.pop();
        *version(history) = 2;
    });
}

#[test]
fn p2_one_key_became_two_runs_and_two_replies() {
    let found = check_planted("P2", |history| {
        let (runs, events) = log(history);
        let mut again = runs[2].clone();
        again.id = RunId::new(Wall(9), &Generator::from_seed(9));
        again.version = Some(4);
        let mut shown = Conversation::default();
        for event in events.iter() {
            match &event.body {
                EventBody::UserMessage { message } => shown.push_words(Item::User, message.joined_text()),
                EventBody::AssistantMessage { message, .. } => {
                    shown.push_words(Item::Assistant, message.joined_text());
                }
                _ => {}
            }
        }
        let mut copies: Vec<Event> = events[8..].to_vec();
        shown.push_words(Item::User, chat::ask(2, 10));
        for event in &mut copies {
            event.run = again.id;
            match &mut event.body {
                EventBody::RunClaimed { epoch, .. } => *epoch = 4,
                EventBody::AssistantMessage { message, .. } => {
                    *message = Message::text("again", Role::Assistant, reply(2, &shown));
                }
                _ => {}
            }
        }
        events.extend(copies);
        renumber(events);
        // The client knows nothing of the first of them, so that only the doubling is wrong.
        runs.push(again);
        *version(history) = 4;
        history.entries.retain(|entry| {
            !matches!(
                entry,
                Entry::Ok { task: 2, .. } | Entry::Accepted { task: 2, .. } | Entry::Streamed { task: 2, .. }
            )
        });
    });
    assert_eq!(found.counts.doubled, 1);
}

#[test]
fn p2_a_refused_turn_that_is_there() {
    check_planted("P2", |history| {
        history
            .entries
            .retain(|entry| !matches!(entry, Entry::Ok { task: 2, .. } | Entry::Accepted { task: 2, .. }));
        history.entries.push(Entry::Fail { task: 2, code: 409, text: String::new(), t: 9_000 });
    });
}

#[test]
fn p2_a_message_of_another_thread() {
    check_planted("P2", |history| {
        let (_, events) = log(history);
        let foreign = Message::text("u3", Role::User, chat::ask(3, 10));
        let end = events.len() - 1;
        let mut strange = events[end].clone();
        strange.body = EventBody::UserMessage { message: foreign };
        events.insert(end, strange);
        renumber(events);
    });
}

#[test]
fn p3_one_key_was_answered_with_two_runs() {
    check_planted("P3", |history| {
        let run = RunId::new(Wall(9), &Generator::from_seed(9)).to_string();
        history.entries.push(Entry::Accepted { task: 2, run, t: 9_000 });
    });
}

#[test]
fn p3_the_client_was_told_another_reply() {
    check_planted("P3", |history| {
        for entry in &mut history.entries {
            if let Entry::Ok { task: 1, reply, .. } = entry {
                *reply = Some("Something else. [re 1]".to_owned());
            }
        }
    });
}

#[test]
fn p3_the_client_was_told_another_end() {
    check_planted("P3", |history| {
        for entry in &mut history.entries {
            if let Entry::Ok { task: 1, status, .. } = entry {
                *status = "error".to_owned();
            }
        }
    });
}

#[test]
fn p4_a_gap_in_the_log() {
    check_planted("P4", |history| log(history).1.iter_mut().skip(5).for_each(|event| event.seq += 1));
}

#[test]
fn p4_two_turns_on_one_version() {
    check_planted("P4", |history| {
        log(history).0[2].version = Some(2);
        *version(history) = 2;
    });
}

#[test]
fn p4_a_version_that_no_turn_has() {
    check_planted("P4", |history| *version(history) += 1);
}

#[test]
fn p4_a_run_begins_while_another_is_active() {
    check_planted("P4", |history| {
        let (_, events) = log(history);
        let claim = events.remove(8);
        events.insert(7, claim);
        renumber(events);
    });
}

#[test]
fn p5_a_reply_computed_on_another_state() {
    let found = check_planted("P5", |history| {
        let (_, events) = log(history);
        let words = "Well. [re 2] [seen 0000000000000000]".to_owned();
        if let EventBody::AssistantMessage { message, .. } = &mut events[10].body {
            *message = Message::text("a2", Role::Assistant, words.clone());
        }
        for entry in &mut history.entries {
            match entry {
                Entry::Ok { task: 2, reply, .. } => *reply = Some(words.clone()),
                Entry::Streamed { task: 2, text } => *text = words.clone(),
                _ => {}
            }
        }
    });
    assert_eq!(found.violations[0].turn, "turn 2");
}

#[test]
fn p6_an_epoch_that_falls() {
    check_planted("P6", |history| {
        let (_, events) = log(history);
        if let EventBody::RunClaimed { epoch, .. } = &mut events[8].body {
            *epoch = 1;
        }
    });
}

#[test]
fn p7_a_turn_comes_before_one_that_was_acknowledged_earlier() {
    check_planted("P7", |history| {
        for entry in &mut history.entries {
            if let Entry::Invoke { task: 0, t, .. } = entry {
                *t = 2_000;
            }
        }
    });
}

#[test]
fn p8_a_replica_that_does_not_serve_after_the_heal() {
    check_planted("P8", |history| {
        history.entries.push(Entry::Tail { replica: "replica 2".to_owned(), trouble: None });
        let trouble = Some("connection refused".to_owned());
        history.entries.push(Entry::Tail { replica: "replica 3".to_owned(), trouble });
    });
}

#[test]
fn p9_the_streamed_pieces_are_not_the_reply() {
    check_planted("P9", |history| {
        for entry in &mut history.entries {
            if let Entry::Streamed { task: 4, text } = entry {
                text.truncate(3);
            }
        }
    });
}

#[test]
fn p10_an_effect_intended_twice() {
    check_planted("P10", |history| {
        let (_, events) = log(history);
        let run = events[8].run;
        let intent = EventBody::EffectIntended(EffectIntent {
            effect: EffectId::of(run, 1, 0),
            call_id: CallId::of(run, 1, 0),
            tool: "bash".to_owned(),
            args_hash: String::new(),
            class: EffectClass::Unsafe,
            guards: Vec::new(),
            snapshot: None,
            policies: Vec::new(),
            approval: None,
        });
        let result = EventBody::EffectSettled(EffectResult {
            effect: EffectId::of(run, 1, 0),
            call_id: CallId::of(run, 1, 0),
            text: "fine".to_owned(),
            is_error: false,
            blob: None,
            ms: 1,
            settled: "ran".to_owned(),
            facts: Value::Null,
        });
        let end = events.len() - 1;
        for body in [intent.clone(), intent, result].into_iter().rev() {
            let strange = Event { body, ..events[end].clone() };
            events.insert(end, strange);
        }
        renumber(events);
    });
}

#[test]
fn p12_tokens_that_do_not_add_up() {
    check_planted("P12", |history| log(history).0[1].usage.output_tokens += 1);
}

#[test]
fn a_turn_that_was_not_acknowledged_may_be_missing_or_there_once() {
    let mut history = good();
    history.entries.retain(|entry| {
        !matches!(
            entry,
            Entry::Ok { task: 2, .. } | Entry::Accepted { task: 2, .. } | Entry::Streamed { task: 2, .. }
        )
    });
    let found = check::history(&history);
    assert_eq!((found.violations.len(), found.counts.accepted, found.counts.completed), (0, 4, 4));
}

#[test]
fn an_answer_that_came_too_late_is_no_success_and_no_loss() {
    let mut history = good();
    for entry in &mut history.entries {
        if let Entry::Ok { task: 4, t, .. } = entry {
            *t = 40_000;
        }
    }
    let found = check::history(&history);
    assert_eq!((found.violations.len(), found.counts.lost, found.counts.completed), (0, 0, 4));
}

#[test]
fn p13_two_attempts_with_one_span() {
    check_planted("P13", |history| {
        let (runs, events) = log(history);
        if let EventBody::AssistantMessage { attempts, .. } = &mut events[2].body {
            attempts.insert(0, attempt("transient"));
        }
        // Its tokens add up, so that only the span is wrong.
        runs[0].usage.input_tokens += 10;
        runs[0].usage.output_tokens += 5;
    });
}
