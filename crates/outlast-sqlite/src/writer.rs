//! The one thread that writes: it takes what waits, carries it out in one transaction, and answers when that is
//! durable. While the disk syncs, the next batch gathers by itself; nobody waits for a timer.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use outlast_core::{Hint, StoreClock, StoreError, Tally, TaskId, Timestamp};
use rusqlite::{Connection, config::DbConfig};

use crate::{
    Holder, Options, Role,
    batch::{Batch, KEPT_CHANGES, Pace, Served},
    error::{Failure, is_busy},
    lock::RuntimeLock,
    open,
    queue::{Job, Taken},
    shared::Shared,
};

pub(crate) struct Writer {
    shared: Arc<Shared>,
    options: Options,
    /// The file, by its one name.
    path: PathBuf,
    /// `None` after its disk failed, until it is opened again.
    connection: Option<Connection>,
    /// How many pages the log held after the last commit.
    wal_pages: Arc<AtomicUsize>,
    lock: Option<RuntimeLock>,
    /// Whether this process has the lock and has ended the leases of the one before it.
    runtime: bool,
    /// How often in a row the disk failed to make something durable.
    failures: u32,
    /// How often in a row writing the log back failed.
    failed_checkpoints: u32,
    /// Whether the last write failed, so that leases ran out without anyone's fault.
    outage: bool,
    last_commit: Option<Commit>,
    last_served: i64,
    /// What each worker serves, as the file says.
    served: Served,
    /// The last change that followers were told of, and the state of the file that it was read in.
    seen_change: i64,
    seen_version: i64,
}

struct Commit {
    took: Duration,
    /// On the monotonic clock.
    ended: Duration,
}

/// How a transaction went wrong.
enum Broken {
    /// It never began; neither would another.
    NotBegun(Failure),
    /// An operation failed; nothing was changed.
    Undone(Failure),
    /// The commit failed; whether it was kept is not known.
    Unknown(Failure),
}

/// How many leases of a dead process one transaction ends.
const VOIDED: u32 = 256;

/// What SQLite never gives as the version of a file's data.
const UNSEEN: i64 = -1;

/// After so many failures in a row to make something durable, the disk is not trusted again.
const MAX_FAILURES: u32 = 2;

impl Writer {
    /// A writer on a connection that was just opened, at the end of what the file says now.
    pub(crate) fn new(
        shared: Arc<Shared>,
        options: Options,
        path: PathBuf,
        connection: Connection,
    ) -> rusqlite::Result<Self> {
        let mut writer = Self {
            shared,
            options,
            path,
            connection: None,
            wal_pages: Arc::default(),
            lock: None,
            runtime: false,
            failures: 0,
            failed_checkpoints: 0,
            outage: false,
            last_commit: None,
            last_served: 0,
            served: Served::default(),
            seen_change: open::last_change(&connection)?,
            seen_version: data_version(&connection)?,
        };
        writer.adopt(connection)?;
        Ok(writer)
    }

    /// Tries to become the file's runtime, and ends the leases of the one before; says who is it instead.
    pub(crate) fn take_over(&mut self) -> Result<Result<(), Holder>, StoreError> {
        if self.lock.is_none() {
            let now = self.time().read(&self.options.clock).now;
            match RuntimeLock::take(&self.path, now).map_err(StoreError::unavailable)? {
                Ok(lock) => self.lock = Some(lock),
                Err(holder) => return Ok(Err(holder)),
            }
        }
        // In batches: others may write in between.
        while !self.runtime {
            let all = Timestamp::from_millis(i64::MAX);
            let voided = self.transact(|batch| {
                batch.forget_served()?;
                batch.end_leases(all, VOIDED)
            });
            let voided = voided.map_err(Broken::into_error)?;
            self.runtime = voided < VOIDED;
        }
        self.shared.runtime.store(true, Ordering::Relaxed);
        Ok(Ok(()))
    }

