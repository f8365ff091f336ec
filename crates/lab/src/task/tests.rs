use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::port::runner::{Command, Exit, Runner};
use evenkeel_env::{Env, process};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::*;
use crate::provider::Brain as _;

/// Runs commands without isolation: only for these tests, whose commands are ours.
struct Bare;

impl Runner for Bare {
    fn run(&self, command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        Box::pin(async move {
            let (code, text) =
                run(&command.workspace, &command.argv.iter().map(String::as_str).collect::<Vec<_>>()).await;
            Ok(Exit { code: Some(code), stdout: text.into_bytes(), ..Exit::default() })
        })
    }
}

async fn run(dir: &Path, argv: &[&str]) -> (i32, String) {
    let mut command = process::command(argv[0]);
    command.args(&argv[1..]).current_dir(dir).env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", dir);
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "Coder").env(format!("GIT_{role}_EMAIL"), "coder@localhost");
    }
    let output = command.stdin(Stdio::null()).output().await.unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

/// The tools of the product, as far as the scripts need them.
async fn carry_out(dir: &Path, call: &SolverCall) -> (String, bool) {
    let arg = |name: &str| call.args[name].as_str().unwrap_or_default();
    let path = dir.join(arg("path"));
    match call.name.as_str() {
        "bash" => {
            let (code, text) = run(dir, &["bash", "-c", arg("command")]).await;
            (text, code != 0)
        }
        "read_file" => (std::fs::read_to_string(path).unwrap(), false),
        "write_file" => {
            std::fs::write(path, arg("content")).unwrap();
            (String::new(), false)
        }
        "edit_file" => {
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(arg("old_text")).count(), 1, "{} in {}", arg("old_text"), path.display());
            std::fs::write(path, text.replacen(arg("old_text"), arg("new_text"), 1)).unwrap();
            (String::new(), false)
        }
        "apply_patch" => {
            apply_patch(dir, arg("patch"));
            (String::new(), false)
        }
        "grep" => {
            let (code, text) = run(dir, &["grep", "-rnE", arg("pattern"), "--exclude-dir=.git", "."]).await;
            (text, code != 0)
        }
        "list_dir" | "glob" => (run(dir, &["ls", "-a"]).await.1, false),
        "git_diff" => (run(dir, &["git", "diff"]).await.1, false),
        "git_status" => (run(dir, &["git", "status", "--short"]).await.1, false),
        "git_commit" => {
            run(dir, &["git", "add", "-A"]).await;
            let (code, text) = run(dir, &["git", "commit", "-m", arg("message")]).await;
            (text, code != 0)
        }
        "finish" => (String::new(), false),
        other => panic!("no tool {other}"),
    }
}

/// One file, one hunk, the form `*** Update File`.
fn apply_patch(dir: &Path, patch: &str) {
    let path = patch.lines().find_map(|line| line.strip_prefix("*** Update File: ")).unwrap();
    let hunk: Vec<&str> =
        patch.lines().filter(|line| !line.starts_with("***") && !line.starts_with("@@")).collect();
    let side = |gone: char| {
        let lines =
            hunk.iter().filter(|line| !line.starts_with(gone)).map(|line| line.get(1..).unwrap_or_default());
        lines.collect::<Vec<_>>().join("\n")
    };
    let text = std::fs::read_to_string(dir.join(path)).unwrap();
    assert_eq!(text.matches(&side('+')).count(), 1, "{}", side('+'));
    std::fs::write(dir.join(path), text.replace(&side('+'), &side('-'))).unwrap();
}

struct Played {
    conversation: Conversation,
    diff: String,
    finished: bool,
}

/// Plays a task to its end. `meddle` may change what a call of a step (from 1) does.
async fn play(verifier: &Verifier, script: &Script, double_step: Option<usize>) -> Played {
    play_shaped(verifier, script, Shape::Short, double_step).await
}

