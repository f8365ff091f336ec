//! Checks a call's arguments against its tool's schema, in words that help the model.
//!
//! Covers what our own schemas and most foreign ones use: object schemas with `properties`,
//! `required`, `additionalProperties`, and `type`, `enum`, `minimum`, `maximum`, `items` inside.
//! Keywords it does not know are left to the tool itself.

use serde_json::{Map, Value};

/// `None` if the arguments fit, else what is wrong and what the tool takes.
pub(crate) fn check(tool: &str, schema: &Value, args: &Value) -> Option<String> {
    let Some(given) = args.as_object() else {
        return Some(format!("{tool} takes a JSON object of arguments, not {}.", kind_of(args)));
    };
    let mut faults = Vec::new();
    check_object(schema, given, "", &mut faults);
    if faults.is_empty() {
        return None;
    }
    Some(format!("The arguments of {tool} do not fit: {}. It takes {}.", faults.join("; "), takes(schema)))
}

fn check_object(schema: &Value, given: &Map<String, Value>, at: &str, faults: &mut Vec<String>) {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if let Some(name) = name.as_str().filter(|name| !given.contains_key(*name)) {
            faults.push(format!("{at}{name} is missing"));
        }
    }
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    for (name, value) in given {
        match properties.get(name) {
            Some(property) => check_value(property, value, &format!("{at}{name}"), faults),
            None if closed => faults.push(format!("{at}{name} is not known")),
            None => {}
        }
    }
}

fn check_value(schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    if let Some(fault) = wrong_type(schema, value) {
        faults.push(format!("{at} {fault}"));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        faults.push(format!("{at} must be one of {}", allowed.join(", ")));
    }
    if let Some(number) = value.as_f64() {
        check_range(schema, number, at, faults);
    }
    match value {
        Value::Array(items) => {
            if let Some(item_schema) = schema.get("items") {
                for (idx, item) in items.iter().enumerate() {
                    check_value(item_schema, item, &format!("{at}[{idx}]"), faults);
                }
            }
        }
        Value::Object(object) if schema.get("properties").is_some() => {
            check_object(schema, object, &format!("{at}."), faults);
        }
        _ => {}
    }
}

fn check_range(schema: &Value, number: f64, at: &str, faults: &mut Vec<String>) {
    if let Some(min) = schema.get("minimum").and_then(Value::as_f64).filter(|min| number < *min) {
        faults.push(format!("{at} must be at least {min}"));
    }
    if let Some(max) = schema.get("maximum").and_then(Value::as_f64).filter(|max| number > *max) {
        faults.push(format!("{at} must be at most {max}"));
    }
}

fn wrong_type(schema: &Value, value: &Value) -> Option<String> {
    let wanted: Vec<&str> = match schema.get("type")? {
        Value::String(one) => vec![one.as_str()],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let fits = wanted.iter().any(|kind| match *kind {
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    });
    (!fits).then(|| format!("must be {}, not {}", wanted.join(" or "), kind_of(value)))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn takes(schema: &Value) -> String {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    let all: Vec<String> = properties
        .into_iter()
        .flatten()
        .map(|(name, property)| {
            let kind = property.get("type").and_then(Value::as_str).unwrap_or("value");
            let optional = if required.contains(&name.as_str()) { "" } else { ", optional" };
            format!("{name} ({kind}{optional})")
        })
        .collect();
    if all.is_empty() { "no arguments".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests;
