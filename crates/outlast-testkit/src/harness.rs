//! What a backend supplies so that the suite can run on it.

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use outlast_core::{Clock, ManualClock, MemoryStore, Store, Timestamp};

/// A backend as the suite sees it: a way to open it, and a hand on its clock.
///
/// Every behaviour gets a harness of its own, so that no test sees another's tasks or time.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A fresh store without any task, each time it is called.
    async fn open(&self) -> Arc<dyn Store>;

    /// Lets this much time pass for the stores of this harness, without waiting for it.
    async fn advance(&self, by: Duration);

    /// Sets the wall clock of the stores back by this much, as an operator might, while no time passes.
    async fn set_back(&self, by: Duration);

    /// Sets the wall clock of the stores forward by this much, as an operator might, while no time passes.
    async fn set_forward(&self, by: Duration);

    /// Closes the store as the clean end of its process does, and opens the same data again.
    ///
    /// The suite hands over its only handle. A backend that gives one process all the leases of its data may end the
    /// leases of the process before; the suite allows for either.
    async fn reopen(&self, store: Arc<dyn Store>) -> Arc<dyn Store>;
}

/// The harness of [`MemoryStore`], whose data live as long as the harness's stores.
#[derive(Debug, Clone)]
pub struct MemoryHarness {
    clock: ManualClock,
}

impl MemoryHarness {
    /// A harness whose clock stands at the first instant of 2026.
    #[must_use]
    pub fn new() -> Self {
        Self { clock: ManualClock::new(Timestamp::from_millis(1_767_225_600_000)) }
    }

    /// The clock of its stores.
    #[must_use]
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }
}

impl Default for MemoryHarness {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(self.clock.clone()))
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn set_back(&self, by: Duration) {
        self.clock.set_wall(self.clock.now() - by);
    }

    async fn set_forward(&self, by: Duration) {
        self.clock.set_wall(self.clock.now() + by);
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        store
    }
}

/// No behaviour takes this long; one that does waits for something that never comes.
const STUCK: Duration = Duration::from_secs(300);

/// Runs a behaviour to its end on several threads, so that what is meant to race does.
///
/// # Panics
/// When the behaviour panics, or does not end within five minutes.
pub fn run(behaviour: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async {
        tokio::time::timeout(STUCK, behaviour).await.expect("the behaviour comes to its end");
    });
}
