//! PgBouncer in transaction mode in front of the shared server.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use evenkeel_env::{Env, process};
use evenkeel_store::postgres::local::LocalPostgres;
use tokio::time::{Instant, sleep};

/// A pooler with fewer connections to the server than a store opens to it, so that the statements
/// of one connection are carried by many.
pub(crate) struct Pooler {
    port: u16,
    child: Child,
    _dir: tempfile::TempDir,
}

impl Pooler {
    pub(crate) async fn start(server: &LocalPostgres) -> Self {
        let env = Env::real();
        let address = env.net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap().local_address().unwrap();
        let port = address.port();
        let dir = tempfile::tempdir().unwrap();
        let (ini, users) = (dir.path().join("pgbouncer.ini"), dir.path().join("users.txt"));
        std::fs::write(&users, format!("\"{}\" \"{}\"\n", server.role(), server.password())).unwrap();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 3\nmax_client_conn = 200\n",
            server.port(),
            users.display()
        );
        std::fs::write(&ini, settings).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = process::command(program());
        command.arg(&ini).stdin(Stdio::null());
        if let Some((uid, gid)) = server.runs_as() {
            for file in [&ini, &users] {
                chown(file, Some(uid), Some(gid)).unwrap();
            }
            command.uid(uid).gid(gid);
        }
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = command.into_std();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let pooler = Self { port, child, _dir: dir };
        pooler.wait(&env).await;
        pooler
    }

    pub(crate) fn url(&self, server: &LocalPostgres, database: &str) -> String {
        server.url_at(self.port, database)
    }

    async fn wait(&self, env: &Env) {
        let until = Instant::now() + Duration::from_secs(60);
        while env.net.connect("127.0.0.1".to_owned(), self.port).await.is_err() {
            let log = std::fs::read_to_string(self._dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "PgBouncer does not listen: {log}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).map(|dir| dir.join("pgbouncer"));
    found.into_iter().find(|program| program.is_file()).unwrap_or_else(|| {
        panic!(
            "PgBouncer is not installed: run `cargo xtask setup` as root, or install the package pgbouncer"
        )
    })
}
