//! Opening a file: checked before anything is changed, then brought to this version's schema.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use outlast_core::Timestamp;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, config::DbConfig};

use crate::OpenError;

/// Marks the file as ours: "OLst".
const APPLICATION_ID: i64 = 0x4f4c_7374;

/// The steps from an empty file to the newest schema; the file's `user_version` says how many were taken.
const MIGRATIONS: &[&str] =
    &[include_str!("schema/1.sql"), include_str!("schema/2.sql"), include_str!("schema/3.sql")];

/// A file that was accepted as a store.
pub(crate) struct Opened {
    /// For the writer.
    pub(crate) connection: Connection,
    /// The path that every other handle is to use.
    pub(crate) path: PathBuf,
    /// Whether its log stood beside it before.
    pub(crate) had_log: bool,
}

/// Opens `path` for the writer, creating and migrating it. A file that is refused is left as it was, and alone if it was
/// alone.
pub(crate) fn open(path: &Path, busy_timeout: Duration) -> Result<Opened, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let sql = |error| OpenError::of(path, error);
    // A whole path is never taken for a URI or for ":memory:".
    let absolute = std::path::absolute(path).map_err(io)?;
    let create = OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_READ_WRITE | NO_MUTEX;
    let had_log = has_log(&absolute);
    let mut connection = Connection::open_with_flags(&absolute, create).map_err(sql)?;
    // Before anything else: closing the file of a newer program must not write back what its log still holds.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(sql)?;
    if let Err(refusal) = accept(&mut connection, path, busy_timeout) {
        if !had_log {
            // The log is of this connection's making, and holds nothing. SQLite removes it with the last connection.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(sql)?;
        }
        return Err(refusal);
    }
    // The lock's name follows from the path: one file has one lock, by whatever link it is reached.
    let whole = absolute.canonicalize().map_err(io)?;
    Ok(Opened { connection, path: whole, had_log })
}

/// Whether a log, or its index, stands beside the file.
fn has_log(path: &Path) -> bool {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    ["-wal", "-shm"].iter().any(|ending| {
        let mut beside = OsString::from(&real);
        beside.push(ending);
        // What cannot be looked at is left alone.
        PathBuf::from(beside).try_exists().unwrap_or(true)
    })
}

/// Makes a store of this version of the file, or refuses it.
fn accept(connection: &mut Connection, path: &Path, busy_timeout: Duration) -> Result<(), OpenError> {
    let sql = |error| OpenError::of(path, error);
    connection.busy_timeout(busy_timeout).map_err(sql)?;
    check(connection, path)?;
    enter_wal(connection, path)?;
    migrate(connection).map_err(sql)?;
    settle(connection, busy_timeout).map_err(sql)?;
    // What is read before the lock is taken, so that damage there is found here.
    clock_mark(connection).and_then(|_| last_change(connection)).map_err(sql)?;
    Ok(())
}

/// A further connection: the file must be there.
pub(crate) fn reopen(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | NO_MUTEX)?;
    settle(&connection, busy_timeout)?;
    Ok(connection)
}

/// A connection for reads alone. It is opened for writing because a reader of a write-ahead log shares its index.
pub(crate) fn reader(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let connection = reopen(path, busy_timeout)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// The latest time that the store knew.
pub(crate) fn clock_mark(connection: &Connection) -> rusqlite::Result<Timestamp> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE name = 'clock'")?;
    Ok(Timestamp::from_millis(statement.query_row([], |row| row.get(0))?))
}

/// The last change that followers may be told of.
pub(crate) fn last_change(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("SELECT coalesce(max(change), 0) FROM changes")?.query_row([], |row| row.get(0))
}

/// Each connection is behind a lock of ours already.
const NO_MUTEX: OpenFlags = OpenFlags::SQLITE_OPEN_NO_MUTEX;

fn check(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    // One snapshot: another process may be creating the store at this moment.
    let (application, found, objects) = snapshot(connection).map_err(|error| OpenError::of(path, error))?;
    let known = MIGRATIONS.len() as i64;
    match application {
        APPLICATION_ID if found > known => Err(OpenError::Newer { path: path.to_owned(), found, known }),
        APPLICATION_ID => Ok(()),
        0 if objects == 0 && found == 0 => Ok(()),
        _ => Err(OpenError::Foreign { path: path.to_owned() }),
    }
}

/// The application id, the user version, and how many tables and indexes there are.
fn snapshot(connection: &Connection) -> rusqlite::Result<(i64, i64, i64)> {
    let transaction = connection.unchecked_transaction()?;
    let pragma = |name| transaction.pragma_query_value(None, name, |row| row.get(0));
    let count = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok((pragma("application_id")?, pragma("user_version")?, count))
}

/// How often entering the write-ahead log is tried while another process does the same: SQLite does not wait there.
const ENTER_TRIES: u32 = 100;

fn enter_wal(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let mut tries = 0;
    let mode: String = loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && tries < ENTER_TRIES =>
            {
                tries += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            answer => break answer.map_err(|error| OpenError::of(path, error))?,
        }
    };
    if mode == "wal" { Ok(()) } else { Err(OpenError::NoWal { path: path.to_owned() }) }
}

fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    // Another process may be doing the same: what is missing is known only once this one may write.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let taken: usize =
        transaction.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0))? as usize;
    if taken < MIGRATIONS.len() {
        for step in &MIGRATIONS[taken..] {
            transaction.execute_batch(step)?;
        }
        transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    transaction.commit()
}

fn settle(connection: &Connection, busy_timeout: Duration) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA fullfsync = ON;
         PRAGMA checkpoint_fullfsync = ON;
         PRAGMA mmap_size = 0;
         PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;",
    )
}
