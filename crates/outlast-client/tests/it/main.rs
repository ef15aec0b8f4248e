//! The client against servers that do what servers should not: scripted ones, over real sockets, or in stepped time.
#![allow(clippy::unwrap_used)]

mod calls;
mod killed;
mod questions;
mod pace;
mod repeats;
mod support;
