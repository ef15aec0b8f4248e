//! The server over real sockets on a real SQLite file.

mod auth;
mod calls;
mod cancel;
mod input;
mod store;
mod support;
mod transport;
