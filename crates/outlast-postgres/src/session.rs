//! A connection, and the statements that were prepared on it.

use std::{
    collections::HashMap,
    fmt::Display,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, Row, Socket, Statement,
    types::{ToSql, Type},
};

use crate::{
    OpenError, Options, digest,
    error::PostgresError,
    tls::{Connector, Stream},
    url,
};

/// How to reach the database, and what to know there.
#[derive(Clone)]
pub(crate) struct Address {
    config: tokio_postgres::Config,
    tls: Connector,
    /// The schema's name as it was given.
    pub(crate) name: String,
    /// The same, quoted.
    schema: String,
    prepared: bool,
    /// How long an answer may take.
    patience: Duration,
}

/// What stands in a statement for the name of the schema.
const SCHEMA: &str = "$S";

/// The database ends what takes too long; a connection that says nothing for so much longer is dead.
const GRACE: Duration = Duration::from_secs(2);

impl Address {
    pub(crate) fn new(url: &str, options: &Options) -> Result<Self, OpenError> {
        let target = url::parse(url)?;
        Ok(Self {
            tls: Connector::new(&target.trust)?,
            config: target.config,
            schema: quoted(&options.schema)?,
            name: options.schema.clone(),
            prepared: options.prepared,
            patience: options.statement_timeout + GRACE,
        })
    }

    /// A connection that nobody drives yet.
    pub(crate) async fn raw(
        &self,
    ) -> Result<(Client, tokio_postgres::Connection<Socket, Stream<Socket>>), PostgresError> {
        let connecting = self.config.connect(self.tls.clone());
        within(self.patience, connecting).await
    }

    pub(crate) async fn connect(self: &Arc<Self>) -> Result<Session, PostgresError> {
        let (client, connection) = self.raw().await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                let error = PostgresError::from(error);
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "a connection to the database ended"
                );
            }
        });
        Ok(Session { client, driver, statements: Mutex::default(), address: self.clone() })
    }

    /// A statement with the schema's name in its places.
    pub(crate) fn named(&self, sql: &str) -> String {
        sql.replace(SCHEMA, &self.schema)
    }

    /// The number of an advisory lock.
    pub(crate) fn lock(&self, what: digest::Lock, owner: &[u8]) -> i64 {
        digest::lock(&self.name, what, owner)
    }
}

fn quoted(schema: &str) -> Result<String, OpenError> {
    let fits = (1..=63).contains(&schema.len()) && !schema.contains('\0') && !schema.starts_with("pg_");
    if fits {
        Ok(format!("\"{}\"", schema.replace('"', "\"\"")))
    } else {
        Err(OpenError::Name(schema.into()))
    }
}

pub(crate) async fn within<T, E: Into<PostgresError>>(
    patience: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, PostgresError> {
    match tokio::time::timeout(patience, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(PostgresError::timeout(patience)),
    }
}

/// A connection that is driven, until this value goes.
pub(crate) struct Session {
    client: Client,
    driver: JoinHandle<()>,
    statements: Mutex<HashMap<&'static str, Statement>>,
    address: Arc<Address>,
}

/// A parameter, with its type: a statement that is not prepared beforehand has to say it.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

impl Session {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Prepares these, so that each later use is one message: what is sent at once then arrives in that order.
    pub(crate) async fn prepare(&self, statements: &[&'static str]) -> Result<(), PostgresError> {
        if self.address.prepared {
            futures::future::try_join_all(statements.iter().map(|sql| self.statement(sql))).await?;
        }
        Ok(())
    }

    async fn statement(&self, sql: &'static str) -> Result<Statement, PostgresError> {
        let known = self.known().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let named = self.address.named(sql);
        let statement = within(self.address.patience, self.client.prepare(&named)).await?;
        self.known().insert(sql, statement.clone());
        Ok(statement)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Statement>> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a statement. It is on its way when this was first polled, if it was prepared.
    pub(crate) async fn query(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, PostgresError> {
        if self.address.prepared {
            let statement = self.statement(sql).await?;
            let params: Vec<_> = params.iter().map(|(value, _)| *value).collect();
            within(self.address.patience, self.client.query(&statement, &params)).await
        } else {
            let named = self.address.named(sql);
            within(self.address.patience, self.client.query_typed(&named, params)).await
        }
    }

    /// Runs statements that have neither parameters nor answers.
    pub(crate) async fn run(&self, sql: impl Display) -> Result<(), PostgresError> {
        within(self.address.patience, self.client.batch_execute(&sql.to_string())).await
    }

    /// Asks the server to stop what this connection waits for, and gives the connection up.
    pub(crate) fn abandon(self) {
        let (cancel, tls) = (self.client.cancel_token(), self.address.tls.clone());
        let patience = self.address.patience;
        tokio::spawn(async move {
            // It ends by itself where this does not get through.
            let _ = within(patience, cancel.cancel_query(tls)).await;
        });
        self.driver.abort();
    }
}

/// The type that a value has in the database.
pub(crate) trait Typed: ToSql + Sync {
    const TYPE: Type;
}

macro_rules! typed {
    ($($rust:ty => $name:ident),* $(,)?) => { $(impl Typed for $rust { const TYPE: Type = Type::$name; })* };
}

typed! {
    i64 => INT8, Option<i64> => INT8, &str => TEXT, Option<&str> => TEXT, String => TEXT, &[u8] => BYTEA,
    Option<&[u8]> => BYTEA, Option<String> => TEXT,
    Vec<i64> => INT8_ARRAY, Vec<Option<i64>> => INT8_ARRAY, Vec<i16> => INT2_ARRAY, Vec<bool> => BOOL_ARRAY,
    Vec<&str> => TEXT_ARRAY, Vec<Option<&str>> => TEXT_ARRAY, Vec<String> => TEXT_ARRAY,
    Vec<Option<String>> => TEXT_ARRAY, Vec<&[u8]> => BYTEA_ARRAY, Vec<Option<&[u8]>> => BYTEA_ARRAY,
}

pub(crate) fn typed<T: Typed>(value: &T) -> Param<'_> {
    (value, T::TYPE)
}

/// Parameters of a statement.
macro_rules! params {
    ($($value:expr),* $(,)?) => { &[$($crate::session::typed(&$value)),*] };
}
pub(crate) use params;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_of_any_name_is_quoted_or_refused() {
        assert_eq!(quoted("outlast").unwrap(), "\"outlast\"");
        assert_eq!(quoted(r#"a"; DROP TABLE b --"#).unwrap(), r#""a""; DROP TABLE b --""#);
        for name in ["", "pg_mine", "a\0b", &"x".repeat(64)] {
            assert!(matches!(quoted(name), Err(OpenError::Name(_))), "{name:?}");
        }
    }
}
