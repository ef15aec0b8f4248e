//! x

mod server;
#[cfg_attr(not(test), allow(dead_code, unused_imports))]
mod wire;

pub use server::Server;
