//! The body of a run's creation: what is read of it, what is refused, what is kept.

use evenkeel_core::agent::Agent;
use evenkeel_core::id::{BlobId, MessageId};
use evenkeel_core::journal::EventBody;
use evenkeel_core::message::{Block, Message, Role};
use evenkeel_core::run::{BusyPolicy, Class, Deliver, Repository, RunSpec};
use evenkeel_core::{Code, Error, Generator, Wall};
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::modes::Modes;
use super::refusal::{malformed, unsupported};
use super::run::policy;

/// Fields of the dialect that change what a run does and that we do not offer: refusing them is
/// better than running something else than was asked.
const NOT_OFFERED: [&str; 4] = ["interrupt_before", "interrupt_after", "webhook", "feedback_keys"];

/// The longest that a run may be put off.
const DELAY_S_MAX: f64 = 30.0 * 24.0 * 3600.0;

/// Fields kept with the run and shown again.
const KEPT: [&str; 5] = ["input", "config", "context", "metadata", "stream_mode"];

/// What a request may hold at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputLimits {
    /// Messages of one request.
    pub(crate) messages_max: usize,
    /// Characters of one message.
    pub(crate) chars_max: usize,
}

/// An assistant with what the configuration says of its runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assistant<'a> {
    /// Prompt, route, tools, limits.
    pub(crate) agent: &'a Agent,
    /// Whether somebody waits for its runs.
    pub(crate) class: Class,
    /// What a busy thread does where neither the request nor the thread says.
    pub(crate) busy_policy: BusyPolicy,
}

/// A checked request to create a run.
#[derive(Debug)]
pub(crate) struct RunRequest {
    /// A name or a UUID.
    pub(crate) assistant: String,
    /// Which projections the client wants.
    pub(crate) modes: Modes,
    /// Make the thread if it is not there.
    pub(crate) create_thread: bool,
    /// Cancel the run when its streaming or waiting client goes away.
    pub(crate) cancel_on_disconnect: bool,
    /// What a busy thread does, if the request says so itself.
    pub(crate) busy_policy: Option<BusyPolicy>,
    /// The run is not started earlier than after this time.
    pub(crate) delay: Duration,
    /// The state on which the run builds, if not the newest.
    pub(crate) checkpoint: Option<Value>,
    /// Keep the thread of a run that made its own.
    pub(crate) keep_thread: bool,
    /// The answer to what the thread's run asks of a person; then there is no input.
    pub(crate) resume: Option<Value>,
    /// Steps asked for by `config.recursion_limit`.
    steps_max: Option<u32>,
    body: Map<String, Value>,
}

impl RunRequest {
    /// Checks a body.
    pub(crate) fn parse(body: Value) -> Result<Self, Error> {
        let Value::Object(body) = body else {
            return Err(malformed(
                "The body is not a JSON object.",
                "Send an object with `assistant_id` and `input`.",
            ));
        };
        refuse_not_offered(&body)?;
        let assistant = text(&body, "assistant_id")?.ok_or_else(|| {
            malformed("`assistant_id` is missing.", "Name an assistant, such as \"coder\", or give its UUID.")
        })?;
        Ok(Self {
            assistant: assistant.to_owned(),
            modes: Modes::parse(body.get("stream_mode"))?,
            create_thread: one_of(&body, "if_not_exists", &["reject", "create"])? == Some("create"),
            cancel_on_disconnect: one_of(&body, "on_disconnect", &["continue", "cancel"])? == Some("cancel"),
            busy_policy: busy_policy(&Value::Object(body.clone()))?,
            delay: delay(&body)?,
            checkpoint: ["checkpoint_id", "checkpoint"]
                .iter()
                .find_map(|key| body.get(*key).filter(|value| !value.is_null()).cloned()),
            keep_thread: one_of(&body, "on_completion", &["delete", "keep"])? == Some("keep"),
            resume: resume(&body)?,
            steps_max: recursion_limit(&body)?,
            body,
        })
    }

