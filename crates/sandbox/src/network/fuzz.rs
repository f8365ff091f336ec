//! Requests to the proxy: any bytes, cut in any way, against what the proxy may do with them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use evenkeel_core::Generator;
use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::HostRule;
use evenkeel_env::net::{Listener, Net, Stream};
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::address::{Kind, kind};
use super::head::{HEAD_BYTES_MAX, Request, Target};
use super::{Counters, Label, Proxy};
use crate::fuzzing::{cut, cuts, fuzz, inputs};

const CORPUS: &[&str] = &[
    "CONNECT pkg.example:443 HTTP/1.1\r\nHost: pkg.example:443\r\n\r\nthrough",
    "GET http://pkg.example/a?b HTTP/1.1\r\nHost: pkg.example\r\nAccept: x\r\n\r\n",
    "POST http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nContent-Length: 5\r\n\r\n12345GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "GET http://pkg.example:8080?q HTTP/1.1\r\nHost: PKG.example.:8080\r\nConnection: close, x-drop\r\nX-Drop: 1\r\n\r\n",
    "CONNECT [2001:DB8::1]:443 HTTP/1.1\r\n\r\n",
    "CONNECT local.example:443 HTTP/1.1\r\nHost: local.example:443\r\n\r\n",
    "POST http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
];

const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "CONNECT ",
    "http://",
    "https://",
    "pkg.example",
    "evil.example",
    "local.example",
    "127.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "169.254.169.254",
    ":80",
    ":443",
    ":0",
    "/",
    "@",
    "\\",
    "#",
    "?",
    "%00",
    "%0d%0a",
    " HTTP/1.1",
    " HTTP/1.0",
    " HTTP/2",
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "\n\n",
    "\t",
    "\0",
    "ä",
    " ",
    ": ",
    "Host: ",
    "host:",
    "Content-Length: 5",
    "Content-Length: 0",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Connection: host",
    "Connection: content-length",
    "Proxy-Authorization: x",
    "12345",
];

/// Reads a head as plainly as a server behind the proxy might: its lines, and its headers by name.
fn headers(head: &str) -> Vec<(String, &str)> {
    let lines = head.split("\r\n").skip(1).take_while(|line| !line.is_empty());
    lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
        .collect()
}

fn is_normal(target: &Target) -> bool {
    let host = &target.host;
    !host.is_empty()
        && target.port > 0
        && !host.ends_with('.')
        && host.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.:".contains(c))
}

#[test]
fn fuzz_proxy_heads() {
    fuzz("proxy-heads", &inputs(CORPUS, WORDS), |bytes| {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let Ok(request) = Request::parse(&bytes[..end]) else { return Ok(()) };
        let target = request.target();
        prop_assert!(is_normal(target), "{target:?}");
        // Written down and read again it is the same place.
        let again = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        prop_assert_eq!(Request::parse(again.as_bytes()), Ok(Request::Connect(target.clone())));
        let Request::Plain { target, head, body_bytes } = &request else { return Ok(()) };
        prop_assert!(head.len() <= bytes.len() + 64, "{} bytes become {}", bytes.len(), head.len());
        prop_assert_eq!(head.matches("\r\n\r\n").count(), 1);
        prop_assert!(head.ends_with("\r\n\r\n") && head.is_ascii());
        let bare = head.replace("\r\n", "");
        prop_assert!(!bare.contains(['\r', '\n']), "{head:?}");
        let headers = headers(head);
        let of = |name: &str| -> Vec<&str> {
            headers.iter().filter(|(own, _)| own == name).map(|(_, value)| *value).collect()
        };
        prop_assert_eq!(of("host").len(), 1);
        prop_assert_eq!(of("transfer-encoding").len(), 0);
        prop_assert_eq!(headers.iter().filter(|(name, _)| name.starts_with("proxy-")).count(), 0);
        let lengths = of("content-length");
        let told = lengths.first().map_or(0, |length| length.parse::<u64>().unwrap_or(u64::MAX));
        prop_assert!(lengths.len() <= 1 && told == *body_bytes, "{head:?} has {body_bytes} bytes of body");
        // Sent to a proxy once more, it is understood in the same way.
        let (method, rest) = head.split_once(' ').unwrap_or_default();
        let host = of("host")[0];
        let once_more = Request::parse(format!("{method} http://{host}{rest}").as_bytes());
        prop_assert_eq!(once_more.as_ref().map(Request::target), Ok(target));
        prop_assert_eq!(
            once_more,
            Ok(Request::Plain { target: target.clone(), head: head.clone(), body_bytes: *body_bytes })
        );
        Ok(())
    });
}

#[test]
fn fuzz_addresses() {
    let any_address = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        (any::<u32>(), prop::sample::select(vec![0xffff_u128 << 32, 0, 0x64_ff9b_u128 << 96]))
            .prop_map(|(low, high)| IpAddr::V6((high | u128::from(low)).into())),
    ];
    fuzz("addresses", &any_address, |address| {
        let judged = kind(address);
        let IpAddr::V6(long) = address else { return Ok(()) };
        if let Some(short) = long.to_ipv4_mapped() {
            prop_assert_eq!(judged, kind(short.into()), "{}", address);
        }
        let is_local = long.is_loopback()
            || long.is_unspecified()
            || long.is_multicast()
            || long.is_unicast_link_local()
            || long.is_unique_local();
        prop_assert!(!is_local || judged != Kind::Public, "{} is {:?}", address, judged);
        Ok(())
    });
}

