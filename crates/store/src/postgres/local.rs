//! A PostgreSQL server of one's own, from the programs of this machine: for tests and the lab.
//!
//! It lives in a folder that is made for it and removed with it, listens on a free port of
//! 127.0.0.1, wants a password that nobody else knows, and is as durable as any other (`fsync` is
//! on). PostgreSQL refuses to run as root; then it runs as the user `postgres`, or as `nobody`.
//!
//! Dropping the value stops the server, waits for its end and removes the folder: also when a test
//! panics.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::{Env, process};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

/// The role that owns everything.
const ROLE: &str = "evenkeel";

/// How long `initdb`, a start or an orderly stop may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Time between two looks at the state of the server.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The folder in which the server's own folder is made; other users must be able to enter it.
    pub under: PathBuf,
    /// Connections that the server allows.
    pub max_connections: u32,
    /// Further settings, as in `postgresql.conf`.
    pub settings: Vec<(String, String)>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { under: std::env::temp_dir(), max_connections: 100, settings: Vec::new() }
    }
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// In order: open transactions are rolled back, everything is written.
    Fast,
    /// Like a crash of the server's processes: the next start recovers from the log.
    Immediate,
}

/// A running (or stopped) server.
pub struct LocalPostgres {
    programs: Programs,
    home: Home,
    port: u16,
    password: String,
    options: LocalOptions,
    child: Option<Child>,
}

/// Where the programs are, and as whom they run.
#[derive(Clone, Debug)]
struct Programs {
    bin: PathBuf,
    user: Option<(u32, u32)>,
}

/// The server's folder; it is removed when this is dropped.
struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "a folder of PostgreSQL was not removed");
        }
    }
}

impl LocalPostgres {
    /// Makes a server and starts it.
    ///
    /// # Errors
    /// `store-unavailable` if PostgreSQL is not installed or does not start; the message says which.
    pub async fn start(env: &Env, options: LocalOptions) -> Result<Self, Error> {
        let programs = Programs::find()?;
        let name = format!("evenkeel-pg-{}", random_word(env));
        let home = programs.make_home(options.under.join(name))?;
        let password = random_word(env);
        programs.init(&home.0, &password).await?;
        let port = free_port(env).await?;
        let mut server = Self { programs, home, port, password, options, child: None };
        server.resume().await?;
        Ok(server)
    }

