//! Results that are delivered: a run has completed when its result is where it was to be.

use evenkeel_core::id::RunId;
use evenkeel_core::message::Block;
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::port::store::Cancelled;
use evenkeel_core::run::{Deliver, Repository, Run, RunSpec};
use serde_json::json;

use super::lab::{Bench, Setup, end_of, in_time};
use super::world::{Say, Takes};

const WANTED: Deliver = Deliver { branch: None, base: None, pull_request: true, title: None };

/// Edits a file, once more if a death came in between, and says so.
fn edits(request: &ModelRequest) -> Say {
    let last = request.messages.last().into_iter().flat_map(|message| &message.blocks);
    let is_done =
        last.into_iter().any(|block| matches!(block, Block::ToolResult(result) if !result.is_error));
    match is_done {
        false => Say::Calls(vec![("edit", json!({ "path": "a.txt", "to": "new" }))]),
        true => Say::Text("I changed it."),
    }
}

async fn send(bench: &Bench) -> RunId {
    let repository = Some(Repository::Url("https://forge.test/acme/shop".to_owned()));
    let spec = RunSpec { repository, deliver: Some(WANTED), ..bench.spec("coder", "go") };
    bench.admit(bench.new_thread(), spec).await
}

/// How often it was asked for, and where it is.
fn delivered(bench: &Bench, run: &Run) -> (usize, Option<String>) {
    let outcome = run.outcome.as_ref().expect("it has ended");
    assert!(outcome.diff.as_ref().is_some_and(|diff| diff.contains("new")), "the diff is kept: {outcome:?}");
    let commit = outcome.delivered.as_ref().map(|delivered| delivered.commit.clone());
    (bench.world.deliveries.lock().unwrap().len(), commit)
}

/// G05: success is told only when the forge has it, a forge that is down is asked again, and one that
/// refuses for good fails the run.
#[test]
fn g05_a_run_completes_when_its_result_is_delivered() {
    let cases: [(&[Takes], &str, usize, bool); 3] = [
        (&[Takes::It], "completed  I changed it.", 1, true),
        (&[Takes::Later, Takes::Later, Takes::It], "completed  I changed it.", 3, true),
        (&[Takes::Later, Takes::Never], "failed delivery-failed", 2, false),
    ];
    for (script, end, n_asked, is_there) in cases {
        in_time(async {
            let bench = Bench::new(300);
            *bench.world.forge.lock().unwrap() = script.to_vec();
            let process = bench.start(edits);
            let run = send(&bench).await;
            let ended = bench.ended(run).await;
            assert_eq!(end_of(&ended), end, "{script:?}");
            let commit = is_there.then(|| format!("of {run}"));
            assert_eq!(delivered(&bench, &ended), (n_asked, commit), "{script:?}");
            bench.assert_sound(ended.thread).await;
            drop(process);
        });
    }
}

#[test]
fn what_changes_nothing_is_not_delivered() {
    in_time(async {
        let bench = Bench::new(301);
        let process = bench.start(|_| Say::Text("There is nothing to do."));
        let run = send(&bench).await;
        assert_eq!(end_of(&bench.ended(run).await), "completed  There is nothing to do.");
        assert_eq!(bench.world.deliveries.lock().unwrap().len(), 0);
        drop(process);
    });
}

/// A process dies at any point, also while the forge is asked and after it has taken the result: the
/// next one asks for the very same delivery, and nothing else happens twice.
#[test]
fn a_delivery_outlives_its_process() {
    let play = |die_at: Option<usize>| {
        in_time(async move {
            let bench = Bench::new(302);
            let mut process = bench.start_with(Setup { die_at, ..Setup::default() }, edits);
            let points = process.points.clone();
            let run = send(&bench).await;
            tokio::select! {
                biased;
                () = points.died.notified() => process = bench.start(edits),
                _ = bench.ended(run) => {}
            }
            let ended = bench.ended(run).await;
            assert_eq!(end_of(&ended), "completed  I changed it.", "{die_at:?}");
            let (n_asked, commit) = delivered(&bench, &ended);
            assert!((1..=2).contains(&n_asked) && commit.is_some(), "{die_at:?}: {n_asked}");
            bench.assert_sound(ended.thread).await;
            drop(process);
            points.passed()
        })
    };
    let n_points = play(None);
    for point in 0..n_points {
        play(Some(point));
    }
}

#[test]
fn a_cancel_does_not_wait_for_a_forge_that_hangs() {
    in_time(async {
        let bench = Bench::new(303);
        *bench.world.forge.lock().unwrap() = vec![Takes::Hangs];
        let process = bench.start(edits);
        let run = send(&bench).await;
        while bench.world.deliveries.lock().unwrap().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(bench.cancel(run).await, Cancelled::Cancelling);
        process.harness.cancel(run);
        let ended = bench.ended(run).await;
        assert_eq!(end_of(&ended), "cancelled");
        assert_eq!(delivered(&bench, &ended), (1, None));
        drop(process);
    });
}
