//! A context that outgrows the window: what is kept, what stands for the rest, and when it fails.

use std::time::Duration;

use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::model::{ModelRequest, RouteFacts};
use evenkeel_core::run::Run;
use serde_json::json;

use super::lab::{Bench, Setup, end_of, in_time};
use super::world::{Say, TestModel, is_compaction};

const SUMMARY: &str = "The files were read; the answer is near.";

/// A window in which a handful of long results fit.
fn small_window(model: &mut TestModel) {
    model.facts =
        RouteFacts { context_tokens: 12_000, bytes_per_token: 4.0, park_max: Duration::from_secs(600) };
    model.usage = evenkeel_core::message::Usage { estimated: true, ..model.usage };
}

struct Played {
    run: Run,
    events: Vec<Event>,
    requests: Vec<ModelRequest>,
}

impl Played {
    fn compactions(&self) -> Vec<bool> {
        let summaries = self.events.iter().filter_map(|event| match &event.body {
            EventBody::Compacted { summary, .. } => Some(summary.is_some()),
            _ => None,
        });
        summaries.collect()
    }

    fn noted(&self, wanted: &str) -> usize {
        let is = |event: &&Event| matches!(&event.body, EventBody::Noted { kind, .. } if kind == wanted);
        self.events.iter().filter(is).count()
    }
}

fn play(request: &str, script: impl Fn(&ModelRequest) -> Say + Send + Sync + 'static) -> Played {
    let request = request.to_owned();
    in_time(async move {
        let bench = Bench::new(50);
        for n in 0..200 {
            let text = format!("{n:04} ").repeat(1_000);
            bench.world.files.lock().unwrap().insert(format!("f{n}"), text);
        }
        let process = bench.start_with(Setup { tune: small_window, ..Setup::default() }, script);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", &request)).await;
        let run = bench.ended(run).await;
        bench.assert_sound(thread).await;
        let requests = process.model.requests();
        Played { run, events: bench.events(thread).await, requests }
    })
}

/// Reads a long file in each step; every result is 5,000 bytes.
fn reads(request: &ModelRequest, n_steps: u32) -> Say {
    if is_compaction(request) {
        return Say::Text(SUMMARY);
    }
    match request.step {
        step if step <= n_steps => Say::Calls(vec![("read", json!({"path": format!("f{step}")}))]),
        _ => Say::Text("done"),
    }
}

/// Writes long arguments in each step, which no stub makes smaller.
fn writes(request: &ModelRequest, n_steps: u32, summary: Say) -> Say {
    if is_compaction(request) {
        return summary;
    }
    match request.step {
        step if step <= n_steps => Say::Calls(vec![("put", json!({"what": "w".repeat(4_000), "n": step}))]),
        _ => Say::Text("done"),
    }
}

fn largest(requests: &[ModelRequest]) -> usize {
    let bytes = |request: &ModelRequest| serde_json::to_string(&request.messages).unwrap().len();
    requests.iter().map(bytes).max().unwrap_or(0)
}

/// Every request of a run whose old results become stubs.
pub(crate) fn compacted_requests() -> Vec<ModelRequest> {
    play("the request", |request| reads(request, 30)).requests
}

#[test]
fn old_results_become_stubs_and_no_model_is_asked() {
    let played = play("the request", |request| reads(request, 30));
    assert_eq!(end_of(&played.run), "completed  done");
    assert!(!played.compactions().is_empty());
    assert!(played.compactions().iter().all(|is_summary| !is_summary), "{:?}", played.compactions());
    assert!(played.requests.iter().all(|request| !is_compaction(request)));
    assert!(largest(&played.requests) < 48_000, "{}", largest(&played.requests));
    let last = played.requests.last().unwrap();
    assert_eq!(last.messages[0].joined_text(), "the request");
    let first_result = last.messages[2].tool_results().next().unwrap().text.clone();
    assert_eq!(
        first_result,
        "[older result of read removed to save space: 5000 characters; call again if needed]"
    );
    let last_result = last.messages.last().unwrap().tool_results().next().unwrap().text.clone();
    assert!(last_result.starts_with("0030 "), "the newest stay whole");
}

