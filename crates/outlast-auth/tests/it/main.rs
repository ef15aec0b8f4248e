//! A server behind the layer, over a real socket.

#![allow(clippy::unwrap_used, reason = "a test that is surprised should stop")]

mod bearer;
mod discovery;
mod issuer;
mod jwt;
mod owners;
mod support;
