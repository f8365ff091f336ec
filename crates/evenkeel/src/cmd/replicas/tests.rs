use expect_test::expect;
use serde_json::json;

use super::show;
use crate::output::Style;

#[test]
fn a_gateway_and_a_replica_are_shown_alike() {
    let rows = json!([
        { "address": "http://10.0.0.5:7070", "replica": "r-1", "standing": "up", "for_ms": 61_000,
          "running": 3, "in_flight": 12, "n_requests": 400, "n_failed": 1 },
        { "address": "http://10.0.0.6:7070", "replica": null, "standing": "down: refused", "for_ms": 900,
          "running": null, "in_flight": 0, "n_requests": 7, "n_failed": 2 },
        { "address": "10.0.0.7:7070", "replica": "r-3", "standing": "draining", "running": 0, "me": true },
    ]);
    expect![[r#"
        ADDRESS                STANDING       SINCE           RUNS  REQUESTS  SENT  FAILED  REPLICA
        http://10.0.0.5:7070   up             1 min 01 s ago  3     12        400   1       r-1
        http://10.0.0.6:7070   down: refused  900 ms ago            0         7     2
        10.0.0.7:7070 (asked)  draining                       0                             r-3"#]]
    .assert_eq(&show(Style::plain(), &rows));
}
