use evenkeel_core::id::{CallId, EffectId, ReplicaId, RunId, ThreadId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, Event, EventBody};
use evenkeel_core::message::{Block, Message, Role, ToolCall, ToolResult, Usage};
use evenkeel_core::run::{Attempt, Outcome, Run, RunSpec, RunState};
use evenkeel_core::{Generator, Wall};
use serde_json::Value;

use super::*;
use crate::task::{self, Conversation, Facts, Item, Script, Shape, Solver, SolverCall};

/// A history without any fault, made the way the product makes one.
pub(super) fn good() -> Story {
    let script = task::all().iter().find(|script| script.name == "sh-greet").unwrap();
    let generator = Generator::from_seed(3);
    let (run, thread) = (RunId::new(Wall(1), &generator), ThreadId::new(Wall(1), &generator));
    let mut story =
        Story { script, run, thread, replica: ReplicaId::new(Wall(1), &generator), events: Vec::new() };
    story.tell();
    story
}

pub(super) struct Story {
    script: &'static Script,
    run: RunId,
    thread: ThreadId,
    replica: ReplicaId,
    events: Vec<Event>,
}

impl Story {
    fn push(&mut self, step: u32, body: EventBody) {
        let seq = self.events.len() as u64 + 1;
        self.events.push(Event {
            thread: self.thread,
            seq,
            run: self.run,
            step,
            at: Wall(1_000 + seq),
            body,
        });
    }

    fn tell(&mut self) {
        let ask = Solver::ask(self.script, Shape::Short, 0);
        let mut shown = Conversation { items: vec![Item::User(ask.clone())], ..Conversation::default() };
        self.push(0, EventBody::RunClaimed { epoch: 1, attempt: 1 });
        self.push(0, EventBody::UserMessage { message: Message::text("u1", Role::User, ask) });
        for (step, moves) in (1..).zip(&self.script.steps) {
            let text = format!("{} [step {step}.0] [seen {}]", moves.say, shown.echo());
            let calls: Vec<SolverCall> = moves.calls.iter().map(task::Move::call).collect();
            shown.items.push(Item::Assistant(text.clone()));
            shown.items.extend(calls.iter().cloned().map(Item::Call));
            self.step(step, text, &calls);
        }
        let outcome = Outcome {
            state: RunState::Completed,
            reason: None,
            error: None,
            text: "Done.".to_owned(),
            diff: None,
            delivered: None,
        };
        self.push(8, EventBody::RunEnded { outcome });
    }

    fn step(&mut self, step: u32, text: String, calls: &[SolverCall]) {
        let id = |idx: u32| CallId::of(self.run, step, idx);
        let mut blocks = vec![Block::Text { text }];
        blocks.extend((0..).zip(calls).map(|(idx, call)| {
            Block::ToolCall(ToolCall {
                id: id(idx),
                name: call.name.clone(),
                args: call.args.clone(),
                wire_id: None,
            })
        }));
        let results = (0..).zip(calls).map(|(idx, call)| {
            Block::ToolResult(ToolResult {
                call_id: id(idx),
                name: call.name.clone(),
                text: "fine".to_owned(),
                is_error: false,
            })
        });
        let results = Message { id: format!("t{step}").into(), role: Role::Tool, blocks: results.collect() };
        let message = Message { id: format!("a{step}").into(), role: Role::Assistant, blocks };
        let (attempts, finish) = (vec![attempt("ok")], "tool_calls".to_owned());
        self.push(step, EventBody::AssistantMessage { message, attempts, finish });
        for idx in 0..calls.len() as u32 {
            self.push(step, intent(self.run, step, idx));
            self.push(step, settled(self.run, step, idx));
        }
        self.push(step, EventBody::ToolMessage { message: results });
        self.push(step, EventBody::Checkpoint { snapshot: None });
    }

    fn stored(&self) -> Run {
        let n_replies = self
            .events
            .iter()
            .filter(|event| matches!(event.body, EventBody::AssistantMessage { .. }))
            .count() as u64;
        let usage = Usage { input_tokens: 10 * n_replies, output_tokens: 5 * n_replies, ..Usage::default() };
        Run {
            id: self.run,
            thread: self.thread,
            tenant: "default".into(),
            state: RunState::Completed,
            not_before: None,
            stop: None,
            wait: None,
            position: 0,
            step: 8,
            attempt: 1,
            owner: Some(self.replica),
            version: Some(1),
            key: Some("lab-1-0".into()),
            created_at: Wall(1_000),
            updated_at: Wall(2_000),
            spec: RunSpec {
                assistant: "coder".to_owned(),
                messages: Vec::new(),
                repository: None,
                deliver: None,
                limits: evenkeel_core::agent::RunLimits::default(),
                class: evenkeel_core::run::Class::Batch,
                busy_policy: evenkeel_core::run::BusyPolicy::Enqueue,
                deadline: Wall(9_000),
                from_seq: None,
                request: Value::Null,
            },
            outcome: None,
            usage,
        }
    }

