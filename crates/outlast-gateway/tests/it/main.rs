//! The gateway between real clients and real servers of the SDK, over byte streams.
#![recursion_limit = "256"]
#![allow(clippy::unwrap_used)]

mod away;
mod calls;
mod hostile;
mod peers;
mod restart;
mod scripted;
mod support;
