//! The router: a pure state machine that decides, and a thin asynchronous shell that performs.

mod snapshot;

use std::sync::Arc;

use evenkeel_core::id::TenantId;
use evenkeel_core::port::model::{Model, ModelOutcome, ModelRequest, Permit, Progress, RouteFacts};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use futures_util::future::BoxFuture;

pub use snapshot::*;

use crate::config::{ProviderKeys, RouterConfig};

/// The model router; implements the model port.
pub struct Router {
    config: RouterConfig,
}

/// What an operator can do to a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// No new calls; those in flight go on.
    Drain,
    /// Calls again, also after a key was disabled.
    Enable,
    /// Try it at the next call, however long it would still be left alone.
    Probe,
}

impl Router {
    /// Builds the router and starts its timer.
    ///
    /// # Errors
    /// `config-invalid` when the configuration does not hold together.
    pub fn start(_env: &Env, config: RouterConfig, _keys: ProviderKeys) -> Result<Arc<Self>, Error> {
        config.check_shape()?;
        Ok(Arc::new(Self { config }))
    }

    /// What the router knows of its deployments and routes now.
    #[must_use]
    pub fn snapshot(&self) -> RouterSnapshot {
        RouterSnapshot::default()
    }

    /// Drains, enables or probes a deployment.
    ///
    /// # Errors
    /// `not-found` when there is no such deployment.
    pub fn operate(&self, deployment: &str, _operation: Operation) -> Result<(), Error> {
        Err(Error::client(
            Code::NotFound,
            format!("There is no deployment {deployment:?}."),
            "See evenkeel router for their names.",
        ))
    }
}

impl Model for Router {
    fn call(&self, request: ModelRequest, _progress: Arc<dyn Progress>) -> BoxFuture<'_, ModelOutcome> {
        let TenantId(_) = request.tenant;
        let error =
            Error::new(Code::ProviderUnavailable, Origin::Ours, "The router is not built yet.", "Wait.");
        Box::pin(std::future::ready(ModelOutcome::Fatal { error, attempts: Vec::new() }))
    }

    fn route(&self, route: &str) -> Option<RouteFacts> {
        let _ = self.config.routes.get(route)?;
        Some(RouteFacts { context_tokens: 200_000, bytes_per_token: 4.0 })
    }

    fn parked(&self, _route: &str, _n_parked: usize) {}

    fn next_permit(&self) -> BoxFuture<'_, Permit> {
        Box::pin(std::future::pending())
    }
}