    pub(super) fn history(&self) -> History {
        let (run, thread) = (self.run.to_string(), self.thread.to_string());
        let facts = Facts {
            tests_pass: true,
            effects: self.script.effects().map(str::to_owned).collect(),
            text: String::new(),
        };
        let entries = vec![
            Entry::Begin {
                scenario: "mini".to_owned(),
                seed: 1,
                protect: "full".to_owned(),
                answer_within_s: None,
            },
            Entry::Invoke {
                task: 0,
                script: self.script.name.to_owned(),
                thread,
                key: "lab-1-0".to_owned(),
                attempt: 1,
                t: 0,
            },
            Entry::Accepted { task: 0, run: run.clone(), t: 5 },
            Entry::Ok { task: 0, run: run.clone(), status: "success".to_owned(), reply: None, t: 6_000 },
            Entry::Thread { task: 0, runs: vec![run] },
            Entry::Stored { task: 0, run: Box::new(self.stored()), events: self.events.clone() },
            Entry::Examined { task: 0, facts },
            Entry::Idle { component: "harness".to_owned(), in_use: 0 },
        ];
        History { entries }
    }
}

/// A try at a model call that ended so.
pub(super) fn attempt(outcome: &str) -> Attempt {
    Attempt {
        attempt: 1,
        deployment: "primary".to_owned(),
        provider: "primary".to_owned(),
        model: "m".to_owned(),
        started_at: Wall(1),
        first_content_ms: Some(1),
        ms: 2,
        outcome: outcome.to_owned(),
        cause: None,
        usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        cost_micro_usd: None,
    }
}

fn intent(run: RunId, step: u32, idx: u32) -> EventBody {
    EventBody::EffectIntended(EffectIntent {
        effect: EffectId::of(run, step, idx),
        call_id: CallId::of(run, step, idx),
        tool: "bash".to_owned(),
        args_hash: String::new(),
        class: EffectClass::Workspace,
        guards: Vec::new(),
        snapshot: None,
        policies: Vec::new(),
        approval: None,
    })
}

fn settled(run: RunId, step: u32, idx: u32) -> EventBody {
    EventBody::EffectSettled(EffectResult {
        effect: EffectId::of(run, step, idx),
        call_id: CallId::of(run, step, idx),
        text: "fine".to_owned(),
        is_error: false,
        blob: None,
        ms: 1,
        settled: "ran".to_owned(),
        facts: Value::Null,
    })
}

/// Puts sequence numbers right after events were added or taken away, so that only the planted
/// fault shows.
fn renumber(events: &mut [Event]) {
    for (seq, event) in (1..).zip(events) {
        event.seq = seq;
    }
}

fn stored(history: &mut History) -> (&mut Run, &mut Vec<Event>) {
    let found = history.entries.iter_mut().find_map(|entry| match entry {
        Entry::Stored { run, events, .. } => Some((&mut **run, events)),
        _ => None,
    });
    found.unwrap()
}

fn position(events: &[Event], wanted: impl Fn(&Event) -> bool) -> usize {
    events.iter().position(wanted).unwrap()
}

