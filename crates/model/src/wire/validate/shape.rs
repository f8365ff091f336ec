//! What both validators look at in the same way.

use serde_json::Value;

/// Collects findings with their places.
#[derive(Default)]
pub(super) struct Findings(Vec<String>);

impl Findings {
    pub(super) fn add(&mut self, place: &str, what: impl AsRef<str>) {
        self.0.push(format!("{place}: {}", what.as_ref()));
    }

    pub(super) fn require(&mut self, holds: bool, place: &str, what: impl AsRef<str>) {
        if !holds {
            self.add(place, what);
        }
    }

    pub(super) fn result(self) -> Result<(), Vec<String>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }

    /// Reports members of `object` that the wire does not know.
    pub(super) fn known(&mut self, place: &str, object: &Value, known: &[&str]) {
        for key in object.as_object().into_iter().flat_map(|object| object.keys()) {
            self.require(known.contains(&key.as_str()), place, format!("unknown member {key:?}"));
        }
    }
}

/// `^[a-zA-Z0-9_-]{1,max}$`
pub(super) fn is_name(text: &str, max: usize) -> bool {
    !text.is_empty()
        && text.len() <= max
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The text at `key`, or an empty one.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The array at `key`, or an empty one.
pub(super) fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether the value is an object schema.
pub(super) fn is_object_schema(schema: Option<&Value>) -> bool {
    schema.is_some_and(|schema| text(schema, "type") == "object")
}
