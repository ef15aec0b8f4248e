//! The router as its users meet it: requests in, answers out.

#![allow(clippy::unwrap_used, reason = "a test that is surprised should stop")]

mod acting;
mod changes;
mod guarded;
mod operations;
mod reading;
mod support;