async fn play_shaped(
    verifier: &Verifier,
    script: &Script,
    shape: Shape,
    double_step: Option<usize>,
) -> Played {
    let dir = verifier.repository(script).await.unwrap();
    let mut conversation = Conversation {
        items: vec![Item::User(Solver::ask(script, shape, 1))],
        tools: vec!["bash".to_owned()],
        ..Conversation::default()
    };
    let mut finished = false;
    for step_idx in 1..=script.n_steps(shape.looks()) + 4 {
        let reply = Solver.answer(&conversation);
        assert_eq!(Solver.answer(&conversation), reply, "the same conversation gives the same answer");
        conversation.items.push(Item::Assistant(reply.text));
        conversation.items.extend(reply.calls.iter().cloned().map(Item::Call));
        for call in &reply.calls {
            if double_step == Some(step_idx) {
                carry_out(&dir, call).await;
            }
            let (text, is_error) = carry_out(&dir, call).await;
            conversation.items.push(Item::Result { text, is_error });
            finished |= call.name == "finish";
        }
        if finished || reply.calls.is_empty() {
            break;
        }
    }
    run(&dir, &["git", "add", "-A", "."]).await;
    let given = run(&dir, &["git", "rev-list", "--max-parents=0", "HEAD"]).await.1;
    let diff = run(&dir, &["git", "diff", "--cached", "--binary", given.trim()]).await.1;
    std::fs::remove_dir_all(&dir).unwrap();
    Played { conversation, diff, finished }
}

fn verifier() -> (tempfile::TempDir, Verifier) {
    let root = tempfile::tempdir().unwrap();
    let verifier = Verifier::new(&Env::seeded(1), Arc::new(Bare), root.path().to_owned());
    (root, verifier)
}

fn summary_of(played: &Played) -> String {
    let calls = played.conversation.items.iter().filter_map(|item| match item {
        Item::Call(call) if call.name == "finish" => call.args["summary"].as_str(),
        _ => None,
    });
    calls.fold("", |_, summary| summary).to_owned()
}

#[tokio::test]
async fn each_task_passes_its_tests_after_its_eight_steps() {
    let (_root, verifier) = verifier();
    let (scripts, left_out) = available();
    println!("{left_out:?}");
    for script in scripts {
        let before = verifier.examine(script, "", "before").await.unwrap();
        assert!(!before.tests_pass, "{} passes without any work", script.name);
        let played = play(&verifier, script, None).await;
        assert!(played.finished, "{} did not finish: {:?}", script.name, played.conversation.items.last());
        assert!(!summary_of(&played).starts_with("Stopped"), "{}: {}", script.name, summary_of(&played));
        let calls = played.conversation.items.iter().filter_map(|item| match item {
            Item::Call(call) => Some(call.clone()),
            _ => None,
        });
        let calls: Vec<SolverCall> = calls.collect();
        assert_eq!(calls, script.calls(0).collect::<Vec<_>>(), "{}", script.name);
        let facts = verifier.examine(script, &played.diff, "after").await.unwrap();
        assert!(facts.tests_pass, "{}: {}\n{}", script.name, facts.text, played.diff);
        assert_eq!(facts.effects, script.effects().collect::<Vec<_>>(), "{}", script.name);
        let verdict = Verdict::of(script, facts);
        assert!(verdict.doubled.is_empty() && verdict.missing.is_empty(), "{verdict:?}");
    }
}

#[tokio::test]
async fn a_long_task_looks_around_after_each_step_and_ends_the_same() {
    let (_root, verifier) = verifier();
    for script in available().0 {
        let played = play_shaped(&verifier, script, Shape::Long, None).await;
        assert!(played.finished, "{} did not finish: {:?}", script.name, played.conversation.items.last());
        assert!(!summary_of(&played).starts_with("Stopped"), "{}: {}", script.name, summary_of(&played));
        let items = &played.conversation.items;
        let calls = items.iter().filter_map(|item| match item {
            Item::Call(call) => Some(call.clone()),
            _ => None,
        });
        assert_eq!(calls.collect::<Vec<_>>(), script.calls(2).collect::<Vec<_>>(), "{}", script.name);
        let n_replies = items.iter().filter(|item| matches!(item, Item::Assistant(_))).count();
        assert_eq!(n_replies, 22, "{}", script.name);
        let facts = verifier.examine(script, &played.diff, "long").await.unwrap();
        assert_eq!(facts.effects, script.effects().collect::<Vec<_>>(), "{}", script.name);
    }
}

