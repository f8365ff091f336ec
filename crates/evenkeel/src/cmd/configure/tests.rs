//! The guide and the configuration know the same keys.

use std::collections::BTreeSet;

use evenkeel_server::config::Environment;
use evenkeel_server::{Config, Overrides};

const GUIDE: &str = include_str!("../../../../../docs/guide/configuration.md");

/// One of every table and every key that has no default.
const EVERYTHING: &str = r#"
    [server]
    workers = 2
    [auth.keys.a]
    key = "env:K"
    tenant = "t"
    calls_per_min = 1
    [providers.a]
    kind = "openai"
    base_url = "http://127.0.0.1:1/v1"
    failure_domain = "a"
    [deployments.a]
    provider = "a"
    model = "m"
    price = { input = 1.0, cached_input = 1.0, output = 1.0 }
    [routes.default]
    tiers = [["a"]]
    [mcp.servers.a]
    command = "c"
    tools = ["t"]
    call_ms_max = 1000
    effects = { t = "pure" }
    [mcp.servers.b]
    url = "http://127.0.0.1:1/mcp"
    token = "env:K"
    [tools.network]
    agents = { coder = ["example.com"] }
    [replica]
    address = "127.0.0.1:1"
    secret = "env:K"
    [git.hosts."github.com"]
    token = "env:K"
    api = "https://api.github.com"
    [assistants.coder]
    busy_policy = "enqueue"
    class = "batch"
    description = "d"
    system_prompt = "s"
    route = "default"
    tools = ["bash"]
    workspace = true
    [assistants.coder.limits]
    [telemetry]
    otlp_endpoint = "http://127.0.0.1:1"
"#;

/// Tables whose entries a user names.
const NAMED: [&str; 7] =
    ["providers", "deployments", "routes", "assistants", "auth.keys", "mcp.servers", "git.hosts"];
/// Tables that are free-form: described in a sentence.
const FREE: [&str; 4] =
    ["router.tenant_weights", "mcp.servers.NAME.env", "mcp.servers.NAME.effects", "tools.network.agents"];

/// `section key` for every leaf.
fn keys(section: &str, table: &toml::Table, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let name = if NAMED.contains(&section) { "NAME" } else { key.as_str() };
        let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
        match value {
            toml::Value::Table(inner) if !FREE.contains(&path.as_str()) => keys(&path, inner, found),
            _ if path == "router.tenant_weights" => {}
            _ => {
                found.insert(format!("[{section}] {key}"));
            }
        }
    }
}

/// `section key` for every row of the guide.
fn rows() -> BTreeSet<String> {
    let mut section = String::new();
    let mut rows = BTreeSet::new();
    for line in GUIDE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.trim_matches(['[', ']']).to_owned();
            if section == "Top level" {
                section.clear();
            }
        } else if let Some(key) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) {
            rows.insert(format!("[{section}] {key}"));
        }
    }
    rows
}

#[test]
fn the_guide_has_every_key_and_no_other() {
    let environment = Environment::from_pairs([("K", "ek_test")]);
    let overrides = Overrides { environment, ..Overrides::default() };
    let config = Config::parse("everything", EVERYTHING, &overrides).expect("a possible configuration");
    let effective: toml::Table =
        config.effective().expect("it prints").parse().expect("what is printed is TOML");
    let mut known = BTreeSet::new();
    keys("", &effective, &mut known);
    let guide = rows();
    let missing: Vec<&String> = known.difference(&guide).collect();
    let invented: Vec<&String> = guide.difference(&known).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "not in the guide: {missing:?}\nonly in the guide: {invented:?}"
    );
}
