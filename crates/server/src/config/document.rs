//! The file as a tree with places, so that every complaint names line and column.
//!
//! Overrides are parsed as if they stood behind the end of the file: their places lie beyond it, and
//! a complaint about one names its variable instead of a line.

use std::borrow::Cow;
use std::ops::Range;

use evenkeel_core::Error;
use evenkeel_tools::ToolsConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::overlay::{Environment, Overrides, Setting};
use super::{Config, invalid};

/// The tables that together are the router's configuration.
const ROUTER: [&str; 4] = ["router", "providers", "deployments", "routes"];
/// All keys of the top level, in the order in which they are printed.
const TOP: [&str; 19] = [
    "protect",
    "server",
    "auth",
    "gateway",
    "replica",
    "limits",
    "router",
    "providers",
    "deployments",
    "routes",
    "sandbox",
    "tools",
    "mcp",
    "policy",
    "approvals",
    "workspaces",
    "git",
    "assistants",
    "telemetry",
];

/// Parses the file, lays the overrides on and gives every section its type.
pub(super) fn read(name: &str, text: &str, overrides: &Overrides) -> Result<Config, Error> {
    let mut sources = Sources { name: name.to_owned(), text: text.to_owned(), beyond: Vec::new() };
    let layers: Vec<String> = overrides.settings().into_iter().map(|setting| sources.add(setting)).collect();
    let mut root = sources.parse(text)?;
    for layer in &layers {
        lay(&mut root, sources.parse(layer)?);
    }
    sources.check_top(&root)?;
    Sections { sources: &sources, root }.into_config(overrides.environment.clone())
}

/// The texts that were read, and where each begins.
struct Sources {
    name: String,
    /// The file's text, then one line for each override.
    text: String,
    /// Where each override lies, with its words.
    beyond: Vec<(Range<usize>, String)>,
}

impl Sources {
    /// Adds an override; the text to parse for it is padded so that its places lie beyond the file.
    fn add(&mut self, setting: Setting) -> String {
        let offset = self.text.len() + 1;
        let line = setting.line();
        self.text = format!("{}\n{line}", self.text);
        self.beyond.push((offset..self.text.len() + 1, setting.source));
        format!("{}{line}", " ".repeat(offset))
    }

    fn parse<'a>(&self, text: &'a str) -> Result<DeTable<'a>, Error> {
        DeTable::parse(text).map(Spanned::into_inner).map_err(|error| self.complain(&error))
    }

    fn check_top(&self, root: &DeTable<'_>) -> Result<(), Error> {
        match root.keys().find(|key| !TOP.contains(&key.get_ref().as_ref())) {
            Some(key) => Err(invalid(
                format!("{}: unknown section or key `{}`.", self.place(key.span().start), key.get_ref()),
                remedy_for(key.get_ref(), &TOP),
            )),
            None => Ok(()),
        }
    }

    fn complain(&self, error: &toml::de::Error) -> Error {
        let place = error.span().map_or_else(|| self.name.clone(), |span| self.place(span.start));
        let message = error.message().trim_end_matches('.').replace('\n', "; ");
        invalid(format!("{place}: {message}."), remedy(&message))
    }

    /// Line and column of a place, or the override that put it there.
    fn place(&self, at: usize) -> String {
        if let Some((_, source)) = self.beyond.iter().find(|(range, _)| range.contains(&at)) {
            return source.clone();
        }
        let before: Vec<u8> = self.text.bytes().take(at).collect();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let last = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let column = String::from_utf8_lossy(last).chars().count() + 1;
        format!("{}:{line}:{column}", self.name)
    }
}

/// The tree with all overrides laid on.
struct Sections<'a> {
    sources: &'a Sources,
    root: DeTable<'a>,
}

impl<'a> Sections<'a> {
    fn into_config(mut self, environment: Environment) -> Result<Config, Error> {
        Ok(Config {
            server: self.section("server")?,
            auth: self.section("auth")?,
            gateway: self.section("gateway")?,
            replica: self.section("replica")?,
            limits: self.section("limits")?,
            router: self.sections(&ROUTER)?,
            sandbox: self.section("sandbox")?,
            tools: self.tools()?,
            approvals: self.section("approvals")?,
            workspaces: self.section("workspaces")?,
            git: self.section("git")?,
            assistants: self.section("assistants")?,
            telemetry: self.section("telemetry")?,
            protect: self.section("protect")?,
            environment,
        })
    }

    fn take(&mut self, key: &str) -> Option<Spanned<DeValue<'a>>> {
        self.root.remove(&Spanned::new(0..0, Cow::Owned(key.to_owned())))
    }

    fn section<T: DeserializeOwned + Default>(&mut self, key: &str) -> Result<T, Error> {
        match self.take(key) {
            Some(value) => self.typed(value),
            None => Ok(T::default()),
        }
    }

    /// Several top-level tables as one value.
    fn sections<T: DeserializeOwned>(&mut self, keys: &[&str]) -> Result<T, Error> {
        let mut table = DeTable::new();
        for key in keys {
            if let Some(value) = self.take(key) {
                table.insert(Spanned::new(value.span(), Cow::Owned((*key).to_owned())), value);
            }
        }
        self.typed(Spanned::new(0..0, DeValue::Table(table)))
    }

    /// `[tools]` with `[policy]` and `[mcp]` put into it.
    fn tools(&mut self) -> Result<ToolsConfig, Error> {
        let mut table = match self.take("tools") {
            Some(value) => {
                let at = value.span().start;
                let DeValue::Table(table) = value.into_inner() else {
                    let place = self.sources.place(at);
                    return Err(invalid(
                        format!("{place}: `tools` is not a table."),
                        "Write a section `[tools]`.",
                    ));
                };
                table
            }
            None => DeTable::new(),
        };
        for key in ["policy", "mcp"] {
            if let Some(value) = self.take(key) {
                table.insert(Spanned::new(value.span(), Cow::Owned(key.to_owned())), value);
            }
        }
        self.typed(Spanned::new(0..0, DeValue::Table(table)))
    }

    fn typed<T: DeserializeOwned>(&self, value: Spanned<DeValue<'a>>) -> Result<T, Error> {
        T::deserialize(ValueDeserializer::from(value)).map_err(|error| self.sources.complain(&error))
    }
}

