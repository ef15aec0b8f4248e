//! Reads, on the caller's own thread: a hop to another one costs ten times what they do.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    Call, Counts, Filter, Head, JournalPage, Owner, Status, StoreError, Task, TaskId, Timestamp, ToolVersion,
    WorkerSeen,
};
use rusqlite::{Connection, OptionalExtension, params};

use crate::{
    damaged::Damaged,
    error::Failure,
    open,
    row::{self, select_task},
};

/// A few connections that read. Each statement is its own snapshot, so none holds back a checkpoint for long.
pub(crate) struct Readers {
    path: PathBuf,
    busy_timeout: Duration,
    connections: Vec<Mutex<Option<Connection>>>,
    next: AtomicUsize,
    closed: AtomicBool,
}

impl Readers {
    pub(crate) fn new(path: &Path, busy_timeout: Duration, count: usize) -> Self {
        Self {
            path: path.to_owned(),
            busy_timeout,
            connections: (0..count.max(1)).map(|_| Mutex::new(None)).collect(),
            next: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Reads on a connection that is free.
    pub(crate) fn read<R>(
        &self,
        body: impl FnOnce(&Connection) -> Result<R, Failure>,
    ) -> Result<R, StoreError> {
        let mut slot = self.free();
        // Looked at while the slot is held, so that none is opened after `close`.
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::fatal("the store is closed"));
        }
        let connection = match slot.take() {
            Some(connection) => connection,
            None => open::reader(&self.path, self.busy_timeout)
                .map_err(|error| Failure::from(error).without_effect())?,
        };
        match body(&connection) {
            Err(failure) if failure.is_io() => Err(failure.without_effect()),
            answer => {
                *slot = Some(connection);
                answer.map_err(Failure::without_effect)
            }
        }
    }

    /// Closes every connection, and opens none again.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for connection in &self.connections {
            connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    fn free(&self) -> MutexGuard<'_, Option<Connection>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let (before, after) = self.connections.split_at(first);
        let free = after.iter().chain(before).find_map(|slot| slot.try_lock().ok());
        free.unwrap_or_else(|| self.connections[first].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) fn task(connection: &Connection, id: TaskId) -> Result<Option<Task>, Failure> {
    Ok(row::load(connection, id)?.map(|row| row.task))
}

pub(crate) fn call(connection: &Connection, id: TaskId) -> Result<Option<Call>, Failure> {
    match row::number(connection, id)? {
        Some(number) => row::call(connection, number),
        None => Ok(None),
    }
}

pub(crate) fn journal(
    connection: &Connection,
    id: TaskId,
    after_seq: u64,
    max_bytes: u64,
) -> Result<JournalPage, Failure> {
    let mut page = JournalPage::default();
    let Some(number) = row::number(connection, id)? else { return Ok(page) };
    let mut statement = connection.prepare_cached(
        "SELECT seq, at, kind, key, body FROM journal WHERE number = ?1 AND seq > ?2 ORDER BY seq",
    )?;
    let mut rows = statement.query(params![number, i64::try_from(after_seq).unwrap_or(i64::MAX)])?;
    let mut size = 0;
    while let Some(row) = rows.next()? {
        let entry = row::entry(row).map_err(|failure| failure.of_task(number))?;
        size += entry.size();
        if size > max_bytes && !page.entries.is_empty() {
            page.more = true;
            break;
        }
        page.entries.push(entry);
    }
    Ok(page)
}

pub(crate) fn heads(connection: &Connection, ids: &[TaskId]) -> Result<Vec<Option<Head>>, Failure> {
    let mut statement = connection.prepare_cached("SELECT revision, status FROM tasks WHERE id = ?1")?;
    let mut head = |id: &TaskId| {
        let head = statement.query_row([id.as_bytes()], |row| {
            let is_final = status(row.get(1)?).is_none_or(Status::is_final);
            Ok(Head { revision: row.get(0)?, is_final })
        });
        Ok(head.optional()?)
    };
    ids.iter().map(&mut head).collect()
}

/// How many tasks are ready, and since when the first of them is: of each owner that may have one, by the index, and of the
/// leases that ran out. What is parked, queued for later or held costs nothing, however much of it there is.
pub(crate) const READY: &str = "SELECT count(*), min(ready_at) FROM (
      SELECT t.number, t.ready_at FROM owners o CROSS JOIN tasks t INDEXED BY tasks_by_ready ON t.owner = o.owner
      WHERE o.ready_from <= ?1 AND t.leased = 0 AND t.ready_at IS NOT NULL AND t.ready_at <= ?1
      UNION ALL
      SELECT number, ready_at FROM tasks INDEXED BY tasks_by_lease WHERE leased = 1 AND ready_at <= ?1)
    WHERE number NOT IN (SELECT value FROM json_each(?2))";

