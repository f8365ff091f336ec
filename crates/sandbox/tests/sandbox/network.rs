//! The proxy of a command that may reach some hosts, tried from inside.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::port::runner::{Command, Exit, HostRule, LimitHit, Runner};
use evenkeel_env::net::{Listener, Net, Stream, TcpNet};
use evenkeel_env::{Env, Task};
use evenkeel_sandbox::{Isolation, NetworkCounts};
use expect_test::expect;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::host::{Host, Place, User, stdout};

/// Where the one public service of these tests is, on its own Internet.
const PUBLIC: &str = "93.184.215.14";

/// An Internet with a few names; every public address leads to one local server.
struct Internet {
    names: BTreeMap<&'static str, Vec<&'static str>>,
    server: SocketAddr,
}

impl Net for Internet {
    fn connect(&self, host: String, _port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        assert!(host.parse::<IpAddr>().is_ok(), "a name is looked up once: {host}");
        if host != PUBLIC && host != "10.0.0.7" {
            return Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) });
        }
        TcpNet.connect_static(self.server)
    }

    fn resolve(&self, host: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        let found = self.names.get(host.as_str());
        let found = found.map(|list| list.iter().map(|address| address.parse().unwrap()).collect());
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move { TcpNet.listen(address).await })
    }
}

trait ConnectStatic {
    fn connect_static(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;
}

impl ConnectStatic for TcpNet {
    fn connect_static(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Self.connect(address.ip().to_string(), address.port()).await })
    }
}

/// A host behind which everything leads to a server that shows what it was sent.
struct Bench {
    host: Host,
    _server: Task,
}

impl Bench {
    async fn start(user: User) -> Self {
        Self::start_at(Place { user, isolation: Isolation::Native, listed: false }).await
    }

    async fn start_at(place: Place) -> Self {
        let mut env = Env::real();
        let mut listener = TcpNet.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let server = listener.local_address().unwrap();
        let spawner = env.spawner.clone();
        let task = env.spawner.spawn(
            "echo",
            Box::pin(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    drop(spawner.spawn("echo-one", Box::pin(echo(stream))));
                }
            }),
        );
        let names = BTreeMap::from([
            ("pkg.example", vec![PUBLIC]),
            ("a.mirror.example", vec![PUBLIC]),
            ("evil.example", vec![PUBLIC]),
            ("rebind.example", vec![PUBLIC, "127.0.0.1"]),
            ("local.example", vec!["127.0.0.1"]),
            ("meta.example", vec!["169.254.169.254"]),
            ("mapped.example", vec!["::ffff:127.0.0.1"]),
            ("inner.example", vec!["10.0.0.7"]),
            ("corp.example", vec!["10.0.0.7"]),
            ("down.example", vec!["93.184.215.99"]),
            ("none.example", vec![]),
        ]);
        env.net = Arc::new(Internet { names, server });
        Self { host: place.host_in(env), _server: task }
    }

    async fn run(&self, rules: &[&str], script: &str) -> Exit {
        let hosts = rules.iter().map(|rule| HostRule::try_from((*rule).to_owned()).unwrap()).collect();
        let command = self.host.command(&["bash", "-c", script]);
        self.host.launcher.run(Command { hosts, ..command }).await.unwrap()
    }
}