impl Setting {
    /// The setting as a line of TOML. A value that is not TOML by itself is a string.
    fn line(&self) -> String {
        let path: Vec<String> = self.path.iter().map(|key| quoted(key)).collect();
        let plain = format!("{} = {}", path.join("."), self.value);
        if DeTable::parse(&plain).is_ok_and(|table| table.get_ref().len() == 1) {
            return plain;
        }
        format!("{} = {}", path.join("."), quoted(&self.value))
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Lays `upper` over `lower`, table by table.
fn lay<'a>(lower: &mut DeTable<'a>, upper: DeTable<'a>) {
    for (key, value) in upper {
        let below = lower.remove(&key);
        let span = value.span();
        let value = match (below.map(Spanned::into_inner), value.into_inner()) {
            (Some(DeValue::Table(mut below)), DeValue::Table(above)) => {
                lay(&mut below, above);
                DeValue::Table(below)
            }
            (_, value) => value,
        };
        lower.insert(key, Spanned::new(span, value));
    }
}

/// What to do about serde's complaint: the nearest key that it names, if it names keys.
fn remedy(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let wrong = quoted.next().unwrap_or_default().to_owned();
    let valid: Vec<&str> = quoted.collect();
    if message.starts_with("unknown field") {
        return remedy_for(&wrong, &valid);
    }
    if message.starts_with("unknown variant") {
        return match nearest(&wrong, &valid) {
            Some(word) => format!("Did you mean `{word}`? Valid here: {}.", valid.join(", ")),
            None => format!("Write one of: {}.", valid.join(", ")),
        };
    }
    "Correct the value; `evenkeel check` shows every key with its effective value.".to_owned()
}

fn remedy_for(wrong: &str, valid: &[&str]) -> String {
    match nearest(wrong, valid) {
        Some(key) => format!("Did you mean `{key}`? Valid here: {}.", valid.join(", ")),
        None if valid.is_empty() => "Remove it.".to_owned(),
        None => format!("Remove it; valid here: {}.", valid.join(", ")),
    }
}

/// The word of `valid` that is nearest to `wrong`, if one is near enough to be meant.
#[must_use]
pub fn nearest<'a>(wrong: &str, valid: &[&'a str]) -> Option<&'a str> {
    let near = valid.iter().map(|word| (distance(wrong, word), *word)).min()?;
    (near.0 <= wrong.chars().count().div_ceil(2).max(1)).then_some(near.1)
}

/// Edits between two words (insert, remove, replace).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (j, to) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or_default();
            let here = (diagonal + usize::from(from != *to)).min(above + 1).min(left + 1);
            if let Some(cell) = row.get_mut(j) {
                *cell = left;
            }
            diagonal = above;
            left = here;
        }
        if let Some(cell) = row.last_mut() {
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Everything as TOML, in the order of [`TOP`].
pub(super) fn print(config: &Config) -> Result<String, Error> {
    let parts = [
        top("protect", &config.protect),
        top("server", &config.server),
        top("auth", &config.auth),
        top("gateway", &config.gateway),
        top("replica", &config.replica),
        top("limits", &config.limits),
        table(&config.router),
        top("sandbox", &config.sandbox),
        tools(&config.tools),
        top("approvals", &config.approvals),
        top("workspaces", &config.workspaces),
        top("git", &config.git),
        top("assistants", &config.assistants),
        top("telemetry", &config.telemetry),
    ];
    let mut all = toml::Table::new();
    for part in parts {
        all.extend(
            part.map_err(|error| Error::internal(format!("Cannot write the configuration: {error}.")))?,
        );
    }
    toml::to_string_pretty(&all)
        .map_err(|error| Error::internal(format!("Cannot write the configuration: {error}.")))
}

fn top<T: Serialize>(key: &str, value: &T) -> Result<toml::Table, toml::ser::Error> {
    Ok(toml::Table::from_iter([(key.to_owned(), toml::Value::try_from(value)?)]))
}

fn table<T: Serialize>(value: &T) -> Result<toml::Table, toml::ser::Error> {
    toml::Table::try_from(value)
}

fn tools(config: &ToolsConfig) -> Result<toml::Table, toml::ser::Error> {
    let mut inner = table(config)?;
    let mut outer = toml::Table::new();
    for key in ["policy", "mcp"] {
        outer.extend(inner.remove(key).map(|value| (key.to_owned(), value)));
    }
    outer.insert("tools".to_owned(), toml::Value::Table(inner));
    Ok(outer)
}
