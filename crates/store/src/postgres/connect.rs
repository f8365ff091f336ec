//! Connections: where the database is, and how one is opened.
//!
//! They go through the injected network, never through a socket of the driver. What is sent at the
//! start is what a pooler in transaction mode accepts: user, database, encoding, a name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::{Env, Task};
use futures_util::future::BoxFuture;
use rustls::ClientConfig;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config};

use super::fault::{Trouble, at_connect, read_only, refused};
use super::tls::{self, Raw, Secure, Trust};

/// The oldest server that is served.
const VERSION_MIN: i32 = 130_000;

/// Where the database is. Holds the password, and shows it to nobody.
pub(super) struct Target {
    config: Config,
    hosts: Vec<(String, u16)>,
    tls: Arc<ClientConfig>,
    /// The database without secrets, for messages.
    whom: String,
}

impl Target {
    /// Reads a URL: `postgres://user:password@host:port/database?sslmode=...&sslrootcert=...`.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let (url, mode, root) = split_tls(url)?;
        // The parser's own words may repeat a part of the URL.
        let mut config: Config = url.parse().map_err(|_| bad_url("it does not have the shape of one"))?;
        let trust = match mode.as_deref() {
            None | Some("prefer" | "allow") => {
                config.ssl_mode(SslMode::Prefer);
                Trust::Any
            }
            Some("disable") => {
                config.ssl_mode(SslMode::Disable);
                Trust::Any
            }
            Some("require") => {
                config.ssl_mode(SslMode::Require);
                Trust::Any
            }
            Some("verify-full") => {
                config.ssl_mode(SslMode::Require);
                Trust::Roots(root)
            }
            Some(other) => {
                return Err(bad_url(&format!(
                    "sslmode is {other}, not one of disable, prefer, require, verify-full"
                )));
            }
        };
        if config.get_user().is_none() || config.get_dbname().is_none() {
            return Err(bad_url("it names no user or no database"));
        }
        if config.get_application_name().is_none() {
            config.application_name("evenkeel");
        }
        let hosts = hosts(&config)?;
        let whom = format!(
            "{} at {}",
            config.get_dbname().unwrap_or_default(),
            hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",")
        );
        Ok(Self { config, hosts, tls: tls::config(&trust)?, whom })
    }

    /// The database without secrets.
    pub(super) fn whom(&self) -> &str {
        &self.whom
    }

    /// Opens a connection to the first host that can be reached and takes writes.
    pub(super) async fn connect(&self, env: &Env, patience: Duration) -> Result<Opened, Trouble> {
        let mut last = Trouble::Away("no host is named".to_owned());
        for (host, port) in &self.hosts {
            let opened = timeout(patience, self.open(env, host, *port)).await;
            match opened.unwrap_or_else(|_| Err(Trouble::Away(format!("{host}:{port} did not answer")))) {
                Ok(opened) => return Ok(opened),
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Boxed: the compiler cannot see through the driver's traits that this can be sent.
    fn open<'a>(&'a self, env: &'a Env, host: &'a str, port: u16) -> BoxFuture<'a, Result<Opened, Trouble>> {
        Box::pin(self.open_unboxed(env, host, port))
    }

    async fn open_unboxed(&self, env: &Env, host: &str, port: u16) -> Result<Opened, Trouble> {
        let stream = env.net.connect(host.to_owned(), port).await;
        let stream = stream.map_err(|error| Trouble::Away(format!("{host}:{port}: {error}")))?;
        let secure = Secure { config: self.tls.clone(), host: host.to_owned() };
        let opened = self.config.connect_raw(Raw(stream), secure).await;
        let (client, connection) = opened.map_err(|error| at_connect(&error, &self.whom))?;
        let drive = async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %super::fault::chain(&error), "a connection to the database ended");
            }
        };
        let task = env.spawner.spawn("store-connection", Box::pin(drive));
        let opened = Opened { client, task };
        self.examine(&opened).await?;
        Ok(opened)
    }

    /// Looks whether the server is one that can be used.
    async fn examine(&self, opened: &Opened) -> Result<(), Trouble> {
        let sql = "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
                   pg_is_in_recovery() OR current_setting('transaction_read_only')::bool";
        let row = opened.client.query_typed_one(sql, &[]).await.map_err(Trouble::from)?;
        let (number, name, is_read_only): (i32, String, bool) = (row.get(0), row.get(1), row.get(2));
        if number < VERSION_MIN {
            return Err(Trouble::Refused(Box::new(refused(
                Code::StoreTooOld,
                format!("The database {} is PostgreSQL {name}; Evenkeel needs 13 or newer.", self.whom),
                "Upgrade the database, or name another one in the URL.",
            ))));
        }
        if is_read_only {
            return Err(Trouble::Refused(Box::new(read_only())));
        }
        Ok(())
    }
}

