use evenkeel_core::Code;
use evenkeel_core::message::Usage;

use super::{Price, ProviderKeys, RouterConfig, Span};

fn config(json: serde_json::Value) -> RouterConfig {
    serde_json::from_value(json).unwrap()
}

fn two_tiers() -> serde_json::Value {
    serde_json::json!({
        "providers": {"acme": {"kind": "openai", "base_url": "https://api.example.com/v1", "keys": ["test:k"]}},
        "deployments": {
            "large": {"provider": "acme", "model": "large-2", "context_tokens": 200_000},
            "small": {"provider": "acme", "model": "small-2", "context_tokens": 100_000,
                "limits": {"streams": 10, "calls_per_min": 600, "input_tokens_per_min": 1_000_000}},
        },
        "routes": {"coder": {"tiers": [["large"], ["small"]], "park": {"max": "10m", "interactive_max": "5s"}}},
    })
}

#[test]
fn spans_are_read_and_written() {
    for (text, ms) in [("400ms", 400), ("5s", 5_000), ("1.5s", 1_500), ("10m", 600_000), ("2h", 7_200_000)] {
        assert_eq!(text.parse::<Span>().unwrap(), Span::millis(ms), "{text}");
    }
    for (span, text) in
        [(Span::millis(1_500), "1500ms"), (Span::minutes(10), "10m"), (Span::millis(0), "0ms")]
    {
        assert_eq!(span.to_string(), text);
    }
    for text in ["", "5", "s", "-1s", "5 s", "1e3s"] {
        assert!(text.parse::<Span>().is_err(), "{text}");
    }
}

#[test]
fn weak_fallbacks_are_warned_of() {
    let warnings = config(two_tiers()).check().unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("smaller window") && warnings[1].contains("fewer streams"));
    let mut single = two_tiers();
    single["routes"]["coder"]["tiers"] = serde_json::json!([["large"]]);
    assert!(config(single).check().unwrap()[0].contains("single tier"));
}

#[test]
fn broken_references_and_unknown_keys_are_errors() {
    type Edit = fn(&mut serde_json::Value);
    let cases: [(&str, Edit); 4] = [
        ("provider", |c| c["deployments"]["large"]["provider"] = "nobody".into()),
        ("deployment", |c| c["routes"]["coder"]["tiers"][0][0] = "nobody".into()),
        ("tiers", |c| c["routes"]["coder"]["tiers"] = serde_json::json!([[]])),
        ("base_url", |c| c["providers"]["acme"]["base_url"] = "api.example.com".into()),
    ];
    for (what, edit) in cases {
        let mut json = two_tiers();
        edit(&mut json);
        let error = config(json).check().unwrap_err();
        assert_eq!(error.code, Code::ConfigInvalid, "{what}: {error}");
        assert!(error.message.contains(what), "{what}: {error}");
    }
    let mut unknown = two_tiers();
    unknown["router"] = serde_json::json!({"breakers": {}});
    assert!(serde_json::from_value::<RouterConfig>(unknown).unwrap_err().to_string().contains("breakers"));
}

#[test]
fn keys_are_named_never_written() {
    let with_key = |key: &str| {
        let mut json = two_tiers();
        json["providers"]["acme"]["keys"] = serde_json::json!([key]);
        config(json)
    };
    let read = |key: &str| {
        ProviderKeys::read_with(&with_key(key), |name| (name == "SET").then(|| "secret".to_owned()))
            .map(|keys| keys.of("acme").len())
            .map_err(|error| error.code)
    };
    assert_eq!(read("env:SET"), Ok(1));
    assert_eq!(read("env:UNSET"), Err(Code::KeyMissing));
    assert_eq!(read("file:/nonexistent"), Err(Code::KeyMissing));
    assert_eq!(read("test:k"), Ok(1));
    assert_eq!(read("sk-literal"), Err(Code::ConfigInvalid));
}

#[test]
fn a_price_counts_cached_input_apart() {
    let usage = Usage { input_tokens: 1_000, cached_input_tokens: 400, output_tokens: 100, estimated: false };
    let price = Price { input: 3.0, cached_input: Some(0.3), output: 15.0 };
    assert_eq!(price.micro_usd(usage), 600 * 3 + 120 + 1_500);
    assert_eq!(Price { cached_input: None, ..price }.micro_usd(usage), 1_000 * 3 + 1_500);
    assert_eq!(price.micro_usd(Usage::default()), 0);
}
