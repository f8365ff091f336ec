//! Requests, addresses and rules as tables. The proxy as a whole is tested from inside a sandbox.

use std::fmt::Write;

use evenkeel_core::port::runner::HostRule;
use expect_test::expect;
use proptest::prelude::*;

use super::address::{Kind, kind};
use super::head::Request;

#[test]
fn only_public_addresses_are_reached() {
    let table = [
        ("93.184.215.14", Kind::Public),
        ("127.0.0.1", Kind::Special),
        ("127.9.9.9", Kind::Special),
        ("0.0.0.0", Kind::Special),
        ("10.1.2.3", Kind::Private),
        ("172.16.0.1", Kind::Private),
        ("172.32.0.1", Kind::Public),
        ("192.168.1.1", Kind::Private),
        ("100.64.0.1", Kind::Private),
        ("100.100.100.200", Kind::Private),
        ("169.254.169.254", Kind::Special),
        ("192.0.0.192", Kind::Special),
        ("198.18.0.1", Kind::Special),
        ("224.0.0.1", Kind::Special),
        ("255.255.255.255", Kind::Special),
        ("2606:2800:220:1::1", Kind::Public),
        ("::1", Kind::Special),
        ("::", Kind::Special),
        ("fe80::1", Kind::Special),
        ("fd00:ec2::254", Kind::Private),
        ("ff02::1", Kind::Special),
        ("2001:db8::1", Kind::Special),
        ("2001:0:1::1", Kind::Special),
        ("::ffff:127.0.0.1", Kind::Special),
        ("::ffff:10.0.0.1", Kind::Private),
        ("::ffff:93.184.215.14", Kind::Public),
        ("::127.0.0.1", Kind::Special),
        ("64:ff9b::169.254.169.254", Kind::Special),
        ("64:ff9b:1::1", Kind::Special),
        ("2002:7f00:1::", Kind::Special),
        ("2002:0a00:1::", Kind::Private),
    ];
    for (address, expected) in table {
        assert_eq!(kind(address.parse().unwrap()), expected, "{address}");
    }
}

