//! What can go wrong: opening a store, which a person reads about, and running a statement.

use std::{fmt, sync::Arc, time::Duration};

use outlast_core::StoreError;
use tokio_postgres::error::{DbError, SqlState};

/// Why a database could not be opened as a store. Nothing in it was changed. No message holds the URL, which has a
/// password in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is none that this store understands.
    #[error(
        "the URL of the database cannot be used: {0}; it has the form postgres://user:password@host:5432/database"
    )]
    Url(String),
    /// The name cannot be that of a schema.
    #[error("'{0}' cannot be the name of a schema; give 1 to 63 bytes that do not begin with pg_")]
    Name(String),
    /// The database does not answer, or lets nobody in.
    #[error(
        "cannot connect to the database; see that it runs and that the URL names it, its user and its password"
    )]
    Unreachable(#[source] PostgresError),
    /// The database keeps texts in another encoding.
    #[error("the database has the encoding {0}; use one that was created with UTF8")]
    Encoding(String),
    /// The schema has tables that are not ours.
    #[error("the schema {0} has tables of another program; name one that is empty or does not exist yet")]
    Foreign(String),
    /// The schema was written by a newer version of this crate.
    #[error(
        "the schema {schema} has version {found} and this program knows versions up to {known}; run a newer version of \
         it, or use another schema"
    )]
    Newer {
        /// The schema.
        schema: String,
        /// The version that it has.
        found: i64,
        /// The newest version that this crate knows.
        known: i64,
    },
    /// The user may not do in the schema what a store must.
    #[error(
        "the user of the database may not create or use the tables of the schema {schema}; grant it that"
    )]
    NotAllowed {
        /// The schema.
        schema: String,
        /// What PostgreSQL said.
        source: PostgresError,
    },
    /// The tables could not be created, or not be read.
    #[error("cannot use the schema {schema} as a store")]
    Schema {
        /// The schema.
        schema: String,
        /// What PostgreSQL said.
        source: PostgresError,
    },
}

impl OpenError {
    /// Whether the same may work later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(error) => error.passes(),
            Self::Schema { source, .. } => source.passes(),
            _ => false,
        }
    }
}

/// What went wrong between this process and the database, in words that hold no secret.
#[derive(Debug, Clone)]
pub struct PostgresError(Arc<Why>);

#[derive(Debug)]
enum Why {
    Said { code: SqlState, message: String },
    Lost(String),
    Timeout(Duration),
}

impl PostgresError {
    pub(crate) fn timeout(after: Duration) -> Self {
        Self(Arc::new(Why::Timeout(after)))
    }

    pub(crate) fn lost(why: impl Into<String>) -> Self {
        Self(Arc::new(Why::Lost(why.into())))
    }

    /// What PostgreSQL refused with, if it was PostgreSQL.
    pub(crate) fn code(&self) -> Option<&SqlState> {
        match &*self.0 {
            Why::Said { code, .. } => Some(code),
            _ => None,
        }
    }

    fn class(&self) -> &str {
        self.code().map_or("", |code| &code.code()[..2])
    }

    /// Whether the connection is no use any more: it is gone, or it leads to a server that takes no writes.
    pub(crate) fn is_connection(&self) -> bool {
        match self.code() {
            None => true,
            Some(code) => {
                matches!(self.class(), "08" | "57")
                    && *code != SqlState::QUERY_CANCELED
                    || *code == SqlState::READ_ONLY_SQL_TRANSACTION
                    || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
                    // A pooler that gave the connection to a server which does not know the statement.
                    || *code == SqlState::INVALID_SQL_STATEMENT_NAME
            }
        }
    }

    /// Whether others were in the way, so that the same may work at once.
    pub(crate) fn is_contention(&self) -> bool {
        self.class() == "40"
            || matches!(self.code(), Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::UNIQUE_VIOLATION)
    }

