//! The engine of Outlast: it claims tasks, runs them under a lease, and looks after those that nobody holds.
//!
//! It knows nothing of MCP and of no store in particular: what a call means is for a [`Runner`] to say, and where tasks
//! are kept for a [`Store`](outlast_core::Store). Servers use it through the crate `outlast`; on its own it is for whoever
//! runs durable work of another kind, and for the simulation that tests it.

#![deny(missing_docs)]

mod backoff;
mod clock;
mod config;
mod drive;
mod housekeeping;
mod poll_limit;
mod run;
mod runtime;
mod slots;
mod worker;

pub use self::{
    clock::SystemClock,
    config::{Config, PollLimit},
    drive::Inline,
    run::{AskRefused, Run},
    runtime::{Ended, Round, Runner, Runtime, random_id},
};
use self::{run::Lease, runtime::lock};
