//! A conversation as a model is shown it, read from either wire into one neutral form.

use serde_json::{Value, json};

/// One entry of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// The user's words.
    User(String),
    /// The model's own words.
    Assistant(String),
    /// A call that the model made.
    Call(SolverCall),
    /// What a call returned.
    Result {
        /// The text shown.
        text: String,
        /// Whether the wire marks it as a failure.
        is_error: bool,
    },
}

/// A call as the model makes it, without an id.
#[derive(Clone, Debug, PartialEq)]
pub struct SolverCall {
    /// The tool.
    pub name: String,
    /// Its arguments, an object.
    pub args: Value,
}

/// What the model was shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The system prompt.
    pub system: String,
    /// The entries, in order.
    pub items: Vec<Item>,
    /// Names of the tools that were offered.
    pub tools: Vec<String>,
}

/// What the model answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// Its words; never empty.
    pub text: String,
    /// The calls it asks for.
    pub calls: Vec<SolverCall>,
}

impl Conversation {
    /// Reads the body of `POST /v1/chat/completions`. Lenient: what is wrong with it is the
    /// validator's business.
    #[must_use]
    pub fn from_openai(body: &Value) -> Self {
        let mut conversation = Self { tools: tool_names(body, "/function/name"), ..Self::default() };
        for message in list(body, "messages") {
            let text = text_of(&message["content"]);
            match message["role"].as_str().unwrap_or_default() {
                "system" | "developer" => conversation.system.push_str(&text),
                "assistant" => {
                    conversation.push_words(Item::Assistant, text);
                    for call in list(message, "tool_calls") {
                        let args = call["function"]["arguments"].as_str().unwrap_or("{}");
                        conversation.items.push(Item::Call(SolverCall {
                            name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
                            args: serde_json::from_str(args).unwrap_or(Value::Null),
                        }));
                    }
                }
                "tool" => conversation.items.push(Item::Result { text, is_error: false }),
                _ => conversation.push_words(Item::User, text),
            }
        }
        conversation
    }

    /// Reads the body of `POST /v1/messages`.
    #[must_use]
    pub fn from_anthropic(body: &Value) -> Self {
        let mut conversation =
            Self { system: text_of(&body["system"]), tools: tool_names(body, "/name"), ..Self::default() };
        for message in list(body, "messages") {
            let of_assistant = message["role"] == "assistant";
            if let Some(text) = message["content"].as_str() {
                conversation
                    .push_words(if of_assistant { Item::Assistant } else { Item::User }, text.to_owned());
            }
            for block in list(message, "content") {
                match block["type"].as_str().unwrap_or_default() {
                    "text" => {
                        let text = block["text"].as_str().unwrap_or_default().to_owned();
                        let item = if of_assistant { Item::Assistant } else { Item::User };
                        conversation.push_words(item, text);
                    }
                    "tool_use" => conversation.items.push(Item::Call(SolverCall {
                        name: block["name"].as_str().unwrap_or_default().to_owned(),
                        args: block["input"].clone(),
                    })),
                    "tool_result" => conversation.items.push(Item::Result {
                        text: text_of(&block["content"]),
                        is_error: block["is_error"] == true,
                    }),
                    _ => {}
                }
            }
        }
        conversation
    }

    /// Words that follow words of the same speaker are one entry, as wires may join messages.
    pub(crate) fn push_words(&mut self, speaker: fn(String) -> Item, text: String) {
        if text.is_empty() {
            return;
        }
        match (self.items.last_mut(), speaker(String::new())) {
            (Some(Item::User(words)), Item::User(_)) | (Some(Item::Assistant(words)), Item::Assistant(_)) => {
                words.push('\n');
                words.push_str(&text);
            }
            _ => self.items.push(speaker(text)),
        }
    }

    /// A hash of the turns shown: the user's words, the model's words and its calls. Results are
    /// left out, because they hold times and commit ids that differ from run to run. Two messages of
    /// one speaker in a row are one on some wires, parted by a blank line or by none: white space is
    /// not told apart.
    #[must_use]
    pub fn echo(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for item in &self.items {
            let line = match item {
                Item::User(text) => json!(["user", words(text)]),
                Item::Assistant(text) => json!(["assistant", words(text)]),
                Item::Call(call) => json!(["call", call.name, canonical(&call.args)]),
                Item::Result { .. } => continue,
            };
            hasher.update(line.to_string().as_bytes());
            hasher.update(b"\n");
        }
        hasher.finalize().to_hex().chars().take(16).collect()
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// JSON text with sorted keys.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            let pairs: Vec<String> = pairs
                .into_iter()
                .map(|(key, value)| format!("{}:{}", json!(key), canonical(value)))
                .collect();
            format!("{{{}}}", pairs.join(","))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        _ => value.to_string(),
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn tool_names(body: &Value, pointer: &str) -> Vec<String> {
    let names = list(body, "tools").filter_map(|tool| tool.pointer(pointer)?.as_str());
    names.map(str::to_owned).collect()
}

/// Content is a string or a list of parts; only text counts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}
