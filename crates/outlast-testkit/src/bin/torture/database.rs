//! PostgreSQL for a run: one that is given, or one that goes with this process and can be killed.

use std::{path::PathBuf, process::Command};

use anyhow::Context;
use outlast_core::{
    Applied, By, Call, Created, Event, LeaseRequest, NewTask, Owner, Payload, Spec, Store, StoreError,
    TaskId, Token, WorkerId,
};
use outlast_postgres::PostgresStore;
use tokio::time::sleep;

use crate::{
    process::{Secret, open_schema},
    verdict::BEAT,
};

/// A database.
pub(crate) struct Database {
    pub(crate) url: Secret,
    /// Where it is, if it is this run's own.
    folder: Option<String>,
}

impl Database {
    /// # Errors
    /// When none can be started here.
    pub(crate) fn new(given: Option<String>) -> anyhow::Result<Self> {
        if let Some(url) = given {
            return Ok(Self { url: Secret(url), folder: None });
        }
        let started = Command::new(script())
            .args(["start", "--durable", "--for", &std::process::id().to_string()])
            .env_remove("OUTLAST_TEST_POSTGRES")
            .output()
            .context("scripts/postgres.sh does not start")?;
        anyhow::ensure!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let printed = String::from_utf8(started.stdout)?;
        let (url, folder) =
            printed.trim_end().split_once('\n').context("scripts/postgres.sh names a URL and a folder")?;
        Ok(Self { url: Secret(url.to_owned()), folder: Some(folder.to_owned()) })
    }

    /// Whether it is this run's own, to be killed.
    pub(crate) fn is_own(&self) -> bool {
        self.folder.is_some()
    }

    /// As a power cut would end it.
    pub(crate) fn kill(&self) -> Result<(), String> {
        self.run("kill")
    }

    pub(crate) fn start_again(&self) -> Result<(), String> {
        self.run("again")
    }

    fn run(&self, what: &str) -> Result<(), String> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let ran = Command::new(script()).args([what, folder]).output();
        match ran {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("postgres.sh {what}: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("postgres.sh {what}: {error}")),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Where that fails, its watcher removes it when this process has ended.
        let _ = self.run("stop");
    }
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh")
}

/// The pace of the database, for others to be measured by: a task of its own, in a schema of its own, that is written to
/// over and over.
pub(crate) struct Pulse {
    store: PostgresStore,
    id: TaskId,
    token: Token,
    beats: u64,
}

impl Pulse {
    /// # Errors
    /// When its schema cannot be opened.
    pub(crate) async fn new(url: &str, schema: &str) -> anyhow::Result<Self> {
        let store = open_schema(url, schema).await?;
        let id = TaskId::from_bytes([1; 16]);
        let new = NewTask::new(id, Owner::anonymous(), Spec::new("pulse"), Call::new(Payload::null()));
        let lease = LeaseRequest { worker: WorkerId::new("pulse"), lease: BEAT };
        match store.create(new, Some(lease)).await? {
            Created::Created { token: Some(token), .. } => Ok(Self { store, id, token, beats: 0 }),
            other => anyhow::bail!("the pulse was not created: {other:?}"),
        }
    }

    /// A pause, and a write; the time that the write was made at. While the database is away there is none.
    pub(crate) async fn beat(&mut self) -> Result<i64, String> {
        sleep(BEAT).await;
        self.write().await
    }

    pub(crate) async fn write(&mut self) -> Result<i64, String> {
        self.beats += 1;
        let message = Event::SetMessage(Some(self.beats.to_string()));
        let write = || self.store.apply(self.id, By::Lease(self.token), vec![message.clone()]);
        match again(write).await.map_err(|error| format!("the pulse stops: {error}"))? {
            Applied::Applied(task) | Applied::Absorbed(task) => Ok(task.updated_at.as_millis()),
            other => Err(format!("the pulse stops: {other:?}")),
        }
    }
}

/// Asks until there is an answer: the database may be away for a while.
pub(crate) async fn again<T, F: Future<Output = Result<T, StoreError>>>(
    mut ask: impl FnMut() -> F,
) -> Result<T, StoreError> {
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => sleep(BEAT / 2).await,
            answer => return answer,
        }
    }
}
