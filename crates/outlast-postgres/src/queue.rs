//! What waits for the writer: bounded, and with what keeps running work alive ahead of what starts new work.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use outlast_core::StoreError;
use tokio::sync::Notify;

use crate::{job::Job, options::Limits};

/// Which operations go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Renewals and events of tasks that exist: late ones cost leases.
    Held,
    /// What starts work.
    New,
}

/// One place in so many of a full batch is kept for [`Lane::New`], so that it is late and never forgotten.
const KEPT_FOR_NEW: usize = 8;

pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Notify,
    limits: Limits,
}

#[derive(Default)]
struct State {
    held: Line,
    new: Line,
    /// Why nothing more is taken.
    closed: Option<StoreError>,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    bytes: usize,
}

impl Queue {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { state: Mutex::default(), arrived: Notify::new(), limits }
    }

    /// Puts a job at the end of its lane.
    pub(crate) fn push(&self, job: Job) -> Result<(), StoreError> {
        let mut state = self.lock();
        if let Some(reason) = &state.closed {
            return Err(reason.clone());
        }
        let line = state.line(job.lane());
        // One job of any size fits into an empty line.
        let full = line.jobs.len() >= self.limits.queue_ops
            || (!line.jobs.is_empty() && line.bytes + job.bytes() > self.limits.queue_bytes);
        if full {
            return Err(StoreError::unavailable("too many operations wait to be written"));
        }
        line.push_back(job);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Puts a job before all others, whether or not there is room: it gives something back.
    pub(crate) fn push_first(&self, job: Job) {
        let mut state = self.lock();
        if state.closed.is_none() {
            state.held.bytes += job.bytes();
            state.held.jobs.push_front(job);
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// Takes the next batch, waiting for it; `None` when nothing more will come.
    pub(crate) async fn take(&self) -> Option<Vec<Job>> {
        loop {
            {
                let mut state = self.lock();
                if !state.is_empty() {
                    return Some(state.next_batch(&self.limits));
                }
                if state.closed.is_some() {
                    return None;
                }
            }
            // One that arrives in between has left a permit.
            self.arrived.notified().await;
        }
    }

    /// Takes nothing more, and answers everyone who comes with `reason`. What waits is still written.
    pub(crate) fn close(&self, reason: StoreError) {
        self.lock().closed.get_or_insert(reason);
        self.arrived.notify_one();
    }

    /// Why nothing more is taken, if that is so.
    pub(crate) fn closed(&self) -> Option<StoreError> {
        self.lock().closed.clone()
    }

    /// Takes nothing more, and gives up what waits.
    pub(crate) fn fail(&self, reason: &StoreError) {
        let mut state = self.lock();
        state.closed = Some(reason.clone());
        let (held, new) = (std::mem::take(&mut state.held), std::mem::take(&mut state.new));
        drop(state);
        held.jobs.into_iter().chain(new.jobs).for_each(|job| job.settle(Err(reason.clone())));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, lane: Lane) -> &mut Line {
        match lane {
            Lane::Held => &mut self.held,
            Lane::New => &mut self.new,
        }
    }

    fn is_empty(&self) -> bool {
        self.held.jobs.is_empty() && self.new.jobs.is_empty()
    }

    fn next_batch(&mut self, limits: &Limits) -> Vec<Job> {
        let kept = self.new.jobs.len().min(limits.batch_ops / KEPT_FOR_NEW);
        let mut batch = Vec::new();
        let mut bytes = 0;
        self.held.drain_into(&mut batch, &mut bytes, limits.batch_ops - kept, limits.batch_bytes);
        self.new.drain_into(&mut batch, &mut bytes, limits.batch_ops, limits.batch_bytes);
        batch
    }
}

impl Line {
    fn push_back(&mut self, job: Job) {
        self.bytes += job.bytes();
        self.jobs.push_back(job);
    }

    /// Moves jobs while the batch is within its bounds; the first of a batch always.
    fn drain_into(&mut self, batch: &mut Vec<Job>, bytes: &mut usize, max_ops: usize, max_bytes: usize) {
        while batch.len() < max_ops
            && let Some(next) = self.jobs.front()
            && (batch.is_empty() || *bytes + next.bytes() <= max_bytes)
            && let Some(job) = self.jobs.pop_front()
        {
            self.bytes -= job.bytes();
            *bytes += job.bytes();
            batch.push(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::{By, Call, NewTask, Owner, Payload, Spec, TaskId};

    use super::*;

    const LIMITS: Limits = Limits { batch_ops: 16, batch_bytes: 1_000, queue_ops: 20, queue_bytes: 4_000 };

    fn create(queue: &std::sync::Arc<Queue>, bytes: usize) -> Job {
        let params = Payload::encode(&"x".repeat(bytes)).unwrap();
        let new =
            NewTask::new(TaskId::from_bytes([1; 16]), Owner::anonymous(), Spec::new("t"), Call::new(params));
        Job::create(new, None, queue.clone()).0
    }

    fn apply() -> Job {
        Job::apply(TaskId::from_bytes([2; 16]), By::Operator, Vec::new()).0
    }

    fn taken(queue: &Queue) -> (usize, usize) {
        let batch = futures::executor::block_on(queue.take()).unwrap();
        let held = batch.iter().filter(|job| job.lane() == Lane::Held).count();
        assert!(batch[..held].iter().all(|job| job.lane() == Lane::Held), "what is held goes first");
        (held, batch.len() - held)
    }

    #[test]
    fn what_keeps_work_alive_goes_first_and_new_work_is_not_forgotten() {
        let queue = std::sync::Arc::new(Queue::new(LIMITS));
        for _ in 0..20 {
            queue.push(create(&queue, 1)).unwrap();
            queue.push(apply()).unwrap();
        }
        assert_eq!(taken(&queue), (14, 2));
        assert_eq!(taken(&queue), (6, 10));
        assert_eq!(taken(&queue), (0, 8));
    }

    #[test]
    fn a_full_lane_refuses_and_leaves_the_other_open() {
        let queue = std::sync::Arc::new(Queue::new(LIMITS));
        for _ in 0..20 {
            queue.push(create(&queue, 1)).unwrap();
        }
        assert!(matches!(queue.push(create(&queue, 1)), Err(StoreError::Unavailable(_))));
        queue.push(apply()).unwrap();
    }

    #[test]
    fn a_batch_is_bounded_by_its_size_and_one_of_any_size_fits() {
        let queue = std::sync::Arc::new(Queue::new(LIMITS));
        queue.push(create(&queue, 10_000)).unwrap();
        assert!(queue.push(create(&queue, 1)).is_err(), "its lane is full of it");
        assert_eq!(taken(&queue), (0, 1));
        for _ in 0..3 {
            queue.push(create(&queue, 400)).unwrap();
        }
        assert_eq!((taken(&queue), taken(&queue)), ((0, 2), (0, 1)));
    }

    #[test]
    fn a_closed_queue_hands_out_what_waits_and_takes_nothing_more() {
        let queue = std::sync::Arc::new(Queue::new(LIMITS));
        queue.push(apply()).unwrap();
        queue.close(StoreError::fatal("closed"));
        assert!(matches!(queue.push(apply()), Err(StoreError::Fatal(_))));
        assert_eq!(taken(&queue), (1, 0));
        assert!(futures::executor::block_on(queue.take()).is_none());
    }
}
