//! Why a host was not reached, and what is answered.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use super::Counters;

/// Why a request was not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not a request that a proxy takes.
    Malformed(&'static str),
    /// A plain request with a body whose length is not told.
    LengthRequired,
    /// The host is not on the list.
    Unlisted,
    /// The host has an address that is never reached.
    ForbiddenAddress(IpAddr),
    /// The name has no address.
    Unresolved(String),
    /// No address answered.
    Unreachable(String),
}

impl Refusal {
    /// One sentence; it goes to the command, to the model and into the log.
    pub(super) fn why(&self) -> String {
        match self {
            Self::Malformed(what) => (*what).to_owned(),
            Self::LengthRequired => "a body needs a Content-Length here; use https".to_owned(),
            Self::Unlisted => "it is not on the list of hosts that this agent may reach".to_owned(),
            Self::ForbiddenAddress(address) => {
                format!("its address {address} is in a range that is not reached from here")
            }
            Self::Unresolved(cause) => format!("its name cannot be looked up: {cause}"),
            Self::Unreachable(cause) => format!("it does not answer: {cause}"),
        }
    }

    /// The answer to the client.
    pub(super) fn answer(&self, host: &str) -> String {
        let status = match self {
            Self::Malformed(_) => "400 Bad Request",
            Self::LengthRequired => "411 Length Required",
            Self::Unlisted | Self::ForbiddenAddress(_) => "403 Forbidden",
            Self::Unresolved(_) | Self::Unreachable(_) => "502 Bad Gateway",
        };
        let verb =
            if status.starts_with("4") && !status.starts_with("403") { "refuses" } else { "did not reach" };
        let text = format!("evenkeel {verb} {host}: {}.\n", self.why());
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )
    }

    /// The name of the outcome in logs and counters.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::LengthRequired => "malformed",
            Self::Unlisted => "unlisted",
            Self::ForbiddenAddress(_) => "forbidden-address",
            Self::Unresolved(_) | Self::Unreachable(_) => "unreachable",
        }
    }

    pub(super) fn count(&self, counters: &Counters) {
        let counter = match self {
            Self::Malformed(_) | Self::LengthRequired => &counters.malformed,
            Self::Unlisted => &counters.unlisted,
            Self::ForbiddenAddress(_) => &counters.forbidden_address,
            Self::Unresolved(_) | Self::Unreachable(_) => &counters.unreachable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
