//! Hints to other replicas: "look at the store now".
//!
//! A hint says nothing else, so a forged one costs a look and a lost one costs the time until the
//! receiver would have looked by itself. They are sent by one task, one at a time to each address,
//! however many were asked for meanwhile.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use futures_util::future::join_all;
use http::{HeaderValue, Request};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Notify;
use tokio::time::timeout;

/// The header that shows the replicas' secret.
pub(crate) const SECRET: &str = "x-evenkeel-secret";
/// Where a hint is sent.
pub(crate) const PATH: &str = "/internal/hint";
/// The longest that a hint is worth waiting for.
const HINT_MAX: Duration = Duration::from_millis(500);

/// Hints on their way.
pub(crate) struct Hints {
    client: Client,
    /// Without a secret nothing is sent.
    secret: Option<SecretString>,
    wanted: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl Hints {
    /// Hints that show this secret.
    pub(crate) fn new(env: &Env, secret: Option<SecretString>) -> Arc<Self> {
        let client = Client::new(env, HINT_MAX);
        Arc::new(Self { client, secret, wanted: Mutex::default(), wake: Notify::new() })
    }

    /// The secret that a hint must show to be heard.
    pub(crate) fn secret(&self) -> Option<&SecretString> {
        self.secret.as_ref()
    }

    /// Tells the replica at this address to look; returns at once.
    pub(crate) fn send(&self, address: &str) {
        if self.secret.is_none() {
            return;
        }
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned());
        self.wake.notify_one();
    }

    /// Sends what is asked for, for as long as it is awaited.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.wake.notified().await;
            let wanted = std::mem::take(&mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner));
            join_all(wanted.iter().map(|address| self.hint(address))).await;
        }
    }

    async fn hint(&self, address: &str) {
        let Some(secret) = &self.secret else { return };
        let Ok(mut shown) = HeaderValue::try_from(secret.expose_secret()) else { return };
        shown.set_sensitive(true);
        let request = Request::post(format!("http://{address}{PATH}")).header(SECRET, shown);
        let Ok(request) = request.body(Bytes::new()) else { return };
        // Whatever comes of it: the receiver looks by itself before long.
        match timeout(HINT_MAX, self.client.send(request)).await {
            Ok(Ok(response)) if response.status().is_success() => {}
            Ok(Ok(response)) => tracing::debug!(address, status = %response.status(), "hint refused"),
            Ok(Err(error)) => tracing::debug!(address, %error, "hint not sent"),
            Err(_) => tracing::debug!(address, "hint not answered"),
        }
    }
}
