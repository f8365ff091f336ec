//! The MCP side of the built-in servers.

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListToolsResult, MetaObject, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;

use super::{Context, Outcome};
use crate::catalog::{self, BuiltinTool, Home};
use crate::mcp::{FACTS, ServerKind};
use crate::{arguments, builtin};

/// One built-in server for one workspace.
#[derive(Clone)]
pub(crate) struct Server {
    kind: ServerKind,
    context: Context,
}

impl Server {
    pub(crate) fn new(kind: ServerKind, context: Context) -> Self {
        Self { kind, context }
    }

    async fn answer(&self, params: CallToolRequestParams) -> Result<CallToolResult, ErrorData> {
        let known = catalog::find(&params.name).filter(|tool| tool.home == Home::Server(self.kind));
        let Some(tool) = known else {
            return Err(ErrorData::invalid_params(format!("There is no tool {}.", params.name), None));
        };
        let args = params.arguments.unwrap_or_default();
        if let Some(fault) = arguments::check(tool.name, &tool.schema(), &Value::Object(args.clone())) {
            return Ok(result_of(Outcome::error(fault)));
        }
        Ok(result_of(builtin::call(self.kind, &self.context, tool.name, args).await))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let name = format!("evenkeel-{}", self.kind.as_str());
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(name, env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(catalog::of_server(self.kind).map(described).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        tokio::select! {
            biased;
            () = context.ct.cancelled() => Err(ErrorData::internal_error("The call was cancelled.", None)),
            result = self.answer(request) => result.map(Into::into),
        }
    }
}

fn described(tool: &BuiltinTool) -> Tool {
    let schema = match tool.schema() {
        Value::Object(schema) => schema,
        _ => serde_json::Map::new(),
    };
    let pure = tool.class == evenkeel_core::journal::EffectClass::Pure;
    Tool::new(tool.name, tool.description, schema)
        .with_annotations(ToolAnnotations::new().read_only(pure).open_world(false))
}

fn result_of(outcome: Outcome) -> CallToolResult {
    let content = vec![ContentBlock::text(outcome.text)];
    let mut result =
        if outcome.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    if !outcome.facts.is_null() {
        let mut meta = MetaObject::default();
        meta.0.insert(FACTS.to_owned(), outcome.facts);
        result.meta = Some(meta);
    }
    result
}
