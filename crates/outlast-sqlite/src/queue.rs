//! What waits for the writer.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlast_core::{Lane, LaneLimits, Lanes, Queued, StoreError};

use crate::{batch::Batch, error::Failure};

/// One operation on its way through the writer.
pub(crate) trait Job: Queued + Send {
    /// Carries it out; may be called again when the transaction of an earlier call was undone.
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), Failure>;

    /// Answers its caller, after the commit or after it was given up.
    fn settle(self: Box<Self>, outcome: Result<(), StoreError>);

    /// Whether it is a claim, for which this process should try to become the runtime.
    fn claims(&self) -> bool;
}

impl Queued for Box<dyn Job> {
    fn bytes(&self) -> usize {
        (**self).bytes()
    }
}

/// What the writer finds.
pub(crate) enum Taken {
    /// The next batch.
    Batch(Vec<Box<dyn Job>>),
    /// Nothing within the time.
    Idle,
    /// Nothing, and nothing more will come.
    Closed,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

struct State {
    lanes: Lanes<Box<dyn Job>>,
    /// Whether the writer is to look around although nothing arrived.
    poked: bool,
}

impl Queue {
    pub(crate) fn new(limits: LaneLimits) -> Self {
        let state = State { lanes: Lanes::new(limits), poked: false };
        Self { state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Puts a job at the end of its lane.
    pub(crate) fn push(&self, lane: Lane, job: Box<dyn Job>) -> Result<(), StoreError> {
        self.lock().lanes.push(lane, job)?;
        self.arrived.notify_one();
        Ok(())
    }

    /// Puts a job before all others, whether or not there is room: it gives something back.
    pub(crate) fn push_first(&self, job: Box<dyn Job>) {
        if self.lock().lanes.push_first(job) {
            self.arrived.notify_one();
        }
    }

    /// Makes a writer that waits for jobs look around.
    pub(crate) fn poke(&self) {
        self.lock().poked = true;
        self.arrived.notify_one();
    }

    /// Takes the next batch, waiting for it; for at most `wait`, if that is given.
    pub(crate) fn take(&self, wait: Option<Duration>) -> Taken {
        let mut state = self.lock();
        if state.lanes.is_empty() && state.lanes.closed().is_none() && !state.poked {
            // Awake for nothing is idle as well.
            state = match wait {
                Some(wait) => {
                    self.arrived.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.poked = false;
        if !state.lanes.is_empty() {
            Taken::Batch(state.lanes.next_batch())
        } else if state.lanes.closed().is_some() {
            Taken::Closed
        } else {
            Taken::Idle
        }
    }

    /// Takes nothing more, and answers everyone who comes with `reason`. What waits is still written.
    pub(crate) fn close(&self, reason: StoreError) {
        self.lock().lanes.close(reason);
        self.arrived.notify_all();
    }

    /// Takes nothing more, and gives up what waits.
    pub(crate) fn fail(&self, reason: &StoreError) {
        let lost = self.lock().lanes.fail(reason.clone());
        lost.into_iter().for_each(|job| job.settle(Err(reason.clone())));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
