//! The handle: the contract over the writer, the taker and the readers.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, channel::oneshot, future::BoxFuture};
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, HintSender, Hints,
    Inspect, JournalPage, LeaseRequest, ListPage, NewTask, Owner, Renewal, Store, StoreClock, StoreError,
    Swept, Task, TaskId, WorkerId, WorkerSeen,
};
use tokio::{runtime::Handle as Runtime, task::JoinHandle};

use crate::{
    OpenError, Options,
    damaged::Damaged,
    digest,
    error::{Broken, Failure},
    feed,
    job::{Answer, Guarded, Job},
    load, open,
    queue::Queue,
    quota::Quotas,
    read::{self, Readers},
    session::Address,
    shared::{self, Shared},
    sweep,
    taker::Taker,
    writer::Writer,
};

/// A store in a schema of a PostgreSQL database, which any number of replicas share. Cheap to clone; the last clone to go
/// closes it.
///
/// It works in the `tokio` runtime that it was opened in.
#[derive(Clone)]
pub struct PostgresStore {
    handle: Arc<Handle>,
}

/// What every clone shares; dropping it closes the store.
struct Handle {
    shared: Arc<Shared>,
    taker: Arc<tokio::sync::Mutex<Taker>>,
    runtime: Runtime,
    writer: Mutex<Option<JoinHandle<()>>>,
    feed: Mutex<Option<JoinHandle<()>>>,
}

/// How many hints a slow reader may fall behind before it is told of a gap.
const HINTS: usize = 4_096;

impl PostgresStore {
    /// Opens the store in the database at `url`, creating its tables where there are none.
    ///
    /// The URL is that of libpq: `postgres://user:password@host:5432/database?sslmode=verify-full`. With several hosts the
    /// one that takes writes is used. Without `sslmode` a connection is encrypted where the server offers that; only
    /// `verify-full` makes sure that it is the right server (against `sslrootcert`, else what the machine trusts).
    ///
    /// # Errors
    /// When the database cannot be reached, or the schema cannot be used as a store. No error holds the URL.
    pub async fn connect(url: &str, options: Options) -> Result<Self, OpenError> {
        let address = Arc::new(Address::new(url, &options)?);
        let direct = match &options.direct_url {
            Some(direct) => Arc::new(Address::new(direct, &options)?),
            None => address.clone(),
        };
        let (session, mark) = open::open(&address, options.wait).await?;
        let shared = Arc::new(Shared {
            queue: Arc::new(Queue::new(options.limits)),
            hints: HintSender::new(HINTS),
            readers: Readers::new(address.clone(), options.readers),
            damaged: Damaged::default(),
            quotas: Quotas::default(),
            time: Mutex::new(StoreClock::new(mark)),
            skew: options.skew.clone(),
            begin: shared::begin(options.lock_timeout, options.idle_timeout, options.statement_timeout),
            channel: digest::channel(&address.name),
            replica: replica()?,
            outage: AtomicBool::new(false),
            pace: Mutex::new(None),
            address,
        });
        let runtime = Runtime::current();
        let writer = runtime.spawn(Writer::new(shared.clone(), session).run());
        let (first, listens) = oneshot::channel();
        let feed = runtime.spawn(feed::follow(shared.clone(), direct, options.heartbeat, first));
        let handle = Handle {
            shared,
            taker: Arc::default(),
            runtime,
            writer: Mutex::new(Some(writer)),
            feed: Mutex::new(Some(feed)),
        };
        // Whether it could or not: who follows from now on misses nothing, or is told of a gap when it can.
        let _ = listens.await;
        Ok(Self { handle: Arc::new(handle) })
    }

