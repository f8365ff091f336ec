//! The engine in memory: the whole contract but durability, for tests and the simulation.
//!
//! One mutex around ordered maps; an operation runs inline, so in virtual time it takes no time and
//! its order is the order of the calls. Nothing survives the value.

mod rows;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_core::{Code, Error};
use evenkeel_env::Env;

use crate::Guards;
use crate::decide::{self, Context, Now};
use crate::record::Replicas;
use rows::MemoryRows;

/// The engine in memory.
pub struct MemoryStore {
    env: Env,
    guards: Guards,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rows: MemoryRows,
    replicas: Replicas,
    n_fenced: u64,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(env: &Env) -> Arc<Self> {
        Self::with_guards(env, Guards::ALL)
    }

    /// An empty store without some of its checks: for proving that a suite notices, or that each
    /// check refuses what it must without the others.
    #[must_use]
    pub fn with_guards(env: &Env, guards: Guards) -> Arc<Self> {
        Arc::new(Self { env: env.clone(), guards, state: Mutex::default() })
    }

    fn carry_out(&self, op: &Op) -> Result<Reply, Error> {
        let now = Now { wall: self.env.wall(), mono: self.env.mono() };
        let mut state = self.lock();
        let State { rows, replicas, n_fenced } = &mut *state;
        let mut ctx = Context { rows, replicas, now, guards: self.guards };
        let mut reply = decide::apply(&mut ctx, op)?;
        *n_fenced += u64::from(decide::is_fenced(&reply));
        if let Reply::Counts(counts) = &mut reply {
            counts.n_fenced = *n_fenced;
        }
        Ok(reply)
    }

    /// A panic inside a decision may have left half a write; the value is then not used again.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            if self.state.is_poisoned() {
                return Err(Error::new(
                    Code::StoreUnavailable,
                    evenkeel_core::Origin::Store,
                    "The store in memory stopped in the middle of an operation.",
                    "Report it with the log of this moment.",
                ));
            }
            self.carry_out(&op)
        })
    }
}

#[cfg(test)]
mod tests;