/// A network that leads nowhere and remembers who was asked for and what was sent.
#[derive(Default)]
struct Nowhere {
    reached: Mutex<Vec<(String, u16)>>,
    /// The far ends of the connections.
    ends: Mutex<Vec<DuplexStream>>,
}

const PUBLIC: &str = "93.184.215.14";

impl Net for Nowhere {
    fn connect(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        let (near, far) = tokio::io::duplex(1 << 20);
        self.reached.lock().unwrap().push((host, port));
        self.ends.lock().unwrap().push(far);
        Box::pin(async move { Ok(Box::new(near) as Box<dyn Stream>) })
    }

    fn resolve(&self, host: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        let address = if host == "local.example" { "127.0.0.1" } else { PUBLIC };
        Box::pin(async move { Ok(vec![address.parse().unwrap()]) })
    }

    fn listen(&self, _address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// What became of a connection: whom the proxy reached, what it sent there, and what it answered.
#[derive(Debug, PartialEq)]
struct Became {
    reached: Vec<(String, u16)>,
    sent: Vec<u8>,
    answered: Vec<u8>,
}

/// Sends these chunks, each read before the next comes, and then nothing more.
async fn play(chunks: &[&[u8]]) -> Became {
    let net = Nowhere::default();
    let counters = Counters::default();
    let rules = ["pkg.example", "local.example", "pkg.example:8080"];
    let rules = rules.map(|rule| HostRule::try_from(rule.to_owned()).unwrap()).into();
    let run = RunId::new(evenkeel_core::Wall(1), &Generator::from_seed(1));
    let proxy = Proxy::new(&net, &counters, rules, Label { tenant: TenantId::from("t"), run });
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let client = async {
        for chunk in chunks {
            // A proxy that has refused may not wait for the rest.
            if near.write_all(chunk).await.is_err() {
                break;
            }
            // The other side takes what is there before more comes.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _ = near.shutdown().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let ends = std::mem::take(&mut *net.ends.lock().unwrap());
        let mut sent = Vec::new();
        for mut end in ends {
            end.shutdown().await.unwrap();
            end.read_to_end(&mut sent).await.unwrap();
        }
        let mut answered = Vec::new();
        near.read_to_end(&mut answered).await.unwrap();
        (sent, answered)
    };
    let ((), (sent, answered)) = tokio::join!(proxy.connection(far), client);
    let reached = net.reached.lock().unwrap().clone();
    Became { reached, sent, answered }
}

#[test]
fn fuzz_proxy_connections() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let allowed: BTreeSet<(String, u16)> =
        [80, 443, 8080].map(|port| (PUBLIC.to_owned(), port)).into_iter().collect();
    fuzz("proxy-connections", &(inputs(CORPUS, WORDS), cuts()), |(bytes, cuts)| {
        let whole = runtime.block_on(play(&[&bytes]));
        prop_assert_eq!(&runtime.block_on(play(&cut(&bytes, &cuts))), &whole);
        prop_assert!(
            whole.reached.len() <= 1 && whole.reached.iter().all(|of| allowed.contains(of)),
            "{whole:?}"
        );
        // Each line may grow by a space after its name.
        let n_lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        prop_assert!(whole.sent.len() <= bytes.len() + n_lines + 64, "{whole:?}");
        prop_assert!(whole.answered.len() < 1024, "{whole:?}");
        // Through a tunnel goes everything, but of a plain request no second one.
        if bytes.starts_with(b"CONNECT ") || whole.sent.is_empty() {
            return Ok(());
        }
        let head = whole.sent.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
        prop_assert!(head.is_some(), "{whole:?}");
        let text = String::from_utf8_lossy(&whole.sent[..head.unwrap_or(0)]).into_owned();
        let length =
            headers(&text).iter().find(|(name, _)| name == "content-length").map(|(_, value)| *value);
        let length: usize = length.map_or(0, |length| length.parse().unwrap_or(usize::MAX));
        prop_assert!(whole.sent.len() - head.unwrap_or(0) <= length, "{whole:?}");
        Ok(())
    });
}

/// A head that is too long is refused however it comes: also all at once, its end included.
#[test]
fn a_long_head_is_refused_however_it_is_cut() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let head = |n: usize| {
        let start = "GET http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nX: ";
        format!("{start}{}\r\n\r\n", "x".repeat(n - start.len() - 4)).into_bytes()
    };
    for (n, fits) in [(HEAD_BYTES_MAX, true), (HEAD_BYTES_MAX + 1, false), (3 * HEAD_BYTES_MAX, false)] {
        let bytes = head(n);
        for size in [bytes.len(), 1000, 16] {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            let became = runtime.block_on(play(&chunks));
            assert_eq!(became.reached.len(), usize::from(fits), "{n} bytes in chunks of {size}: {became:?}");
        }
    }
}
