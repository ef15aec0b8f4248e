//! The handle: the contract over the writer and the readers.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use async_trait::async_trait;
use futures::channel::oneshot;
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, HintSender, Hints,
    Inspect, JournalPage, Lane, LeaseRequest, ListPage, NewTask, Owner, Renewal, Store, StoreClock,
    StoreError, Swept, Task, TaskId, WorkerId, WorkerSeen,
};

use crate::{
    OpenError, Options, Role,
    batch::Batch,
    damaged::Damaged,
    error::Failure,
    job::{Guarded, Operation, told},
    open::{self, Opened},
    queue::Queue,
    read::{self, Readers},
    shared::Shared,
    sweep,
    writer::Writer,
};

/// A store in one SQLite file. Cheap to clone; the last clone to go closes it.
///
/// Its methods need no particular async runtime: writes are carried out by a thread of the store's own, reads on the
/// caller's thread.
#[derive(Clone)]
pub struct SqliteStore {
    handle: Arc<Handle>,
}

/// What every clone shares; dropping it closes the store.
struct Handle {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Told when the writer has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

/// About what one renewal writes.
const RENEWAL_BYTES: usize = 1_024;

/// How many hints a slow reader may fall behind before it is told of a gap.
const HINTS: usize = 4_096;

impl SqliteStore {
    /// Opens the store at `path` as its runtime, creating the file if there is none.
    ///
    /// Blocks while it reads and writes the file; leases of a runtime that is gone are ended before it returns.
    ///
    /// # Errors
    /// When the file cannot be used as a store, or another process is its runtime.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, Options::default())
    }

    /// Opens the store at `path` as `options` say.
    ///
    /// # Errors
    /// When the file cannot be used as a store, or another process is its runtime and this one is to be it.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let named = path.as_ref();
        let sql = |error| OpenError::of(named, error);
        let Opened { connection, path, had_log } = open::open(named, options.busy_timeout)?;
        let shared = Arc::new(Shared {
            queue: Arc::new(Queue::new(options.limits)),
            hints: HintSender::new(HINTS),
            readers: Readers::new(&path, options.busy_timeout, options.readers),
            damaged: Damaged::default(),
            time: Mutex::new(StoreClock::new(open::clock_mark(&connection).map_err(sql)?)),
            clock: options.clock.clone(),
            watched: AtomicBool::new(false),
            runtime: AtomicBool::new(false),
        });
        let role = options.role;
        let mut writer = Writer::new(shared.clone(), options, path, connection).map_err(sql)?;
        if role != Role::Front {
            match writer.take_over() {
                Ok(Err(holder)) if role == Role::Runtime => {
                    return Err(OpenError::Held { path: named.to_owned(), holder });
                }
                Ok(_) => {}
                Err(source) => {
                    writer.abandon(had_log);
                    return Err(OpenError::TakeOver { path: named.to_owned(), source });
                }
            }
        }
        let (end, ended) = oneshot::channel();
        let work = move || {
            writer.run();
            drop(end);
        };
        let writer = thread::Builder::new()
            .name("outlast-sqlite".into())
            .spawn(work)
            .map_err(|source| OpenError::Io { path: named.to_owned(), source })?;
        let handle = Handle { shared, writer: Mutex::new(Some(writer)), ended: Mutex::new(Some(ended)) };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// Closes the store: writes what waits, writes the log back into the file, and frees the runtime lock. Later calls,
    /// by any clone, get [`StoreError::Fatal`].
    ///
    /// Dropping the last clone does the same, and blocks until it is done.
    pub async fn close(&self) {
        self.handle.shared.queue.close(closed());
        let ended = self.handle.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            // An error is the news: the writer is gone.
            let _ = ended.await;
        }
        self.handle.join();
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    pub(crate) fn read<R>(
        &self,
        body: impl FnOnce(&rusqlite::Connection) -> Result<R, Failure>,
    ) -> Result<R, StoreError> {
        self.handle.shared.readers.read(body)
    }

    /// Hands `run` to the writer, and waits for the commit. It is carried out even when the caller goes.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        lane: Lane,
        bytes: usize,
        run: impl FnMut(&mut Batch<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Operation::new(bytes, run, move |outcome, result| drop(reply.send(told(outcome, result))));
        self.handle.shared.queue.push(lane, Box::new(job))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::unknown("the writer ended")))
    }
}

