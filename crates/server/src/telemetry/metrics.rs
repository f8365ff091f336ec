//! Counters and gauges in the OpenMetrics text form.
//!
//! Each process part that counts for itself (slots, router, harness, exporter) is read at the
//! moment of the scrape; only what nobody else counts (requests, store operations) is kept here.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use evenkeel_core::port::store::Counts;
use evenkeel_env::slots::SlotGauges;
use evenkeel_harness::HarnessStats;
use evenkeel_model::RouterSnapshot;
use evenkeel_sandbox::{Launcher, NetworkCounts};
use evenkeel_store::postgres::{PostgresStats, PostgresStore};
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::ExportStats;
use crate::gateway::balance::Shown;
use crate::gateway::balance::standing::Standing;

/// Labels by name.
type Labels = Vec<(&'static str, String)>;

/// What is counted here.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    request_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    store_operations: Family<Labels, Counter>,
    store_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    /// Empty unless the store is PostgreSQL.
    postgres: OnceLock<Weak<PostgresStore>>,
    /// Counts what commands try to reach; empty in a process without sandboxes.
    sandbox: OnceLock<Arc<Launcher>>,
}

/// What is read at the moment of a scrape.
pub(crate) struct Reading {
    pub(crate) slots: Vec<SlotGauges>,
    pub(crate) router: RouterSnapshot,
    pub(crate) harness: HarnessStats,
    pub(crate) export: ExportStats,
    /// Absent when the store cannot be read.
    pub(crate) counts: Option<Counts>,
    pub(crate) n_streams: usize,
    pub(crate) draining: bool,
    /// In a gateway.
    pub(crate) gateway: Option<GatewayReading>,
}

/// What a gateway shows of its replicas.
pub(crate) struct GatewayReading {
    pub(crate) replicas: Vec<Shown>,
    pub(crate) n_held: usize,
    pub(crate) held: u64,
    pub(crate) no_replica: u64,
    pub(crate) resumed: u64,
}

fn seconds() -> Histogram {
    // From half a millisecond to about four minutes.
    Histogram::new(exponential_buckets(0.0005, 2.0, 20))
}

impl Metrics {
    /// Everything at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let requests = Family::default();
        let request_seconds = Family::new_with_constructor(seconds as fn() -> Histogram);
        let store_operations = Family::default();
        let store_seconds = Family::new_with_constructor(seconds as fn() -> Histogram);
        let mut registry = Registry::with_prefix("evenkeel");
        registry.register("http_requests", "Requests by route, method and status", requests.clone());
        registry.register(
            "http_request_seconds",
            "Time until a request's headers were answered",
            request_seconds.clone(),
        );
        registry.register(
            "store_operations",
            "Store operations by name and result",
            store_operations.clone(),
        );
        registry.register("store_operation_seconds", "Time of a store operation", store_seconds.clone());
        let (postgres, sandbox) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self {
            registry,
            requests,
            request_seconds,
            store_operations,
            store_seconds,
            postgres,
            sandbox,
        })
    }

    /// Shows what the commands of this launcher try to reach from now on, if there is one.
    pub(crate) fn show_sandbox(&self, launcher: Option<Arc<Launcher>>) {
        if let Some(launcher) = launcher {
            // A process has one launcher.
            let _ = self.sandbox.set(launcher);
        }
    }

    /// Shows the figures of this engine from now on, if there is one.
    pub(crate) fn show_postgres(&self, engine: Option<Weak<PostgresStore>>) {
        if let Some(engine) = engine {
            // A process opens one engine, once.
            let _ = self.postgres.set(engine);
        }
    }

    /// Counts one answered request. `route` is the route's pattern, never the path itself.
    pub(crate) fn request(&self, route: &str, method: &str, status: u16, took: Duration) {
        let route = ("route", route.to_owned());
        let labels = vec![route.clone(), ("method", method.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
        self.request_seconds.get_or_create(&vec![route]).observe(took.as_secs_f64());
    }

    /// Counts one store operation.
    pub(crate) fn store_operation(&self, op: &'static str, ok: bool, took: Duration) {
        let result = if ok { "ok" } else { "error" };
        let op = ("op", op.to_owned());
        self.store_operations.get_or_create(&vec![op.clone(), ("result", result.to_owned())]).inc();
        self.store_seconds.get_or_create(&vec![op]).observe(took.as_secs_f64());
    }

    /// Everything as text.
    pub(crate) fn text(&self, reading: &Reading) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut out, &self.registry);
        let mut page = Page { out: ordered(&out) };
        page.slots(&reading.slots);
        page.router(&reading.router);
        page.harness(&reading.harness);
        page.counts(reading.counts.as_ref());
        if let Some(engine) = self.postgres.get().and_then(Weak::upgrade) {
            page.postgres(&engine.stats());
        }
        if let Some(launcher) = self.sandbox.get() {
            page.network(launcher.network());
        }
        page.one("streams", "Clients that stream or wait", reading.n_streams as f64);
        page.one("draining", "Whether nothing new is admitted", f64::from(u8::from(reading.draining)));
        if let Some(gateway) = &reading.gateway {
            page.gateway(gateway);
        }
        page.counter_of("spans_exported", "Spans taken by the collector", reading.export.exported);
        page.counter_of("spans_dropped", "Spans that were dropped", reading.export.dropped);
        page.counter_of(
            "span_requests_failed",
            "Requests to the collector that failed",
            reading.export.failed_requests,
        );
        page.out.push_str("# EOF\n");
        page.out
    }
}

