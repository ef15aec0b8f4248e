//! The engine of Outlast: it claims tasks, runs them under a lease, and looks after those that nobody holds.
//!
//! It knows nothing of MCP and of no store in particular: what a call means is for a [`Runner`] to say, and where tasks
//! are kept for a [`Store`](outlast_core::Store). Servers use it through the crate `outlast`; on its own it is for whoever
//! runs durable work of another kind, and for the simulation that tests it.

#![deny(missing_docs)]

mod activity;
mod alone;
mod backoff;
mod clock;
mod config;
mod drive;
mod ending;
mod housekeeping;
mod in_flight;
mod journal;
mod measure;
mod poll_limit;
mod race;
mod run;
mod runtime;
mod seen;
mod slots;
mod spans;
mod step;
mod wait;
mod worker;

use self::runtime::lock;
pub use self::{
    clock::SystemClock,
    config::{Config, PollLimit},
    drive::Inline,
    measure::describe_metrics,
    race::{Raced, race},
    run::{Cancelled, Run},
    runtime::{Ended, Round, Runner, Runtime, random_id},
    spans::{join_trace, place_in_trace, tool_in_span},
    step::{StepFailure, StepOptions, step_id},
    wait::AskRefused,
};
