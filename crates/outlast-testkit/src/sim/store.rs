//! The store as one process reaches it: over the world's network.

use std::time::Duration;

use async_trait::async_trait;
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, Hints, Inspect,
    JournalPage, LeaseRequest, ListPage, NewTask, Owner, Renewal, Store, StoreError, Swept, Task, TaskId,
    WorkerId, WorkerSeen,
};

use super::{
    network::Sent,
    request::{Answer, Request},
    world::{Caller, Shared},
};

pub(super) struct SimStore {
    pub(super) shared: Shared,
    pub(super) caller: Caller,
}

impl SimStore {
    async fn call(&self, request: Request) -> Result<Answer, StoreError> {
        let sent = self.shared.lock().send(self.caller, request);
        match sent {
            Sent::Done(answer) => *answer,
            Sent::UnderWay(answer) => match answer.await {
                Ok(answer) => answer,
                // No answer comes to a dead process, nor from a store that lost its power.
                Err(_) => std::future::pending().await,
            },
            Sent::Never => std::future::pending().await,
        }
    }
}

macro_rules! answered {
    ($answer:expr, $kind:ident) => {
        match $answer.await? {
            Answer::$kind(answer) => Ok(answer),
            other => unreachable!("each request has an answer of its own kind: {other}"),
        }
    };
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for SimStore {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        answered!(self.call(Request::Create(Box::new(new), lease)), Create)
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        answered!(self.call(Request::Apply(id, by, events)), Apply)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        answered!(self.call(Request::Claim(request)), Claim)
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        answered!(self.call(Request::Renew(worker, held, lease)), Renew)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        answered!(self.call(Request::Get(id)), Get)
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        answered!(self.call(Request::Journal(id, after_seq, max_bytes)), Journal)
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        answered!(self.call(Request::Heads(ids)), Heads)
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        answered!(self.call(Request::Sweep(max)), Sweep)
    }

    fn watch(&self) -> Hints {
        self.shared.lock().doors[self.caller.process].hints.watch()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Inspect for SimStore {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        answered!(self.call(Request::List(filter, after, max)), List)
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        answered!(self.call(Request::Counts), Counts)
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        answered!(SimStore::call(self, Request::Workers), Workers)
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        answered!(SimStore::call(self, Request::Running(owner)), Running)
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        answered!(SimStore::call(self, Request::Call(id)), Call)
    }

    fn is_front(&self) -> bool {
        false
    }

    fn is_exclusive(&self) -> bool {
        self.shared.lock().plan.exclusive
    }
}