/// The same page with the label sets of each metric in order: the registry keeps them in a table
/// whose order is another in every process. What belongs to one label set stays as it is.
fn ordered(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut sets: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut write = |sets: &mut BTreeMap<String, Vec<&str>>, line: Option<&str>| {
        for line in std::mem::take(sets).into_values().flatten().chain(line) {
            out.push_str(line);
            out.push('\n');
        }
    };
    for line in page.lines() {
        if line.starts_with('#') {
            write(&mut sets, Some(line));
        } else {
            sets.entry(label_set(line)).or_default().push(line);
        }
    }
    write(&mut sets, None);
    out
}

/// The labels of a line but for the bound of a histogram's bucket, which is no part of the set.
fn label_set(line: &str) -> String {
    let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(all, _)| all);
    labels.split(',').filter(|label| !label.starts_with("le=")).collect::<Vec<_>>().join(",")
}

/// The part of the page that is read at the moment of a scrape.
struct Page {
    out: String,
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats in the text form")]
impl Page {
    fn slots(&mut self, slots: &[SlotGauges]) {
        type Value = fn(&SlotGauges) -> f64;
        let gauges: [(&str, &str, Value); 5] = [
            ("slots_in_use", "Slots in use", |g| g.in_use as f64),
            ("slots_in_use_peak", "The most slots that were in use at once", |g| g.in_use_peak as f64),
            ("slots_limit", "Slots that a component has", |g| g.limit as f64),
            ("slots_waiting", "Callers that wait for a slot", |g| g.waiting as f64),
            ("slots_wait_seconds_max", "The longest wait for a slot", |g| g.wait_max_s),
        ];
        for (name, help, value) in gauges {
            let rows = slots.iter().map(|g| (vec![("component", g.component)], value(g)));
            self.family(name, "gauge", help, rows);
        }
        let counters: [(&str, &str, Value); 5] = [
            ("slots_taken", "Slots taken", |g| g.n_taken as f64),
            ("slots_held_seconds", "Seconds that slots were held", |g| g.held_total_s),
            ("slots_waited", "Callers that had to wait for a slot", |g| g.n_waited as f64),
            ("slots_refused", "Callers that were refused", |g| g.n_refused as f64),
            ("slots_wait_seconds", "Seconds waited for slots", |g| g.wait_total_s),
        ];
        for (name, help, value) in counters {
            let rows = slots.iter().map(|g| (vec![("component", g.component)], value(g)));
            self.family(name, "counter", help, rows);
        }
    }

