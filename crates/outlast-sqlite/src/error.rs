//! What can go wrong: opening a file, which a person at the machine reads about, and running a statement.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use outlast_core::{StoreError, Timestamp};
use rusqlite::{ErrorCode, types::FromSqlError};

/// Why a file could not be opened as a store. Nothing in the file was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is not an SQLite database.
    #[error("{} is not an SQLite database; give the path of a store, or of a file that does not exist yet", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// The file is an SQLite database of some other program.
    #[error("{} is an SQLite database of another program; give the path of a store, or of a file that does not exist yet", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// There is a folder where the file is to be.
    #[error("{} is a folder; give the path of a file", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// This user may not write there.
    #[error("this user may not write {}, or not its folder, which the store writes in too", path.display())]
    NotWritable {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a newer version of this crate.
    #[error(
        "{} has schema version {found} and this program knows versions up to {known}; run a newer version of it, or use another file",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version that it has.
        found: i64,
        /// The newest version that this crate knows.
        known: i64,
    },
    /// Another runtime serves the file.
    #[error("the runtime lock of {} is held by {holder}; stop that one first, or open the file as a front", path.display())]
    Held {
        /// The file.
        path: PathBuf,
        /// Who holds the lock.
        holder: Holder,
    },
    /// The file lies where SQLite cannot use its write-ahead log, such as on a network file system.
    #[error("{} lies on a file system without support for a write-ahead log; use a local disk", path.display())]
    NoWal {
        /// The file.
        path: PathBuf,
    },
    /// The lock file, or the directory, could not be used.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// SQLite refused.
    #[error("cannot open {}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SqliteError,
    },
    /// The file was opened, and the leases of the process before could not be ended.
    #[error("cannot take over the work in {}", path.display())]
    TakeOver {
        /// The file.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
}

impl OpenError {
    /// What a refusal of SQLite's means for a person who named the file `path`. Nothing is opened to find out: closing it
    /// again would free the locks that this process may have on it.
    pub(crate) fn of(path: &Path, error: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase { path },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::NotWritable { path },
            Some(ErrorCode::CannotOpen) => Self::nowhere(path),
            _ => Self::Sqlite { path, source: error.into() },
        }
    }

    /// Why there can be no file at `path`.
    fn nowhere(path: PathBuf) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match (path.metadata(), folder.metadata()) {
            (Ok(found), _) if found.is_dir() => Self::Folder { path },
            (Err(_), Err(source)) => Self::Io { path, source },
            (Err(_), Ok(folder)) if !folder.is_dir() => {
                Self::Io { path, source: io::ErrorKind::NotADirectory.into() }
            }
            _ => Self::NotWritable { path },
        }
    }
}

/// What SQLite said, once: `rusqlite` says it again as the source of its error.
#[derive(Debug)]
pub struct SqliteError(rusqlite::Error);

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            rusqlite::Error::SqliteFailure(error, Some(message)) => {
                write!(f, "{message} (SQLite's code {})", error.extended_code)
            }
            other => other.fmt(f),
        }
    }
}

impl std::error::Error for SqliteError {}

/// Who holds the runtime lock of a file, as far as it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holder {
    /// The number of the process.
    pub process: Option<u32>,
    /// When it took the lock.
    pub since: Option<Timestamp>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) if process == std::process::id() => f.write_str("this process")?,
            Some(process) => write!(f, "process {process}")?,
            None => f.write_str("another process")?,
        }
        let since = self.since.and_then(|since| chrono::DateTime::from_timestamp_millis(since.as_millis()));
        since.map_or(Ok(()), |since| write!(f, " since {}", since.format("%Y-%m-%d %H:%M:%S UTC")))
    }
}

/// Why an operation could not be carried out inside a transaction.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Sql(SqliteError),
    #[error(
        "row {number} of the table `tasks`, or what belongs to it in `journal`, `calls` or `bodies`, cannot be read"
    )]
    Damaged { number: i64, source: Box<Failure> },
    #[error("it is not the JSON of what it should be")]
    Json(#[from] serde_json::Error),
    #[error("it is not a value of the right type")]
    Value(#[from] FromSqlError),
    #[error("an operation panicked")]
    Panic,
    #[error("a write before this one failed")]
    Skipped,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error.into())
    }
}

/// Whether a code says that somebody else has the file locked.
pub(crate) fn is_busy(code: Option<ErrorCode>) -> bool {
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

impl Failure {
    /// As said of the task of this number, where it is about what the row holds.
    pub(crate) fn of_task(self, number: i64) -> Self {
        use rusqlite::Error as E;
        match self {
            Self::Json(_)
            | Self::Value(_)
            | Self::Sql(SqliteError(
                E::FromSqlConversionFailure(..) | E::InvalidColumnType(..) | E::IntegralValueOutOfRange(..),
            )) => Self::Damaged { number, source: Box::new(self) },
            other => other,
        }
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sql(SqliteError(error)) => error.sqlite_error_code(),
            _ => None,
        }
    }

    /// Whether the disk is full, which passes when somebody makes room.
    pub(crate) fn is_full(&self) -> bool {
        // The log's index is a file as well, and SQLite has no other word for its not growing.
        let extended = match self {
            Self::Sql(SqliteError(error)) => error.sqlite_error().map(|error| error.extended_code),
            _ => None,
        };
        self.code() == Some(ErrorCode::DiskFull) || extended == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
    }

    /// Whether other processes kept the file locked for too long.
    pub(crate) fn is_busy(&self) -> bool {
        is_busy(self.code())
    }

    /// Whether the disk itself failed, so that the connection's file handles are not to be trusted any more.
    pub(crate) fn is_io(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen))
    }

    /// What a caller is told when nothing was changed.
    pub(crate) fn without_effect(self) -> StoreError {
        match self.code() {
            _ if matches!(self, Self::Damaged { .. }) => StoreError::damaged(self),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::fatal(self),
            _ => StoreError::unavailable(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use rusqlite::ffi;

    use super::*;

    fn refused(extended_code: i32, message: &str) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(extended_code), Some(message.to_owned()))
    }

    #[test]
    fn a_place_that_may_not_be_written_is_said_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.db");
        for code in
            [ffi::SQLITE_READONLY, ffi::SQLITE_READONLY_DIRECTORY, ffi::SQLITE_PERM, ffi::SQLITE_CANTOPEN]
        {
            let error = OpenError::of(&path, refused(code, "raw words"));
            let expected = format!("this user may not write {}, or not its folder", path.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
            assert!(error.source().is_none(), "and nothing else");
        }
    }

    #[test]
    fn what_sqlite_said_is_said_once() {
        let failed = || refused(ffi::SQLITE_IOERR_READ, "disk I/O error");
        let error = OpenError::of(Path::new("tasks.db"), failed());
        assert_eq!(error.to_string(), "cannot open tasks.db");
        let source = error.source().unwrap();
        assert_eq!(source.to_string(), "disk I/O error (SQLite's code 266)");
        assert!(source.source().is_none());
        assert!(Failure::from(failed()).source().is_none());
    }
}
