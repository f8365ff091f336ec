//! Operations of the dialect that are not offered: 501 with a reason, never 404, so that a client
//! can tell "not offered" from "not there".

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::any;

use crate::app::Shared;
use crate::wire::refusal::{Refusal, unsupported};

/// Paths of the dialect of which nothing is offered.
const PATHS: [&str; 27] = [
    "/assistants",
    "/assistants/{assistant}/subgraphs",
    "/assistants/{assistant}/subgraphs/{namespace}",
    "/assistants/{assistant}/versions",
    "/assistants/{assistant}/latest",
    "/threads/prune",
    "/threads/{thread}/copy",
    "/threads/{thread}/stream/events",
    "/threads/{thread}/commands",
    "/threads/{thread}/runs/crons",
    "/runs/batch",
    "/runs/crons",
    "/runs/crons/search",
    "/runs/crons/count",
    "/runs/crons/{cron}",
    "/store/items",
    "/store/items/search",
    "/store/namespaces",
    "/a2a/{assistant}",
    "/mcp",
    "/mcp/",
    "/ui/{assistant}",
    "/v2/threads",
    "/v2/threads/{*rest}",
    "/docs",
    "/webhooks",
    "/webhooks/{*rest}",
];

/// All of them, for every method.
pub(super) fn routes() -> Router<Arc<Shared>> {
    PATHS.iter().fold(Router::new(), |router, path| router.route(path, any(here)))
}

/// The refusal of one operation.
pub(super) async fn here(request: Request) -> Refusal {
    Refusal(unsupported(format!(
        "{} {} is not offered by this server.",
        request.method(),
        request.uri().path()
    )))
}