    /// Hash of everything asked, whatever the order of its keys.
    pub(crate) fn hash(&self) -> String {
        let mut text = String::new();
        canonical(&Value::Object(self.body.clone()), &mut text);
        BlobId::of(text.as_bytes()).0
    }

    /// What the run is asked to do.
    pub(crate) fn spec(
        &self,
        assistant: &Assistant<'_>,
        limits: InputLimits,
        now: Wall,
        generator: &Generator,
    ) -> Result<RunSpec, Error> {
        let agent = assistant.agent;
        let input = self.body.get("input").unwrap_or(&Value::Null);
        let mut run_limits = agent.limits.clone();
        if let Some(steps) = self.steps_max {
            run_limits.steps_max = run_limits.steps_max.min(steps);
        }
        Ok(RunSpec {
            assistant: agent.name.clone(),
            messages: messages(input, limits, now, generator)?,
            repository: repository(input, agent)?,
            deliver: deliver(input)?,
            deadline: now.after(self.delay + Duration::from_millis(run_limits.wall_ms_max)),
            limits: run_limits,
            class: assistant.class,
            busy_policy: self.busy_policy.unwrap_or(assistant.busy_policy),
            from_seq: None,
            request: self.kept(),
        })
    }

    fn kept(&self) -> Value {
        let kept = KEPT.iter().filter_map(|key| Some(((*key).to_owned(), self.body.get(*key)?.clone())));
        Value::Object(kept.collect())
    }
}

fn refuse_not_offered(body: &Map<String, Value>) -> Result<(), Error> {
    let asked = |key: &&&str| match body.get(**key) {
        None | Some(Value::Null) => false,
        Some(Value::Array(values)) => !values.is_empty(),
        Some(_) => true,
    };
    match NOT_OFFERED.iter().find(asked) {
        Some(key) => Err(unsupported(format!("`{key}` is not offered by this server."))),
        None => Ok(()),
    }
}

/// The `command.resume` of a body. Commands that change the state at will are not offered.
fn resume(body: &Map<String, Value>) -> Result<Option<Value>, Error> {
    let command = match body.get("command") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(command)) => command,
        Some(_) => return Err(malformed("`command` is not an object.", "Send {\"resume\": ...}.")),
    };
    let given = |key: &str| command.get(key).filter(|value| !value.is_null());
    if let Some(key) = ["update", "goto"].into_iter().find(|key| given(key).is_some()) {
        return Err(unsupported(format!("`command.{key}` is not offered by this server.")));
    }
    let resume = given("resume").cloned();
    if resume.is_some() && body.get("input").is_some_and(|input| !input.is_null()) {
        return Err(malformed(
            "A body has either `input` or `command.resume`.",
            "Answer what is asked first, or send `input` with multitask_strategy \"interrupt\" instead of an answer.",
        ));
    }
    Ok(resume)
}

fn text<'a>(body: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, Error> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(malformed(format!("`{key}` is not a string."), "Send a string.")),
    }
}

fn one_of<'a>(body: &'a Map<String, Value>, key: &str, words: &[&str]) -> Result<Option<&'a str>, Error> {
    match text(body, key)? {
        Some(word) if !words.contains(&word) => Err(malformed(
            format!("`{key}` is `{word}`; it may be {}.", words.join(" or ")),
            "Send one of these words.",
        )),
        word => Ok(word),
    }
}

/// The `multitask_strategy` of a body, if it has one.
pub(crate) fn busy_policy(body: &Value) -> Result<Option<BusyPolicy>, Error> {
    let wrong = |word: &Value| {
        malformed(
            format!("`multitask_strategy` is {word}, which is not known."),
            "Use enqueue, reject, interrupt, rollback, steer, merge or latest.",
        )
    };
    match body.get("multitask_strategy") {
        None | Some(Value::Null) => Ok(None),
        Some(word) => word.as_str().and_then(policy).ok_or_else(|| wrong(word)).map(Some),
    }
}

