//! Both wires: the neutral history rendered to a request, and events decoded to pieces.
//!
//! Providers differ in what they demand of a history; `history` first makes it valid for any of
//! them, then each renderer writes its own form. Nothing here knows of health, limits or retries.

pub mod anthropic;
pub mod history;
pub mod openai;

use bytes::Bytes;
use evenkeel_core::message::{Message, Provenance, ToolSpec};
use http::{HeaderName, HeaderValue, Request, Uri};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use crate::config::{Capabilities, ProviderKind};
use crate::stream::answer::{Assembler, Progressed};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The system prompt.
    pub system: &'a str,
    /// The history in the neutral form.
    pub messages: &'a [Message],
    /// Tools offered, in order.
    pub tools: &'a [ToolSpec],
    /// Output tokens asked for.
    pub output_tokens_max: u32,
}

/// Whom it is asked.
#[derive(Clone, Debug)]
pub struct Target {
    /// The wire.
    pub kind: ProviderKind,
    /// The full address of the call.
    pub uri: Uri,
    /// The model's name on the wire.
    pub model: String,
    /// What this server can and cannot do.
    pub capabilities: Capabilities,
    /// The key, if one is needed.
    pub key: Option<SecretString>,
    /// Provider (with a fingerprint of the key) and model: blocks from elsewhere stay away.
    pub from: Provenance,
}

/// Whether provider-bound blocks go along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Those of this very provider, key and model do.
    Keep,
    /// None: the provider has refused them before.
    Strip,
}

/// The request for a prompt.
#[must_use]
pub fn request(prompt: Prompt<'_>, target: &Target, bound: Bound) -> Request<Bytes> {
    let body = match target.kind {
        ProviderKind::Openai => openai::render(prompt, target, bound),
        ProviderKind::Anthropic => anthropic::render(prompt, target, bound),
    };
    let mut request = Request::new(Bytes::from(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = target.uri.clone();
    let headers = request.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(http::header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    if target.kind == ProviderKind::Anthropic {
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"));
    }
    if let Some((name, value)) = target.key.as_ref().and_then(|key| key_header(target.kind, key)) {
        headers.insert(name, value);
    }
    request
}

/// A key that is no valid header value is left out; the provider then refuses the call, and says so.
fn key_header(kind: ProviderKind, key: &SecretString) -> Option<(HeaderName, HeaderValue)> {
    let (name, text) = match kind {
        ProviderKind::Openai => (http::header::AUTHORIZATION, format!("Bearer {}", key.expose_secret())),
        ProviderKind::Anthropic => (HeaderName::from_static("x-api-key"), key.expose_secret().to_owned()),
    };
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// The address of calls below a provider's base address.
///
/// # Errors
/// When the base address is none.
pub fn call_uri(kind: ProviderKind, base_url: &str) -> Result<Uri, http::uri::InvalidUri> {
    let base = base_url.trim_end_matches('/');
    match kind {
        ProviderKind::Openai => format!("{base}/chat/completions").parse(),
        ProviderKind::Anthropic if base.ends_with("/v1") => format!("{base}/messages").parse(),
        ProviderKind::Anthropic => format!("{base}/v1/messages").parse(),
    }
}

/// What a decoder made of one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    /// Content and pieces.
    pub progressed: Progressed,
    /// Nothing more is to come.
    pub is_last: bool,
    /// The provider reports an error inside the stream: its `error` object.
    pub error: Option<Value>,
    /// The event was unreadable in a place where that cannot be passed over.
    pub broken: Option<String>,
}

/// The decoder of one attempt.
#[derive(Debug)]
pub enum Decoder {
    /// OpenAI chat completions.
    Openai(openai::decode::Decoder),
    /// Anthropic messages.
    Anthropic(anthropic::decode::Decoder),
}

impl Decoder {
    /// A decoder for the wire.
    #[must_use]
    pub fn new(kind: ProviderKind) -> Self {
        match kind {
            ProviderKind::Openai => Self::Openai(openai::decode::Decoder::default()),
            ProviderKind::Anthropic => Self::Anthropic(anthropic::decode::Decoder::default()),
        }
    }

    /// Decodes one event of a stream.
    pub fn event(&mut self, name: Option<&str>, data: &str, into: &mut Assembler) -> Decoded {
        match self {
            Self::Openai(decoder) => decoder.event(data, into),
            Self::Anthropic(decoder) => decoder.event(name, data, into),
        }
    }

    /// Decodes a whole answer that came as one JSON document although a stream was asked for.
    pub fn whole(&mut self, body: &Value, into: &mut Assembler) -> Decoded {
        match self {
            Self::Openai(decoder) => decoder.chunk(body, into),
            Self::Anthropic(decoder) => decoder.whole(body, into),
        }
    }

    /// The stream has ended: what was kept back goes to the assembler.
    pub fn end(&mut self, into: &mut Assembler) {
        match self {
            Self::Openai(decoder) => decoder.end(into),
            Self::Anthropic(decoder) => decoder.end(into),
        }
    }
}
