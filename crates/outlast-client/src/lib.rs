//! The client of durable MCP tasks: call a tool and get the result, whether or not it became a task.
//!
//! A [`TaskClient`] calls the tools of one server. The server may answer at once, ask first, or answer with a task of the
//! MCP Tasks extension (SEP-2663); the caller gets the result either way, and need not know which it was. It may also know:
//! [`TaskClient::start_tool`] gives a [`TaskHandle`], which can be waited for, watched, answered, cancelled, and written
//! down, to be taken up by another process.
//!
//! ```no_run
//! use outlast_client::{DirStore, Server, TaskClient};
//! use rmcp::model::CallToolRequestParams;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = TaskClient::builder(Server::http("http://127.0.0.1:8808/mcp"))
//!     .store(DirStore::open("handles")?)
//!     .build();
//! // Whatever an earlier run of this program left unfinished.
//! for task in client.resume_all().await? {
//!     println!("{}: {:?}", task.tool(), task.wait(None).await?.content);
//! }
//! let result = client.call_tool(CallToolRequestParams::new("report")).await?;
//! # Ok(()) }
//! ```
//!
//! Questions of the server go to the client's [`ClientHandler`](rmcp::ClientHandler), as they would outside a task; each is
//! put once, and its answer is sent until the server has it. Rule numbers (S1..) in the pages of this crate are those of the
//! extension's text.

#![deny(missing_docs)]

mod book;
mod call;
mod calls;
mod client;
mod clock;
mod connection;
mod error;
mod follow;
mod handle;
mod options;
mod pace;
mod pump;
mod push;
mod requests;
mod saved;
mod schema;
mod server;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod tap;
mod task;
mod tools;
mod wire;

pub use client::{Started, TaskClient, TaskClientBuilder};
pub use error::{CallError, CallErrorKind};
pub use handle::TaskHandle;
pub use options::{CallOptions, ClientOptions, OnUpdate};
pub use saved::{Generation, InvalidSaved, SavedTask};
pub use server::{Authorize, Server};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{DirStore, HandleStore};
pub use task::{Detail, Question, Task};
