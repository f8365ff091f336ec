//! The configuration that the product gets: the scenario's topology in the product's own words.

use std::collections::BTreeMap;

use anyhow::Context as _;
use toml::{Table, Value, toml};

use super::Plan;
use crate::provider::{Control, WireKind};
use crate::scenario::Provider;

/// The key that the fake providers accept.
pub(super) const KEY: &str = "test:lab";

/// The configuration file, listening on a free port.
pub(super) fn text(plan: &Plan, providers: &BTreeMap<String, Control>) -> anyhow::Result<String> {
    let protect = plan.protect.as_str();
    let data_dir = plan.root.join("data").display().to_string();
    let sources = plan.root.join("repositories").display().to_string();
    let mut config = toml! {
        protect = protect
        [server]
        listen = "127.0.0.1:0"
        data_dir = data_dir
        lab = true
        [auth]
        mode = "open"
        [workspaces]
        sources = [sources]
        [telemetry]
        log = "info"
        [router]
        protect = protect
    };
    config.insert("limits".to_owned(), Value::try_from(&plan.scenario.limits).context("write the limits")?);
    let mut tables = [Table::new(), Table::new()];
    for provider in &plan.scenario.provider {
        let Some(control) = providers.get(&provider.name) else { continue };
        tables[0].insert(provider.name.clone(), Value::Table(provider_table(provider, control)));
        tables[1].insert(provider.name.clone(), deployment(provider)?);
    }
    let [provider_tables, deployments] = tables;
    config.insert("providers".to_owned(), Value::Table(provider_tables));
    config.insert("deployments".to_owned(), Value::Table(deployments));
    let tiers: Vec<Value> = plan
        .scenario
        .provider
        .iter()
        .map(|provider| Value::Array(vec![provider.name.clone().into()]))
        .collect();
    let route = Table::from_iter([("tiers".to_owned(), Value::Array(tiers))]);
    config.insert(
        "routes".to_owned(),
        Value::Table(Table::from_iter([("default".to_owned(), Value::Table(route))])),
    );
    toml::to_string_pretty(&config).context("write the configuration")
}

fn provider_table(provider: &Provider, control: &Control) -> Table {
    let kind = match provider.wire {
        WireKind::Openai => "openai",
        WireKind::Anthropic => "anthropic",
    };
    let base_url = control.base_url(provider.wire);
    let key = KEY;
    toml! {
        kind = kind
        base_url = base_url
        keys = [key]
    }
}

fn deployment(provider: &Provider) -> anyhow::Result<Value> {
    let name = provider.name.as_str();
    let context_tokens = i64::try_from(provider.context_tokens)?;
    let mut table = toml! {
        provider = name
        model = "fake-large"
        context_tokens = context_tokens
    };
    table.insert("limits".to_owned(), Value::try_from(provider.limits)?);
    Ok(Value::Table(table))
}