    /// The URL of a database of this server. `postgres` is there from the beginning.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        self.url_at(self.port, database)
    }

    /// The URL of a database behind another port of this machine: a pooler's or a proxy's.
    #[must_use]
    pub fn url_at(&self, port: u16, database: &str) -> String {
        format!("postgres://{ROLE}:{}@127.0.0.1:{port}/{database}", self.password)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The role that owns everything.
    #[must_use]
    pub fn role(&self) -> &'static str {
        ROLE
    }

    /// The role's password.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The user and group as which the server runs, when that is not the user of this process.
    #[must_use]
    pub fn runs_as(&self) -> Option<(u32, u32)> {
        self.programs.user
    }

    /// The server's folder: `data` is its data directory, `log` what it wrote.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.home.0
    }

    /// The process id of the server, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Makes an empty database.
    ///
    /// # Errors
    /// `store-unavailable` with what the server said.
    pub async fn create_database(&self, name: &str) -> Result<(), Error> {
        self.sql("postgres", &format!("CREATE DATABASE \"{name}\"")).await.map(drop)
    }

    /// Runs SQL with `psql` and returns what it prints, without alignment and headers.
    ///
    /// # Errors
    /// `store-unavailable` with what the server said.
    pub async fn sql(&self, database: &str, sql: &str) -> Result<String, Error> {
        let mut command = process::command(self.programs.bin.join("psql"));
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1"]);
        command.args(["--command", sql, "--dbname"]).arg(format!(
            "host=127.0.0.1 port={} user={ROLE} dbname={database} connect_timeout=10",
            self.port
        ));
        command.env("PGPASSWORD", &self.password);
        output_of(command, "psql").await
    }

    /// Stops the server; its data stays.
    ///
    /// # Errors
    /// `store-unavailable` if it does not end in time.
    pub async fn stop(&mut self, how: Stop) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        signal(&child, how);
        let until = Instant::now() + PATIENCE;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                self.child = Some(child);
                return Err(unusable("PostgreSQL did not stop in time", self.log_tail()));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Starts a stopped server again, on the same port, and waits until it accepts connections.
    ///
    /// # Errors
    /// `store-unavailable` with the end of the server's log.
    pub async fn resume(&mut self) -> Result<(), Error> {
        self.launch()?;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                self.child = None;
                return Err(unusable(&format!("PostgreSQL ended at its start ({status})"), self.log_tail()));
            }
            if self.accepts().await {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(unusable("PostgreSQL did not start in time", self.log_tail()));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Starts the process of a stopped server without waiting for it.
    ///
    /// # Errors
    /// `store-unavailable` if the program cannot be started.
    pub fn launch(&mut self) -> Result<(), Error> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(self.home.0.join("log"));
        let log = log.and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|error| unusable("The log cannot be opened", error.to_string()))?;
        let mut command = self.programs.command("postgres");
        command.arg("-D").arg(self.home.0.join("data"));
        for (name, value) in self.settings() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let mut command = command.into_std();
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child =
            command.spawn().map_err(|error| unusable("PostgreSQL cannot be started", error.to_string()))?;
        self.child = Some(child);
        Ok(())
    }

    fn settings(&self) -> Vec<(String, String)> {
        let own = [
            ("port", self.port.to_string()),
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("unix_socket_directories", String::new()),
            ("max_connections", self.options.max_connections.to_string()),
            ("fsync", "on".to_owned()),
            ("logging_collector", "off".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        own.chain(self.options.settings.iter().cloned()).collect()
    }

    async fn accepts(&self) -> bool {
        let mut command = process::command(self.programs.bin.join("pg_isready"));
        command.args(["--quiet", "--host=127.0.0.1", "--dbname=postgres", "--timeout=5"]);
        command.arg(format!("--port={}", self.port)).arg(format!("--username={ROLE}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().await.is_ok_and(|status| status.success())
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.home.0.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }
}

impl Drop for LocalPostgres {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(&child, Stop::Immediate);
            if let Err(error) = child.wait() {
                tracing::warn!(%error, "the end of PostgreSQL was not seen");
            }
        }
    }
}

fn signal(child: &Child, how: Stop) {
    let signal = match how {
        Stop::Fast => Signal::INT,
        Stop::Immediate => Signal::QUIT,
    };
    // A server that has ended already is not there to be told; its end is seen by whoever waits.
    if let Err(error) = kill_process(Pid::from_child(child), signal) {
        tracing::debug!(%error, "PostgreSQL had ended by itself");
    }
}

impl Programs {
    fn find() -> Result<Self, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path);
        let bin = on_path.chain(packaged()).find(|folder| {
            ["postgres", "initdb", "psql", "pg_isready"].iter().all(|name| folder.join(name).is_file())
        });
        let bin = bin.ok_or_else(|| {
            Error::new(
                Code::StoreUnavailable,
                Origin::Ours,
                "PostgreSQL is not installed: postgres, initdb, psql and pg_isready are neither together in a \
                 folder of PATH nor under /usr/lib/postgresql.",
                "Run `cargo xtask setup` as root, or install the package postgresql.",
            )
        })?;
        Ok(Self { bin, user: ordinary_user()? })
    }

    /// A program with nothing of our environment but a path and a neutral locale.
    fn command(&self, name: &str) -> tokio::process::Command {
        let mut command = process::command(self.bin.join(name));
        command.env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").current_dir("/");
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn make_home(&self, path: PathBuf) -> Result<Home, Error> {
        let made = std::fs::create_dir_all(&path)
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)))
            .and_then(|()| self.user.map_or(Ok(()), |(uid, gid)| chown(&path, Some(uid), Some(gid))));
        let home = Home(path);
        made.map_err(|error| unusable(&format!("{} cannot be made", home.0.display()), error.to_string()))?;
        Ok(home)
    }

    async fn init(&self, home: &Path, password: &str) -> Result<(), Error> {
        let secret = home.join("password");
        let written = File::options()
            .create_new(true)
            .write(true)
            .open(&secret)
            .and_then(|mut file| file.write_all(password.as_bytes()))
            .and_then(|()| self.user.map_or(Ok(()), |(uid, gid)| chown(&secret, Some(uid), Some(gid))));
        written.map_err(|error| unusable("The password cannot be written", error.to_string()))?;
        let mut command = self.command("initdb");
        command.args(["--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", "--no-instructions"]);
        command.arg(format!("--username={ROLE}")).arg("-D").arg(home.join("data"));
        command.arg("--pwfile").arg(&secret);
        output_of(command, "initdb").await?;
        std::fs::remove_file(&secret)
            .map_err(|error| unusable("The password file cannot be removed", error.to_string()))
    }
}

/// Debian's folders for the programs, newest version first.
fn packaged() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_unstable();
    versions.into_iter().rev().map(|(_, bin)| bin).collect()
}

/// The user as whom PostgreSQL runs when this process is root.
fn ordinary_user() -> Result<Option<(u32, u32)>, Error> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = ["postgres", "nobody"].iter().find_map(|name| user_in(&users, name));
    found.map(Some).ok_or_else(|| {
        unusable("PostgreSQL does not run as root", "there is no user `postgres` or `nobody`".to_owned())
    })
}

/// User and group of a name in the words of `/etc/passwd`.
fn user_in(users: &str, name: &str) -> Option<(u32, u32)> {
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
    Some((line.get(2)?.parse().ok()?, line.get(3)?.parse().ok()?))
}

fn random_word(env: &Env) -> String {
    // The seed of a test must not make two servers meet in one folder.
    let mut bytes = [0u8; 12];
    evenkeel_env::clock::os_random(&mut bytes);
    let mixed = env.generator.bytes16();
    bytes.iter().zip(mixed).map(|(own, mix)| format!("{:02x}", own ^ mix)).collect()
}

async fn free_port(env: &Env) -> Result<u16, Error> {
    let found = env.net.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
    let address = found.and_then(|listener| listener.local_address());
    address
        .map(|address| address.port())
        .map_err(|error| unusable("There is no free port", error.to_string()))
}

async fn output_of(mut command: tokio::process::Command, name: &str) -> Result<String, Error> {
    command.stdin(Stdio::null());
    let output = match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(unusable(&format!("{name} cannot be started"), error.to_string())),
        Err(_) => return Err(unusable(name, "it did not end in time".to_owned())),
    };
    if !output.status.success() {
        return Err(unusable(
            &format!("{name} failed"),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn unusable(what: &str, why: String) -> Error {
    Error::new(
        Code::StoreUnavailable,
        Origin::Ours,
        format!("{what}: {}.", why.trim().trim_end_matches('.')),
        "Look at the message, and whether PostgreSQL works on this machine.",
    )
}
