//! What `evenkeel check` says of the router's configuration: errors that stop a start, and warnings.

use evenkeel_core::{Code, Error, Origin};
use http::Uri;

use super::{DeploymentConfig, ProviderKeys, RouteConfig, RouterConfig};

impl RouterConfig {
    /// Checks references, addresses and keys.
    ///
    /// # Errors
    /// `config-invalid` for the first impossible value, `provider-key-missing` for an unset key.
    /// The `Ok` value holds warnings: what works but will disappoint in an outage.
    pub fn check(&self) -> Result<Vec<String>, Error> {
        self.check_shape()?;
        ProviderKeys::read(self)?;
        Ok(self.warnings())
    }

    /// The part of [`RouterConfig::check`] that needs no keys.
    ///
    /// # Errors
    /// `config-invalid` for the first impossible value.
    pub fn check_shape(&self) -> Result<(), Error> {
        for (name, provider) in &self.providers {
            check_url(name, &provider.base_url)?;
        }
        for (name, deployment) in &self.deployments {
            self.check_deployment(name, deployment)?;
        }
        for (name, route) in &self.routes {
            self.check_route(name, route)?;
        }
        self.check_constants()
    }

    fn check_deployment(&self, name: &str, deployment: &DeploymentConfig) -> Result<(), Error> {
        if !self.providers.contains_key(&deployment.provider) {
            return Err(invalid(
                format!(
                    "Deployment {name} names the provider {:?}, which is not configured.",
                    deployment.provider
                ),
                "Add it under [providers] or correct the name.",
            ));
        }
        if deployment.model.is_empty() {
            return Err(invalid(
                format!("Deployment {name} names no model."),
                "Set model to the name that the provider knows.",
            ));
        }
        let limits = deployment.limits;
        if limits.streams == 0 || limits.calls_per_min == 0 || limits.input_tokens_per_min == 0 {
            return Err(invalid(
                format!("Deployment {name} has a limit of zero."),
                "Give every limit a positive value, or drain the deployment instead.",
            ));
        }
        if deployment.context_tokens == 0 {
            return Err(invalid(
                format!("Deployment {name} has a window of zero tokens."),
                "Set context_tokens to the model's window.",
            ));
        }
        Ok(())
    }

    fn check_route(&self, name: &str, route: &RouteConfig) -> Result<(), Error> {
        if route.tiers.is_empty() || route.tiers.iter().any(Vec::is_empty) {
            return Err(invalid(
                format!("Route {name} has no deployment in one of its tiers."),
                "Name at least one deployment in every tier.",
            ));
        }
        for deployment in route.tiers.iter().flatten() {
            if !self.deployments.contains_key(deployment) {
                return Err(invalid(
                    format!("Route {name} names the deployment {deployment:?}, which is not configured."),
                    "Add it under [deployments] or correct the name.",
                ));
            }
        }
        Ok(())
    }

    fn check_constants(&self) -> Result<(), Error> {
        let router = &self.router;
        let timeouts = &router.timeouts;
        let wrong = [
            ("router.attempts_per_call", router.attempts_per_call == 0),
            ("router.attempts_per_step", router.attempts_per_step == 0),
            ("router.queue_max", router.queue_max == 0),
            ("router.breaker.open_factor", router.breaker.open_factor < 1.0),
            ("router.breaker.open_first", router.breaker.open_first.0.is_zero()),
            ("router.breaker.consecutive", router.breaker.consecutive <= 0.0),
            ("router.breaker.failure_share", !(0.0..=1.0).contains(&router.breaker.failure_share)),
            ("router.ramp.growth", router.ramp.growth < 1.0),
            ("router.ramp.step", router.ramp.step.0.is_zero()),
            ("router.ramp.shrink", !(0.0..1.0).contains(&router.ramp.shrink)),
            ("router.ramp.rate_factor", router.ramp.rate_factor < 1.0),
            ("router.timeouts.connect", timeouts.connect.0.is_zero()),
            ("router.timeouts.headers", timeouts.headers.0.is_zero()),
            ("router.timeouts.first_content", timeouts.first_content.0.is_zero()),
            ("router.timeouts.first_content_max", timeouts.first_content_max.0.is_zero()),
            ("router.timeouts.idle", timeouts.idle.0.is_zero()),
            ("router.timeouts.idle_with_pings", timeouts.idle_with_pings.0.is_zero()),
            ("router.timeouts.attempt", timeouts.attempt.0.is_zero()),
            ("router.retry_budget.share", router.retry_budget.share < 0.0),
            ("router.retry_budget.per_s", router.retry_budget.per_s < 0.0),
        ];
        match wrong.into_iter().find(|(_, wrong)| *wrong) {
            None => Ok(()),
            Some((key, _)) => Err(invalid(
                format!("{key} has an impossible value."),
                "Remove the line to get the default, or see the guide for its range.",
            )),
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.routes.iter().flat_map(|(name, route)| self.route_warnings(name, route)).collect()
    }

    fn route_warnings(&self, name: &str, route: &RouteConfig) -> Vec<String> {
        let mut warnings = Vec::new();
        if route.tiers.len() == 1 {
            warnings.push(format!(
                "Route {name} has a single tier: while its deployments are down, runs wait instead of failing over."
            ));
        }
        let smallest = |tier: &Vec<String>| {
            tier.iter().filter_map(|name| self.deployments.get(name)).map(|d| d.context_tokens).min()
        };
        let streams = |tier: &Vec<String>| -> u64 {
            tier.iter()
                .filter_map(|name| self.deployments.get(name))
                .map(|d| u64::from(d.limits.streams))
                .sum()
        };
        let Some((first, later)) = route.tiers.split_first() else {
            return warnings;
        };
        for tier in later {
            let names = tier.join(", ");
            if smallest(tier) < smallest(first) {
                warnings.push(format!(
                    "Route {name}: the fallback {names} has a smaller window than the first tier; long contexts cannot fail over."
                ));
            }
            if streams(tier) < streams(first) {
                warnings.push(format!(
                    "Route {name}: the fallback {names} takes fewer streams than the first tier; in an outage the overflow waits."
                ));
            }
        }
        warnings
    }
}

fn check_url(provider: &str, text: &str) -> Result<(), Error> {
    let usable = text.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    if usable {
        return Ok(());
    }
    Err(invalid(
        format!("base_url {text:?} of provider {provider} is not an http or https address."),
        "Write it as https://host/path, without the last part of the path.",
    ))
}

fn invalid(message: String, remedy: &'static str) -> Error {
    Error::new(Code::ConfigInvalid, Origin::Ours, message, remedy)
}
