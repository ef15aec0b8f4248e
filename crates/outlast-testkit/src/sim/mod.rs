//! A deterministic simulation of the real runtime.
//!
//! One seed is one run: processes that each have the runtime of `outlast-runtime` on an executor and a clock of their
//! own, one `MemoryStore` behind a network that delays, loses and repeats, generated tools, and clients. Everything is on
//! one thread, all chance comes from the seed, and time is simulated; so a run that goes wrong goes wrong again.
//!
//! - [`simulate`] runs one seed and says what it [found](Outcome::violation).
//! - [`Coverage`] adds up what many runs reached, and names what [none did](Coverage::missing).
//! - [`Bug`] is a bug that can be planted in the store, to see that it is found.
//!
//! ```
//! use outlast_testkit::sim::{Setup, simulate};
//! let outcome = simulate(1, &Setup::default());
//! assert_eq!(outcome.violation, None);
//! assert_eq!(outcome.hash, simulate(1, &Setup::default()).hash);
//! ```

mod client;
mod clock;
mod coverage;
mod network;
mod oracle;
mod plan;
mod planted;
mod process;
mod program;
mod request;
mod rng;
mod run;
mod store;
mod tool;
mod trace;
mod world;

pub use self::{
    coverage::Coverage,
    oracle::Violation,
    planted::Bug,
    run::{Outcome, Setup, simulate},
};
