//! What is measured of the runtime: how long the store takes and how often it fails, how long attempts and steps take.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, histogram};
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, Hints, Inspect,
    JournalPage, LeaseRequest, ListPage, NewTask, Owner, Renewal, Store, StoreError, Swept, Task, TaskId,
    WorkerId, WorkerSeen,
};

use crate::clock::Stopwatch;

/// How long each call of the store took, by `operation`.
pub(crate) const STORE_SECONDS: &str = "outlast_store_seconds";
/// Calls of the store that failed, by `operation` and `kind` of [`StoreError`].
pub(crate) const STORE_ERRORS: &str = "outlast_store_errors_total";

/// How many tasks this process has in memory.
pub(crate) const LOADED: &str = "outlast_tasks_loaded";
/// How long attempts took, by `outcome`.
pub(crate) const RUN_SECONDS: &str = "outlast_run_seconds";
/// How long steps took that did something, all tries of one attempt together, by `outcome`.
pub(crate) const STEP_SECONDS: &str = "outlast_step_seconds";

/// Describes what the runtime and the stores measure to the recorder that is installed.
pub fn describe_metrics() {
    outlast_core::describe_tally();
    describe_gauge!(
        LOADED,
        "Tasks that this process holds in memory: they run, or wait and are not parked yet."
    );
    describe_histogram!(
        RUN_SECONDS,
        Unit::Seconds,
        "How long an attempt at a task took, by how it ended; inline is a call that was over before it was a task."
    );
    describe_histogram!(
        STEP_SECONDS,
        Unit::Seconds,
        "How long a step took, its tries together: value, error (its last word) or failed (a later attempt tries again)."
    );
    describe_histogram!(STORE_SECONDS, Unit::Seconds, "How long a call of the store took, by operation.");
    describe_counter!(STORE_ERRORS, "Calls of the store that failed, by operation and kind of failure.");
}

/// A store whose calls are timed. It adds nothing else.
pub(crate) struct Measured(pub(crate) Arc<dyn Store>);

async fn timed<T>(
    operation: &'static str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let began = Stopwatch::start();
    let answer = call.await;
    histogram!(STORE_SECONDS, "operation" => operation).record(began.elapsed());
    if let Err(error) = &answer {
        counter!(STORE_ERRORS, "operation" => operation, "kind" => kind(error)).increment(1);
    }
    answer
}

fn kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable(_) => "unavailable",
        StoreError::Unknown(_) => "unknown",
        StoreError::Damaged(_) => "damaged",
        StoreError::Fatal(_) => "fatal",
        _ => "other",
    }
}

#[async_trait]
impl Store for Measured {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        timed("create", self.0.create(new, lease)).await
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        timed("apply", self.0.apply(id, by, events)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        timed("claim", self.0.claim(request)).await
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        timed("renew", self.0.renew(worker, held, lease)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        timed("get", self.0.get(id)).await
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        timed("journal", self.0.journal(id, after_seq, max_bytes)).await
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        timed("heads", self.0.heads(ids)).await
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        timed("sweep", self.0.sweep(max)).await
    }

    fn watch(&self) -> Hints {
        self.0.watch()
    }
}

#[async_trait]
impl Inspect for Measured {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        timed("list", self.0.list(filter, after, max)).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        timed("counts", self.0.counts()).await
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        timed("workers", self.0.workers()).await
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        timed("running", self.0.running(owner)).await
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        timed("call", self.0.call(id)).await
    }

    fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }

    fn is_front(&self) -> bool {
        self.0.is_front()
    }
}
