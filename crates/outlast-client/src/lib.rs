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
//! # Questions
//!
//! Questions of the server go to the client's [`ClientHandler`](rmcp::ClientHandler), as they would outside a task; each is
//! put once, and its answer is sent until the server has it. A client without a handler refuses them all, and so does one
//! whose handler does not declare in `get_info` that it can be asked:
//!
//! ```
//! use rmcp::{ClientHandler, ErrorData, RoleClient, service::RequestContext};
//! use rmcp::model::*;
//!
//! struct Me;
//!
//! impl ClientHandler for Me {
//!     fn get_info(&self) -> ClientConfig {
//!         let capabilities = ClientCapabilities::builder().enable_elicitation().build();
//!         ClientConfig::new(capabilities, Implementation::new("my-agent", "1.0"))
//!     }
//!
//!     async fn create_elicitation(
//!         &self,
//!         asked: ElicitRequestParams,
//!         _: RequestContext<RoleClient>,
//!     ) -> Result<ElicitResult, ErrorData> {
//!         let ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } = asked else {
//!             return Ok(ElicitResult::new(ElicitationAction::Decline)); // a page that the server wants opened
//!         };
//!         println!("{message}: {:?}", requested_schema.properties.keys());
//!         let content = serde_json::json!({ "name": "Ada" }); // as the schema wants it
//!         Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
//!     }
//! }
//!
//! # use outlast_client::{Server, TaskClient};
//! let client = TaskClient::new(Server::http("http://127.0.0.1:8808/mcp"), Me);
//! ```
//!
//! # Errors
//!
//! [`CallError::kind`] names each way that a call can end. Most callers need no more than what can be done about it:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use outlast_client::{CallOptions, TaskClient};
//! # use rmcp::model::CallToolRequestParams;
//! # async fn run(client: TaskClient) {
//! let params = CallToolRequestParams::new("report");
//! let options = CallOptions::default().with_deadline(Duration::from_secs(60));
//! match client.call_tool_with(params, options).await {
//!     Ok(result) if result.is_error == Some(true) => println!("the tool says no: {:?}", result.content),
//!     Ok(result) => println!("{:?}", result.content),
//!     Err(error) => {
//!         eprintln!("{error}");
//!         match (error.is_retryable(), error.into_handle()) {
//!             // The deadline passed, say: the task goes on, and can be waited for, now or in another process.
//!             (true, Some(task)) => println!("{}", task.to_json()),
//!             (true, None) => println!("call again, later"),
//!             (false, _) => println!("there is no more to learn; for OutcomeUnknown, that the tool may have run"),
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! # Other processes
//!
//! With a [`HandleStore`], [`TaskClient::resume_all`] finds what an earlier process left. One process should follow a task at
//! a time: two that follow the same one both ask its questions, and the server takes the first answer. Nothing keeps them
//! apart. A result is told once: when [`TaskHandle::wait`] or [`TaskHandle::updates`] has given the end of a task, its handle
//! is in the store no more.
//!
//! Rule numbers (S1..) in the pages of this crate are those of the
//! extension's text.

#![deny(missing_docs)]

mod authorization;
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
mod registry;
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

pub use authorization::{Authorization, AuthorizationSource, is_unauthorized};
pub use client::{Started, TaskClient, TaskClientBuilder};
pub use error::{CallError, CallErrorKind};
pub use handle::TaskHandle;
pub use options::{CallOptions, ClientOptions, OnUpdate};
pub use pump::QuestionKey;
pub use saved::{Generation, InvalidSaved, SavedTask};
pub use server::{Authorize, Server};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{DirStore, HandleStore};
pub use task::{Detail, Question, Task};
