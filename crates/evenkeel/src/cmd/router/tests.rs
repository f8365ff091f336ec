//! The router's snapshot as a person sees it.

use expect_test::expect;
use serde_json::json;

use super::show;
use crate::output::Style;

#[test]
fn an_outage_in_tables() {
    let snapshot = json!({
        "at": 100_000,
        "deployments": {
            "acme-large": {
                "state": "open", "since": 70_000, "reason": "3 connect failures in 1 s", "next_probe": 104_500,
                "throttled_until": null, "disabled_until": null, "drained": true, "limit": 8, "in_flight": 0,
                "outcomes": { "ok": 120, "transient": 9 }, "first_content_ms": { "p50": 410 },
            },
        },
        "routes": { "coder": { "tiers": [["acme-large", "acme-2"], ["backup"]], "parked": 31, "waiting": 2 } },
        "transitions": [
            { "at": 70_000, "deployment": "acme-large", "from": "closed", "to": "open", "reason": "3 connect failures in 1 s" },
        ],
    });
    expect![[r#"
        DEPLOYMENT  STATE          SINCE       STREAMS  CALLS                FIRST   NEXT TRY  WHY
        acme-large  open, drained  30.0 s ago  0 of 8   120 ok, 9 transient  410 ms  in 4.5 s  3 connect failures in 1 s

        ROUTE  TIERS                             PARKED  WAITING
        coder  acme-large | acme-2, then backup  31      2

        newest changes
              30.0 s ago  acme-large: closed -> open, 3 connect failures in 1 s"#]].assert_eq(&show(Style::plain(), &snapshot));
    expect![[r#"
        no deployments are configured: see docs/guide/quickstart.md

        ROUTE  TIERS  PARKED  WAITING"#]]
    .assert_eq(&show(Style::plain(), &json!({ "at": 1 })));
}
