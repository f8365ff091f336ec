//! The head of a request to the proxy, read strictly: whatever two readers could understand in two
//! ways is refused.

use std::net::{IpAddr, Ipv6Addr};

use super::refusal::Refusal;

/// Longest head.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 10;

/// Headers that concern only this connection.
const HOP_BY_HOP: &[&str] =
    &["connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "host"];

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The name in lower case and without a final dot, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What is asked of the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A tunnel.
    Connect(Target),
    /// One plain request: its head for the host, and the length of its body.
    Plain { target: Target, head: String, body_bytes: u64 },
}

impl Request {
    pub(super) fn target(&self) -> &Target {
        match self {
            Self::Connect(target) | Self::Plain { target, .. } => target,
        }
    }

    /// Reads a head, its final empty line included.
    pub(super) fn parse(head: &[u8]) -> Result<Self, Refusal> {
        let text = std::str::from_utf8(head).ok().filter(|text| text.chars().all(is_plain));
        let text = text.ok_or(Refusal::Malformed("the request has characters that do not belong there"))?;
        let mut lines = text.strip_suffix("\r\n\r\n").unwrap_or(text).split("\r\n");
        let (method, target, version) = request_line(lines.next().unwrap_or_default())?;
        let headers = lines.map(header).collect::<Result<Vec<_>, _>>()?;
        let host = single(&headers, "host")?;
        if method == "CONNECT" {
            let target = authority(target, None)?;
            agree(host, &target, target.port)?;
            return Ok(Self::Connect(target));
        }
        let rest = target
            .strip_prefix("http://")
            .ok_or(Refusal::Malformed("a proxy takes CONNECT, or a URL that begins with http://"))?;
        let (place, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        let target = authority(place, Some(80))?;
        if host.is_none() && version == "HTTP/1.1" {
            return Err(Refusal::Malformed("the request has no Host"));
        }
        agree(host, &target, 80)?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut head = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n");
        for (name, value) in passed_on(&headers) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        Ok(Self::Plain { target, head, body_bytes: body_bytes(&headers)? })
    }
}

type Header<'a> = (&'a str, &'a str);

/// Printable ASCII; line ends are only legal as pairs, which splitting by them shows.
fn is_plain(c: char) -> bool {
    c == '\r' || c == '\n' || c == '\t' || (' '..='~').contains(&c)
}

fn request_line(line: &str) -> Result<(&str, &str, &str), Refusal> {
    let fault = Refusal::Malformed("the request line is not one");
    let mut parts = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(fault);
    };
    let is_good = is_token(method)
        && matches!(version, "HTTP/1.0" | "HTTP/1.1")
        && !target.is_empty()
        && !target.contains(['\r', '\n', '\t', '#', '\\']);
    if is_good { Ok((method, target, version)) } else { Err(fault) }
}

fn header(line: &str) -> Result<Header<'_>, Refusal> {
    let parts = line.split_once(':').filter(|(name, value)| is_token(name) && !value.contains(['\r', '\n']));
    let (name, value) = parts.ok_or(Refusal::Malformed("a header line is not one"))?;
    Ok((name, value.trim_matches([' ', '\t'])))
}

fn is_token(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(is_part)
}

/// The value of a header that may be there once.
fn single<'a>(headers: &[Header<'a>], name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut found = headers.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
    let first = found.next();
    match found.next() {
        Some(_) => Err(Refusal::Malformed("a header is there twice that may be there once")),
        None => Ok(first),
    }
}

fn body_bytes(headers: &[Header<'_>]) -> Result<u64, Refusal> {
    if single(headers, "transfer-encoding")?.is_some() {
        return Err(Refusal::LengthRequired);
    }
    let Some(length) = single(headers, "content-length")? else { return Ok(0) };
    let digits = Some(length).filter(|text| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).ok_or(Refusal::Malformed("the Content-Length is no number"))
}

/// What concerns the host; `Connection` may name further headers that do not.
fn passed_on<'a>(headers: &'a [Header<'a>]) -> impl Iterator<Item = &'a Header<'a>> {
    let named: Vec<String> = headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .flat_map(|(_, value)| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    headers.iter().filter(move |(name, _)| {
        let name = name.to_ascii_lowercase();
        !HOP_BY_HOP.contains(&name.as_str()) && !name.starts_with("proxy-") && !named.contains(&name)
    })
}

/// Refuses a `Host` that names another place than the target.
fn agree(host: Option<&str>, target: &Target, default_port: u16) -> Result<(), Refusal> {
    match host {
        Some(host) if authority(host, Some(default_port))? != *target => {
            Err(Refusal::Malformed("the Host is not the host of the URL"))
        }
        _ => Ok(()),
    }
}

/// Reads `host:port`, `[address]:port`; without a port only where there is a default.
fn authority(text: &str, default_port: Option<u16>) -> Result<Target, Refusal> {
    let fault = || Refusal::Malformed("the host is not one");
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(fault)?;
        let address: Ipv6Addr = host.parse().map_err(|_| fault())?;
        let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(fault)?) };
        (IpAddr::V6(address).to_string(), port)
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty()
            || host.len() > 253
            || host.split('.').any(str::is_empty)
            || !host.chars().all(is_part)
        {
            return Err(fault());
        }
        (host.to_ascii_lowercase(), port)
    };
    let port = match port {
        Some(port) if port.chars().all(|c| c.is_ascii_digit()) => port.parse().map_err(|_| fault())?,
        Some(_) => return Err(fault()),
        None => default_port.ok_or_else(fault)?,
    };
    if port == 0 { Err(fault()) } else { Ok(Target { host, port }) }
}