/// What the writer sent, now that somebody has it.
async fn received<T>(answer: oneshot::Receiver<Result<Guarded<T>, StoreError>>) -> Result<T, StoreError> {
    let gone = || StoreError::unknown("the writer ended");
    answer.await.map_err(|_| gone())??.take().ok_or_else(gone)
}

fn closed() -> StoreError {
    StoreError::fatal("the store is closed")
}

impl Handle {
    fn join(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // A waker that the writer calls may drop the last handle, and a thread cannot wait for itself.
            if writer.thread().id() != thread::current().id() && writer.join().is_err() {
                tracing::error!("the writer of the store panicked");
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.queue.close(closed());
        self.join();
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        let queue = self.handle.shared.queue.clone();
        let (reply, answer) = oneshot::channel();
        let bytes = new.size();
        let run = move |batch: &mut Batch<'_>| batch.create(&new, lease.as_ref());
        let job = Operation::new(bytes, run, move |outcome, result| {
            // After an unknown end nothing is given back: the same call is to find its lease.
            let created = told(outcome, result);
            drop(reply.send(created.map(|(created, fresh)| Guarded::created(created, fresh, queue))));
        });
        self.handle.shared.queue.push(Lane::New, Box::new(job))?;
        received(answer).await
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        let bytes = events.iter().map(Event::size).sum();
        self.write(Lane::Held, bytes, move |batch| batch.apply(id, &by, &events)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let queue = self.handle.shared.queue.clone();
        let (reply, answer) = oneshot::channel();
        let run = move |batch: &mut Batch<'_>| batch.claim(&request);
        let job = Operation::claim(run, move |outcome, result| match (outcome, result) {
            (Err(error @ StoreError::Unknown(_)), Some(claimed)) => {
                // It may have been kept, and the same call again would get other tasks: it is given back.
                drop(Guarded::claimed(claimed, queue));
                drop(reply.send(Err(error)));
            }
            (outcome, result) => {
                let claimed = told(outcome, result);
                drop(reply.send(claimed.map(|claimed| Guarded::claimed(claimed, queue))));
            }
        });
        self.handle.shared.queue.push(Lane::New, Box::new(job))?;
        received(answer).await
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.write(Lane::Held, held.len() * RENEWAL_BYTES, move |batch| batch.renew(&worker, &held, lease))
            .await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.read(|connection| read::task(connection, id))
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        self.read(|connection| read::journal(connection, id, after_seq, max_bytes))
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        self.read(|connection| read::heads(connection, &ids))
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        let mut done = 0;
        loop {
            // Each a write of its own, so that others get in between.
            let rows = (max - done).min(sweep::ROWS);
            let swept = self.write(Lane::New, 0, move |batch| batch.sweep(rows)).await?;
            done += swept.done;
            if done >= max || swept.done < rows {
                return Ok(Swept { done, ..swept });
            }
        }
    }

    fn watch(&self) -> Hints {
        let hints = self.handle.shared.hints.watch();
        if !self.handle.shared.watched.swap(true, Ordering::Relaxed) {
            // An idle writer did not look for the changes of others until now.
            self.handle.shared.queue.poke();
        }
        hints
    }
}

#[async_trait]
impl Inspect for SqliteStore {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        let before = after.map_or(Ok(i64::MAX), |place| place.parse()).unwrap_or(0);
        let damaged = &self.handle.shared.damaged;
        let mut tasks =
            self.read(|connection| read::list(connection, damaged, &filter, before, max.saturating_add(1)))?;
        let more = tasks.len() > max as usize;
        tasks.truncate(max as usize);
        let next = tasks.last().filter(|_| more).map(|(number, _)| number.to_string());
        let now = self.handle.shared.now();
        Ok(ListPage { tasks: tasks.into_iter().map(|(_, task)| task).collect(), next, now })
    }

    /// `true`: leases come from the process that has the file's runtime lock, which it keeps until it closes the store.
    fn is_exclusive(&self) -> bool {
        true
    }

    fn is_front(&self) -> bool {
        !self.handle.shared.runtime.load(Ordering::Relaxed)
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        let shared = &self.handle.shared;
        self.read(|connection| read::counts(connection, &shared.damaged, shared.now()))
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        self.read(read::workers)
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        self.read(|connection| read::running(connection, &owner))
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        self.read(|connection| read::call(connection, id))
    }
}
