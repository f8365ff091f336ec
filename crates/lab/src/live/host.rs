//! What a fault can be done to: one process of the product, real or simulated.

use evenkeel_core::port::BoxFuture;

use super::client::Door;

/// Where a configuration listens before the process has picked a port.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

/// One process of the product.
pub(crate) trait Host: Send + Sync {
    /// Its name: `replica-1`, `gateway`.
    fn name(&self) -> &str;
    /// Where it listens, as `http://HOST:PORT`.
    fn address(&self) -> String;
    /// A client of its door.
    fn door(&self) -> Door;
    /// SIGKILL, and waits until it is gone.
    fn kill(&self) -> BoxFuture<'_, ()>;
    /// SIGTERM, and waits until it has handed over what it does and is gone.
    fn drain(&self) -> BoxFuture<'_, ()>;
    /// SIGSTOP.
    fn stop(&self);
    /// SIGCONT.
    fn go_on(&self);
    /// Starts it again on the same data and port, unless it runs. A start that fails is a finding.
    fn start_again(&self) -> BoxFuture<'_, ()>;
    /// Makes its store slow, or fast again with `None`; lasts over restarts.
    fn slow_store(&self, slowness: Option<(f64, u64)>) -> BoxFuture<'_, ()>;
    /// The orderly end, within bounds.
    fn end(&self) -> BoxFuture<'_, ()>;

    /// The port on which it listens.
    fn port(&self) -> Option<u16> {
        self.address().rsplit_once(':')?.1.parse().ok()
    }
}
