//! Two replicas as one store.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, Hints, Inspect,
    JournalPage, LeaseRequest, ListPage, NewTask, Owner, Renewal, Store, StoreError, Swept, Task, TaskId,
    WorkerId, WorkerSeen,
};
use outlast_postgres::{PostgresStore, Skew};
use outlast_testkit::Harness;

/// Hands each call to the next of its replicas.
pub(crate) struct Turns {
    replicas: Vec<PostgresStore>,
    calls: AtomicUsize,
}

impl Turns {
    pub(crate) fn new(replicas: Vec<PostgresStore>) -> Self {
        Self { replicas, calls: AtomicUsize::new(0) }
    }

    fn next(&self) -> &PostgresStore {
        &self.replicas[self.calls.fetch_add(1, Ordering::Relaxed) % self.replicas.len()]
    }
}

#[async_trait]
impl Store for Turns {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        self.next().create(new, lease).await
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        self.next().apply(id, by, events).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.next().claim(request).await
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.next().renew(worker, held, lease).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.next().get(id).await
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        self.next().journal(id, after_seq, max_bytes).await
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        self.next().heads(ids).await
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        self.next().sweep(max).await
    }

    fn watch(&self) -> Hints {
        self.next().watch()
    }
}

#[async_trait]
impl Inspect for Turns {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        self.next().list(filter, after, max).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.next().counts().await
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        self.next().workers().await
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        self.next().running(owner).await
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        self.next().call(id).await
    }

    fn is_exclusive(&self) -> bool {
        self.next().is_exclusive()
    }

    fn is_front(&self) -> bool {
        self.next().is_front()
    }
}

/// Pairs of replicas for the suite.
pub(crate) struct TwoReplicas {
    skew: Skew,
    open: Mutex<Vec<(usize, String, Vec<PostgresStore>)>>,
}

impl TwoReplicas {
    pub(crate) fn new() -> Self {
        Self { skew: super::still(), open: Mutex::default() }
    }

    async fn open_in(&self, schema: String) -> Arc<dyn Store> {
        let mut replicas = Vec::new();
        for _ in 0..2 {
            let replica = super::open(&schema, &self.skew).await;
            // A replica that never looked at the time cannot know that somebody set it.
            replica.workers().await.unwrap();
            replicas.push(replica);
        }
        let store: Arc<dyn Store> = Arc::new(Turns::new(replicas.clone()));
        self.open.lock().unwrap().push((super::address(&store), schema, replicas));
        store
    }
}

#[async_trait]
impl Harness for TwoReplicas {
    async fn open(&self) -> Arc<dyn Store> {
        // Those of before are done with.
        let before = std::mem::take(&mut *self.open.lock().unwrap());
        drop(before);
        self.open_in(super::fresh_schema()).await
    }

    async fn advance(&self, by: Duration) {
        self.skew.advance(by);
    }

    async fn set_back(&self, by: Duration) {
        self.skew.set_wall(-super::millis(by));
    }

    async fn set_forward(&self, by: Duration) {
        self.skew.set_wall(super::millis(by));
        // Each waits for a lease from when it sees that; one that works looks all the time.
        let open: Vec<_> = self.open.lock().unwrap().iter().flat_map(|(.., open)| open.clone()).collect();
        for replica in open {
            replica.workers().await.unwrap();
        }
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let address = super::address(&store);
        let (schema, replicas) = {
            let mut open = self.open.lock().unwrap();
            let place = open.iter().position(|(of, ..)| *of == address).unwrap();
            let (_, schema, replicas) = open.swap_remove(place);
            (schema, replicas)
        };
        for replica in replicas {
            replica.close().await;
        }
        self.open_in(schema).await
    }
}