    fn router(&mut self, router: &RouterSnapshot) {
        let deployments = || router.deployments.iter();
        let state = deployments()
            .map(|(name, d)| (vec![("deployment", name.as_str()), ("state", d.state.as_str())], 1.0));
        self.family("model_state", "gauge", "The state that a deployment is in", state);
        let in_flight =
            deployments().map(|(name, d)| (vec![("deployment", name.as_str())], f64::from(d.in_flight)));
        self.family("model_in_flight", "gauge", "Streams in flight", in_flight);
        let limit = deployments().map(|(name, d)| (vec![("deployment", name.as_str())], f64::from(d.limit)));
        self.family("model_limit", "gauge", "Streams that a deployment may have now", limit);
        let outcomes = deployments().flat_map(|(name, d)| {
            d.outcomes.iter().map(|(outcome, n)| {
                (vec![("deployment", name.as_str()), ("outcome", outcome.as_str())], *n as f64)
            })
        });
        self.family("model_attempts", "counter", "Model attempts by outcome", outcomes);
        let opened = deployments().map(|(name, d)| (vec![("deployment", name.as_str())], d.n_opened as f64));
        self.family("model_opened", "counter", "Times that a breaker opened", opened);
        let hedges = deployments().flat_map(|(name, d)| {
            let row = |won, n| (vec![("deployment", name.as_str()), ("won", won)], n as f64);
            [row("yes", d.hedges_won), row("no", d.hedges - d.hedges_won)]
        });
        self.family("model_hedges", "counter", "Second attempts beside a late first one", hedges);
        let tokens = deployments().flat_map(|(name, d)| {
            let row = |kind, n| (vec![("deployment", name.as_str()), ("kind", kind)], n as f64);
            let cached = d.cached_input_tokens.min(d.input_tokens);
            [
                row("input", d.input_tokens - cached),
                row("cached_input", cached),
                row("output", d.output_tokens),
            ]
        });
        self.family("model_tokens", "counter", "Tokens of complete answers", tokens);
        let cost = deployments()
            .map(|(name, d)| (vec![("deployment", name.as_str())], d.cost_micro_usd as f64 / 1e6));
        self.family("model_cost_usd", "counter", "What all attempts cost, where there is a price", cost);
        let parked = router.routes.iter().map(|(name, r)| (vec![("route", name.as_str())], r.parked as f64));
        self.family("model_parked", "gauge", "Runs parked on a route", parked);
        let waiting =
            router.routes.iter().map(|(name, r)| (vec![("route", name.as_str())], r.waiting as f64));
        self.family("model_waiting", "gauge", "Calls that wait for a free stream", waiting);
        let calls = router.calls.iter().map(|(end, n)| (vec![("end", end.as_str())], *n as f64));
        self.family("model_calls", "counter", "Model calls by how they ended", calls);
        self.one("model_retry_budget", "Retries that would be granted now", router.retry_budget_level);
        self.counter_of(
            "model_truncated_streams",
            "Streams without their terminal event",
            router.truncated_streams,
        );
    }

    fn harness(&mut self, stats: &HarnessStats) {
        self.one("harness_running", "Runs that are driven here", stats.n_running as f64);
        self.one(
            "harness_lease_held",
            "Whether the replica's lease holds",
            f64::from(u8::from(stats.lease_held)),
        );
        self.counters([
            ("harness_claimed", "Claims begun here", stats.n_claimed),
            ("harness_stolen", "Claims taken over from dead replicas", stats.n_stolen),
            ("harness_parked", "Runs parked here", stats.n_parked),
            ("harness_woken", "Parked runs woken here", stats.n_woken),
            ("harness_asked", "Times a run was parked until a person answers", stats.n_asked),
            ("harness_fenced", "Claims lost to a later one", stats.n_fenced),
            ("harness_self_fenced", "Times the replica stopped itself", stats.n_self_fenced),
            ("harness_panicked", "Runs that ended by a panic", stats.n_panicked),
            ("harness_store_retries", "Store operations tried again", stats.n_store_retries),
            ("harness_compactions", "Compactions carried out", stats.n_compactions),
        ]);
        let ended = stats.ended.iter().map(|(state, n)| (vec![("state", *state)], *n as f64));
        self.family("harness_ended", "counter", "Runs that ended here", ended);
    }

    fn network(&mut self, counts: NetworkCounts) {
        let outcomes = [
            ("connected", counts.connected),
            ("unlisted", counts.unlisted),
            ("forbidden_address", counts.forbidden_address),
            ("unreachable", counts.unreachable),
            ("malformed", counts.malformed),
        ];
        let rows = outcomes.into_iter().map(|(outcome, n)| (vec![("outcome", outcome)], n as f64));
        self.family("sandbox_network_attempts", "counter", "Attempts of commands to reach a host", rows);
    }

