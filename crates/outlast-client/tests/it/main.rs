//! The client against servers that do what servers should not: scripted ones, over real sockets, or in stepped time.
#![allow(clippy::unwrap_used)]

mod calls;
mod killed;
mod never_twice;
mod pace;
mod questions;
mod repeats;
mod stores;
mod support;
