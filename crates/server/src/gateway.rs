//! Where traffic enters: connections, who calls, how often, how much at once.
//!
//! Nothing behind the gateway sees a request that is not authenticated, is beyond its rate, is
//! larger than the limit, or arrived too slowly. Where the platform is several processes, the one in
//! the role of the gateway then passes the request on (`proxy`) to a replica that is well
//! (`balance`).

pub(crate) mod auth;
pub(crate) mod balance;
pub(crate) mod given;
pub(crate) mod health;
pub(crate) mod proxy;
pub(crate) mod rate_limit;
pub(crate) mod route;
pub(crate) mod server;

#[cfg(test)]
mod tests;
