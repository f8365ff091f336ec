//! Which addresses may be reached at all.
//!
//! A name on a list says nothing about where it leads: whoever owns its zone can point it at the
//! host's own services, at the cloud's metadata service, or into the operator's network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The Internet.
    Public,
    /// A network of the operator.
    Private,
    /// The host itself, its link, or nothing that a connection could be made to.
    Special,
}

/// What this address belongs to. Addresses that carry another one inside are judged by it.
pub(super) fn kind(address: IpAddr) -> Kind {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => match carried(address) {
            Some(inside) => kind_v4(inside),
            None => kind_v6(address),
        },
    }
}

fn kind_v4(address: Ipv4Addr) -> Kind {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        // "This network", loopback, link-local, protocol assignments, documentation, measuring,
        // multicast, reserved and broadcast.
        (0 | 127 | 224.., _, _)
        | (169, 254, _)
        | (192, 0, 0 | 2)
        | (198, 18 | 19, _)
        | (198, 51, 100)
        | (203, 0, 113) => Kind::Special,
        // RFC 1918, and what carriers use between themselves and their customers.
        (10, _, _) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => Kind::Private,
        _ => Kind::Public,
    }
}

fn kind_v6(address: Ipv6Addr) -> Kind {
    let [first, second, ..] = address.segments();
    match first {
        0xfc00..=0xfdff => Kind::Private,
        // Global unicast, without Teredo, the rest of 2001::/23, and documentation.
        0x2000..=0x3fff => match (first, second) {
            (0x2001, 0x0000..=0x01ff | 0x0db8) | (0x3fff, 0x0000..=0x0fff) => Kind::Special,
            _ => Kind::Public,
        },
        _ => Kind::Special,
    }
}

/// The IPv4 address inside of a mapped, compatible, NAT64 or 6to4 address.
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(join(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(join(high, low)),
        [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}
