//! Durable MCP tasks for any MCP server, in any language.
//!
//! A [`Gateway`] stands in front of one or several servers (the *upstreams*) and is itself a server. Its slow calls become
//! durable tasks, whatever the upstreams know of tasks: it is an `rmcp` handler that passes everything on, to be wrapped in an
//! [`outlast::TaskServer`].
//!
//! - A call that takes long becomes a task for callers who can follow one. What the upstream says of its progress becomes the
//!   task's status, what it asks becomes the task's questions, a cancel reaches it.
//! - A call that an upstream itself answers with a task is followed by the gateway, under an id of its own, across restarts.
//! - Callers who know nothing of tasks have their call held open; when it takes too long even for that, the answer says that
//!   the work goes on, and names the tools by which it is asked for.

#![deny(missing_docs)]

mod asked;
mod asking;
mod authorized;
mod backoff;
mod bridge;
mod call;
mod caller;
mod changes;
mod clock;
mod describe;
mod gateway;
mod hold;
mod lanes;
mod names;
mod outbox;
mod own_tools;
mod proxy;
mod remembered;
mod repeats;
mod results;
mod sessions;
mod upstream;
mod watched;
mod works;

pub use gateway::{Gateway, GatewayOptions};
pub use upstream::{Introduction, ToolPolicy, Upstream, When};
