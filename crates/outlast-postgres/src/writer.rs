//! The one task of a replica that writes what callers and workers say: it takes what waits, decides and writes it in one
//! transaction of two round trips, and answers when that is durable. While the database commits, the next batch gathers
//! by itself; nobody waits for a timer.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, LazyLock},
};

use futures::FutureExt;
use outlast_core::StoreError;

use crate::{
    error::{Broken, Failure, PostgresError},
    job::{Job, Needs},
    load::{self, load},
    save,
    session::Session,
    shared::{Kept, Shared},
};

pub(crate) struct Writer {
    shared: Arc<Shared>,
    kept: Kept,
}

/// How often a transaction is tried in which others were in the way, before its operations are tried one by one.
const TRIES: u32 = 3;

/// How many operations of a batch may run out of time, one by one, before the others are given up.
const MAX_SLOW: u32 = 3;

static STATEMENTS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| [load::STATEMENTS, save::STATEMENTS].concat());

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, session: Session) -> Self {
        Self { shared, kept: Kept::new(session) }
    }

    /// Writes until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        // Whatever ends this task, nobody is to wait for it.
        let _guard = FailOnExit(self.shared.clone());
        while let Some(jobs) = self.shared.queue.take().await {
            self.write(jobs).await;
        }
        self.close().await;
    }

    async fn write(&mut self, mut jobs: Vec<Job>) {
        match self.persist(&mut jobs, true).await {
            Err(Broken::Undone(failure)) if jobs.len() > 1 && is_of_one(&failure) => {
                self.write_singly(jobs).await;
            }
            written => settle(jobs, written),
        }
    }

    /// One of them fails: each by itself, so that it fails alone. Where several of them take too long, or the database
    /// is away, the others are not waited for.
    async fn write_singly(&mut self, jobs: Vec<Job>) {
        let mut slow = 0;
        let mut jobs = jobs.into_iter();
        while let Some(job) = jobs.next() {
            let mut alone = vec![job];
            let written = self.persist(&mut alone, false).await;
            let failed = written.as_ref().err().map(Broken::failure);
            slow += u32::from(failed.and_then(Failure::sql).is_some_and(PostgresError::is_slow));
            let away = failed.is_some_and(|failure| !is_of_one(failure));
            settle(alone, written);
            if away || slow >= MAX_SLOW {
                return settle(jobs.collect(), Err(Broken::Undone(Failure::Skipped)));
            }
        }
    }

    /// Tries again while others are in the way, also where that took its time if it is to be `patient`; and once with a
    /// new connection.
    async fn persist(&mut self, jobs: &mut [Job], patient: bool) -> Result<(), Broken> {
        let mut tries = 1;
        let mut reconnected = false;
        loop {
            match self.transact(jobs).await {
                Err(Broken::Undone(Failure::Sql(error)))
                    if error.is_contention() && tries < TRIES && (patient || !error.is_slow()) =>
                {
                    tries += 1;
                }
                Err(Broken::Undone(Failure::Sql(error))) if error.is_connection() && !reconnected => {
                    reconnected = true;
                }
                written => return written,
            }
        }
    }

    async fn transact(&mut self, jobs: &mut [Job]) -> Result<(), Broken> {
        let session = self.kept.take(&self.shared, &STATEMENTS).await?;
        let written = AssertUnwindSafe(attempt(&self.shared, &session, jobs)).catch_unwind().await;
        let written = written.unwrap_or(Err(Broken::Undone(Failure::Panic)));
        self.kept.give_back(&self.shared, session, written).await
    }

    /// Drained.
    async fn close(&mut self) {
        let mark = self.shared.time().mark();
        if let Ok(session) = self.kept.take(&self.shared, &STATEMENTS).await
            && let Err(error) = save::keep_mark(&session, mark).await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "the time of the store was not kept");
        }
        self.kept.close();
    }
}

async fn attempt(shared: &Shared, session: &Session, jobs: &mut [Job]) -> Result<(), Broken> {
    let began = shared.skew.monotonic();
    let mut needs = Needs::default();
    jobs.iter().for_each(|job| job.needs(&mut needs));
    let mut loaded = load(shared, session, &needs).await?;
    jobs.iter_mut().for_each(|job| job.run(&mut loaded.batch));
    save::commit(shared, session, &loaded.batch, loaded.marks).await?;
    shared.note_commit(began);
    for owner in loaded.counted {
        if let Some(open) = loaded.batch.open.get(&owner) {
            shared.quotas.note(owner, *open, began);
        }
    }
    Ok(())
}

/// Whether it may be the fault of one operation alone.
fn is_of_one(failure: &Failure) -> bool {
    failure.sql().is_none_or(|error| !error.is_outage())
}

fn settle(jobs: Vec<Job>, written: Result<(), Broken>) {
    let outcome = written.map_err(Broken::into_error);
    if let Err(error) = &outcome {
        tracing::warn!(error = error as &dyn std::error::Error, operations = jobs.len(), "a write failed");
    }
    jobs.into_iter().for_each(|job| job.settle(outcome.clone()));
}

struct FailOnExit(Arc<Shared>);

impl Drop for FailOnExit {
    fn drop(&mut self) {
        self.0.queue.fail(&StoreError::fatal("the store is closed"));
        self.0.readers.close();
        self.0.hints.close();
    }
}
