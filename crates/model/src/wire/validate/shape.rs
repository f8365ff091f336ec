//! What both validators look at in the same way.

use std::collections::BTreeSet;

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

    /// Checks what both wires want of a tool: a valid name that is in `seen` for the first time, and an
    /// object schema at `schema`.
    pub(super) fn tool<'a>(
        &mut self,
        place: &str,
        tool: &'a Value,
        schema: &str,
        seen: &mut BTreeSet<&'a str>,
    ) {
        let name = text(tool, "name");
        self.require(is_name(name, 64), place, format!("name {name:?} is not valid"));
        self.require(seen.insert(name), place, format!("name {name:?} occurs twice"));
        let is_object = tool.get(schema).is_some_and(|schema| text(schema, "type") == "object");
        self.require(is_object, place, format!("{schema} is not an object schema"));
    }

    /// Checks that a result answers a call that is open, and closes it.
    pub(super) fn answer<'a>(&mut self, place: &str, id: &'a str, open: &mut BTreeSet<&'a str>) {
        let was_open = open.remove(id);
        self.require(
            was_open,
            place,
            format!("answers {id:?}, which is not an open call of the message before"),
        );
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
