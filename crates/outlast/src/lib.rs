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
//! A tool takes a [`TaskContext`] to say how far it is and to ask its caller. What calls of a tool become is said by a
//! [`TaskTool`]; limits and paces by a [`Config`].
//!
//! # Repeating a call safely
//!
//! A client that may lose the answer of a `tools/call` sends a key of its own in
//! `_meta["outlast/idempotencyKey"]`, text of up to 256 bytes. The same key with the same request gives the task that exists
//! already, for as long as the task is kept and a day at the least; with another request it is refused (`-32602`). The
//! capabilities say for which tools, in `extensions["outlast/idempotency"]`: for all, unless its `tools` names them.
//!
//! # Logs
//!
//! The SDK logs several lines for each request, and a warning for each tool that ends with an error, a cancel included.
//! A filter such as `warn,rmcp=error,outlast=info` shows what an operator wants to see.

#![deny(missing_docs)]

mod server;

pub use outlast_core::{
    Clock, Counts, Hint, Hints, InvalidSpec, Limits, MemoryStore, Owner, QuestionKind, Recovery, Status,
    Store, StoreError, Timestamp,
};
pub use outlast_runtime::{Config, PollLimit, Raced, StepOptions, SystemClock};
pub use server::{
    AskError, BuildError, Cancelled, Decision, Elicited, Load, Mode, OwnerFn, Principal, Start, StepError,
    TaskContext, TaskServer, TaskServerBuilder, TaskTool, WeakTaskServer, default_owner, http, stdio,
};
