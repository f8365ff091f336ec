//! Reads policy files and checks them against the schema.
//!
//! A file is cut into its statements first and each is read by itself, so that a fault in any of
//! them, of syntax or against the schema, can be told with the line where it begins.

use std::path::Path;

use cedar_policy::{Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};
use evenkeel_core::{Code, Error, Origin};

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
        let fault = |why: String| invalid(file, statement.line, &why);
        let policy = Policy::parse(None, statement.text).map_err(|error| fault(error.to_string()))?;
        let own = policy.annotation("id").map_or_else(|| format!("policy{}", idx + 1), str::to_owned);
        let policy = policy.new_id(PolicyId::new(format!("{stem}/{own}")));
        check(validator, &policy).map_err(fault)?;
        set.add(policy).map_err(|error| invalid(file, statement.line, &error.to_string()))?;
    }
    Ok(())
}

fn check(validator: &Validator, policy: &Policy) -> Result<(), String> {
    let alone = PolicySet::from_policies([policy.clone()]).map_err(|error| error.to_string())?;
    let result = validator.validate(&alone, ValidationMode::default());
    // One fault is told; the validator finds the same one for each kind of resource, in no order.
    let first = result.validation_errors().map(ToString::to_string).min();
    first.map_or(Ok(()), Err)
}

fn invalid(file: &str, line: usize, why: &str) -> Error {
    Error::new(
        Code::PolicyInvalid,
        Origin::Ours,
        format!("{file}, line {line}: {}.", why.trim_end_matches('.')),
        "Correct the policy that begins at this line; the schema is policies/schema.cedarschema.",
    )
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
    line: usize,
}

/// The statements of a file, each up to its `;`, with the line of its first character.
fn statements(source: &str) -> Vec<Statement<'_>> {
    let mut found = Vec::new();
    let (mut start, mut line, mut begins_at) = (0, 1, None);
    let (mut in_text, mut in_comment, mut escaped) = (false, false, false);
    let mut before = ' ';
    for (at, c) in source.char_indices() {
        if c == '\n' {
            line += 1;
            in_comment = false;
        } else if in_comment {
        } else if in_text {
            in_text = escaped || c != '"';
            escaped = c == '\\' && !escaped;
        } else if c == '/' && before == '/' {
            in_comment = true;
            // The first slash was not the beginning of a statement.
            begins_at = begins_at.filter(|(_, place)| *place + 1 != at);
        } else {
            in_text = c == '"';
            if begins_at.is_none() && !c.is_whitespace() {
                begins_at = Some((line, at));
            }
            if c == ';' {
                let text = source.get(start..=at).unwrap_or_default();
                found.push(Statement { text, line: begins_at.map_or(line, |(line, _)| line) });
                start = at + 1;
                begins_at = None;
            }
        }
        before = c;
    }
    if let (Some((line, _)), Some(text)) = (begins_at, source.get(start..)) {
        found.push(Statement { text, line });
    }
    found
}
