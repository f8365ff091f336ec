//! Headers on their way through: what belongs to one connection stays behind, and what the replica
//! should know of the client is added.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Headers that mean something between two ends of one connection only.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Removes what belongs to the connection, also what `Connection` names.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// A request's headers as the replica gets them.
pub(super) fn towards_replica(mut headers: HeaderMap, client: Option<IpAddr>) -> HeaderMap {
    remove_hop_by_hop(&mut headers);
    // The gateway has read the whole body: nobody waits for permission to send it.
    headers.remove(header::EXPECT);
    headers.remove(header::CONTENT_LENGTH);
    if let Some(host) = headers.remove(header::HOST) {
        headers.insert("x-forwarded-host", host);
    }
    headers.insert("x-forwarded-proto", HeaderValue::from_static("http"));
    if let Some(client) = client {
        let before: Vec<&str> =
            headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).collect();
        let mut line = before.join(", ");
        if !line.is_empty() {
            line.push_str(", ");
        }
        line.push_str(&client.to_string());
        if let Ok(value) = HeaderValue::try_from(line) {
            headers.insert("x-forwarded-for", value);
        }
    }
    headers
}
