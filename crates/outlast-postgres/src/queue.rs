//! What waits for the writer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outlast_core::{LaneLimits, Lanes, StoreError};
use tokio::sync::Notify;

use crate::job::Job;

pub(crate) struct Queue {
    lanes: Mutex<Lanes<Job>>,
    arrived: Notify,
}

impl Queue {
    pub(crate) fn new(limits: LaneLimits) -> Self {
        Self { lanes: Mutex::new(Lanes::new(limits)), arrived: Notify::new() }
    }

    /// Puts a job at the end of its lane.
    pub(crate) fn push(&self, job: Job) -> Result<(), StoreError> {
        self.lock().push(job.lane(), job)?;
        self.arrived.notify_one();
        Ok(())
    }

    /// Puts a job before all others, whether or not there is room: it gives something back.
    pub(crate) fn push_first(&self, job: Job) {
        if self.lock().push_first(job) {
            self.arrived.notify_one();
        }
    }

    /// Takes the next batch, waiting for it; `None` when nothing more will come.
    pub(crate) async fn take(&self) -> Option<Vec<Job>> {
        loop {
            {
                let mut lanes = self.lock();
                if !lanes.is_empty() {
                    return Some(lanes.next_batch());
                }
                if lanes.closed().is_some() {
                    return None;
                }
            }
            // One that arrives in between has left a permit.
            self.arrived.notified().await;
        }
    }

    /// Takes nothing more, and answers everyone who comes with `reason`. What waits is still written.
    pub(crate) fn close(&self, reason: StoreError) {
        self.lock().close(reason);
        self.arrived.notify_one();
    }

    /// Why nothing more is taken, if that is so.
    pub(crate) fn closed(&self) -> Option<StoreError> {
        self.lock().closed().cloned()
    }

    /// Takes nothing more, and gives up what waits.
    pub(crate) fn fail(&self, reason: &StoreError) {
        let lost = self.lock().fail(reason.clone());
        lost.into_iter().for_each(|job| job.settle(Err(reason.clone())));
    }

    fn lock(&self) -> MutexGuard<'_, Lanes<Job>> {
        // Nothing in there panics between two changes that belong together.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outlast_core::{By, TaskId};

    use super::*;

    fn apply() -> Job {
        Job::apply(TaskId::from_bytes([2; 16]), By::Operator, Vec::new()).0
    }

    #[test]
    fn a_closed_queue_hands_out_what_waits_and_takes_nothing_more() {
        let queue = Arc::new(Queue::new(LaneLimits::default()));
        queue.push(apply()).unwrap();
        queue.close(StoreError::fatal("closed"));
        assert!(matches!(queue.push(apply()), Err(StoreError::Fatal(_))));
        assert_eq!(futures::executor::block_on(queue.take()).map(|batch| batch.len()), Some(1));
        assert!(futures::executor::block_on(queue.take()).is_none());
    }
}
