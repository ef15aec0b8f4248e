//! Opening a database: checked before anything is changed, then brought to this version's schema.

use std::{sync::Arc, time::Duration};

use outlast_core::Timestamp;

use crate::{
    OpenError,
    digest::Lock,
    error::PostgresError,
    session::{Address, Session, params},
};

/// The steps from an empty schema to the newest one; the row `schema` says how many were taken.
const MIGRATIONS: &[&str] = &[include_str!("schema/1.sql")];

/// The pauses between attempts to reach a database that is waited for.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A connection to a schema that is ours and of this version; and the store's clock mark. Waits for the database for so
/// long, if it is told to.
pub(crate) async fn open(
    address: &Arc<Address>,
    wait: Option<Duration>,
) -> Result<(Session, Timestamp), OpenError> {
    let attempts = async {
        let mut pause = FIRST_PAUSE;
        loop {
            match attempt(address).await {
                Err(error) if error.is_retryable() && wait.is_some() => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "waiting for the database");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                answer => return answer,
            }
        }
    };
    match wait {
        None => attempts.await,
        Some(wait) => match tokio::time::timeout(wait, attempts).await {
            Ok(answer) => answer,
            Err(_) => Err(OpenError::Unreachable(PostgresError::timeout(wait))),
        },
    }
}

async fn attempt(address: &Arc<Address>) -> Result<(Session, Timestamp), OpenError> {
    let session = address.connect().await.map_err(OpenError::Unreachable)?;
    let mark = accept(&session).await?;
    Ok((session, mark))
}

/// What there is of the schema, seen at one moment.
struct Found {
    exists: bool,
    ours: bool,
    relations: i64,
}

async fn accept(session: &Session) -> Result<Timestamp, OpenError> {
    let schema = session.address().name.clone();
    let of_schema = |error: PostgresError| error.of_schema(&schema);
    let found = find(session).await?;
    if !found.ours && found.relations > 0 {
        return Err(OpenError::Foreign(schema));
    }
    if !found.ours || version(session).await.map_err(of_schema)? < known() {
        let migrated = migrate(session).await;
        if migrated.is_err() {
            // An error that this finds as well is the one that is told.
            let _ = session.run("ROLLBACK").await;
        }
        migrated?;
    }
    match version(session).await.map_err(of_schema)? {
        found if found > known() => Err(OpenError::Newer { schema, found, known: known() }),
        _ => {
            let rows = session.query(MARK, &[]).await.map_err(of_schema)?;
            Ok(Timestamp::from_millis(rows.first().map_or(0, |row| row.get(0))))
        }
    }
}

const FIND: &str = "SELECT current_setting('server_encoding'), n.oid IS NOT NULL,
    EXISTS (SELECT 1 FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'outlast' AND c.relkind = 'r'),
    (SELECT count(*) FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid)
    FROM (SELECT 1) one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1::text";

const VERSION: &str = "SELECT value FROM $S.outlast WHERE name = 'schema'";

const MARK: &str = "SELECT value FROM $S.outlast WHERE name = 'clock'";

fn known() -> i64 {
    MIGRATIONS.len() as i64
}

async fn find(session: &Session) -> Result<Found, OpenError> {
    let schema = &session.address().name;
    let rows =
        session.query(FIND, params![schema.as_str()]).await.map_err(|error| error.of_schema(schema))?;
    let Some(row) = rows.first() else {
        return Ok(Found { exists: false, ours: false, relations: 0 });
    };
    let encoding: &str = row.get(0);
    if encoding != "UTF8" {
        return Err(OpenError::Encoding(encoding.to_owned()));
    }
    Ok(Found { exists: row.get(1), ours: row.get(2), relations: row.get(3) })
}

async fn version(session: &Session) -> Result<i64, PostgresError> {
    let rows = session.query(VERSION, &[]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

async fn migrate(session: &Session) -> Result<(), OpenError> {
    let address = session.address();
    let of_schema = |error: PostgresError| error.of_schema(&address.name);
    let lock = address.lock(Lock::Schema, &[]);
    // Another replica may be doing the same: what is missing is known only once this one has the lock.
    session
        .run(format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({lock})"))
        .await
        .map_err(of_schema)?;
    let found = find(session).await?;
    if !found.exists {
        session.run(address.named("CREATE SCHEMA $S")).await.map_err(of_schema)?;
    }
    let taken = if found.ours { version(session).await.map_err(of_schema)? } else { 0 };
    if taken < known() {
        for step in &MIGRATIONS[usize::try_from(taken).unwrap_or(0)..] {
            session.run(address.named(step)).await.map_err(of_schema)?;
        }
        let note = format!(
            "INSERT INTO $S.outlast VALUES ('schema', {0}) ON CONFLICT (name) DO UPDATE SET value = {0}",
            known()
        );
        session.run(address.named(&note)).await.map_err(of_schema)?;
    }
    session.run("COMMIT").await.map_err(of_schema)
}