fn facts(history: &mut History) -> &mut Facts {
    let found = history.entries.iter_mut().find_map(|entry| match entry {
        Entry::Examined { facts, .. } => Some(facts),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn a_good_history_has_no_violation() {
    let history = good().history();
    let checked = super::history(&history);
    assert_eq!(checked.violations, []);
    assert_eq!((checked.counts.completed, checked.counts.lost, checked.counts.doubled), (1, 0, 0));
    assert_eq!(History::parse(&history.to_lines().unwrap()).unwrap(), history);
}

/// Plants one violation and demands that exactly the property in question finds it.
fn check_planted(property: &str, plant: impl FnOnce(&mut History)) {
    let mut history = good().history();
    plant(&mut history);
    let found = super::history(&history);
    assert!(!found.pass);
    let properties: Vec<&str> = found.violations.iter().map(|violation| violation.property).collect();
    assert!(
        properties.iter().all(|found| *found == property) && !properties.is_empty(),
        "{property}: {:?}",
        found.violations
    );
}

#[test]
fn p1_a_lost_task() {
    check_planted("P1", |history| {
        history.entries.retain(|entry| !matches!(entry, Entry::Stored { .. } | Entry::Examined { .. }))
    });
}

#[test]
fn p1_a_task_that_never_ends() {
    check_planted("P1", |history| {
        history.entries.retain(|entry| !matches!(entry, Entry::Ok { .. } | Entry::Examined { .. }));
        let (run, events) = stored(history);
        run.state = RunState::Waiting;
        events.pop();
    });
}

#[test]
fn p2_one_task_became_two_runs() {
    check_planted("P2", |history| {
        for entry in &mut history.entries {
            if let Entry::Thread { runs, .. } = entry {
                runs.push("another".to_owned());
            }
        }
    });
}

#[test]
fn p2_a_refused_task_that_ran() {
    check_planted("P2", |history| {
        history.entries.retain(|entry| !matches!(entry, Entry::Accepted { .. } | Entry::Ok { .. }));
        history.entries.push(Entry::Fail { task: 0, code: 409, text: String::new(), t: 3 });
    });
}

#[test]
fn p2_a_message_that_is_there_twice() {
    check_planted("P2", |history| {
        let (_, events) = stored(history);
        // At the end, where no later reply was computed on it.
        let again = events[1].clone();
        let end = events.len() - 1;
        events.insert(end, again);
        renumber(events);
    });
}

#[test]
fn p3_two_runs_for_one_key() {
    check_planted("P3", |history| {
        history.entries.insert(3, Entry::Accepted { task: 0, run: "another".to_owned(), t: 9 });
    });
}

#[test]
fn p3_the_client_was_told_another_end() {
    check_planted("P3", |history| {
        for entry in &mut history.entries {
            if let Entry::Ok { status, .. } = entry {
                *status = "error".to_owned();
            }
        }
    });
}

#[test]
fn p4_a_gap_in_the_log() {
    check_planted("P4", |history| {
        let (_, events) = stored(history);
        events.iter_mut().skip(5).for_each(|event| event.seq += 1);
    });
}

#[test]
fn p4_an_event_after_the_end() {
    check_planted("P4", |history| {
        let (_, events) = stored(history);
        let mut late = events[0].clone();
        late.body = EventBody::CancelRequested;
        events.push(late);
        renumber(events);
    });
}

#[test]
fn p5_a_reply_computed_on_another_state() {
    check_planted("P5", |history| {
        let (_, events) = stored(history);
        for event in events.iter_mut().filter(|event| event.step == 4) {
            if let EventBody::AssistantMessage { message, .. } = &mut event.body {
                message.blocks[0] =
                    Block::Text { text: "Well. [step 4.0] [seen 0000000000000000]".to_owned() };
            }
        }
    });
}

#[test]
fn p6_an_epoch_that_falls() {
    check_planted("P6", |history| {
        let (_, events) = stored(history);
        let mut claim = events[0].clone();
        claim.body = EventBody::RunClaimed { epoch: 1, attempt: 2 };
        events.insert(9, claim);
        renumber(events);
    });
}

#[test]
fn p8_a_process_that_ended_by_itself() {
    check_planted("P8", |history| history.entries.push(Entry::Crash { text: "signal 11".to_owned(), t: 4 }));
}

#[test]
fn p9_an_end_that_is_not_in_the_log() {
    check_planted("P9", |history| drop(stored(history).1.pop()));
}

#[test]
fn p10_an_effect_intended_twice() {
    check_planted("P10", |history| {
        let (_, events) = stored(history);
        let at = position(events, |event| matches!(event.body, EventBody::EffectIntended(_)));
        let again = events[at].clone();
        events.insert(at, again);
        renumber(events);
    });
}

#[test]
fn p10_an_effect_that_happened_before_its_intent() {
    check_planted("P10", |history| {
        let (_, events) = stored(history);
        let at = position(events, |event| matches!(event.body, EventBody::EffectIntended(_)));
        events.swap(at, at + 1);
        renumber(events);
    });
}

#[test]
fn p10_an_effect_never_settled() {
    check_planted("P10", |history| {
        let (_, events) = stored(history);
        let at = position(events, |event| matches!(event.body, EventBody::EffectSettled(_)));
        events.remove(at);
        renumber(events);
    });
}

#[test]
fn p10_an_effect_that_happened_twice_in_the_workspace() {
    check_planted("P10", |history| {
        let line = facts(history).effects[1].clone();
        facts(history).effects.push(line);
    });
    let mut history = good().history();
    let line = facts(&mut history).effects[1].clone();
    facts(&mut history).effects.push(line);
    assert_eq!(super::history(&history).counts.doubled, 1);
}

#[test]
fn p10_an_effect_that_was_lost() {
    check_planted("P10", |history| drop(facts(history).effects.remove(0)));
}

#[test]
fn p11_a_checkpoint_that_is_missing() {
    check_planted("P11", |history| {
        let (_, events) = stored(history);
        let at =
            position(events, |event| event.step == 3 && matches!(event.body, EventBody::Checkpoint { .. }));
        events.remove(at);
        renumber(events);
    });
}

#[test]
fn p11_a_call_that_a_run_without_faults_does_not_have() {
    check_planted("P11", |history| {
        let (_, events) = stored(history);
        // In the last step, so that no later reply was computed on it.
        for event in events.iter_mut().filter(|event| event.step == 8) {
            if let EventBody::AssistantMessage { message, .. } = &mut event.body {
                for block in &mut message.blocks {
                    if let Block::ToolCall(call) = block {
                        call.args["summary"] = "Stopped at step 7".into();
                    }
                }
            }
        }
    });
}

#[test]
fn p12_tokens_that_do_not_add_up() {
    check_planted("P12", |history| stored(history).0.usage.output_tokens += 1);
}

#[test]
fn p12_a_slot_that_was_not_given_back() {
    check_planted("P12", |history| {
        history.entries.push(Entry::Idle { component: "sandbox".to_owned(), in_use: 1 })
    });
}

#[test]
fn p12_a_stream_that_was_left_open() {
    check_planted("P12", |history| {
        history.entries.push(Entry::Provider {
            name: "primary".to_owned(),
            calls_while_down: 0,
            streams: 2,
            validation_failures: 0,
            violations: Vec::new(),
        });
    });
}

/// Changes the attempts behind the reply of step 4; its tokens stay what they were.
fn attempts_of_step_4(history: &mut History, change: impl Fn(&mut Vec<Attempt>)) {
    for event in stored(history).1.iter_mut().filter(|event| event.step == 4) {
        if let EventBody::AssistantMessage { attempts, .. } = &mut event.body {
            change(attempts);
        }
    }
}

fn free(outcome: &str, number: u32) -> Attempt {
    Attempt { attempt: number, usage: Usage::default(), ..attempt(outcome) }
}

#[test]
fn p13_two_attempts_with_one_span() {
    check_planted("P13", |history| {
        attempts_of_step_4(history, |attempts| attempts.insert(0, free("transient", 1)));
    });
}

#[test]
fn p13_an_attempt_without_an_end() {
    check_planted("P13", |history| {
        attempts_of_step_4(history, |attempts| {
            attempts[0].attempt = 2;
            attempts.insert(0, free("", 1));
        });
    });
}

#[test]
fn p13_a_reply_that_no_attempt_gave() {
    check_planted("P13", |history| {
        attempts_of_step_4(history, |attempts| attempts.push(free("transient", 2)));
    });
}

#[test]
fn p13_a_tool_call_that_ends_the_span_of_another() {
    check_planted("P13", |history| {
        let (run, events) = stored(history);
        let id = run.id;
        let at = position(events, |event| matches!(event.body, EventBody::EffectSettled(_)));
        if let EventBody::EffectSettled(result) = &mut events[at].body {
            result.call_id = CallId::of(id, 99, 0);
        }
    });
}

#[test]
fn h_a_call_without_a_result() {
    check_planted("H", |history| {
        let (_, events) = stored(history);
        for event in events.iter_mut().filter(|event| event.step == 4) {
            if let EventBody::ToolMessage { message } = &mut event.body {
                message.blocks.pop();
            }
        }
    });
}

#[test]
fn h_a_request_that_broke_the_rules_of_its_wire() {
    check_planted("H", |history| {
        history.entries.push(Entry::Provider {
            name: "primary".to_owned(),
            calls_while_down: 0,
            streams: 0,
            validation_failures: 1,
            violations: vec!["messages[3]: role".to_owned()],
        });
    });
}

#[test]
fn resumes_parks_and_retries_are_counted() {
    let mut history = good().history();
    let (run, events) = stored(&mut history);
    run.usage.input_tokens += 10;
    run.usage.output_tokens += 5;
    let template = events[0].clone();
    let event = |body| Event { body, ..template.clone() };
    let parked = EventBody::Parked {
        on: evenkeel_core::run::WaitReason::Model,
        reason: String::new(),
        until_hint: None,
    };
    events.insert(9, event(EventBody::RunClaimed { epoch: 2, attempt: 2 }));
    events.insert(10, event(EventBody::ModelAttempts { attempts: vec![attempt("transient")] }));
    events.insert(11, event(parked));
    events.insert(12, event(EventBody::RunClaimed { epoch: 3, attempt: 3 }));
    renumber(events);
    let checked = super::history(&history);
    assert_eq!(checked.violations, []);
    assert_eq!((checked.counts.resumed, checked.counts.parked, checked.counts.retried_calls), (1, 1, 1));
}

#[test]
fn requests_that_broke_are_counted_and_clients_that_left_are_not() {
    let mut history = good().history();
    for why in ["503: draining", super::CLIENT_LEFT, "the stream broke"] {
        history.entries.push(Entry::Info { task: 0, why: why.to_owned(), t: 5 });
    }
    assert_eq!(super::history(&history).counts.broken_requests, 2);
}
