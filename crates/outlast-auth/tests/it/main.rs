//! A server behind the layer, over a real socket.

mod bearer;
mod issuer;
mod jwt;
mod owners;
mod support;