    fn counts(&mut self, counts: Option<&Counts>) {
        self.one(
            "store_readable",
            "Whether the store answered the scrape",
            f64::from(u8::from(counts.is_some())),
        );
        let Some(counts) = counts else {
            return;
        };
        let runs = counts.runs.iter().map(|(state, n)| (vec![("state", state.as_str())], *n as f64));
        self.family("runs", "gauge", "Stored runs by state", runs);
        self.counter_of(
            "store_fenced",
            "Writes refused because a later claim took over, of all processes over the store",
            counts.n_fenced,
        );
    }

    fn postgres(&mut self, stats: &PostgresStats) {
        self.one(
            "postgres_connections",
            "Connections to the database that are open",
            stats.connections as f64,
        );
        self.one(
            "postgres_connections_limit",
            "The most connections that this process opens",
            stats.connections_max as f64,
        );
        self.counters([
            ("postgres_batches", "Statements that made a batch of operations durable", stats.n_writes),
            ("postgres_batched_operations", "Operations in these batches", stats.n_written),
            ("postgres_loads", "Round trips that read rows for a batch", stats.n_loads),
            ("postgres_redone", "Operations decided again because another process wrote", stats.n_redone),
            ("postgres_lost_answers", "Batches whose answer was lost", stats.n_lost),
            ("postgres_fenced", "Writes of this process that were refused", stats.n_fenced),
        ]);
    }

    fn gateway(&mut self, gateway: &GatewayReading) {
        type Value = fn(&Shown) -> f64;
        let families: [(&str, &str, &str, Value); 4] = [
            ("gateway_up", "gauge", "Whether a replica gets requests", |of| {
                f64::from(u8::from(of.standing == Standing::Up))
            }),
            ("gateway_in_flight", "gauge", "Requests under way at a replica", |of| of.in_flight as f64),
            ("gateway_requests", "counter", "Requests sent to a replica", |of| of.n_requests as f64),
            ("gateway_failed", "counter", "Requests that a replica did not answer", |of| of.n_failed as f64),
        ];
        for (name, kind, help, value) in families {
            let rows = gateway.replicas.iter().map(|of| (vec![("replica", of.name.as_str())], value(of)));
            self.family(name, kind, help, rows);
        }
        self.one("gateway_waiting", "Requests that wait for a replica", gateway.n_held as f64);
        self.counter_of("gateway_held", "Requests that had to wait for a replica", gateway.held);
        self.counter_of("gateway_no_replica", "Requests for which no replica was found", gateway.no_replica);
        self.counter_of("gateway_resumed", "Bodies that another replica went on with", gateway.resumed);
    }

    fn one(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help, [(Vec::new(), value)]);
    }

    fn counters<'n>(&mut self, counters: impl IntoIterator<Item = (&'n str, &'n str, u64)>) {
        for (name, help, value) in counters {
            self.counter_of(name, help, value);
        }
    }

    fn counter_of(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help, [(Vec::new(), value as f64)]);
    }

    fn family<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Vec<(&'static str, &'a str)>, f64)>,
    ) {
        let suffix = if kind == "counter" { "_total" } else { "" };
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "# HELP evenkeel_{name} {help}.\n# TYPE evenkeel_{name} {kind}");
        for (labels, value) in rows {
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(self.out, "evenkeel_{name}{suffix}{labels} {value}");
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::ordered;

    #[test]
    fn label_sets_are_in_order_and_buckets_stay_as_they_are() {
        let page = "# TYPE s histogram\ns_sum{op=\"b\"} 1\ns_bucket{le=\"2\",op=\"b\"} 1\n\
            s_bucket{le=\"10\",op=\"b\"} 1\ns_sum{op=\"a\"} 1\ns_bucket{le=\"2\",op=\"a\"} 1\n# TYPE n counter\nn 1\n";
        let wanted = "# TYPE s histogram\ns_sum{op=\"a\"} 1\ns_bucket{le=\"2\",op=\"a\"} 1\ns_sum{op=\"b\"} 1\n\
            s_bucket{le=\"2\",op=\"b\"} 1\ns_bucket{le=\"10\",op=\"b\"} 1\n# TYPE n counter\nn 1\n";
        assert_eq!(ordered(page), wanted);
    }
}
