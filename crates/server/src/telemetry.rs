//! What operators see: metrics for scraping, traces for a collector, logs.
//!
//! Nothing here can slow or fail a run: counters are atomics, spans wait in a bounded queue whose
//! overflow is counted, and the collector's absence costs one retry loop.

mod export;
pub(crate) mod log;
mod metrics;
mod names;
mod spans;

pub use export::{ExportStats, Exporter};
pub use log::init as init_log;
pub use metrics::Metrics;
pub(crate) use metrics::{GatewayReading, Reading};