    /// After a take-over that failed: leaves nothing beside the file that was not there before.
    pub(crate) fn abandon(mut self, had_log: bool) {
        if !had_log {
            self.close();
        }
        if let Some(lock) = self.lock.take() {
            lock.abandon();
        }
    }

    /// Writes until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        // Whatever ends this thread, nobody is to wait for it.
        let _guard = FailOnExit(self.shared.clone());
        loop {
            let wait = self.shared.is_watched().then_some(self.options.poll);
            match self.shared.queue.take(wait) {
                Taken::Batch(jobs) => self.write(jobs),
                Taken::Idle => self.look_for_others(),
                // After the disk was given up nothing is synced any more, and what is there can still be read.
                Taken::Closed if self.is_given_up() => break,
                Taken::Closed => {
                    self.close();
                    break;
                }
            }
        }
    }

    // --- a batch

    fn write(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        if jobs.iter().any(|job| job.claims()) && self.options.role == Role::Auto {
            // A failure is no news to the claims: they hand out nothing until it works.
            if let Err(error) = self.take_over() {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot take over the file's work");
            }
        }
        let written = self.transact(|batch| jobs.iter_mut().try_for_each(|job| job.run(batch)));
        match written {
            Err(Broken::Undone(_)) if jobs.len() > 1 => self.write_singly(jobs),
            written => self.settle(jobs, written),
        }
        self.checkpoint_when_due();
    }

    /// One of them fails: each by itself, so that it fails alone.
    fn write_singly(&mut self, jobs: Vec<Box<dyn Job>>) {
        let mut jobs = jobs.into_iter();
        while let Some(mut job) = jobs.next() {
            let written = self.transact(|batch| job.run(batch));
            let stop = matches!(written, Err(Broken::Unknown(_) | Broken::NotBegun(_)));
            self.settle(vec![job], written);
            if stop {
                // What a claim got before an unknown commit is given back before anyone can claim it again.
                let rest = jobs.collect();
                return self.settle(rest, Err(Broken::NotBegun(Failure::Skipped)));
            }
        }
    }

    fn settle(&mut self, jobs: Vec<Box<dyn Job>>, written: Result<(), Broken>) {
        let outcome = written.map_err(|broken| {
            let error = broken.into_error();
            if self.is_given_up() { StoreError::fatal(error) } else { error }
        });
        if let Err(error) = &outcome {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                operations = jobs.len(),
                "a write failed"
            );
        }
        jobs.into_iter().for_each(|job| job.settle(outcome.clone()));
        if self.is_given_up() {
            self.shared.queue.fail(&StoreError::fatal("the disk failed twice to make a write durable"));
        }
    }

    /// Runs `body` in a transaction of its own; what it did is durable when this returns `Ok`.
    fn transact<R>(&mut self, body: impl FnOnce(&mut Batch<'_>) -> Result<R, Failure>) -> Result<R, Broken> {
        let connection = self.open().map_err(|error| Broken::NotBegun(error.into()))?;
        let written = self.transact_on(&connection, body);
        match &written {
            Ok(_) => self.failures = 0,
            Err(broken) => self.outage |= broken.is_outage(),
        }
        match &written {
            // Its file handles are not synced again: a disk that failed once may report success and have lost it.
            Err(Broken::Unknown(failure)) => {
                self.failures += u32::from(!failure.is_full());
                drop(connection);
            }
            Err(Broken::Undone(failure) | Broken::NotBegun(failure)) if failure.is_io() => drop(connection),
            _ if !connection.is_autocommit() => drop(connection),
            _ => self.connection = Some(connection),
        }
        written
    }

    fn transact_on<R>(
        &mut self,
        connection: &Connection,
        body: impl FnOnce(&mut Batch<'_>) -> Result<R, Failure>,
    ) -> Result<R, Broken> {
        let disk = self.options.disk.clone();
        let clock = self.options.clock.clone();
        let began = clock.monotonic();
        self.begin(connection).map_err(|error| Broken::NotBegun(error.into()))?;

        let mut others = Vec::new();
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mark = open::clock_mark(connection)?;
            let reading = {
                let mut time = self.time();
                if self.outage {
                    // Nobody could renew: the leases that ran out meanwhile are left alone for one more.
                    time.pause(&clock);
                }
                time.read_above(mark, &clock)
            };
            let (hints, seen) = changes_since(connection, self.seen_change)?;
            others = hints;
            let mut batch = Batch {
                connection,
                now: reading.now,
                settled: reading.settled,
                runtime: self.runtime,
                pace: self
                    .last_commit
                    .as_ref()
                    .map(|commit| Pace { took: commit.took, ago: began.saturating_sub(commit.ended) }),
                last_served: self.last_served,
                damaged: &self.shared.damaged,
                known_served: &self.served,
                served: Served::default(),
                lease: Duration::ZERO,
                changed: Vec::new(),
                tally: Tally::default(),
                dirty: false,
            };
            let result = body(&mut batch)?;
            let last = batch.finish(seen)?;
            let Batch { last_served, served, lease, changed, tally, dirty, .. } = batch;
            Ok((result, last, last_served, served, lease, changed, tally, dirty))
        }))
        .unwrap_or(Err(Failure::Panic));
        let (result, last_change, last_served, served, lease, changed, tally, dirty) = match ran {
            Ok(ran) => ran,
            Err(failure) => {
                // Some errors have undone the transaction already.
                if !connection.is_autocommit() {
                    // When even this fails, the open transaction makes the caller drop the connection.
                    let _ = connection.execute_batch("ROLLBACK");
                }
                return Err(Broken::Undone(failure));
            }
        };
        if let Err(error) = disk.commit(connection) {
            let failure = Failure::from(error);
            if failure.is_busy() && connection.execute_batch("ROLLBACK").is_ok() {
                return Err(Broken::NotBegun(failure));
            }
            return Err(Broken::Unknown(failure));
        }

        // Durable. Only now may anything in memory, or anyone, know.
        let ended = clock.monotonic();
        if dirty {
            self.last_commit = Some(Commit { took: ended.saturating_sub(began), ended });
        }
        self.last_served = last_served;
        self.served.extend(served);
        self.seen_change = last_change;
        self.time().observe_lease(lease);
        self.outage = false;
        tally.publish();
        others.into_iter().for_each(|hint| self.shared.hints.send(hint));
        changed.into_iter().for_each(|id| self.shared.hints.send(Hint::Changed(id)));
        Ok(result)
    }

    /// Begins a transaction when no other process writes.
    ///
    /// SQLite's own waiting looks ever more seldom, up to ten times a second, and would find a process that writes
    /// batch after batch between two of them only by luck.
    fn begin(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut tries = self.options.busy_timeout.as_millis();
        loop {
            match self.options.disk.begin(connection) {
                Err(error) if is_busy(error.sqlite_error_code()) && tries > 0 => {
                    tries -= 1;
                    thread::sleep(Duration::from_millis(1));
                }
                answer => return answer,
            }
        }
    }

    // --- the connection

    fn open(&mut self) -> rusqlite::Result<Connection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => {
                let connection = open::reopen(&self.path, self.options.busy_timeout)?;
                self.adopt(connection)?;
                // What the failed batch left in the file is found as any other process's changes are.
                self.seen_version = UNSEEN;
                self.connection.take().ok_or(rusqlite::Error::InvalidQuery)
            }
        }
    }

    fn adopt(&mut self, connection: Connection) -> rusqlite::Result<()> {
        let mut connection = connection;
        // `begin` does the waiting, and nothing after it has to.
        connection.busy_timeout(Duration::ZERO)?;
        let pages = self.wal_pages.clone();
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count| {
            pages.store(usize::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        self.connection = Some(connection);
        Ok(())
    }

    fn is_given_up(&self) -> bool {
        self.failures.max(self.failed_checkpoints) >= MAX_FAILURES
    }

    /// After the answers: a checkpoint is what a slow write is made of.
    fn checkpoint_when_due(&mut self) {
        if self.wal_pages.load(Ordering::Relaxed) < self.options.wal_pages {
            return;
        }
        let Some(connection) = self.connection.take() else { return };
        match self.options.disk.checkpoint(&connection).map_err(Failure::from) {
            Err(failure) if !failure.is_busy() && !failure.is_full() => {
                // The pages are still in the log, and are written again from there by another handle.
                tracing::warn!(error = &failure as &dyn std::error::Error, "a checkpoint failed");
                self.failed_checkpoints += 1;
                if self.is_given_up() {
                    self.shared.queue.fail(&StoreError::fatal(failure));
                }
            }
            _ => {
                self.failed_checkpoints = 0;
                self.wal_pages.store(0, Ordering::Relaxed);
                self.connection = Some(connection);
            }
        }
    }

    /// Drained: leaves one file behind, if nobody else uses it.
    fn close(&mut self) {
        self.shared.readers.close();
        if let Some(connection) = self.connection.take() {
            // The last connection to a file removes the log as it closes, unless writing it back has just failed: that
            // is not tried again on the same handle. Only the file's runtime may take itself for the last one. SQLite
            // sees the others by locks that a process loses when any of its code opens and closes the file, and a front
            // that removed the log from under a runtime would take acknowledged tasks with it.
            let written_back = match self.lock {
                Some(_) => self.options.disk.checkpoint(&connection).and_then(|()| {
                    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map(drop)
                }),
                None => Ok(()),
            };
            let closed = written_back.and_then(|()| connection.close().map_err(|(_, error)| error));
            if let Err(error) = closed {
                tracing::warn!(error = &error as &dyn std::error::Error, "the log stays beside the file");
            }
        }
        self.shared.hints.close();
    }

    // --- what other processes do

    fn look_for_others(&mut self) {
        // A failure here is found, and dealt with, by the next write.
        let Ok(connection) = self.open() else { return };
        if let Ok(version) = data_version(&connection)
            && version != self.seen_version
            && let Ok((hints, last)) = changes_since(&connection, self.seen_change)
        {
            (self.seen_version, self.seen_change) = (version, last);
            hints.into_iter().for_each(|hint| self.shared.hints.send(hint));
        }
        self.connection = Some(connection);
    }

    fn time(&self) -> MutexGuard<'_, StoreClock> {
        self.shared.time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Broken {
    fn into_error(self) -> StoreError {
        match self {
            Self::NotBegun(failure) | Self::Undone(failure) => failure.without_effect(),
            Self::Unknown(failure) => StoreError::unknown(failure),
        }
    }

    /// Whether it was the disk, and not the operation.
    fn is_outage(&self) -> bool {
        match self {
            Self::NotBegun(_) | Self::Unknown(_) => true,
            Self::Undone(failure) => failure.is_full() || failure.is_io(),
        }
    }
}

struct FailOnExit(Arc<Shared>);

impl Drop for FailOnExit {
    fn drop(&mut self) {
        self.0.queue.fail(&StoreError::fatal("the store is closed"));
        self.0.hints.close();
    }
}

/// Differs from its last value after another connection wrote.
fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

/// What followers are to be told about the changes after `seen`, and the last of them.
fn changes_since(connection: &Connection, seen: i64) -> Result<(Vec<Hint>, i64), Failure> {
    let mut statement = connection
        .prepare_cached("SELECT change, id FROM changes WHERE change > ?1 ORDER BY change LIMIT ?2")?;
    let mut rows = statement.query([seen, KEPT_CHANGES])?;
    let mut hints = Vec::new();
    let mut last = seen;
    while let Some(row) = rows.next()? {
        let change: i64 = row.get(0)?;
        if change != last + 1 {
            // Older ones were removed before they were seen here.
            hints.push(Hint::Gap);
        }
        last = change;
        hints.push(Hint::Changed(TaskId::from_bytes(row.get(1)?)));
    }
    Ok((hints, last))
}
