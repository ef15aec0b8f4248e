//! The client against servers that do what servers should not: scripted ones, over real sockets, or in stepped time.
#![allow(clippy::unwrap_used)]

mod calls;
mod ends;
mod endurance;
mod gates;
mod hostile;
mod identity;
mod killed;
mod legacy;
mod listeners;
mod never_twice;
mod pace;
mod questions;
mod repeats;
mod shapes;
mod stores;
mod support;
mod time;
mod validation;
mod whose;
mod wire;
