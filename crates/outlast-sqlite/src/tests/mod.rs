//! Tests that need a hand inside: a disk that waits and fails on command.

mod damaged;
mod group_commit;
mod outage;
mod plans;
mod settings;
mod shutdown;
mod sweeping;

use std::{
    collections::VecDeque,
    future::Future,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, executor::block_on, future::BoxFuture};
use outlast_core::{ManualClock, Timestamp};
use rusqlite::{Connection, ErrorCode, ffi};
use tempfile::TempDir;

use crate::{Options, SqliteStore, disk::Disk};

/// A store on a disk that does as it is told, in a directory of its own.
struct Rig {
    /// First to be dropped: a test that fails while commits are held is not to wait for its own writer.
    _release: ReleaseOnDrop,
    store: SqliteStore,
    disk: Arc<TestDisk>,
    clock: ManualClock,
    path: PathBuf,
    _directory: TempDir,
}

impl Rig {
    fn new() -> Self {
        Self::with(|options| options)
    }

    fn with(change: impl FnOnce(Options) -> Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tasks.db");
        let clock = ManualClock::new(Timestamp::from_millis(1_000_000));
        let disk =
            Arc::new(TestDisk { clock: clock.clone(), state: Mutex::default(), changed: Condvar::new() });
        let options = Options { disk: disk.clone(), ..Options::default().clock(clock.clone()) };
        let store = SqliteStore::open_with(&path, change(options)).unwrap();
        *disk.state() = State::default();
        Self { _release: ReleaseOnDrop(disk.clone()), store, disk, clock, path, _directory: directory }
    }

    /// Puts the writer to work on something small, and holds it at its commit: what is sent now gathers behind it.
    fn busy<'a, T: Send + 'a>(&self, first: impl Future<Output = T> + Send + 'a) -> Sent<'a, T> {
        self.disk.hold();
        let first = sent(first);
        self.disk.until_held();
        first
    }
}

struct ReleaseOnDrop(Arc<TestDisk>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A call whose operation is on its way.
type Sent<'a, T> = BoxFuture<'a, T>;

/// Sends a call without waiting for its answer.
fn sent<'a, T: Send + 'a>(call: impl Future<Output = T> + Send + 'a) -> Sent<'a, T> {
    let mut call = call.boxed();
    assert!(call.as_mut().now_or_never().is_none(), "the writer does not answer yet");
    call
}

/// Waits for the answer.
fn answer<T>(call: Sent<'_, T>) -> T {
    block_on(call)
}

/// What becomes of a commit.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// Nothing is kept, and this error comes.
    Lost(ffi::ErrorCode, i32),
    /// It is kept, and this error comes all the same.
    Kept(ffi::ErrorCode, i32),
    /// It is kept, and takes this long.
    Slow(Duration),
}

const FSYNC: (ErrorCode, i32) = (ErrorCode::SystemIoFailure, ffi::SQLITE_IOERR_FSYNC);
const FULL: (ErrorCode, i32) = (ErrorCode::DiskFull, ffi::SQLITE_FULL);

struct TestDisk {
    clock: ManualClock,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many commits may go on; all, if it is `None`.
    permits: Option<usize>,
    /// Whether one is waiting for that.
    waiting: bool,
    commits: usize,
    checkpoints: usize,
    fates: VecDeque<Fate>,
    failing_checkpoints: usize,
    /// The most pages that the file may have.
    max_pages: Option<u32>,
}

impl TestDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no commit go on.
    fn hold(&self) {
        self.state().permits = Some(0);
    }

    /// Waits until a commit is held.
    fn until_held(&self) {
        let moving = |state: &mut State| !state.waiting || state.permits != Some(0);
        drop(self.changed.wait_while(self.state(), moving).unwrap());
    }

    /// Lets one commit go on, and waits until the next is held.
    fn step(&self) {
        self.state().permits = Some(1);
        self.changed.notify_all();
        self.until_held();
    }

    /// Lets every commit go on.
    fn release(&self) {
        self.state().permits = None;
        self.changed.notify_all();
    }

    /// Waits until so many checkpoints were begun.
    fn until_checkpoints(&self, count: usize) {
        drop(self.changed.wait_while(self.state(), |state| state.checkpoints < count).unwrap());
    }

    fn fail_commits(&self, fates: impl IntoIterator<Item = Fate>) {
        self.state().fates.extend(fates);
    }

    fn commits(&self) -> usize {
        self.state().commits
    }
}

impl Disk for TestDisk {
    fn begin(&self, connection: &Connection) -> rusqlite::Result<()> {
        assert!(!is_spoilt(connection), "a connection is written to after its disk failed");
        if let Some(pages) = self.state().max_pages {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        }
        connection.execute_batch("BEGIN IMMEDIATE")
    }

    fn commit(&self, connection: &Connection) -> rusqlite::Result<()> {
        assert!(!is_spoilt(connection), "a connection is synced after its disk failed");
        let mut state = self.state();
        state.waiting = true;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.permits == Some(0)).unwrap();
        state.permits = state.permits.map(|permits| permits - 1);
        state.waiting = false;
        state.commits += 1;
        let fate = state.fates.pop_front();
        drop(state);
        match fate {
            None => connection.execute_batch("COMMIT"),
            Some(Fate::Slow(took)) => {
                self.clock.advance(took);
                connection.execute_batch("COMMIT")
            }
            Some(Fate::Kept(code, extended_code)) => {
                connection.execute_batch("COMMIT")?;
                spoil(connection);
                Err(error(code, extended_code))
            }
            Some(Fate::Lost(code, extended_code)) => {
                connection.execute_batch("ROLLBACK")?;
                spoil(connection);
                Err(error(code, extended_code))
            }
        }
    }

    fn checkpoint(&self, connection: &Connection) -> rusqlite::Result<()> {
        assert!(!is_spoilt(connection), "a connection is synced after its disk failed");
        let mut state = self.state();
        state.checkpoints += 1;
        self.changed.notify_all();
        if state.failing_checkpoints > 0 {
            state.failing_checkpoints -= 1;
            drop(state);
            spoil(connection);
            return Err(error(FSYNC.0, FSYNC.1));
        }
        drop(state);
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
    }
}

fn error(code: ErrorCode, extended_code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error { code, extended_code }, None)
}

/// Marks a connection, so that using it again shows.
fn spoil(connection: &Connection) {
    connection.execute_batch("CREATE TEMP TABLE spoilt (x)").unwrap();
}

fn is_spoilt(connection: &Connection) -> bool {
    let sql = "SELECT count(*) FROM temp.sqlite_schema WHERE name = 'spoilt'";
    connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() > 0
}
