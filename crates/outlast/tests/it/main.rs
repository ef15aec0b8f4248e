//! The server over real sockets on a real SQLite file.

mod auth;
mod calls;
mod cancel;
mod faults;
mod input;
mod store;
mod support;
mod transport;
