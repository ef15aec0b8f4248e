//! An operation of the contract as the writer carries it, and what becomes of a lease that nobody receives.

use std::sync::Arc;

use outlast_core::{By, Claimed, Created, Event, Held, Queued, StoreError};

use crate::{
    batch::Batch,
    error::Failure,
    queue::{Job, Queue},
};

/// `run` is what it does inside the transaction; `answer` gets how the transaction ended, and what `run` returned in it.
pub(crate) struct Operation<T, Run, Answer> {
    run: Run,
    answer: Answer,
    result: Option<T>,
    bytes: usize,
    claims: bool,
}

impl<T, Run, Answer> Operation<T, Run, Answer>
where
    Run: FnMut(&mut Batch<'_>) -> Result<T, Failure>,
    Answer: FnOnce(Result<(), StoreError>, Option<T>),
{
    pub(crate) fn new(bytes: usize, run: Run, answer: Answer) -> Self {
        Self { run, answer, result: None, bytes, claims: false }
    }

    pub(crate) fn claim(run: Run, answer: Answer) -> Self {
        Self { claims: true, ..Self::new(0, run, answer) }
    }
}

impl<T, Run, Answer> Job for Operation<T, Run, Answer>
where
    T: Send,
    Run: FnMut(&mut Batch<'_>) -> Result<T, Failure> + Send,
    Answer: FnOnce(Result<(), StoreError>, Option<T>) + Send,
{
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), Failure> {
        self.result = Some((self.run)(batch)?);
        Ok(())
    }

    fn settle(self: Box<Self>, outcome: Result<(), StoreError>) {
        (self.answer)(outcome, self.result);
    }

    fn claims(&self) -> bool {
        self.claims
    }
}

impl<T, Run, Answer> Queued for Operation<T, Run, Answer> {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What a caller is told of a durable result.
pub(crate) fn told<T>(outcome: Result<(), StoreError>, result: Option<T>) -> Result<T, StoreError> {
    outcome.and_then(|()| result.ok_or_else(|| StoreError::unknown("the operation left no result")))
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
    pub(crate) fn created(created: Created, fresh: bool, queue: Arc<Queue>) -> Self {
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
            let events = [Event::Release { began: false }];
            let release = move |batch: &mut Batch<'_>| batch.apply(id, &By::Lease(token), &events);
            self.queue.push_first(Box::new(Operation::new(0, release, |_, _| {})));
        }
    }
}
