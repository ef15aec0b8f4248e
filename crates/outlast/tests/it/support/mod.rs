//! A server to test, a client that speaks raw HTTP, and the published schema.

pub(crate) mod client;
pub(crate) mod durable;
pub(crate) mod gates;
pub(crate) mod handler;
pub(crate) mod listener;
pub(crate) mod schema;
pub(crate) mod server;

pub(crate) use self::{
    client::{Client, Reply},
    server::TestServer,
};

/// What a client that knows tasks and can be asked anything declares.
pub(crate) fn everything() -> serde_json::Value {
    serde_json::json!({
        "elicitation": {"form": {}, "url": {}},
        "sampling": {"tools": {}},
        "roots": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    })
}
