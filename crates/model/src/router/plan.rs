//! The configuration resolved: names became indices, one lane per deployment and key.

use std::time::Duration;

use evenkeel_core::control::backoff::Backoff;
use evenkeel_core::control::{breaker, ramp};
use evenkeel_core::id::BlobId;
use evenkeel_core::message::Provenance;
use evenkeel_core::{Code, Error, Origin};
use secrecy::{ExposeSecret, SecretString};

use crate::config::{
    DeploymentConfig, DeploymentLimits, Midstream, Price, ProviderKeys, RouteConfig, RouterConfig,
    RouterSettings,
};
use crate::provider::{Target, call_uri};

/// A deployment with one of its keys: what has a breaker, limits and streams of its own.
#[derive(Clone, Debug)]
pub struct LanePlan {
    /// The deployment's name; with `#2` and so on for further keys.
    pub name: String,
    /// The deployment's name in the configuration.
    pub deployment: String,
    /// The provider's name.
    pub provider: String,
    /// Lanes of one account share a key: what kills the key kills them all.
    pub account: String,
    /// Lanes of one domain are suspected together.
    pub domain: String,
    /// What the provider grants.
    pub limits: DeploymentLimits,
    /// The model's window.
    pub context_tokens: u64,
    /// Whether the model thinks long before its first content.
    pub reasoning: bool,
    /// Whether it gets nothing until it is enabled.
    pub drained: bool,
    /// What it costs.
    pub price: Option<Price>,
    /// Further texts that mean "context too long".
    pub context_too_long: Vec<String>,
    /// Whom the shell asks.
    pub target: Target,
}

/// A route with its lanes.
#[derive(Clone, Debug)]
pub struct RoutePlan {
    /// Its name.
    pub name: String,
    /// Lanes by tier.
    pub tiers: Vec<Vec<usize>>,
    /// How long a durable run may be parked here in all.
    pub park_max: Duration,
    /// How long an interactive call waits here.
    pub interactive_max: Duration,
    /// What happens when a stream breaks after content.
    pub midstream: Midstream,
    /// Whether a later tier may answer.
    pub fallback: bool,
    /// Whether a second attempt may be made beside a late one.
    pub hedge: bool,
    /// Whether refused content may be tried elsewhere.
    pub reroute_rejected: bool,
}

/// Everything that the machine and the shell need to know and that does not change.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Lanes, in the order of the configuration.
    pub lanes: Vec<LanePlan>,
    /// Routes, in the order of their names.
    pub routes: Vec<RoutePlan>,
    /// Constants.
    pub settings: RouterSettings,
}

impl Plan {
    /// Resolves a configuration.
    ///
    /// # Errors
    /// `config-invalid` when it does not hold together.
    pub fn new(config: &RouterConfig, keys: &ProviderKeys) -> Result<Self, Error> {
        config.check_shape()?;
        let mut lanes = Vec::new();
        for (name, deployment) in &config.deployments {
            lanes.extend(lanes_of(config, keys, name, deployment)?);
        }
        let routes = config.routes.iter().map(|(name, route)| route_plan(name, route, &lanes)).collect();
        Ok(Self { lanes, routes, settings: config.router.clone() })
    }

    /// The index of a route.
    #[must_use]
    pub fn route_idx(&self, name: &str) -> Option<usize> {
        self.routes.iter().position(|route| route.name == name)
    }

    /// The breaker's constants.
    #[must_use]
    pub fn breaker_settings(&self) -> breaker::Settings {
        let config = &self.settings.breaker;
        breaker::Settings {
            consecutive: config.consecutive,
            failure_share: config.failure_share,
            failure_calls_min: config.failure_calls_min,
            failure_window: config.failure_window.0,
            connect_failures: config.connect_failures,
            backoff: Backoff {
                first: config.open_first.0,
                factor: config.open_factor,
                max_early: config.open_max_early.0,
                max: config.open_max.0,
                max_late: config.open_max_late.0,
            },
        }
    }

