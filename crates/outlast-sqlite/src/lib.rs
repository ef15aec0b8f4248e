//! The embedded store of Outlast: durable tasks in one SQLite file, with no service to run.
//!
//! ```
//! use outlast_core::{Call, Created, NewTask, Owner, Payload, Spec, Store, TaskId};
//! use outlast_sqlite::SqliteStore;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("tasks.db");
//! # futures::executor::block_on(async {
//! let store = SqliteStore::open(&path)?;
//! let id = TaskId::from_bytes([7; 16]);
//! let new = NewTask::new(id, Owner::anonymous(), Spec::new("greet"), Call::new(Payload::null()));
//! let Created::Created { task, .. } = store.create(new, None).await? else { panic!("it is new") };
//! store.close().await;
//!
//! // The task is still there, whatever became of the process that created it.
//! let store = SqliteStore::open(&path)?;
//! assert_eq!(store.get(id).await?, Some(task));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a write answers is on disk before the answer leaves. One thread writes; while the disk syncs, the next batch
//! gathers by itself, so that many callers share a sync and a lone one waits for nothing. Reads take the caller's own
//! thread and never wait for writes.
//!
//! One process is the *runtime* of a file and holds its lock (`<file>.lock`); any number of others may open it as
//! *fronts* ([`Role`]), to create, read, answer and cancel. The file must lie on a local disk.
//!
//! A task that cannot be read, because something else wrote to its rows or the disk lost them, is passed over and logged once
//! with the number of its row; everything else goes on.
//!
//! No other code of a process that has the store open may open the file, its `-wal` or its `-shm`, not even to read or
//! copy them: when it closes them again the operating system drops SQLite's locks on them. To copy a store, use SQLite's
//! own `VACUUM INTO` or backup from another process.
#![deny(missing_docs)]

mod batch;
mod claim;
mod clock;
mod damaged;
mod disk;
mod error;
mod job;
mod lock;
mod open;
mod options;
mod queue;
mod read;
mod row;
mod shared;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
mod transfer;
mod writer;

pub use clock::SystemClock;
pub use error::{Holder, OpenError, SqliteError};
pub use options::{Options, Role};
pub use store::SqliteStore;
