//! An operation of the contract as the writer carries it, and what becomes of a lease that nobody receives.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures::channel::oneshot;
use outlast_core::{
    Applied, By, Claimed, Created, Event, Held, Lane, LeaseRequest, NewTask, Queued, Record, Renewal,
    StepKey, StoreError, TaskId, WorkerId,
};

use crate::{
    batch::Batch,
    digest::{self, CallerKey, OwnerKey},
    error::Failure,
    queue::Queue,
};

/// What is asked for, what was decided, and who waits for it.
pub(crate) struct Job {
    ask: Ask,
    bytes: usize,
}

enum Ask {
    Create(Box<Create>),
    Apply(Box<Apply>),
    Renew(Box<Renew>),
    Import(Box<Import>),
}

struct Create {
    new: NewTask,
    lease: Option<LeaseRequest>,
    /// For giving back a lease that nobody receives.
    queue: Arc<Queue>,
    reply: Reply<(Created, bool), Guarded<Created>>,
}

struct Apply {
    id: TaskId,
    by: By,
    events: Vec<Event>,
    /// Where it is only for a lease of this worker: one whose commit is unknown may have got a token that somebody else
    /// has by now.
    only_of: Option<WorkerId>,
    reply: Reply<Applied, Applied>,
}

struct Renew {
    worker: WorkerId,
    held: Vec<Held>,
    lease: Duration,
    reply: Reply<Vec<Renewal>, Vec<Renewal>>,
}

struct Import {
    records: Vec<Record>,
    reply: Reply<u64, u64>,
}

/// What was decided, and where the answer goes.
struct Reply<Decided, Told> {
    decided: Option<Result<Decided, StoreError>>,
    caller: Option<oneshot::Sender<Result<Told, StoreError>>>,
}

/// What a job needs to be loaded.
#[derive(Default)]
pub(crate) struct Needs {
    pub(crate) ids: Vec<TaskId>,
    pub(crate) keys: Vec<(TaskId, StepKey)>,
    pub(crate) caller_keys: Vec<CallerKey>,
    /// How many tasks may be new.
    pub(crate) births: i64,
    /// The owners of new tasks, and how many unfinished ones each may have.
    pub(crate) quotas: Vec<(OwnerKey, u32)>,
}

/// About what one renewal writes.
const RENEWAL_BYTES: usize = 1_024;

impl<Decided, Told> Reply<Decided, Told> {
    fn new() -> (Self, oneshot::Receiver<Result<Told, StoreError>>) {
        let (caller, answer) = oneshot::channel();
        (Self { decided: None, caller: Some(caller) }, answer)
    }

    /// Decides anew, whatever was decided in a transaction that came to nothing.
    fn decide(&mut self, decide: impl FnOnce() -> Result<Decided, StoreError>) {
        let decided = catch_unwind(AssertUnwindSafe(decide));
        self.decided = Some(decided.unwrap_or_else(|_| Err(StoreError::unavailable(Failure::Panic))));
    }

    fn settle(self, outcome: Result<(), StoreError>, told: impl FnOnce(Decided) -> Told) {
        let decided =
            || self.decided.unwrap_or_else(|| Err(StoreError::unknown("the operation left no result")));
        if let Some(caller) = self.caller {
            // A caller that left wants no answer.
            drop(caller.send(outcome.and_then(|()| decided()).map(told)));
        }
    }
}

/// What a caller waits for.
pub(crate) type Answer<T> = oneshot::Receiver<Result<T, StoreError>>;

impl Job {
    pub(crate) fn create(
        new: NewTask,
        lease: Option<LeaseRequest>,
        queue: Arc<Queue>,
    ) -> (Self, Answer<Guarded<Created>>) {
        let bytes = new.size();
        let (reply, answer) = Reply::new();
        (Self { ask: Ask::Create(Box::new(Create { new, lease, queue, reply })), bytes }, answer)
    }

    pub(crate) fn apply(id: TaskId, by: By, events: Vec<Event>) -> (Self, Answer<Applied>) {
        let bytes = events.iter().map(Event::size).sum();
        let (reply, answer) = Reply::new();
        (Self { ask: Ask::Apply(Box::new(Apply { id, by, events, only_of: None, reply })), bytes }, answer)
    }

    /// Gives back a lease that `worker` may have.
    pub(crate) fn give_back(Held { id, token }: Held, worker: WorkerId) -> (Self, Answer<Applied>) {
        let (by, events) = (By::Lease(token), vec![Event::Release { began: false }]);
        let (reply, answer) = Reply::new();
        let apply = Apply { id, by, events, only_of: Some(worker), reply };
        (Self { ask: Ask::Apply(Box::new(apply)), bytes: 0 }, answer)
    }

    pub(crate) fn renew(worker: WorkerId, held: Vec<Held>, lease: Duration) -> (Self, Answer<Vec<Renewal>>) {
        let bytes = held.len() * RENEWAL_BYTES;
        let (reply, answer) = Reply::new();
        (Self { ask: Ask::Renew(Box::new(Renew { worker, held, lease, reply })), bytes }, answer)
    }