#[test]
fn a_request_is_read_in_one_way_or_refused() {
    let heads = [
        "CONNECT pkg.example:443 HTTP/1.1\r\nHost: pkg.example:443\r\n\r\n",
        "CONNECT PKG.Example.:443 HTTP/1.1\r\n\r\n",
        "CONNECT [2001:DB8::1]:443 HTTP/1.1\r\n\r\n",
        "CONNECT 127.1:443 HTTP/1.1\r\n\r\n",
        "CONNECT pkg.example HTTP/1.1\r\n\r\n",
        "CONNECT pkg.example:0 HTTP/1.1\r\n\r\n",
        "CONNECT pkg.example:99999 HTTP/1.1\r\n\r\n",
        "CONNECT pkg.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
        "CONNECT user@pkg.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT pkg..example:443 HTTP/1.1\r\n\r\n",
        "CONNECT pkg.example%2eevil:443 HTTP/1.1\r\n\r\n",
        "CONNECT [::1%lo]:443 HTTP/1.1\r\n\r\n",
        "GET http://pkg.example/a?b HTTP/1.1\r\nHost: pkg.example\r\nAccept: x\r\nProxy-Authorization: y\r\n\r\n",
        "GET http://pkg.example:8080?q HTTP/1.1\r\nHost: pkg.example:8080\r\nConnection: close, x-drop\r\nX-Drop: 1\r\n\r\n",
        "GET http://pkg.example HTTP/1.0\r\n\r\n",
        "POST http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nContent-Length: 5\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1\r\nHost: pkg.example:81\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nhost: evil.example\r\n\r\n",
        "GET http://evil@pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
        "GET http://pkg.example\\@evil.example/ HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
        "GET http://pkg.example#@evil.example/ HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
        "GET https://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
        "GET ftp://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1 x\r\nHost: pkg.example\r\n\r\n",
        "GET  http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
        "GET http://pkg.example/ HTTP/2\r\nHost: pkg.example\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1\nHost: pkg.example\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\n folded\r\n\r\n",
        "GET http://pkg.example/ HTTP/1.1\r\nHost : pkg.example\r\n\r\n",
        "POST http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "POST http://pkg.example/ HTTP/1.1\r\nHost: pkg.example\r\nContent-Length: +5\r\n\r\n",
        "GET http://pkg.example/ä HTTP/1.1\r\nHost: pkg.example\r\n\r\n",
    ];
    let mut table = String::new();
    for head in heads {
        let shown = match Request::parse(head.as_bytes()) {
            Ok(Request::Connect(target)) => format!("tunnel to {target}"),
            Ok(Request::Plain { target, head, body_bytes }) => {
                format!("to {target}, body {body_bytes}: {}", head.replace("\r\n", "¶"))
            }
            Err(refusal) => format!("no: {}", refusal.why()),
        };
        writeln!(table, "{}\n    {shown}", head.replace("\r\n", "¶").replace('\n', "⏎")).unwrap();
    }
    expect![[r#"
        CONNECT pkg.example:443 HTTP/1.1¶Host: pkg.example:443¶¶
            tunnel to pkg.example:443
        CONNECT PKG.Example.:443 HTTP/1.1¶¶
            tunnel to pkg.example:443
        CONNECT [2001:DB8::1]:443 HTTP/1.1¶¶
            tunnel to [2001:db8::1]:443
        CONNECT 127.1:443 HTTP/1.1¶¶
            tunnel to 127.1:443
        CONNECT pkg.example HTTP/1.1¶¶
            no: the host is not one
        CONNECT pkg.example:0 HTTP/1.1¶¶
            no: the host is not one
        CONNECT pkg.example:99999 HTTP/1.1¶¶
            no: the host is not one
        CONNECT pkg.example:443 HTTP/1.1¶Host: evil.example:443¶¶
            no: the Host is not the host of the URL
        CONNECT user@pkg.example:443 HTTP/1.1¶¶
            no: the host is not one
        CONNECT pkg..example:443 HTTP/1.1¶¶
            no: the host is not one
        CONNECT pkg.example%2eevil:443 HTTP/1.1¶¶
            no: the host is not one
        CONNECT [::1%lo]:443 HTTP/1.1¶¶
            no: the host is not one
        GET http://pkg.example/a?b HTTP/1.1¶Host: pkg.example¶Accept: x¶Proxy-Authorization: y¶¶
            to pkg.example:80, body 0: GET /a?b HTTP/1.1¶Host: pkg.example¶Connection: close¶Accept: x¶¶
        GET http://pkg.example:8080?q HTTP/1.1¶Host: pkg.example:8080¶Connection: close, x-drop¶X-Drop: 1¶¶
            to pkg.example:8080, body 0: GET /?q HTTP/1.1¶Host: pkg.example:8080¶Connection: close¶¶
        GET http://pkg.example HTTP/1.0¶¶
            to pkg.example:80, body 0: GET / HTTP/1.1¶Host: pkg.example¶Connection: close¶¶
        POST http://pkg.example/ HTTP/1.1¶Host: pkg.example¶Content-Length: 5¶¶
            to pkg.example:80, body 5: POST / HTTP/1.1¶Host: pkg.example¶Connection: close¶Content-Length: 5¶¶
        GET http://pkg.example/ HTTP/1.1¶¶
            no: the request has no Host
        GET http://pkg.example/ HTTP/1.1¶Host: evil.example¶¶
            no: the Host is not the host of the URL
        GET http://pkg.example/ HTTP/1.1¶Host: pkg.example:81¶¶
            no: the Host is not the host of the URL
        GET http://pkg.example/ HTTP/1.1¶Host: pkg.example¶host: evil.example¶¶
            no: a header is there twice that may be there once
        GET http://evil@pkg.example/ HTTP/1.1¶Host: pkg.example¶¶
            no: the host is not one
        GET http://pkg.example\@evil.example/ HTTP/1.1¶Host: pkg.example¶¶
            no: the request line is not one
        GET http://pkg.example#@evil.example/ HTTP/1.1¶Host: pkg.example¶¶
            no: the request line is not one
        GET /a HTTP/1.1¶Host: pkg.example¶¶
            no: a proxy takes CONNECT, or a URL that begins with http://
        GET https://pkg.example/ HTTP/1.1¶Host: pkg.example¶¶
            no: a proxy takes CONNECT, or a URL that begins with http://
        GET ftp://pkg.example/ HTTP/1.1¶Host: pkg.example¶¶
            no: a proxy takes CONNECT, or a URL that begins with http://
        GET http://pkg.example/ HTTP/1.1 x¶Host: pkg.example¶¶
            no: the request line is not one
        GET  http://pkg.example/ HTTP/1.1¶Host: pkg.example¶¶
            no: the request line is not one
        GET http://pkg.example/ HTTP/2¶Host: pkg.example¶¶
            no: the request line is not one
        GET http://pkg.example/ HTTP/1.1⏎Host: pkg.example¶¶
            no: the request line is not one
        GET http://pkg.example/ HTTP/1.1¶Host: pkg.example¶ folded¶¶
            no: a header line is not one
        GET http://pkg.example/ HTTP/1.1¶Host : pkg.example¶¶
            no: a header line is not one
        POST http://pkg.example/ HTTP/1.1¶Host: pkg.example¶Transfer-Encoding: chunked¶¶
            no: a body needs a Content-Length here; use https
        POST http://pkg.example/ HTTP/1.1¶Host: pkg.example¶Content-Length: 5¶Content-Length: 6¶¶
            no: a header is there twice that may be there once
        POST http://pkg.example/ HTTP/1.1¶Host: pkg.example¶Content-Length: +5¶¶
            no: the Content-Length is no number
        GET http://pkg.example/ä HTTP/1.1¶Host: pkg.example¶¶
            no: the request has characters that do not belong there
    "#]]
    .assert_eq(&table);
}

#[test]
fn a_rule_covers_what_it_names_and_no_more() {
    let rule = |text: &str| HostRule::try_from(text.to_owned());
    let table = [
        ("pkg.example", "pkg.example", 443, true),
        ("pkg.example", "pkg.example", 80, true),
        ("pkg.example", "pkg.example", 22, false),
        ("pkg.example", "x.pkg.example", 443, false),
        ("pkg.example", "evilpkg.example", 443, false),
        ("PKG.example.:8443", "pkg.example", 8443, true),
        ("pkg.example:8443", "pkg.example", 443, false),
        ("*.pkg.example", "a.pkg.example", 443, true),
        ("*.pkg.example", "a.b.pkg.example", 443, true),
        ("*.pkg.example", "pkg.example", 443, false),
        ("*.pkg.example", ".pkg.example", 443, false),
        ("*.pkg.example", "evilpkg.example", 443, false),
        ("private:mirror:8080", "mirror", 8080, true),
    ];
    for (text, host, port, expected) in table {
        assert_eq!(rule(text).unwrap().covers(host, port), expected, "{text} {host}:{port}");
    }
    for text in [
        "",
        "*",
        "*.example",
        "a b",
        "http://x.example",
        "x.example/",
        "x.example:0",
        "x..example",
        "[::1]:80",
    ] {
        assert!(rule(text).is_err(), "{text}");
    }
    for text in ["pkg.example", "*.pkg.example:8443", "private:mirror:8080"] {
        assert_eq!(rule(text).unwrap().to_string(), text);
    }
}

proptest! {
    /// Whatever comes, reading ends with a target that can be written down again, or a refusal.
    #[test]
    fn any_bytes_are_a_request_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert!(request.target().port > 0);
        }
    }

    /// Pieces of requests in any order: the head that is passed on names one host, the target.
    #[test]
    fn what_is_passed_on_names_the_target(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "GET ", "CONNECT ", "http://", "a.example", "b.example", ":80", "/", "@", "\\", "#", "?", " HTTP/1.1",
            "\r\n", "\n", "\r", "Host: ", "Content-Length: 3", "Transfer-Encoding: chunked", ": ", " ", "[::1]",
        ]), 0..16)
    ) {
        let text = format!("{}\r\n\r\n", pieces.concat());
        if let Ok(Request::Plain { target, head, .. }) = Request::parse(text.as_bytes()) {
            let hosts: Vec<&str> = head.lines().filter_map(|line| line.strip_prefix("Host: ")).collect();
            prop_assert_eq!(hosts.len(), 1);
            let named = hosts[0].trim_end_matches(":80").trim_matches(['[', ']']);
            prop_assert_eq!(named.trim_end_matches('.').to_ascii_lowercase(), target.host);
        }
    }
}
