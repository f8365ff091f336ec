use expect_test::expect;
use serde_json::json;

use super::check;

#[test]
fn foreign_schemas_are_checked_as_far_as_they_are_known() {
    let schema = json!({
        "type": "object",
        "properties": {
            "mode": {"type": "string", "enum": ["a", "b"]},
            "size": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "free": {},
            "odd": {"type": "string", "pattern": "^x", "$ref": "#/nowhere"},
        },
        "required": ["mode"],
    });
    let mut table = String::new();
    for args in [
        json!({"mode": "a", "size": null, "tags": ["t"], "deep": {"x": 1.5}, "free": [], "odd": "y", "more": 1}),
        json!({"mode": "a", "size": 3.0}),
        json!({"mode": "c", "size": 10, "tags": ["t", 1], "deep": {}}),
        json!({"size": 1.5, "deep": []}),
        json!([1]),
    ] {
        table.push_str(&check("tool", &schema, &args).unwrap_or_else(|| "fits".to_owned()));
        table.push('\n');
    }
    expect![[r#"
        fits
        fits
        The arguments of tool do not fit: mode must be one of "a", "b"; size must be at most 9; tags[1] must be string, not number; deep.x is missing. It takes mode (string), size (value, optional), tags (array, optional), deep (object, optional), free (value, optional), odd (string, optional).
        The arguments of tool do not fit: mode is missing; size must be integer or null, not number; deep must be object, not array. It takes mode (string), size (value, optional), tags (array, optional), deep (object, optional), free (value, optional), odd (string, optional).
        tool takes a JSON object of arguments, not array.
    "#]].assert_eq(&table);
}