fn delay(body: &Map<String, Value>) -> Result<Duration, Error> {
    match body.get("after_seconds") {
        None | Some(Value::Null) => Ok(Duration::ZERO),
        Some(value) => match value.as_f64().filter(|seconds| (0.0..=DELAY_S_MAX).contains(seconds)) {
            Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
            None => Err(malformed(
                "`after_seconds` is not a number of seconds from 0 to 30 days.",
                "Send how many seconds from now the run may start.",
            )),
        },
    }
}

/// What a client writes into the state: messages, and other values under their names.
pub(crate) fn state_written(
    body: &Value,
    limits: InputLimits,
    now: Wall,
    generator: &Generator,
) -> Result<EventBody, Error> {
    let mut values = match body.get("values") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(values)) => values.clone(),
        Some(_) => return Err(malformed("`values` is not an object.", "Send the values by their names.")),
    };
    let as_node = match body.get("as_node") {
        None | Some(Value::Null) => None,
        Some(Value::String(node)) => Some(node.clone()),
        Some(_) => return Err(malformed("`as_node` is not a string.", "Send the name of a node.")),
    };
    let messages = match values.shift_remove("messages") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) if list.is_empty() => Vec::new(),
        Some(list) => messages(&json!({ "messages": list }), limits, now, generator)?,
    };
    let values = if values.is_empty() { Value::Null } else { Value::Object(values) };
    Ok(EventBody::StateWritten { messages, values, as_node })
}

fn recursion_limit(body: &Map<String, Value>) -> Result<Option<u32>, Error> {
    match body.get("config").and_then(|config| config.get("recursion_limit")) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0) {
            Some(steps) => Ok(Some(steps)),
            None => Err(malformed(
                "`config.recursion_limit` is not a positive number.",
                "Send the number of steps that the run may take.",
            )),
        },
    }
}

fn messages(
    input: &Value,
    limits: InputLimits,
    now: Wall,
    generator: &Generator,
) -> Result<Vec<Message>, Error> {
    let list = match input.get("messages") {
        Some(Value::Array(list)) => list.clone(),
        Some(one @ (Value::Object(_) | Value::String(_))) => vec![one.clone()],
        _ => Vec::new(),
    };
    if list.is_empty() {
        return Err(malformed(
            "`input.messages` holds no message.",
            "Send {\"messages\":[{\"role\":\"user\",\"content\":\"...\"}]}.",
        ));
    }
    if list.len() > limits.messages_max {
        return Err(malformed(
            format!("`input.messages` holds {} messages; the limit is {}.", list.len(), limits.messages_max),
            "Send only the new messages of this turn.",
        ));
    }
    let fresh = || MessageId(evenkeel_core::id::uuid_v7(now, generator).to_string());
    list.iter().enumerate().map(|(idx, value)| message(idx, value, limits, &fresh)).collect()
}

fn message(
    idx: usize,
    value: &Value,
    limits: InputLimits,
    fresh: &dyn Fn() -> MessageId,
) -> Result<Message, Error> {
    if let Value::String(text) = value {
        return sized(idx, Message { id: fresh(), role: Role::User, blocks: block(text) }, limits);
    }
    let word = value.get("role").or_else(|| value.get("type")).and_then(Value::as_str);
    let role = match word {
        Some("user" | "human") => Role::User,
        Some("assistant" | "ai") => Role::Assistant,
        _ => {
            return Err(malformed(
                format!("`input.messages[{idx}]` has no role that a client may send."),
                "Set `role` to \"user\" or \"assistant\"; system prompts belong to the assistant's configuration.",
            ));
        }
    };
    let id = match value.get("id") {
        None | Some(Value::Null) => fresh(),
        Some(Value::String(id)) if (1..=200).contains(&id.len()) => MessageId(id.clone()),
        Some(_) => {
            return Err(malformed(
                format!("`input.messages[{idx}].id` is not a string of 1 to 200 bytes."),
                "Send a string, or leave the id out.",
            ));
        }
    };
    sized(idx, Message { id, role, blocks: content(idx, value.get("content"))? }, limits)
}

