//! MCP tool calls that outlast the connection.
//!
//! A [`TaskServer`] wraps an `rmcp` server handler, and its slow tool calls become durable tasks of the MCP Tasks
//! extension (SEP-2663): they are stored before their id leaves, run under a lease, can ask their caller, and are still
//! there after `kill -9`.
//!
//! ```no_run
//! use outlast::{TaskServer, TaskTool};
//! use outlast_sqlite::SqliteStore;
//! # #[derive(Clone)] struct MyHandler;
//! # impl rmcp::ServerHandler for MyHandler {}
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = SqliteStore::open("tasks.db")?;
//! let server = TaskServer::builder(MyHandler).store(store).tool("report", TaskTool::optional()).build().await?;
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8808").await?;
//! outlast::http::serve(listener, server, async { tokio::signal::ctrl_c().await.unwrap() }).await?;
//! # Ok(()) }
//! ```
//!
//! A tool takes a [`TaskContext`] to say how far it is and to ask its caller.

#![deny(missing_docs)]

mod clock;
mod runtime;
mod server;

pub use clock::SystemClock;
pub use outlast_core::{Limits, MemoryStore, Owner, Recovery, Store};
pub use runtime::{AskError, Config, PollLimit};
pub use server::{
    BuildError, Decision, Elicited, Load, Mode, OwnerFn, Principal, Start, TaskContext, TaskServer,
    TaskServerBuilder, TaskTool, default_owner, http, stdio,
};
