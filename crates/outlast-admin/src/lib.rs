//! The operator's side of Outlast: a page and an API that show the tasks of a store, answer, cancel and retry them, on a
//! listener of their own.
//!
//! ```
//! use std::sync::Arc;
//! use outlast_admin::{Admin, AdminToken, Options};
//! use outlast_core::{ManualClock, MemoryStore, Timestamp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(MemoryStore::new(ManualClock::new(Timestamp::from_millis(0))));
//! let token = AdminToken::random()?;
//! println!("http://127.0.0.1:8809/ui#token={}", token.as_str());
//! let admin = Admin::new(store, token, Options::default());
//! // Serve it where only operators get to: on this machine, or behind TLS.
//! let router: axum::Router = admin.router();
//! # let _ = router; Ok(()) }
//! ```
//!
//! | | |
//! |---|---|
//! | `GET /ui` | the page |
//! | `GET /api/tasks?status=&tool=&owner=&after=&max=` | tasks in short, newest first |
//! | `GET /api/tasks/{id}?values=true` | all of a task: its call, what it waits for, its questions, history and end; values of steps and answers where asked for |
//! | `POST /api/tasks/{id}/answers` | answers, as `{KEY: RESULT}`; all are taken or none |
//! | `POST /api/tasks/{id}/cancel` | asks for its end |
//! | `POST /api/tasks/{id}/retry` | starts a failed one again as a new one, in another version with `{"toolVersion": ...}` |
//! | `GET /api/changes` | the ids of tasks that changed, as an event stream |
//! | `GET /api/counts` | how many tasks there are of each status, how many a worker has, and how many wait for one |
//! | `GET /metrics` | the same and what else is measured, for Prometheus |
//! | `GET /healthz`, `GET /readyz` | whether the process lives; whether its store answers |
//!
//! `/api/*` and `/metrics` want the token (`Authorization: Bearer TOKEN`). Whoever has it sees and answers the tasks of all owners.
//!
//! What the process measured, by the facade `metrics`, is on `/metrics` too where [`Options::measured`] gives it: calls, ends,
//! latencies and the rest that the crate page of `outlast` lists.
//!
//! ```
//! use std::sync::Arc;
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let buckets = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 3_600.0];
//! let recorder = PrometheusBuilder::new()
//!     .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &buckets)?
//!     .install_recorder()?;
//! // Where nobody may scrape for long, `recorder.run_upkeep()` now and then keeps what was recorded small.
//! outlast_core::describe_tally(); // in a server: outlast::describe_metrics()
//! let mut options = outlast_admin::Options::default();
//! options.measured = Some(Arc::new(move || recorder.render()));
//! # let _ = options; Ok(()) }
//! ```
//!
//! What the API does to a store is in [`operate`], and how a task is told in [`view`], [`why`] and [`history`], for other ways to be an
//! operator: `outlast tasks` at a terminal is one.
#![deny(missing_docs)]

mod admin;
pub mod answer;
mod api;
mod changes;
pub mod form;
mod guard;
pub mod history;
mod metrics;
pub mod operate;
mod owners;
mod page;
pub mod text;
mod token;
pub mod view;
pub mod why;

pub use admin::{Admin, Measured, Options};
pub use answer::Unfit;
pub use operate::Refusal;
pub use token::{AdminToken, InvalidToken};
