//! A store that fails at a chosen call, and a walk over every call of a scenario.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, Hints, Inspect,
    JournalPage, LeaseRequest, ListPage, NewTask, Owner, Renewal, Store, StoreError, Swept, Task, TaskId,
    WorkerId, WorkerSeen,
};
use tokio::sync::Semaphore;

use crate::Harness;

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails before it has an effect: [`StoreError::Unavailable`].
    Before,
    /// It has its effect, and its answer is lost: [`StoreError::Unknown`].
    After,
    /// It takes this many polls before its effect and as many after it, while others go on.
    Delayed(u32),
    /// It does not begin until [`FaultStore::release`].
    Held,
}

impl Fault {
    /// The faults that [`walk_faults`] tries at each call.
    pub const WALKED: [Self; 3] = [Self::Before, Self::After, Self::Delayed(5)];
}

/// Wraps a store and makes one of its calls go wrong.
///
/// Calls are counted from 1 over all methods but [`Store::watch`], which cannot fail.
///
/// ```
/// use outlast_core::{Store, StoreError};
/// use outlast_testkit::{Fault, FaultStore, Harness, MemoryHarness, story::new_task};
///
/// outlast_testkit::run(async {
///     let store = FaultStore::failing(MemoryHarness::new().open().await, 1, Fault::After);
///     let new = new_task();
///     assert!(matches!(store.create(new.clone(), None).await, Err(StoreError::Unknown(_))));
///     assert!(store.get(new.id).await.unwrap().is_some(), "it was done all the same");
/// });
/// ```
#[derive(Debug)]
pub struct FaultStore<S: ?Sized> {
    plan: Option<(u64, Fault)>,
    calls: AtomicU64,
    struck: AtomicBool,
    down: AtomicBool,
    gate: Semaphore,
    inner: Arc<S>,
}

impl<S: ?Sized> FaultStore<S> {
    /// A store whose `nth` call has this fault.
    pub fn failing(inner: Arc<S>, nth: u64, fault: Fault) -> Self {
        Self { plan: Some((nth, fault)), ..Self::sound(inner) }
    }

    /// A store that only counts.
    pub fn sound(inner: Arc<S>) -> Self {
        Self {
            plan: None,
            calls: AtomicU64::new(0),
            struck: AtomicBool::new(false),
            down: AtomicBool::new(false),
            gate: Semaphore::new(0),
            inner,
        }
    }

    /// The store behind it, which does not fail.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Whether the call that was to fail has come.
    pub fn struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }

    /// Begins or ends an outage, in which every call fails before it has an effect.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Lets a call that is [`Fault::Held`] begin, now or when it comes.
    pub fn release(&self) {
        self.gate.add_permits(1);
    }

    async fn through<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if self.down.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("an outage"));
        }
        let Some((_, fault)) = self.plan.filter(|(nth, _)| *nth == number) else { return call.await };
        self.struck.store(true, Ordering::SeqCst);
        match fault {
            Fault::Before => Err(StoreError::unavailable("a fault before the effect")),
            Fault::After => {
                call.await?;
                Err(StoreError::unknown("a fault after the effect"))
            }
            Fault::Delayed(polls) => {
                pending(polls).await;
                let answer = call.await;
                pending(polls).await;
                answer
            }
            Fault::Held => {
                // The gate is never closed.
                let _permit = self.gate.acquire().await;
                call.await
            }
        }
    }
}

/// Is pending for this many polls, and each time ready to be polled again.
async fn pending(mut polls: u32) {
    poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: Store + ?Sized> Store for FaultStore<S> {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        self.through(self.inner.create(new, lease)).await
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        self.through(self.inner.apply(id, by, events)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.through(self.inner.claim(request)).await
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.through(self.inner.renew(worker, held, lease)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.through(self.inner.get(id)).await
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        self.through(self.inner.journal(id, after_seq, max_bytes)).await
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        self.through(self.inner.heads(ids)).await
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        self.through(self.inner.sweep(max)).await
    }

    fn watch(&self) -> Hints {
        self.inner.watch()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: Store + ?Sized> Inspect for FaultStore<S> {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        self.through(self.inner.list(filter, after, max)).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.through(self.inner.counts()).await
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        self.through(self.inner.workers()).await
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        self.through(self.inner.running(owner)).await
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        self.through(self.inner.call(id)).await
    }

    fn is_exclusive(&self) -> bool {
        self.inner.is_exclusive()
    }

    fn is_front(&self) -> bool {
        self.inner.is_front()
    }
}

/// Runs a scenario again and again, each time on a fresh store and with one more call gone wrong, until no call is
/// left that a fault could strike. Returns how many runs there were.
///
/// The scenario has to come to its right end under each fault, and panics where it does not; what was printed last
/// names the fault.
///
/// # Panics
/// When the scenario does, or when it makes more calls with every fault and so never comes to an end.
pub async fn walk_faults(on: &dyn Harness, scenario: impl AsyncFn(Arc<FaultStore<dyn Store>>)) -> u64 {
    let mut runs = 0;
    for fault in Fault::WALKED {
        for nth in 1.. {
            assert!(nth < 10_000, "the scenario has an end");
            println!("{fault:?} at call {nth}");
            let store = on.open().await;
            let found = store.counts().await.map(|counts| counts.total());
            assert!(matches!(found, Ok(0)), "each run begins with an empty store");
            let store = Arc::new(FaultStore::failing(store, nth, fault));
            scenario(store.clone()).await;
            runs += 1;
            if !store.struck() {
                break;
            }
        }
    }
    runs
}
