//! Reads policy files and checks them against the schema.
//!
//! A file is cut into its statements first and each is read by itself, so that a fault in any of
//! them, of syntax or against the schema, can be told with the line where it begins.

use std::path::Path;

use cedar_policy::{Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};
use evenkeel_core::{Code, Error, Origin};
use miette::Diagnostic;

use crate::config::PolicyConfig;

/// What policies may speak of.
const SCHEMA: &str = include_str!("../../policies/schema.cedarschema");

/// The policies that ship.
const DEFAULTS: &str = include_str!("../../policies/default.cedar");

pub(super) fn policies(config: &PolicyConfig) -> Result<PolicySet, Error> {
    let mut set = PolicySet::new();
    let validator = Validator::new(schema()?);
    if config.defaults {
        add(&mut set, &validator, "default", DEFAULTS)?;
    }
    for path in &config.files {
        let source = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        add(&mut set, &validator, &path.display().to_string(), &source)?;
    }
    Ok(set)
}

fn schema() -> Result<Schema, Error> {
    let (schema, _warnings) = Schema::from_cedarschema_str(SCHEMA)
        .map_err(|error| Error::internal(format!("The built-in policy schema does not parse: {error}.")))?;
    Ok(schema)
}

fn add(set: &mut PolicySet, validator: &Validator, file: &str, source: &str) -> Result<(), Error> {
    let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or(file);
    for (idx, statement) in statements(source).into_iter().enumerate() {
        let fault = |fault: Fault| invalid(file, source, &statement, &fault);
        let policy = Policy::parse(None, statement.text).map_err(|error| fault(Fault::of(&error)))?;
        let own = policy.annotation("id").map_or_else(|| format!("policy{}", idx + 1), str::to_owned);
        let policy = policy.new_id(PolicyId::new(format!("{stem}/{own}")));
        check(validator, &policy).map_err(fault)?;
        set.add(policy).map_err(|error| fault(Fault { text: error.to_string(), at: None }))?;
    }
    Ok(())
}

fn check(validator: &Validator, policy: &Policy) -> Result<(), Fault> {
    let alone = PolicySet::from_policies([policy.clone()]).map_err(|error| Fault::of(&error))?;
    let result = validator.validate(&alone, ValidationMode::default());
    // One fault is told; the validator finds the same one for each kind of resource, in no order.
    let first = result.validation_errors().map(|error| Fault::of(error)).min();
    first.map_or(Ok(()), Err)
}

/// What is wrong with a statement, and at which byte of it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    text: String,
    at: Option<usize>,
}

impl Fault {
    fn of(error: &dyn Diagnostic) -> Self {
        let at = error.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
        Self { text: error.to_string(), at }
    }
}

/// Tells a fault by the place in the file: its own if it has one, else where its policy begins.
fn invalid(file: &str, source: &str, statement: &Statement<'_>, fault: &Fault) -> Error {
    let (line, column) = place(source, fault.at.map_or(statement.begins, |at| statement.offset + at));
    Error::new(
        Code::PolicyInvalid,
        Origin::Ours,
        format!("{file}:{line}:{column}: {}.", fault.text.trim_end_matches('.')),
        "Correct the policy there; what policies can speak of is in the guide, and `evenkeel policy check FILE` reads it again.",
    )
}

/// Line and column, from 1.
fn place(source: &str, at: usize) -> (usize, usize) {
    let before = source.get(..at).unwrap_or(source);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(
        Code::PolicyInvalid,
        Origin::Ours,
        format!("The policy file {} cannot be read: {error}.", path.display()),
        "Correct the path under policy.files, or the file's permissions.",
    )
}

struct Statement<'a> {
    text: &'a str,
    /// Where the text begins in the file, with what stands before the statement itself.
    offset: usize,
    /// Where the statement itself begins.
    begins: usize,
}

/// The statements of a file, each up to its `;`.
fn statements(source: &str) -> Vec<Statement<'_>> {
    let mut found = Vec::new();
    let (mut start, mut begins) = (0, None);
    let (mut in_text, mut in_comment, mut escaped) = (false, false, false);
    let mut before = ' ';
    for (at, c) in source.char_indices() {
        if c == '\n' {
            in_comment = false;
        } else if in_comment {
        } else if in_text {
            in_text = escaped || c != '"';
            escaped = c == '\\' && !escaped;
        } else if c == '/' && before == '/' {
            in_comment = true;
            // The first slash was not the beginning of a statement.
            begins = begins.filter(|place| *place + 1 != at);
        } else {
            in_text = c == '"';
            if begins.is_none() && !c.is_whitespace() {
                begins = Some(at);
            }
            if c == ';' {
                let text = source.get(start..=at).unwrap_or_default();
                found.push(Statement { text, offset: start, begins: begins.unwrap_or(at) });
                start = at + 1;
                begins = None;
            }
        }
        before = c;
    }
    if let (Some(begins), Some(text)) = (begins, source.get(start..)) {
        found.push(Statement { text, offset: start, begins });
    }
    found
}