#[test]
fn what_stubs_cannot_shrink_is_summarised_and_the_request_stays_word_for_word() {
    let played = play("the request", |request| writes(request, 40, Say::Text(SUMMARY)));
    assert_eq!(end_of(&played.run), "completed  done");
    assert!(played.compactions().iter().filter(|is_summary| **is_summary).count() >= 2);
    assert!(largest(&played.requests) < 48_000);
    let last = played.requests.last().unwrap();
    let standing = last.messages[0].joined_text();
    assert!(standing.contains("word for word\nthe request\n") && standing.contains(SUMMARY), "{standing}");
    let asked: Vec<_> = played.requests.iter().filter(|request| is_compaction(request)).collect();
    assert!(asked.iter().all(|request| request.tools.is_empty() && request.messages.len() == 1));
    for event in &played.events {
        if let EventBody::Compacted { tokens_before, tokens_after, .. } = event.body {
            assert!(tokens_after * 10 <= 9_600 * 6 && tokens_after < tokens_before);
        }
    }
}

#[test]
fn a_summary_that_is_a_call_or_empty_is_a_failure_and_three_are_enough() {
    let summaries: [fn() -> Say; 3] = [
        || Say::Calls(vec![("send", json!({"what": "no"}))]),
        || Say::Empty,
        || Say::Fatal(evenkeel_core::Code::ProviderRejected),
    ];
    for summary in summaries {
        let played = play("the request", move |request| writes(request, 60, summary()));
        assert_eq!(end_of(&played.run), "completed  done");
        assert_eq!(played.noted("compaction_failed"), 3);
        assert_eq!(played.requests.iter().filter(|request| is_compaction(request)).count(), 3);
        let standing = played.requests.last().unwrap().messages[0].joined_text();
        assert!(standing.contains("the request") && standing.contains("called put"), "{standing}");
    }
}

#[test]
fn a_provider_that_finds_the_context_too_long_gets_a_smaller_one() {
    let played = play("the request", |request| match request.step {
        1..=5 if !is_compaction(request) => reads(request, 5),
        6 if serde_json::to_string(&request.messages).unwrap().len() > 16_000 => Say::TooLong,
        _ => Say::Text("done"),
    });
    assert_eq!(end_of(&played.run), "completed  done");
    assert!(!played.compactions().is_empty());
    let refused = play("the request", |_| Say::TooLong);
    assert_eq!(end_of(&refused.run), "failed context-too-long");
    assert!(refused.requests.len() <= 3, "{}", refused.requests.len());
}

#[test]
fn a_request_that_fits_no_window_fails_with_its_size() {
    let played = play(&"long ".repeat(20_000), |_| Say::Text("never"));
    assert_eq!(end_of(&played.run), "failed context-too-long");
    assert!(played.requests.is_empty(), "nothing was sent");
    let played = play(&"long ".repeat(8_000), |_| Say::Text("fits"));
    assert_eq!(end_of(&played.run), "completed  fits");
}

#[test]
fn a_chat_of_many_turns_keeps_the_newest_and_each_turn_is_answered() {
    in_time(async {
        let bench = Bench::new(51);
        let process = bench.start_with(Setup { tune: small_window, ..Setup::default() }, |request| {
            if is_compaction(request) { Say::Text(SUMMARY) } else { Say::Text("answer") }
        });
        let thread = bench.new_thread();
        for n in 0..40 {
            let text = format!("turn {n} {}", "blah ".repeat(400));
            let run = bench.admit(thread, bench.spec("chat", &text)).await;
            assert_eq!(end_of(&bench.ended(run).await), "completed  answer");
            let requests = process.model.requests();
            assert_eq!(requests.last().unwrap().messages.last().unwrap().joined_text(), text);
        }
        assert!(process.harness.stats().n_compactions > 0);
        assert!(largest(&process.model.requests()) < 48_000);
        bench.assert_sound(thread).await;
    });
}

/// A span of a trace is named by the step and the number of the attempt: two attempts with one number
/// were one span.
#[test]
fn attempts_before_and_after_a_compaction_have_numbers_of_their_own() {
    let refused = std::sync::atomic::AtomicBool::new(false);
    let played = play("the request", move |request| {
        let is_first = |request: &ModelRequest| request.step == 4 && !is_compaction(request);
        if is_first(request) && !refused.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return Say::TooLong;
        }
        reads(request, 6)
    });
    assert_eq!(end_of(&played.run), "completed  done");
    assert!(!played.compactions().is_empty());
    let of_step = played.events.iter().filter(|event| event.step == 4);
    let numbers: Vec<u32> = of_step
        .flat_map(|event| match &event.body {
            EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } => {
                attempts.clone()
            }
            _ => Vec::new(),
        })
        .map(|attempt| attempt.attempt)
        .collect();
    assert!(numbers.len() > 1, "{numbers:?}");
    assert!((1..).zip(&numbers).all(|(number, found)| number == *found), "{numbers:?}");
}
