//! The gateway between real clients and real servers of the SDK, over byte streams.
#![recursion_limit = "256"]
#![allow(clippy::unwrap_used)]

mod away;
mod calls;
mod cancels;
mod forward;
mod held;
mod hostile;
mod http;
mod owners;
mod passing;
mod peers;
mod protocol;
mod restart;
mod rich;
mod scripted;
mod support;
mod told;