    pub(crate) fn import(records: Vec<Record>) -> (Self, Answer<u64>) {
        let bytes: u64 = records.iter().map(Record::size).sum();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (reply, answer) = Reply::new();
        (Self { ask: Ask::Import(Box::new(Import { records, reply })), bytes }, answer)
    }

    pub(crate) fn lane(&self) -> Lane {
        match self.ask {
            Ask::Create(_) | Ask::Import(_) => Lane::New,
            Ask::Apply(_) | Ask::Renew(_) => Lane::Held,
        }
    }

    pub(crate) fn needs(&self, needs: &mut Needs) {
        match &self.ask {
            Ask::Create(create) => {
                let new = &create.new;
                needs.ids.push(new.id);
                needs.births += 1;
                needs.quotas.push((digest::owner(&new.owner), new.max_open));
                let key = new.idempotency.as_ref();
                needs.caller_keys.extend(key.map(|key| digest::caller_key(&new.owner, &key.key)));
            }
            Ask::Apply(apply) => {
                needs.ids.push(apply.id);
                needs.keys.extend(apply.events.iter().filter_map(|event| Some((apply.id, event.key()?))));
            }
            Ask::Renew(renew) => needs.ids.extend(renew.held.iter().map(|held| held.id)),
            Ask::Import(import) => {
                for record in &import.records {
                    let (owner, key) = match record {
                        Record::Task(record) => {
                            needs.ids.push(record.task.id);
                            needs.births += 1;
                            (&record.task.owner, record.key.as_ref())
                        }
                        Record::SpentKey(spent) => (&spent.owner, Some(&spent.key)),
                    };
                    needs.caller_keys.extend(key.map(|key| digest::caller_key(owner, &key.key)));
                }
            }
        }
    }

    /// Decides; may be called again when the transaction of an earlier call came to nothing.
    pub(crate) fn run(&mut self, batch: &mut Batch) {
        match &mut self.ask {
            Ask::Create(create) => {
                let Create { new, lease, reply, .. } = &mut **create;
                reply.decide(|| batch.create(new, lease.as_ref()));
            }
            Ask::Apply(apply) => {
                let Apply { id, by, events, only_of, reply } = &mut **apply;
                reply.decide(|| match only_of {
                    Some(worker) if !batch.is_held_by(*id, worker) => Ok(Applied::Fenced),
                    _ => batch.apply(*id, by, events),
                });
            }
            Ask::Renew(renew) => {
                let Renew { worker, held, lease, reply } = &mut **renew;
                reply.decide(|| Ok(batch.renew(worker, held, *lease)));
            }
            Ask::Import(import) => {
                let Import { records, reply } = &mut **import;
                reply.decide(|| batch.import(records));
            }
        }
    }

    /// Answers its caller, after the commit or after it was given up.
    pub(crate) fn settle(self, outcome: Result<(), StoreError>) {
        match self.ask {
            Ask::Create(create) => {
                let Create { queue, reply, .. } = *create;
                reply.settle(outcome, |(created, fresh)| Guarded::created(created, fresh, queue));
            }
            Ask::Apply(apply) => apply.reply.settle(outcome, |applied| applied),
            Ask::Renew(renew) => renew.reply.settle(outcome, |renewals| renewals),
            Ask::Import(import) => import.reply.settle(outcome, |new| new),
        }
    }
}

impl Queued for Job {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Leases on their way to a caller. If the caller is gone when they arrive, they are given back at once: nobody would
/// run the work before they run out.
pub(crate) struct Guarded<T> {
    value: Option<T>,
    leases: Vec<Held>,
    queue: Arc<Queue>,
}

impl Guarded<Vec<Claimed>> {
    pub(crate) fn claimed(claimed: Vec<Claimed>, queue: Arc<Queue>) -> Self {
        let leases =
            claimed.iter().map(|claimed| Held { id: claimed.task.id, token: claimed.token }).collect();
        Self { value: Some(claimed), leases, queue }
    }
}

impl Guarded<Created> {
    /// `fresh` says whether it was this call that created the task: the lease of an earlier one may be in use.
    fn created(created: Created, fresh: bool, queue: Arc<Queue>) -> Self {
        let leases = match &created {
            Created::Created { task, token: Some(token) } if fresh => {
                vec![Held { id: task.id, token: *token }]
            }
            _ => Vec::new(),
        };
        Self { value: Some(created), leases, queue }
    }
}

impl<T> Guarded<T> {
    /// It arrived.
    pub(crate) fn take(mut self) -> Option<T> {
        self.leases.clear();
        self.value.take()
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        for Held { id, token } in self.leases.drain(..) {
            let (job, _) = Job::apply(id, By::Lease(token), vec![Event::Release { began: false }]);
            self.queue.push_first(job);
        }
    }
}