/// An open connection with the task that drives it.
pub(super) struct Opened {
    client: Client,
    task: Task,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Dropping the client alone would let a statement that nobody waits for go on.
        self.task.abort();
    }
}

/// A place for one connection: opened when it is needed, dropped when it has failed.
pub(super) struct Line {
    opened: Option<Opened>,
    shared: Arc<Lines>,
}

/// What all connections of a store have in common.
pub(super) struct Lines {
    pub(super) env: Env,
    pub(super) target: Target,
    /// How long a connection may take to open.
    pub(super) connect_max: Duration,
    /// How long an answer may take.
    pub(super) answer_max: Duration,
    n_open: AtomicUsize,
}

impl Lines {
    pub(super) fn new(env: Env, target: Target, connect_max: Duration, answer_max: Duration) -> Arc<Self> {
        Arc::new(Self { env, target, connect_max, answer_max, n_open: AtomicUsize::new(0) })
    }

    /// Connections that are open now.
    pub(super) fn n_open(&self) -> usize {
        self.n_open.load(Ordering::Relaxed)
    }
}

impl Line {
    pub(super) fn new(shared: Arc<Lines>) -> Self {
        Self { opened: None, shared }
    }

    /// The client, opening the connection if there is none.
    pub(super) async fn client(&mut self) -> Result<&Client, Trouble> {
        if self.opened.as_ref().is_some_and(|opened| opened.client.is_closed()) {
            self.hang_up();
        }
        if self.opened.is_none() {
            let opened = self.shared.target.connect(&self.shared.env, self.shared.connect_max).await?;
            self.shared.n_open.fetch_add(1, Ordering::Relaxed);
            self.opened = Some(opened);
        }
        let opened = self.opened.as_ref().map(|opened| &opened.client);
        opened.ok_or_else(|| Trouble::Away("there is no connection".to_owned()))
    }

    /// Whether it has a connection.
    pub(super) fn is_open(&self) -> bool {
        self.opened.is_some()
    }

    /// Drops the connection if the answer says that it cannot be used any more.
    pub(super) fn judge<T>(&mut self, answered: Result<T, Trouble>) -> Result<T, Trouble> {
        if let Err(Trouble::Lost(_) | Trouble::Away(_) | Trouble::Refused(_)) = &answered {
            self.hang_up();
        }
        answered
    }

    /// How long an answer may take.
    pub(super) fn answer_max(&self) -> Duration {
        self.shared.answer_max
    }

    /// Closes the connection; the next statement opens another.
    pub(super) fn hang_up(&mut self) {
        if self.opened.take().is_some() {
            self.shared.n_open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Takes `sslmode` and `sslrootcert` out of a URL: the driver knows less of them than we do.
fn split_tls(url: &str) -> Result<(String, Option<String>, Option<String>), Error> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(bad_url("it does not begin with postgres://"));
    }
    let (front, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut mode, mut root, mut rest) = (None, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => mode = Some(value.to_owned()),
            Some(("sslrootcert", "system")) => root = None,
            Some(("sslrootcert", value)) => root = Some(unescape(value)),
            _ => rest.push(pair),
        }
    }
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    Ok((format!("{front}{query}"), mode, root))
}

/// Percent-decoding of a path in a query.
fn unescape(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hosts(config: &Config) -> Result<Vec<(String, u16)>, Error> {
    let ports = config.get_ports();
    let mut hosts = Vec::new();
    for (idx, host) in config.get_hosts().iter().enumerate() {
        let port = ports.get(idx).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(host) => hosts.push((host.clone(), port)),
            #[cfg(unix)]
            Host::Unix(_) => return Err(bad_url("it names a Unix socket; name a host and a port")),
        }
    }
    if hosts.is_empty() {
        return Err(bad_url("it names no host"));
    }
    Ok(hosts)
}

fn bad_url(why: &str) -> Error {
    Error::new(
        Code::ConfigInvalid,
        Origin::Ours,
        format!("The URL of the store cannot be used: {why}."),
        "Write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=MODE; it is not shown here because \
         it may hold a password.",
    )
}
