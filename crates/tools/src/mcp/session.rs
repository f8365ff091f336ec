//! One MCP session: the handshake, the tools it offers, and calls with deadline and output cap.

use std::time::Duration;

use evenkeel_core::id::EffectId;
use evenkeel_core::port::tools::ToolOutput;
use evenkeel_core::{Code, Error, Origin};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock, Implementation,
    ProtocolVersion, RequestMetaObject, ResourceContents, Tool,
};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rmcp::transport::IntoTransport;
use serde_json::{Map, Value, json};

use super::{EFFECT, FACTS, lost};

/// An open session. Dropping it closes it.
pub(crate) struct Session {
    name: String,
    service: RunningService<RoleClient, ClientConfig>,
}

/// A call to one tool.
pub(crate) struct Call<'a> {
    pub(crate) tool: &'a str,
    pub(crate) args: Map<String, Value>,
    pub(crate) effect: &'a EffectId,
    pub(crate) timeout: Duration,
    /// Bytes of text that its answer may have.
    pub(crate) output_bytes_max: usize,
}

/// How a call failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The session is gone; the call may or may not have been carried out.
    Lost(Error),
    /// The session did not know us (a restarted server): the call was not carried out.
    Unknown(Error),
    /// It did not answer in time and was told to stop.
    TimedOut,
    /// The server refused it.
    Refused(String),
}

/// Opens a session over a transport.
pub(crate) async fn handshake<T, E, A>(name: &str, transport: T) -> Result<Session, Error>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let service = rmcp::service::serve_client(ourselves(), transport).await;
    Ok(Session { name: name.to_owned(), service: service.map_err(|error| lost(name, error))? })
}

/// What we say of ourselves. The newest revision has no handshake, so one must not offer it.
fn ourselves() -> ClientConfig {
    ClientConfig::new(
        ClientCapabilities::default(),
        Implementation::new("evenkeel", env!("CARGO_PKG_VERSION")),
    )
    .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

impl Session {
    /// Whether calls can still reach the server.
    pub(crate) fn is_open(&self) -> bool {
        !self.service.is_closed() && !self.service.peer().is_transport_closed()
    }

    /// Closes it from elsewhere.
    pub(crate) fn closer(&self) -> impl FnOnce() + Send + 'static {
        let token = self.service.cancellation_token();
        move || token.cancel()
    }

    /// All tools that the server offers.
    pub(crate) async fn tools(&self) -> Result<Vec<Tool>, Error> {
        self.service.peer().list_all_tools().await.map_err(|error| lost(&self.name, error))
    }

    /// Calls a tool. Dropping the future tells the server to stop.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<ToolOutput, CallError> {
        let mut params = CallToolRequestParams::new(call.tool.to_owned()).with_arguments(call.args);
        let mut meta = RequestMetaObject::default();
        meta.0.insert(EFFECT.to_owned(), Value::from(call.effect.as_str()));
        params.meta = Some(meta);
        match tokio::time::timeout(call.timeout, self.service.peer().call_tool(params)).await {
            Err(_) => Err(CallError::TimedOut),
            Ok(Ok(result)) => Ok(output_of(result, call.output_bytes_max)),
            Ok(Err(error)) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: ServiceError) -> CallError {
        match error {
            ServiceError::McpError(error) if is_unknown_session(&error.message) => {
                CallError::Unknown(lost(&self.name, error.message))
            }
            ServiceError::McpError(error) => CallError::Refused(error.message.into_owned()),
            ServiceError::UnexpectedResponse => CallError::Refused(
                "The server answered with something that is not a tool's result.".to_owned(),
            ),
            // A server that answers with 404 to a session never saw the call.
            other if is_unknown_session(&other.to_string()) => CallError::Unknown(lost(&self.name, other)),
            other => CallError::Lost(lost(&self.name, other)),
        }
    }
}

/// Servers that restarted say that the session is not initialised, in words of their own.
fn is_unknown_session(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("not initialized")
        || message.contains("session expired")
        || message.contains("session not found")
        || message.contains("unknown session")
}

fn output_of(result: CallToolResult, bytes_max: usize) -> ToolOutput {
    let mut text = String::new();
    for block in &result.content {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&text_of(block));
    }
    if text.is_empty()
        && let Some(value) = &result.structured_content
    {
        text = value.to_string();
    }
    let n_bytes = text.len();
    let cut = n_bytes > bytes_max;
    if cut {
        let whole = (0..=bytes_max).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(whole.unwrap_or(0));
        text.push_str(&format!("\n[cut: the answer had {n_bytes} bytes]"));
    }
    let mut facts = result.meta.and_then(|mut meta| meta.0.remove(FACTS)).unwrap_or(Value::Null);
    if cut {
        facts = json!({"cut_at_bytes": bytes_max, "bytes": n_bytes});
    }
    ToolOutput { text, is_error: result.is_error == Some(true), facts, finish: None }
}

fn text_of(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[image, {}, not shown]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[audio, {}, not shown]", audio.mime_type),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            _ => "[binary resource, not shown]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}]", link.uri),
        _ => "[content of a kind that is not known, not shown]".to_owned(),
    }
}

/// The text for a call that timed out.
pub(crate) fn timed_out(tool: &str, timeout: Duration) -> Error {
    Error::new(
        Code::ToolTimeout,
        Origin::Tool,
        format!("{tool} did not answer within {} s and was stopped.", timeout.as_secs_f64()),
        "Ask for less in one call, or raise the limit on a tool call.",
    )
}
