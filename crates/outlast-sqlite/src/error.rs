//! What can go wrong: opening a file, which a person at the machine reads about, and running a statement.

use std::{fmt, io, path::PathBuf};

use outlast_core::{StoreError, Timestamp};
use rusqlite::ErrorCode;

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
        source: rusqlite::Error,
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
    Sql(#[from] rusqlite::Error),
    #[error("a row could not be read as a task")]
    Row(#[from] serde_json::Error),
    #[error("an operation panicked")]
    Panic,
    #[error("a write before this one failed")]
    Skipped,
}

impl From<rusqlite::types::FromSqlError> for Failure {
    fn from(error: rusqlite::types::FromSqlError) -> Self {
        Self::Sql(error.into())
    }
}

/// Whether a code says that somebody else has the file locked.
pub(crate) fn is_busy(code: Option<ErrorCode>) -> bool {
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

impl Failure {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sql(error) => error.sqlite_error_code(),
            _ => None,
        }
    }

    /// Whether the disk is full, which passes when somebody makes room.
    pub(crate) fn is_full(&self) -> bool {
        // The log's index is a file as well, and SQLite has no other word for its not growing.
        let extended = match self {
            Self::Sql(error) => error.sqlite_error().map(|error| error.extended_code),
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
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::fatal(self),
            _ => StoreError::unavailable(self),
        }
    }
}