fn content(idx: usize, value: Option<&Value>) -> Result<Vec<Block>, Error> {
    match value {
        Some(Value::String(text)) => Ok(block(text)),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| match (part.get("type").and_then(Value::as_str), part.get("text")) {
                (Some("text"), Some(Value::String(text))) => Ok(Block::Text { text: text.clone() }),
                _ => Err(malformed(
                    format!("`input.messages[{idx}].content` holds a part that is not text."),
                    "Send parts of the form {\"type\":\"text\",\"text\":\"...\"}.",
                )),
            })
            .collect(),
        _ => Err(malformed(
            format!("`input.messages[{idx}].content` is neither a string nor a list of parts."),
            "Send the text as a string.",
        )),
    }
}

fn block(text: &str) -> Vec<Block> {
    vec![Block::Text { text: text.to_owned() }]
}

fn sized(idx: usize, mut message: Message, limits: InputLimits) -> Result<Message, Error> {
    message.blocks.retain(|block| !matches!(block, Block::Text { text } if text.is_empty()));
    let n_chars = message.joined_text().chars().count();
    if n_chars == 0 {
        return Err(malformed(format!("`input.messages[{idx}]` is empty."), "Send some text."));
    }
    if n_chars > limits.chars_max {
        return Err(Error::client(
            Code::MessageTooLarge,
            format!("`input.messages[{idx}]` has {n_chars} characters; the limit is {}.", limits.chars_max),
            "Send less, or raise limits.message_chars_max.",
        ));
    }
    Ok(message)
}

fn repository(input: &Value, agent: &Agent) -> Result<Option<Repository>, Error> {
    if !agent.workspace {
        return Ok(None);
    }
    let wrong = || {
        malformed(
            "`input.repository` names neither a directory nor a URL.",
            "Send {\"directory\":\"/abs/path\"} or {\"url\":\"https://...\"}, or leave it out for an empty workspace.",
        )
    };
    let value = match input.get("repository") {
        None | Some(Value::Null) => return Ok(Some(Repository::Empty)),
        Some(value) => value.as_object().filter(|object| object.len() == 1).ok_or_else(wrong)?,
    };
    match (value.get("directory"), value.get("url")) {
        (Some(Value::String(path)), None) if path.starts_with('/') => {
            Ok(Some(Repository::Directory(path.clone())))
        }
        // What a run is asked is stored and shown, so a credential must not come that far.
        (None, Some(Value::String(url))) if names_a_user(url) => Err(malformed(
            "`input.repository.url` holds a user name or a password.",
            "Send the URL without them.",
        )),
        (None, Some(Value::String(url))) if !url.is_empty() => Ok(Some(Repository::Url(url.clone()))),
        _ => Err(wrong()),
    }
}

/// Where the result is to be delivered: to the repository that the run is cloned from.
fn deliver(input: &Value) -> Result<Option<Deliver>, Error> {
    let asked = match input.get("deliver") {
        None | Some(Value::Null) => return Ok(None),
        Some(asked) => asked.clone(),
    };
    if !matches!(input.get("repository").and_then(|repository| repository.get("url")), Some(Value::String(_)))
    {
        return Err(malformed(
            "`input.deliver` is set without `input.repository.url`.",
            "Name the repository by its URL: the result is delivered there.",
        ));
    }
    let asked: Deliver = serde_json::from_value(asked).map_err(|error| {
        malformed(
            format!("`input.deliver` does not have its shape: {error}."),
            "Send {\"pull_request\": true} and, if wanted, `branch`, `base` and `title`.",
        )
    })?;
    Ok(Some(asked))
}

/// Whether a URL has something before an `@` in its authority.
fn names_a_user(url: &str) -> bool {
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    authority.split(['/', '?', '#']).next().unwrap_or_default().contains('@')
}

/// JSON text with sorted keys.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for key in keys {
                out.push_str(&json!(key).to_string());
                out.push(':');
                canonical(map.get(key).unwrap_or(&Value::Null), out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(values) => {
            out.push('[');
            for value in values {
                canonical(value, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}
