//! The configuration that the product gets: the scenario's topology in the product's own words.

use std::collections::BTreeMap;

use anyhow::Context as _;
use toml::{Table, Value, toml};

use super::host::ANY_PORT;
use super::{Plan, fleet};
use crate::provider::{WireKind, base_url};
use crate::scenario::Provider;

/// The key that the fake providers accept.
pub(super) const KEY: &str = "test:lab";

/// Where a replica finds what it needs.
pub(super) struct Place {
    /// The URL of the store; none for SQLite.
    pub(super) store_url: Option<String>,
    /// The port of each provider.
    pub(super) provider_ports: BTreeMap<String, u16>,
}

/// What a replica does.
pub(super) fn replica_role(plan: &Plan) -> &'static str {
    if plan.replicas > 1 { "api" } else { "all" }
}

/// The replicas that listen on these ports, as a gateway names them.
pub(super) fn peers(ports: &[u16]) -> Vec<String> {
    ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect()
}

/// The gateway's configuration.
pub(super) fn gateway(plan: &Plan) -> anyhow::Result<String> {
    toml::to_string_pretty(&common(plan)?).context("write the configuration")
}

/// What every process of the product is told, listening on a free port.
fn common(plan: &Plan) -> anyhow::Result<Table> {
    let protect = plan.protect.as_str();
    let data_dir = fleet::data_dir(plan).display().to_string();
    let listen = ANY_PORT;
    let mut config = toml! {
        protect = protect
        [server]
        listen = listen
        data_dir = data_dir
        lab = true
        [auth]
        mode = "open"
        [telemetry]
        log = "info"
    };
    config.insert("limits".to_owned(), Value::try_from(&plan.scenario.limits).context("write the limits")?);
    Ok(config)
}

/// A replica's configuration.
pub(super) fn replica(plan: &Plan, place: &Place) -> anyhow::Result<String> {
    let protect = plan.protect.as_str();
    let sources = plan.root.join("repositories").display().to_string();
    let mut config = common(plan)?;
    config.extend(toml! {
        [workspaces]
        sources = [sources]
        [router]
        protect = protect
    });
    if let (Some(url), Some(Value::Table(server))) = (&place.store_url, config.get_mut("server")) {
        server.insert("store".to_owned(), url.clone().into());
    }
    let mut tables = [Table::new(), Table::new()];
    for provider in &plan.scenario.provider {
        let Some(port) = place.provider_ports.get(&provider.name) else { continue };
        tables[0].insert(provider.name.clone(), Value::Table(provider_table(provider, *port)));
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

fn provider_table(provider: &Provider, port: u16) -> Table {
    let kind = match provider.wire {
        WireKind::Openai => "openai",
        WireKind::Anthropic => "anthropic",
    };
    let base_url = base_url(port, provider.wire);
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
