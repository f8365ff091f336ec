//! Licences, sources, banned crates and duplicate versions, from `cargo metadata` and `deny.toml`.
//!
//! The same file serves a user's own cargo-deny. This reader understands the part of it that we
//! use, so that nothing has to be installed: `licenses.allow`, `licenses.exceptions`, `bans.deny`,
//! `bans.skip` (with a reason each) and `sources.allow-registry`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

/// Checks the whole dependency graph of the platforms we build for.
pub(crate) fn licences() -> Result<()> {
    let deny = std::fs::read_to_string(shell::root().join("deny.toml")).context("read deny.toml")?;
    let deny: toml::Table = deny.parse().context("read deny.toml")?;
    let metadata = shell::capture(
        &shell::cargo(),
        &["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"],
    )
    .context("cargo metadata failed; does Cargo.lock match the manifests?")?;
    let metadata: Value = serde_json::from_str(&metadata).context("read cargo metadata")?;
    let packages = resolved(&metadata);
    let problems = examine(&packages, &Rules::read(&deny));
    if !problems.is_empty() {
        bail!("{} problems:\n    {}", problems.len(), problems.join("\n    "));
    }
    println!("    {} packages: licences, sources, bans and duplicates are in order", packages.len());
    Ok(())
}

/// A package of the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: String,
    pub(crate) source: Option<String>,
}

/// What `deny.toml` asks for.
#[derive(Default)]
pub(crate) struct Rules {
    pub(crate) allow: Vec<String>,
    /// Licences allowed for one crate only.
    pub(crate) exceptions: BTreeMap<String, Vec<String>>,
    pub(crate) banned: Vec<String>,
    /// `name@version` of older duplicates that are known and have a reason.
    pub(crate) skip: Vec<String>,
    pub(crate) registries: Vec<String>,
}

impl Rules {
    pub(crate) fn read(deny: &toml::Table) -> Self {
        let at = |table: &str, key: &str| {
            deny.get(table).and_then(|table| table.get(key)).and_then(toml::Value::as_array).cloned()
        };
        let texts = |list: Option<Vec<toml::Value>>| -> Vec<String> {
            list.unwrap_or_default().iter().filter_map(named).collect()
        };
        let exceptions = at("licenses", "exceptions").unwrap_or_default();
        let exceptions = exceptions.iter().filter_map(|entry| {
            let allow = entry.get("allow")?.as_array()?.iter().filter_map(named).collect();
            Some((named(entry)?, allow))
        });
        Self {
            allow: texts(at("licenses", "allow")),
            exceptions: exceptions.collect(),
            banned: texts(at("bans", "deny")),
            skip: texts(at("bans", "skip")),
            registries: texts(at("sources", "allow-registry")),
        }
    }
}

/// An entry is a string or a table with `crate`.
fn named(entry: &toml::Value) -> Option<String> {
    entry.as_str().or_else(|| entry.get("crate")?.as_str()).map(str::to_owned)
}

fn resolved(metadata: &Value) -> Vec<Package> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let used: Vec<String> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| text(&node["id"])).collect();
    let mut packages: Vec<Package> = list(&metadata["packages"])
        .iter()
        .filter(|package| used.contains(&text(&package["id"])))
        .map(|package| Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            source: package["source"].as_str().map(str::to_owned),
        })
        .collect();
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    packages
}

/// All problems of a graph under the rules.
pub(crate) fn examine(packages: &[Package], rules: &Rules) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let Package { name, version, licence, source } = package;
        let extra = rules.exceptions.get(name).cloned().unwrap_or_default();
        if !permitted(licence, &|word| rules.allow.iter().chain(&extra).any(|allowed| allowed == word)) {
            problems.push(format!("{name} {version}: licence `{licence}` is not on the list"));
        }
        if rules.banned.contains(name) {
            problems.push(format!("{name} {version} is banned"));
        }
        if let Some(source) = source {
            let known =
                rules.registries.iter().any(|registry| source.trim_start_matches("registry+") == registry);
            if !known {
                problems.push(format!("{name} {version} comes from {source}"));
            }
        }
    }
    problems.extend(duplicates(packages, &rules.skip));
    problems
}

/// Every version of a crate but one must be listed in `bans.skip`.
fn duplicates(packages: &[Package], skip: &[String]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    versions
        .into_iter()
        .filter_map(|(name, versions)| {
            let left: Vec<&str> =
                versions.into_iter().filter(|version| !skipped(skip, name, version)).collect();
            (left.len() > 1).then(|| {
                format!("{name} is there as {}: unify, or list the older with a reason", left.join(" and "))
            })
        })
        .collect()
}

/// A skip names a crate and the beginning of its version: `base64@0.22`.
fn skipped(skip: &[String], name: &str, version: &str) -> bool {
    skip.iter().filter_map(|entry| entry.split_once('@')).any(|(skipped, prefix)| {
        let rest = version.strip_prefix(prefix);
        skipped == name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Whether an SPDX expression can be satisfied: `OR` (and the old `/`) needs one side, `AND` both;
/// `X WITH Y` is one word.
pub(crate) fn permitted(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced =
        expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ").replace(" WITH ", "~");
    let words: Vec<String> = spaced.split_whitespace().map(|word| word.replace('~', " WITH ")).collect();
    let mut at = 0;
    let good = either(&words, &mut at, allowed);
    good && at == words.len()
}

fn either(words: &[String], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut good = both(words, at, allowed);
    while words.get(*at).is_some_and(|word| word == "OR") {
        *at += 1;
        good |= both(words, at, allowed);
    }
    good
}

fn both(words: &[String], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut good = one(words, at, allowed);
    while words.get(*at).is_some_and(|word| word == "AND") {
        *at += 1;
        good &= one(words, at, allowed);
    }
    good
}

fn one(words: &[String], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if word != "(" {
        return allowed(word);
    }
    let good = either(words, at, allowed);
    let closed = words.get(*at).is_some_and(|word| word == ")");
    *at += 1;
    good && closed
}

#[cfg(test)]
mod tests;
