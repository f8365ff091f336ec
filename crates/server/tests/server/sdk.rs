//! The real SDK against the real product.
//!
//! Needs a Python with `langgraph-sdk==0.4.14`, named by `EVENKEEL_SDK_PYTHON`:
//! `python3 -m venv VENV && VENV/bin/pip install langgraph-sdk==0.4.14`. Without it this test says
//! that it has shown nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_env::process;

use crate::end_to_end::Product;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unmodified_sdk_runs_a_coding_task() {
    let Ok(python) = std::env::var("EVENKEEL_SDK_PYTHON") else {
        eprintln!("EVENKEEL_SDK_PYTHON is not set: the SDK was not tried.");
        return;
    };
    let product = Product::new().await;
    product.fake.think_ms.store(200, Ordering::Relaxed);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/coding_run.py");
    let url = format!("http://{}", product.address());
    let mut command = process::command(python);
    command.args(["-W", "error::ResourceWarning", script, &url, &product.repository()]);
    let output = tokio::time::timeout(Duration::from_secs(120), command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("ok"), "{said}");
}