    /// Closes the store: writes what waits, and closes its connections. Later calls, by any clone, get
    /// [`StoreError::Fatal`].
    ///
    /// Dropping the last clone does the same, and does not wait for it.
    pub async fn close(&self) {
        self.handle.stop();
        let writer = self.handle.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.await.is_err()
        {
            tracing::error!("the writer of the store panicked");
        }
        self.handle.taker.lock().await.close();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Hands a job to the writer, and waits for the commit. It is carried out even when the caller goes.
    pub(crate) async fn write<T>(&self, (job, answer): (Job, Answer<T>)) -> Result<T, StoreError> {
        self.shared().queue.push(job)?;
        answer.await.unwrap_or_else(|_| Err(StoreError::unknown("the writer ended")))
    }

    pub(crate) async fn read<T>(
        &self,
        read: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StoreError> {
        if let Some(closed) = self.shared().queue.closed() {
            return Err(closed);
        }
        read.await.map_err(Failure::without_effect)
    }

    /// Has the taker do something, to its end even when the caller goes.
    async fn take<T: Send + 'static>(
        &self,
        work: impl for<'a> FnOnce(&'a mut Taker, &'a Shared) -> BoxFuture<'a, Result<T, Broken>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if let Some(closed) = self.shared().queue.closed() {
            return Err(closed);
        }
        let (reply, answer) = oneshot::channel();
        let (shared, taker) = (self.shared().clone(), self.handle.taker.clone());
        self.handle.runtime.spawn(async move {
            let mut taker = taker.lock().await;
            let done = match shared.queue.closed() {
                Some(closed) => Err(closed),
                None => work(&mut taker, &shared).await.map_err(Broken::into_error),
            };
            drop(reply.send(done));
        });
        answer.await.unwrap_or_else(|_| Err(StoreError::unknown("the store ended")))
    }
}

/// The name of a replica on the channel.
fn replica() -> Result<String, OpenError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| OpenError::Url(format!("the system gives no random numbers: {error}")))?;
    Ok(digest::hex(&bytes))
}

impl Handle {
    fn stop(&self) {
        self.shared.queue.close(StoreError::fatal("the store is closed"));
        if let Some(feed) = self.feed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            feed.abort();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        let created = self.write(Job::create(new, lease, self.shared().queue.clone())).await?;
        created.take().ok_or_else(|| StoreError::unknown("the operation left no result"))
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        self.write(Job::apply(id, by, events)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let guarded = self
            .take(move |taker, shared| {
                async move {
                    let claimed = taker.claim(shared, &request).await?;
                    Ok(Guarded::claimed(claimed, shared.queue.clone()))
                }
                .boxed()
            })
            .await?;
        guarded.take().ok_or_else(|| StoreError::unknown("the operation left no result"))
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        self.write(Job::renew(worker, held, lease)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.read(read::task(&self.shared().readers, id)).await
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        self.read(read::journal(&self.shared().readers, id, after_seq, max_bytes)).await
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        self.read(read::heads(&self.shared().readers, &ids)).await
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        let mut done = 0;
        loop {
            // Each a transaction of its own, so that others get in between.
            let rows = (max - done).min(sweep::ROWS);
            let swept = self.take(move |taker, shared| taker.sweep(shared, rows).boxed()).await?;
            done += swept.done;
            if done >= max || swept.done < rows {
                return Ok(Swept { done, ..swept });
            }
        }
    }

    fn watch(&self) -> Hints {
        self.shared().hints.watch()
    }
}

#[async_trait]
impl Inspect for PostgresStore {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        let before = after.map_or(Ok(i64::MAX), |place| place.parse()).unwrap_or(0);
        let shared = self.shared();
        let (mut tasks, clock) = self
            .read(async {
                let tasks =
                    read::list(&shared.readers, &shared.damaged, &filter, before, max.saturating_add(1))
                        .await?;
                Ok((tasks, read::clock(&shared.readers).await?))
            })
            .await?;
        let now = load::reading(shared, &clock).map_err(Failure::without_effect)?.0.now;
        let more = tasks.len() > max as usize;
        tasks.truncate(max as usize);
        let next = tasks.last().filter(|_| more).map(|(number, _)| number.to_string());
        Ok(ListPage { tasks: tasks.into_iter().map(|(_, task)| task).collect(), next, now })
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        let shared = self.shared();
        self.read(async {
            let clock = read::clock(&shared.readers).await?;
            read::counts(&shared.readers, &shared.damaged, load::reading(shared, &clock)?.0.now).await
        })
        .await
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        let shared = self.shared();
        self.read(async {
            let clock = read::clock(&shared.readers).await?;
            read::workers(&shared.readers, load::reading(shared, &clock)?.0.now).await
        })
        .await
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        self.read(read::running(&self.shared().readers, &owner)).await
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        self.read(read::call(&self.shared().readers, id)).await
    }

    /// `false`: any replica takes a task over whose lease ran out.
    fn is_exclusive(&self) -> bool {
        false
    }

    fn is_front(&self) -> bool {
        false
    }
}
