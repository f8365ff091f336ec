//! The tools port: offers, judges and runs calls.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::agent::Agent;
use evenkeel_core::id::RunId;
use evenkeel_core::journal::{EffectClass, Guard, Verdict};
use evenkeel_core::message::ToolSpec;
use evenkeel_core::port::runner::Runner;
use evenkeel_core::port::tools::{GuardState, Prepared, ToolOutput, ToolRequest, Tools};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use futures_util::future::BoxFuture;

use crate::config::ToolsConfig;

/// The slots of the three components that a call passes.
#[derive(Clone)]
pub struct ToolSlots {
    /// The policy engine.
    pub policy: Slots,
    /// The tool servers.
    pub tools: Slots,
    /// The sandboxes.
    pub sandbox: Slots,
}

/// Tools and policy of one process.
pub struct Toolbox {
    _runner: Arc<dyn Runner>,
}

impl Toolbox {
    /// Loads the policies and makes the tools ready. Foreign servers start when first used.
    ///
    /// # Errors
    /// `policy-invalid`, `config-invalid`.
    pub fn start(
        _env: &Env,
        _config: ToolsConfig,
        runner: Arc<dyn Runner>,
        _slots: ToolSlots,
    ) -> BoxFuture<'static, Result<Arc<Self>, Error>> {
        Box::pin(async move { Ok(Arc::new(Self { _runner: runner })) })
    }
}

impl Tools for Toolbox {
    fn offered(&self, _agent: &Agent) -> BoxFuture<'_, Result<Vec<ToolSpec>, Error>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn prepare(&self, request: ToolRequest) -> BoxFuture<'_, Prepared> {
        Box::pin(async {
            Prepared {
                refusal: Some("This tool is not built yet.".to_owned()),
                request,
                verdict: Verdict::Allow,
                policies: Vec::new(),
                class: EffectClass::Pure,
                parallel: false,
                guards: Vec::new(),
            }
        })
    }

    fn execute(&self, _prepared: Prepared) -> BoxFuture<'_, ToolOutput> {
        Box::pin(async {
            ToolOutput {
                text: "This tool is not built yet.".to_owned(),
                is_error: true,
                ..ToolOutput::default()
            }
        })
    }

    fn guards_now(&self, _workspace: PathBuf, _guards: Vec<Guard>) -> BoxFuture<'_, GuardState> {
        Box::pin(async { GuardState::Other })
    }

    fn release(&self, _run: RunId) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