    /// The ramp's constants for a lane.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
    pub fn ramp_settings(&self, limits: DeploymentLimits) -> ramp::Settings {
        let config = &self.settings.ramp;
        let share_of_rate = limits.calls_per_min as f64 / 60.0 * config.start_share;
        ramp::Settings {
            streams: limits.streams,
            start_streams: config.start_streams,
            start_share: config.start_share,
            growth: config.growth,
            step: config.step.0,
            shrink: config.shrink,
            hold: config.hold.0,
            failures: config.failures,
            rate_factor: config.rate_factor,
            rate_min: share_of_rate.max(f64::from(config.start_streams)),
            stable_after: config.stable_after.0,
        }
    }
}

fn lanes_of(
    config: &RouterConfig,
    keys: &ProviderKeys,
    name: &str,
    deployment: &DeploymentConfig,
) -> Result<Vec<LanePlan>, Error> {
    let Some(provider) = config.providers.get(&deployment.provider) else {
        return Err(invalid(format!("Deployment {name} names an unknown provider.")));
    };
    let uri = call_uri(provider.kind, &provider.base_url)
        .map_err(|error| invalid(format!("base_url of provider {}: {error}.", deployment.provider)))?;
    let keys: Vec<Option<&SecretString>> = match keys.of(&deployment.provider) {
        [] => vec![None],
        keys => keys.iter().map(Some).collect(),
    };
    let lane = |(idx, key): (usize, Option<&SecretString>)| LanePlan {
        name: if idx == 0 { name.to_owned() } else { format!("{name}#{}", idx + 1) },
        deployment: name.to_owned(),
        provider: deployment.provider.clone(),
        account: format!("{}#{}", deployment.provider, idx + 1),
        domain: provider.failure_domain.clone().unwrap_or_else(|| deployment.provider.clone()),
        limits: deployment.limits,
        context_tokens: deployment.context_tokens,
        reasoning: deployment.reasoning,
        drained: deployment.drained,
        price: deployment.price,
        context_too_long: provider.context_too_long.clone(),
        target: Target {
            kind: provider.kind,
            uri: uri.clone(),
            model: deployment.model.clone(),
            capabilities: provider.capabilities,
            key: key.cloned(),
            from: provenance(&deployment.provider, &deployment.model, key),
        },
    };
    Ok(keys.into_iter().enumerate().map(lane).collect())
}

/// Provider-bound items can be bound to the account too, so a fingerprint of the key goes into
/// their provenance: another key, or a rotated one, does not get them.
fn provenance(provider: &str, model: &str, key: Option<&SecretString>) -> Provenance {
    let provider = match key {
        None => provider.to_owned(),
        Some(key) => {
            let print = BlobId::of(key.expose_secret().as_bytes());
            let short: String = print.as_str().chars().take(8).collect();
            format!("{provider}@{short}")
        }
    };
    Provenance { provider, model: model.to_owned() }
}

fn route_plan(name: &str, route: &RouteConfig, lanes: &[LanePlan]) -> RoutePlan {
    let of_tier = |tier: &Vec<String>| {
        let named = |(idx, lane): (usize, &LanePlan)| tier.contains(&lane.deployment).then_some(idx);
        lanes.iter().enumerate().filter_map(named).collect()
    };
    RoutePlan {
        name: name.to_owned(),
        tiers: route.tiers.iter().map(of_tier).collect(),
        park_max: route.park.max.0,
        interactive_max: route.park.interactive_max.0,
        midstream: route.midstream,
        fallback: route.fallback,
        hedge: route.hedge,
        reroute_rejected: route.reroute_rejected,
    }
}

fn invalid(message: String) -> Error {
    Error::new(
        Code::ConfigInvalid,
        Origin::Ours,
        message,
        "Run evenkeel check and correct the configuration.",
    )
}
