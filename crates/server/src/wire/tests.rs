use evenkeel_core::run::{BusyPolicy, Class, RunState};
use evenkeel_core::{Code, Generator, Wall};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::input::{Assistant, InputLimits, RunRequest};
use super::run::{policy, states, status, strategy};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let key = prop_oneof![
            Just("messages".to_owned()),
            Just("role".to_owned()),
            Just("content".to_owned()),
            Just("repository".to_owned()),
            "[a-z]{1,4}",
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The same value with the keys of every object in the other order.
fn turned(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.iter().rev().map(|(k, v)| (k.clone(), turned(v))).collect::<Map<_, _>>())
        }
        Value::Array(values) => values.iter().map(turned).collect(),
        other => other.clone(),
    }
}

fn hash(input: &Value, assistant: &str) -> Option<String> {
    RunRequest::parse(json!({ "assistant_id": assistant, "input": input })).ok().map(|request| request.hash())
}

proptest! {
    #[test]
    fn whatever_the_input_it_is_taken_or_refused(input in any_json()) {
        let body = json!({ "assistant_id": "coder", "input": input });
        let agent = &evenkeel_tools::agents::builtin().into_iter().next().unwrap();
        let assistant = Assistant { agent, class: Class::Batch, busy_policy: BusyPolicy::Enqueue };
        let limits = InputLimits { messages_max: 3, chars_max: 5 };
        let request = RunRequest::parse(body).unwrap();
        match request.spec(&assistant, limits, Wall(1), &Generator::from_seed(1)) {
            Ok(spec) => {
                prop_assert!((1..=3).contains(&spec.messages.len()));
                prop_assert!(spec.messages.iter().all(|m| (1..=5).contains(&m.joined_text().chars().count())));
            }
            Err(error) => prop_assert!(matches!(error.code, Code::BadRequest | Code::MessageTooLarge)),
        }
    }

    #[test]
    fn the_order_of_keys_is_no_difference_and_every_value_is_one(a in any_json(), b in any_json()) {
        prop_assert_eq!(hash(&a, "x"), hash(&turned(&a), "x"));
        prop_assert_ne!(hash(&a, "x"), hash(&a, "y"));
        if a != b {
            prop_assert_ne!(hash(&a, "x"), hash(&b, "x"));
        }
    }
}

#[test]
fn words_of_the_dialect_go_both_ways() {
    for word in ["pending", "running", "success", "error", "interrupted", "timeout"] {
        let states = states(word).unwrap();
        // A waiting run is interrupted when it waits for a person; its state alone does not say so.
        let may = |state: RunState| word == "interrupted" && state == RunState::Waiting;
        assert!(states.iter().all(|state| status(*state) == word || may(*state)), "{word}: {states:?}");
    }
    for word in ["enqueue", "reject", "interrupt", "rollback", "steer", "merge", "latest"] {
        assert_eq!(policy(word).map(strategy), Some(word));
    }
}