    /// Whether the database is away, or has no room or no connections left, whatever was asked of it.
    pub(crate) fn is_outage(&self) -> bool {
        let full = matches!(self.class(), "53" | "58");
        // What one operation is too large for, others need not be.
        self.is_connection() || (full && self.code() != Some(&SqlState::OUT_OF_MEMORY))
    }

    /// Whether time ran out, for a lock or for the whole.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(*self.0, Why::Timeout(_))
            || matches!(self.code(), Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::QUERY_CANCELED)
    }

    /// Whether somebody may mend it while we wait: the server is away, or full, or starts.
    fn passes(&self) -> bool {
        // Who is refused by name or password will be refused again.
        self.is_outage() || self.is_contention()
    }

    fn is_denied(&self) -> bool {
        self.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
    }

    pub(crate) fn of_schema(self, schema: &str) -> OpenError {
        let schema = schema.to_owned();
        match self {
            denied if denied.is_denied() => OpenError::NotAllowed { schema, source: denied },
            lost if lost.code().is_none() => OpenError::Unreachable(lost),
            source => OpenError::Schema { schema, source },
        }
    }
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(said) = error.as_db_error() {
            return Self(Arc::new(Why::of(said)));
        }
        // Its sources say what it does not; none of them holds the URL.
        let mut words = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            let more = cause.to_string();
            if !words.contains(&more) {
                words = format!("{words}: {more}");
            }
            source = cause.source();
        }
        Self::lost(words)
    }
}

impl Why {
    /// Without the detail, which quotes what is in the rows.
    fn of(said: &DbError) -> Self {
        Self::Said { code: said.code().clone(), message: said.message().to_owned() }
    }
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Why::Said { code, message } => write!(f, "{message} (PostgreSQL's code {})", code.code()),
            Why::Lost(why) => f.write_str(why),
            Why::Timeout(after) => write!(f, "no answer within {} ms", after.as_millis()),
        }
    }
}

impl std::error::Error for PostgresError {}

/// Why an operation could not be carried out.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Sql(#[from] PostgresError),
    #[error(
        "row {number} of the table `tasks`, or what belongs to it in `journal` or `calls`, cannot be read"
    )]
    Damaged { number: i64, source: Arc<Failure> },
    #[error("it is not the JSON of what it should be")]
    Json(#[source] Arc<serde_json::Error>),
    #[error("it is not a value of the right type: {0}")]
    Value(String),
    #[error("an operation panicked")]
    Panic,
    #[error("no connection to the database is free")]
    Busy,
    #[error("operations before this one took too long")]
    Skipped,
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error.into())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(Arc::new(error))
    }
}

impl Failure {
    /// As said of the task of this number, where it is about what the row holds.
    pub(crate) fn of_task(self, number: i64) -> Self {
        match self {
            Self::Json(_) | Self::Value(_) => Self::Damaged { number, source: Arc::new(self) },
            other => other,
        }
    }

    pub(crate) fn sql(&self) -> Option<&PostgresError> {
        match self {
            Self::Sql(error) => Some(error),
            _ => None,
        }
    }

    /// What a caller is told when nothing was changed.
    pub(crate) fn without_effect(self) -> StoreError {
        match self {
            Self::Damaged { .. } => StoreError::damaged(self),
            other => StoreError::unavailable(other),
        }
    }
}

/// How a transaction went wrong.
#[derive(Debug, Clone)]
pub(crate) enum Broken {
    /// Nothing was changed.
    Undone(Failure),
    /// The commit was on its way; whether it was kept is not known.
    Unknown(Failure),
}

impl<E: Into<Failure>> From<E> for Broken {
    fn from(failure: E) -> Self {
        Self::Undone(failure.into())
    }
}

impl Broken {
    pub(crate) fn failure(&self) -> &Failure {
        match self {
            Self::Undone(failure) | Self::Unknown(failure) => failure,
        }
    }

    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::Undone(failure) => failure.without_effect(),
            Self::Unknown(failure) => StoreError::unknown(failure),
        }
    }
}
