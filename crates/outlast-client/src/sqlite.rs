//! Handles in an SQLite file.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};

use crate::{
    saved::SavedTask,
    store::{HandleStore, blocking},
};

/// Marks the file as ours: "OLch".
const APPLICATION_ID: i64 = 0x4f4c_6368;
/// The layout that this version writes.
const LAYOUT: i64 = 1;
/// How long a statement waits for another process.
const BUSY: Duration = Duration::from_secs(5);
/// How often entering the write-ahead log is tried while another process does the same: SQLite does not wait there.
const ENTER_TRIES: u32 = 100;

/// Handles in one SQLite file, readable by its owner alone. Of the feature `sqlite`.
///
/// Better than [`DirStore`](crate::DirStore) where there are many tasks at once, or where one file is easier to keep. Several
/// processes may share the file, which must lie on a local disk.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("handles.db");
/// use outlast_client::SqliteStore;
/// let store = SqliteStore::open(&path)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct SqliteStore {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteStore {
    /// Opens a file, and makes it where it is missing.
    ///
    /// # Errors
    ///
    /// When it cannot be opened, or is of another program or of a later version, which leaves it as it is.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        // A whole path is never taken for a URI or for ":memory:".
        let path = std::path::absolute(path)?;
        make(&path)?;
        let mut connection = Connection::open(&path).map_err(io::Error::other)?;
        connection.busy_timeout(BUSY).map_err(io::Error::other)?;
        accept(&connection)?;
        settle(&mut connection).map_err(io::Error::other)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let connection = self.connection.clone();
        blocking(move || {
            work(&connection.lock().unwrap_or_else(PoisonError::into_inner)).map_err(io::Error::other)
        })
        .await
    }
}

impl HandleStore for SqliteStore {
    fn save<'a>(&'a self, task: &'a SavedTask) -> BoxFuture<'a, io::Result<()>> {
        let (server, id, saved) = (task.server.clone(), task.task_id.clone(), task.to_json());
        Box::pin(self.run(move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO handles (server, task_id, saved) VALUES (?1, ?2, ?3)
                     ON CONFLICT (server, task_id) DO UPDATE SET saved = excluded.saved",
                )?
                .execute(params![server, id, saved])
                .map(drop)
        }))
    }

    fn remove<'a>(&'a self, server: &'a str, task_id: &'a str) -> BoxFuture<'a, io::Result<()>> {
        let (server, id) = (server.to_owned(), task_id.to_owned());
        Box::pin(self.run(move |connection| {
            connection
                .prepare_cached("DELETE FROM handles WHERE server = ?1 AND task_id = ?2")?
                .execute([server, id])
                .map(drop)
        }))
    }

    fn list<'a>(&'a self, server: &'a str) -> BoxFuture<'a, io::Result<Vec<SavedTask>>> {
        let server = server.to_owned();
        Box::pin(self.run(move |connection| {
            let mut statement = connection.prepare_cached("SELECT saved FROM handles WHERE server = ?1")?;
            let rows = statement.query_map([server], |row| row.get::<_, String>(0))?;
            let mut tasks = Vec::new();
            for text in rows {
                // One damaged row hides no other task.
                match text.map(|text| SavedTask::from_json(&text)) {
                    Ok(Ok(task)) => tasks.push(task),
                    Ok(Err(error)) => tracing::warn!(%error, "the row of a handle was passed over"),
                    Err(error @ rusqlite::Error::InvalidColumnType(..)) => {
                        tracing::warn!(%error, "the row of a handle was passed over");
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(tasks)
        }))
    }
}

/// Makes the file, for its owner alone; SQLite gives what it lays beside it the same permissions.
fn make(path: &Path) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Looks at the file before anything of it is changed.
fn accept(connection: &Connection) -> io::Result<()> {
    let look = || -> rusqlite::Result<(i64, i64, bool)> {
        let snapshot = connection.unchecked_transaction()?;
        let pragma = |name| snapshot.pragma_query_value(None, name, |row| row.get(0));
        let any = snapshot.query_row("SELECT 1 FROM sqlite_schema LIMIT 1", [], |_| Ok(())).optional()?;
        Ok((pragma("application_id")?, pragma("user_version")?, any.is_none()))
    };
    match look().map_err(io::Error::other)? {
        (APPLICATION_ID, layout, _) if layout > LAYOUT => Err(io::Error::other(format!(
            "the file of handles was written by a later version (layout {layout}); open it with that version"
        ))),
        (APPLICATION_ID, ..) | (0, 0, true) => Ok(()),
        _ => Err(io::Error::other("the file is an SQLite file of something else; it was left as it is")),
    }
}

fn settle(connection: &mut Connection) -> rusqlite::Result<()> {
    let mut tries = 0;
    while let Err(error) = connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())) {
        tries += 1;
        if error.sqlite_error_code() != Some(ErrorCode::DatabaseBusy) || tries == ENTER_TRIES {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // What is removed may be secret, and is overwritten.
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA secure_delete = ON;")?;
    // Another process may be doing the same: what is missing is known only once this one may write.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let layout: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if layout == 0 {
        transaction.execute_batch(
            "CREATE TABLE handles (
                 server TEXT NOT NULL,
                 task_id TEXT NOT NULL,
                 saved TEXT NOT NULL, -- what `SavedTask::to_json` gives
                 PRIMARY KEY (server, task_id)
             ) STRICT, WITHOUT ROWID;",
        )?;
        transaction.pragma_update(None, "user_version", LAYOUT)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    transaction.commit()
}