/// Answers a request with what it was, in capitals, and ends.
async fn echo(mut stream: Box<dyn Stream>) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") && !seen.ends_with(b"END") {
        match stream.read_buf(&mut seen).await {
            Ok(n) if n > 0 => {}
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&seen).trim_end().to_uppercase().replace("\r\n", "|");
    let _ = stream.write_all(format!("[{text}]").as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Sends lines to the proxy, each ended by CR LF, and prints the answer on one line.
const ASK: &str = r#"ask() { exec 3<>/dev/tcp/127.0.0.1/3128; printf '%s\r\n' "$@" >&3; printf '\r\n' >&3; [ -z "$BODY" ] || printf %s "$BODY" >&3; timeout 20 cat <&3 | tr -d '\r' | tr '\n' '~'; exec 3>&-; }; "#;

const RULES: &[&str] = &[
    "pkg.example",
    "pkg.example:8443",
    "*.mirror.example",
    "rebind.example",
    "local.example",
    "meta.example",
    "mapped.example",
    "inner.example",
    "private:corp.example",
    "down.example",
    "none.example",
    "unknown.example",
];

#[tokio::test]
async fn only_listed_hosts_are_reached() {
    let asked = [
        ("listed", "CONNECT pkg.example:443 HTTP/1.1' 'Host: pkg.example:443"),
        ("another listed port", "CONNECT pkg.example:8443 HTTP/1.1"),
        ("final dot and capitals", "CONNECT PKG.example.:443 HTTP/1.1"),
        ("below a pattern", "CONNECT a.mirror.example:443 HTTP/1.1"),
        ("the pattern itself", "CONNECT mirror.example:443 HTTP/1.1"),
        ("another port", "CONNECT pkg.example:22 HTTP/1.1"),
        ("not listed", "CONNECT evil.example:443 HTTP/1.1"),
        ("an address", "CONNECT 93.184.215.14:443 HTTP/1.1"),
        ("loopback", "CONNECT 127.0.0.1:80 HTTP/1.1"),
        ("loopback by IPv6", "CONNECT [::1]:80 HTTP/1.1"),
        ("leads to loopback", "CONNECT local.example:443 HTTP/1.1"),
        ("leads to metadata", "CONNECT meta.example:80 HTTP/1.1"),
        ("leads to mapped loopback", "CONNECT mapped.example:443 HTTP/1.1"),
        ("leads also to loopback", "CONNECT rebind.example:443 HTTP/1.1"),
        ("leads to a private range", "CONNECT inner.example:443 HTTP/1.1"),
        ("is said to be private", "CONNECT corp.example:443 HTTP/1.1"),
        ("Host of another", "CONNECT pkg.example:443 HTTP/1.1' 'Host: evil.example:443"),
        ("plain", "GET http://pkg.example/x HTTP/1.1' 'Host: pkg.example' 'Proxy-Connection: x"),
        ("plain, Host of another", "GET http://pkg.example/x HTTP/1.1' 'Host: evil.example"),
        ("plain, two hosts", "GET http://pkg.example/ HTTP/1.1' 'Host: pkg.example' 'Host: evil.example"),
        ("plain, not listed", "GET http://evil.example/x HTTP/1.1' 'Host: evil.example"),
        ("user in the URL", "GET http://pkg.example@evil.example/ HTTP/1.1' 'Host: pkg.example"),
        ("no URL", "GET / HTTP/1.1' 'Host: pkg.example"),
        ("chunked", "POST http://pkg.example/ HTTP/1.1' 'Host: pkg.example' 'Transfer-Encoding: chunked"),
        ("does not answer", "CONNECT down.example:443 HTTP/1.1"),
        ("has no address", "CONNECT none.example:443 HTTP/1.1"),
        ("has no name", "CONNECT unknown.example:443 HTTP/1.1"),
        ("nonsense", "hello"),
    ];
    for place in Place::all().into_iter().filter(|place| !place.listed) {
        let bench = Bench::start_at(place).await;
        let mut table = String::new();
        for (what, lines) in asked {
            // After a tunnel is there, something goes through it.
            let through = if lines.starts_with("CONNECT") { "BODY='through END' " } else { "" };
            let exit = bench.run(RULES, &format!("{ASK}{through}ask '{lines}'")).await;
            let answer = stdout(&exit).replace("Content-Type: text/plain~Connection: close~", "");
            let answer: Vec<&str> =
                answer.split('~').filter(|line| !line.starts_with("Content-Length")).collect();
            writeln!(
                table,
                "{what:26} {}",
                answer.join(" ").replace("HTTP/1.1 ", "").replace("  ", " ").trim()
            )
            .unwrap();
        }
        expect![[r#"
            listed                     200 Connection established [THROUGH END]
            another listed port        200 Connection established [THROUGH END]
            final dot and capitals     200 Connection established [THROUGH END]
            below a pattern            200 Connection established [THROUGH END]
            the pattern itself         403 Forbidden evenkeel did not reach mirror.example:443: it is not on the list of hosts that this agent may reach.
            another port               403 Forbidden evenkeel did not reach pkg.example:22: it is not on the list of hosts that this agent may reach.
            not listed                 403 Forbidden evenkeel did not reach evil.example:443: it is not on the list of hosts that this agent may reach.
            an address                 403 Forbidden evenkeel did not reach 93.184.215.14:443: it is not on the list of hosts that this agent may reach.
            loopback                   403 Forbidden evenkeel did not reach 127.0.0.1:80: it is not on the list of hosts that this agent may reach.
            loopback by IPv6           403 Forbidden evenkeel did not reach [::1]:80: it is not on the list of hosts that this agent may reach.
            leads to loopback          403 Forbidden evenkeel did not reach local.example:443: its address 127.0.0.1 is in a range that is not reached from here.
            leads to metadata          403 Forbidden evenkeel did not reach meta.example:80: its address 169.254.169.254 is in a range that is not reached from here.
            leads to mapped loopback   403 Forbidden evenkeel did not reach mapped.example:443: its address ::ffff:127.0.0.1 is in a range that is not reached from here.
            leads also to loopback     403 Forbidden evenkeel did not reach rebind.example:443: its address 127.0.0.1 is in a range that is not reached from here.
            leads to a private range   403 Forbidden evenkeel did not reach inner.example:443: its address 10.0.0.7 is in a range that is not reached from here.
            is said to be private      200 Connection established [THROUGH END]
            Host of another            400 Bad Request evenkeel refuses the request: the Host is not the host of the URL.
            plain                      [GET /X HTTP/1.1|HOST: PKG.EXAMPLE|CONNECTION: CLOSE]
            plain, Host of another     400 Bad Request evenkeel refuses the request: the Host is not the host of the URL.
            plain, two hosts           400 Bad Request evenkeel refuses the request: a header is there twice that may be there once.
            plain, not listed          403 Forbidden evenkeel did not reach evil.example:80: it is not on the list of hosts that this agent may reach.
            user in the URL            400 Bad Request evenkeel refuses the request: the host is not one.
            no URL                     400 Bad Request evenkeel refuses the request: a proxy takes CONNECT, or a URL that begins with http://.
            chunked                    411 Length Required evenkeel refuses the request: a body needs a Content-Length here; use https.
            does not answer            502 Bad Gateway evenkeel did not reach down.example:443: it does not answer: connection refused.
            has no address             502 Bad Gateway evenkeel did not reach none.example:443: it does not answer: there is no address.
            has no name                502 Bad Gateway evenkeel did not reach unknown.example:443: its name cannot be looked up: no such name.
            nonsense                   400 Bad Request evenkeel refuses the request: the request line is not one.
        "#]].assert_eq(&table);
        let counts = bench.host.launcher.network();
        assert_eq!(
            counts,
            NetworkCounts { connected: 6, unlisted: 7, forbidden_address: 5, unreachable: 3, malformed: 7 }
        );
    }
}

/// A second request behind the first would go to the same connection under another name.
#[tokio::test]
async fn no_second_request_hides_behind_the_first() {
    for place in Place::all().into_iter().filter(|place| !place.listed) {
        let bench = Bench::start_at(place).await;
        let script = format!(
            "{ASK}BODY=$'12ENDGET http://evil.example/ HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n' \
             ask 'POST http://pkg.example/ HTTP/1.1' 'Host: pkg.example' 'Content-Length: 5'"
        );
        let text = stdout(&bench.run(RULES, &script).await);
        assert!(text.contains("HOST: PKG.EXAMPLE") && !text.contains("EVIL"), "{text}");
    }
}

#[tokio::test]
async fn without_a_list_there_is_no_proxy() {
    for user in User::all() {
        let bench = Bench::start(*user).await;
        let exit =
            bench.run(&[], "echo ${https_proxy:-none}; exec 3<>/dev/tcp/127.0.0.1/3128 || echo closed").await;
        assert_eq!(stdout(&exit), "none\nclosed\n", "{user:?}");
    }
}

#[tokio::test]
async fn what_was_refused_is_told() {
    let bench = Bench::start(User::Current).await;
    let exit = bench
        .run(
            RULES,
            &format!("{ASK}ask 'CONNECT evil.example:443 HTTP/1.1'; ask 'CONNECT evil.example:443 HTTP/1.1'"),
        )
        .await;
    assert_eq!(exit.refused, ["evil.example:443: it is not on the list of hosts that this agent may reach"]);
}

/// Two commands at once have a proxy each, with a list each.
#[tokio::test]
async fn each_command_has_its_own_list() {
    for user in User::all() {
        let bench = Bench::start(*user).await;
        let script = format!("{ASK}BODY=END ask 'CONNECT pkg.example:443 HTTP/1.1'");
        let (with, without) =
            tokio::join!(bench.run(&["pkg.example"], &script), bench.run(&["evil.example"], &script));
        assert!(stdout(&with).contains("200 Connection established"), "{with:?}");
        assert!(stdout(&without).contains("403 Forbidden"), "{without:?}");
    }
}

/// Idle connections hold nobody up, and end with their command.
#[tokio::test]
async fn connections_end_with_their_command() {
    let bench = Bench::start(User::Current).await;
    let script =
        "for i in $(seq 200); do exec {fd}<>/dev/tcp/127.0.0.1/3128 || break; done; echo $i; sleep 600";
    let mut command = bench.host.command(&["bash", "-c", script]);
    command.limits.wall_ms = 2_000;
    command.hosts = vec![HostRule::try_from("pkg.example".to_owned()).unwrap()];
    let exit = bench.host.launcher.run(command).await.unwrap();
    assert_eq!(exit.limit, Some(LimitHit::Time), "{exit:?}");
    assert!(exit.ms < Duration::from_secs(10).as_millis() as u64);
    let next =
        bench.run(&["pkg.example"], &format!("{ASK}BODY=END ask 'CONNECT pkg.example:443 HTTP/1.1'")).await;
    assert!(stdout(&next).contains("200"), "{next:?}");
}
