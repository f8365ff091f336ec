//! PostgreSQL: the server that tests and the lab start for themselves.

mod server;