#[tokio::test]
async fn a_doubled_command_is_seen_by_the_solver_and_by_the_verdict() {
    let (_root, verifier) = verifier();
    let script = all().iter().find(|script| script.name == "sh-greet").unwrap();
    let played = play(&verifier, script, Some(3)).await;
    assert!(summary_of(&played).starts_with("Stopped at step 3"), "{}", summary_of(&played));
    let facts = verifier.examine(script, &played.diff, "doubled").await.unwrap();
    assert_eq!(Verdict::of(script, facts).doubled, ["step 3.0"]);
}

#[test]
fn two_in_five_steps_run_code_and_one_task_in_six_is_big() {
    let n_steps: usize = all().iter().map(|script| script.steps.len()).sum();
    let runs_code = |step: &&Step| {
        step.calls.iter().any(|call| ["bash", "git_commit"].contains(&call.call().name.as_str()))
    };
    let n_code = all().iter().flat_map(|script| &script.steps).filter(runs_code).count();
    assert!(all().iter().all(|script| script.steps.len() == 8));
    assert!((35..=48).contains(&(100 * n_code / n_steps)), "{n_code} of {n_steps}");
    assert_eq!(all().iter().filter(|script| script.big).count(), 2);
    assert_eq!(all().len(), 13);
}

#[test]
fn both_wires_read_into_the_same_conversation() {
    let openai = serde_json::json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Well.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": "{\"b\":1,\"a\":2}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "x.py:1"},
    ], "tools": [{"type": "function", "function": {"name": "grep"}}]});
    let anthropic = serde_json::json!({"system": [{"type": "text", "text": "Be brief."}], "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "Well."}, {"type": "tool_use", "id": "toolu_1", "name": "grep", "input": {"a": 2, "b": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x.py:1"}]},
    ], "tools": [{"name": "grep"}]});
    let (one, other) = (Conversation::from_openai(&openai), Conversation::from_anthropic(&anthropic));
    assert_eq!(one.echo(), other.echo());
    assert_eq!((one.system, one.tools, one.items.len()), (other.system, other.tools, other.items.len()));
}

#[test]
fn a_compacted_conversation_goes_on_where_it_was() {
    let script = all().iter().find(|script| script.name == "py-roman").unwrap();
    let ask = Item::User(Solver::ask(script, Shape::Short, 1));
    let mut request = Conversation { items: vec![ask.clone()], ..Conversation::default() };
    request.items.push(Item::Assistant("I looked. [step 3.0] [seen 0]".to_owned()));
    let summary = Solver.answer(&request);
    assert!(summary.calls.is_empty() && summary.text.starts_with("Summary"), "{summary:?}");
    let mut after =
        Conversation { items: vec![ask], tools: vec!["bash".to_owned()], ..Conversation::default() };
    after.items.push(Item::User(summary.text));
    assert!(Solver.answer(&after).text.contains("[step 4.0]"), "a summary of everything is gone on from");
    after.items.push(Item::Assistant("The second part. [step 4.0] [seen 0]".to_owned()));
    after.items.push(Item::Call(script.steps[3].calls[0].call()));
    after.items.push(Item::Result { text: "effects: 3\n1501 MDI".to_owned(), is_error: false });
    let reply = Solver.answer(&after);
    assert!(reply.text.contains("[step 5.0]"), "{reply:?}");
    assert_eq!(reply.calls[0].args["path"], Value::from("roman.py"));
}
