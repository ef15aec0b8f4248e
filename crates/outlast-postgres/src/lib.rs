//! The store of Outlast for many replicas: durable tasks in one PostgreSQL database.
//!
//! ```no_run
//! use outlast_core::{Call, Created, NewTask, Owner, Payload, Spec, Store, TaskId};
//! use outlast_postgres::{Options, PostgresStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "postgres://outlast:secret@db.example/outlast?sslmode=verify-full";
//! let store = PostgresStore::connect(url, Options::default()).await?;
//! let id = TaskId::from_bytes([7; 16]);
//! let new = NewTask::new(id, Owner::anonymous(), Spec::new("greet"), Call::new(Payload::null()));
//! let Created::Created { task, .. } = store.create(new, None).await? else { panic!("it is new") };
//!
//! // Any other replica reads it at once.
//! let other = PostgresStore::connect(url, Options::default()).await?;
//! assert_eq!(other.get(id).await?, Some(task));
//! # Ok(()) }
//! ```
//!
//! Replicas share the database and nothing else; a request may go to any of them. What a write answers is committed before
//! the answer leaves. Each replica writes what its callers say in batches, one transaction of two round trips for
//! hundreds of operations, so that many callers share a commit and a lone one waits for nothing. Work is handed out under
//! locks of rows, its leases are judged by the database's clock, and a worker whose lease was taken over is fenced by its
//! token.
//!
//! Reads see every change that was acknowledged before they began, on whatever replica. Hints of changes come from other
//! replicas by `NOTIFY`, one for each batch; a lost one costs latency alone.
//!
//! When the database is away, calls fail as [`Unavailable`](outlast_core::StoreError::Unavailable), or as
//! [`Unknown`](outlast_core::StoreError::Unknown) where a commit was on its way, and work again when it is back.
//!
//! Through a pooler that shares connections by the transaction everything works but the change feed, which needs
//! [`Options::direct_url`]; PgBouncer before 1.21 needs [`Options::prepared`] set to `false`.
#![deny(missing_docs)]

mod batch;
mod claim;
mod clock;
mod damaged;
mod digest;
mod error;
mod feed;
mod job;
mod load;
mod open;
mod options;
mod queue;
mod quota;
mod read;
mod row;
mod save;
mod session;
mod shared;
mod store;
mod sweep;
mod taker;
mod tls;
mod transfer;
mod url;
mod writer;

// What the tests in `tests` open a database with serves those in here too.
#[cfg(test)]
extern crate self as outlast_postgres;
#[cfg(test)]
#[path = "../tests/harness/mod.rs"]
mod harness;

pub use clock::Skew;
pub use error::{OpenError, PostgresError};
pub use options::Options;
pub use store::PostgresStore;
