//! The runtime on the reference store, in paused time: what a task's work is promised, across crashes, waits and takeovers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod adversary;
mod alone;
mod faults;
mod leases;
mod parking;
mod replay;
mod spans;
mod steps;
mod support;
mod threads;
mod waiting;