pub(crate) fn counts(connection: &Connection, damaged: &Damaged, now: Timestamp) -> Result<Counts, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT coalesce(sum(working), 0), coalesce(sum(input_required), 0), coalesce(sum(completed), 0),
         coalesce(sum(failed), 0), coalesce(sum(cancelled), 0), coalesce(sum(leased), 0) FROM owners",
    )?;
    let mut counts = statement.query_row([], |row| {
        let mut counts = Counts { leased: row.get(5)?, ..Counts::default() };
        for status in Status::ALL {
            counts.by_status[status as usize] = row.get(status as usize)?;
        }
        Ok(counts)
    })?;
    let mut statement = connection.prepare_cached(READY)?;
    let since: Option<i64>;
    (counts.ready, since) = statement
        .query_row(params![now.as_millis(), damaged.numbers()?], |row| Ok((row.get(0)?, row.get(1)?)))?;
    counts.oldest_ready = since.map(|since| now.since(Timestamp::from_millis(since)));
    Ok(counts)
}

pub(crate) fn workers(connection: &Connection) -> Result<Vec<WorkerSeen>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT w.worker, w.per_owner, s.tool, s.version FROM workers w
         LEFT JOIN served s ON s.worker = w.worker ORDER BY w.worker",
    )?;
    let mut rows = statement.query([])?;
    let mut workers: Vec<(String, u32, Vec<ToolVersion>)> = Vec::new();
    while let Some(row) = rows.next()? {
        let worker: String = row.get(0)?;
        if workers.last().is_none_or(|(last, ..)| *last != worker) {
            workers.push((worker, row.get(1)?, Vec::new()));
        }
        let (tool, version): (Option<String>, Option<String>) = (row.get(2)?, row.get(3)?);
        if let (Some((.., serves)), Some(tool), Some(version)) = (workers.last_mut(), tool, version) {
            serves.push(ToolVersion { tool, version });
        }
    }
    let seen =
        |(_, per_owner, serves): (String, u32, Vec<_>)| WorkerSeen { serves: serves.into(), per_owner };
    Ok(workers.into_iter().map(seen).collect())
}

pub(crate) fn running(connection: &Connection, owner: &Owner) -> Result<u32, Failure> {
    let mut statement = connection.prepare_cached("SELECT running FROM owners WHERE name = ?1")?;
    Ok(statement.query_row([owner.as_str()], |row| row.get(0)).optional()?.unwrap_or_default())
}

/// The tasks that `filter` lets through, newest first, from before number `before`, with their numbers.
pub(crate) fn list(
    connection: &Connection,
    damaged: &Damaged,
    filter: &Filter,
    before: i64,
    max: u32,
) -> Result<Vec<(i64, Task)>, Failure> {
    let mut statement = connection.prepare_cached(select_task!(
        "WHERE t.number < ?1
         AND (?2 IS NULL OR t.owner = (SELECT owner FROM owners WHERE name = ?2))
         AND (?3 IS NULL OR t.status = ?3)
         AND (?4 IS NULL OR t.tool IN (SELECT tool FROM tools WHERE name = ?4))
         ORDER BY t.number DESC"
    ))?;
    let mut rows = statement.query(params![
        before,
        filter.owner.as_ref().map(outlast_core::Owner::as_str),
        filter.status.map(|status| status as i64),
        filter.tool,
    ])?;
    let mut tasks = Vec::new();
    // Not limited by the statement, which does not know what is passed over.
    while tasks.len() < max as usize
        && let Some(row) = rows.next()?
    {
        tasks.extend(damaged.pass_over(row::read(connection, row))?.map(|row| (row.number, row.task)));
    }
    Ok(tasks)
}

fn status(place: i64) -> Option<Status> {
    Status::ALL.get(usize::try_from(place).ok()?).copied()
}
