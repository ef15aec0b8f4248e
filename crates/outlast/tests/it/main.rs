//! The server over real sockets on a real SQLite file.

#![allow(clippy::unwrap_used, reason = "a test that is surprised should stop")]

mod adversary;
mod auth;
mod calls;
mod cancel;
mod durable;
mod faults;
mod input;
mod migrating;
mod push;
mod push_hostile;
mod report;
mod store;
mod support;
mod telemetry;
mod transport;
