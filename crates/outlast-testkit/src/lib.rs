//! What every store of Outlast must pass.
//!
//! - [`store_suite!`] turns each promise of [`Store`](outlast_core::Store) into one test of a backend, through a
//!   [`Harness`]. A backend is done when all pass; there is no way to skip one.
//! - [`FaultStore`] makes any store fail at a chosen call, and [`walk_faults`] tries every call of a scenario.
//! - [`crash`] is a process that is killed in mid-write, and the check of what it left behind.
//! - [`sim`] runs the real runtime in simulated time, with everything going wrong that can, and repeats itself by seed.
//! - [`story`] has the words that the tests are written in.
//!
//! ```
//! use outlast_testkit::{Harness, MemoryHarness, story::{Tell, new_task}};
//!
//! outlast_testkit::run(async {
//!     let harness = MemoryHarness::new();
//!     let store = harness.open().await;
//!     let task = store.create_one(new_task()).await;
//!     let store = harness.reopen(store).await;
//!     assert_eq!(store.task(task.id).await, task);
//! });
//! ```
#![deny(missing_docs)]

pub mod counted;
pub mod crash;
mod fault;
mod harness;
mod seed;
#[cfg(feature = "sim")]
pub mod sim;
pub mod story;
#[doc(hidden)]
pub mod suite;
pub mod transfer;

pub use fault::{Fault, FaultStore, walk_faults};
pub use harness::{Harness, MemoryHarness, run};
pub use seed::Seed;
