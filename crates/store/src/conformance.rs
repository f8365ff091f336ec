//! One suite for every engine: named cases that say what must hold at the contract.
//!
//! [`all`] runs every case on a fresh store and reports all that fail. A case drives the store only
//! through its operations and a clock that moves when it says so, and ends with the check that the
//! stored data is consistent ([`Stage::check_thread`]). The cases are grouped by what they are
//! about; each is named for what holds.
//!
//! Durability and damage are not here: they need a file, and stand in the tests of the engine.

mod approvals;
mod busy;
mod cancels;
mod claims;
mod effects;
mod fences;
mod keys;
mod queues;
pub mod samples;
mod stage;
mod steps;
mod storage;
mod tenants;
mod threads;
mod turns;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::Store;
use evenkeel_env::Env;
use futures_util::FutureExt as _;

pub use stage::{ManualClock, Stage, world};

/// Ids in the cases follow from this.
const SEED: u64 = 7;

/// One case: what must hold, and the actions that show it.
pub struct Case {
    /// What holds, in words joined by `_`.
    pub name: &'static str,
    run: fn(Stage) -> BoxFuture<'static, ()>,
}

/// Lists async functions as cases under their own names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(super) const CASES: &[super::Case] =
            &[$(super::Case { name: stringify!($name), run: |stage| Box::pin($name(stage)) }),*];
    };
}
use cases;

/// All cases in the order in which they run.
pub fn cases_of_all() -> impl Iterator<Item = &'static Case> {
    [
        turns::CASES,
        threads::CASES,
        queues::CASES,
        busy::CASES,
        steps::CASES,
        effects::CASES,
        fences::CASES,
        keys::CASES,
        claims::CASES,
        cancels::CASES,
        approvals::CASES,
        tenants::CASES,
        storage::CASES,
    ]
    .into_iter()
    .flatten()
}

/// Runs every case, each on a store made for it with the given environment.
///
/// # Panics
/// If a case fails; the text names every failed case with its reason.
pub async fn all<F>(make: F)
where
    F: Fn(Env) -> BoxFuture<'static, Arc<dyn Store>>,
{
    let mut failures = Vec::new();
    for case in cases_of_all() {
        let (env, clock) = world(SEED);
        let stage = Stage::new(make(env.clone()).await, env, clock);
        if let Err(panic) = AssertUnwindSafe((case.run)(stage)).catch_unwind().await {
            failures.push(format!("{}: {}", case.name, reason(panic.as_ref())));
        }
    }
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

fn reason(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked without a text")
}
