//! What waits for the writer of a store: bounded, and with what keeps running work alive ahead of what starts new work.

use std::collections::VecDeque;

use crate::StoreError;

/// Which operations go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Renewals and events of tasks that exist: late ones cost leases.
    Held,
    /// What starts work, or can wait.
    New,
}

/// Something that waits to be written.
pub trait Queued {
    /// What it adds to the size of a batch.
    fn bytes(&self) -> usize;
}

/// The bounds of a queue and of the batches that are taken from it.
#[derive(Debug, Clone, Copy)]
pub struct LaneLimits {
    /// Operations of a batch.
    pub batch_ops: usize,
    /// Bytes of a batch; one operation of any size is a batch.
    pub batch_bytes: usize,
    /// Operations that wait in a lane.
    pub queue_ops: usize,
    /// Bytes that wait in a lane; one operation of any size fits into an empty one.
    pub queue_bytes: usize,
}

impl Default for LaneLimits {
    fn default() -> Self {
        Self { batch_ops: 256, batch_bytes: 4 << 20, queue_ops: 8_192, queue_bytes: 64 << 20 }
    }
}

/// One place in so many of a full batch is kept for [`Lane::New`], so that it is late and never forgotten.
const KEPT_FOR_NEW: usize = 8;

/// The operations that wait, in two lanes. How a writer waits for them is its store's affair.
#[derive(Debug)]
pub struct Lanes<J> {
    limits: LaneLimits,
    held: Line<J>,
    new: Line<J>,
    /// Why nothing more is taken.
    closed: Option<StoreError>,
}

#[derive(Debug)]
struct Line<J> {
    jobs: VecDeque<J>,
    bytes: usize,
}

impl<J> Default for Line<J> {
    fn default() -> Self {
        Self { jobs: VecDeque::new(), bytes: 0 }
    }
}

impl<J: Queued> Lanes<J> {
    /// Two empty lanes.
    #[must_use]
    pub fn new(limits: LaneLimits) -> Self {
        Self { limits, held: Line::default(), new: Line::default(), closed: None }
    }

    /// Puts a job at the end of its lane.
    ///
    /// # Errors
    /// When the lane is full, or nothing more is taken.
    pub fn push(&mut self, lane: Lane, job: J) -> Result<(), StoreError> {
        if let Some(reason) = &self.closed {
            return Err(reason.clone());
        }
        let line = match lane {
            Lane::Held => &mut self.held,
            Lane::New => &mut self.new,
        };
        let full = line.jobs.len() >= self.limits.queue_ops
            || (!line.jobs.is_empty() && line.bytes + job.bytes() > self.limits.queue_bytes);
        if full {
            return Err(StoreError::unavailable("too many operations wait to be written"));
        }
        line.bytes += job.bytes();
        line.jobs.push_back(job);
        Ok(())
    }

    /// Puts a job before all others, whether or not there is room: it gives something back. Says whether it was taken.
    pub fn push_first(&mut self, job: J) -> bool {
        let is_open = self.closed.is_none();
        if is_open {
            self.held.bytes += job.bytes();
            self.held.jobs.push_front(job);
        }
        is_open
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.jobs.is_empty() && self.new.jobs.is_empty()
    }

    /// The next batch, as large as the limits let it be.
    pub fn next_batch(&mut self) -> Vec<J> {
        let LaneLimits { batch_ops, batch_bytes, .. } = self.limits;
        let kept = self.new.jobs.len().min(batch_ops / KEPT_FOR_NEW);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        self.held.drain_into(&mut batch, &mut bytes, batch_ops - kept, batch_bytes);
        self.new.drain_into(&mut batch, &mut bytes, batch_ops, batch_bytes);
        batch
    }

    /// Takes nothing more, and answers everyone who comes with the first reason that was given. What waits stays.
    pub fn close(&mut self, reason: StoreError) {
        self.closed.get_or_insert(reason);
    }

    /// Why nothing more is taken, if that is so.
    #[must_use]
    pub fn closed(&self) -> Option<&StoreError> {
        self.closed.as_ref()
    }

    /// Takes nothing more, and gives up what waits, which is returned.
    #[must_use]
    pub fn fail(&mut self, reason: StoreError) -> Vec<J> {
        self.closed = Some(reason);
        let (held, new) = (std::mem::take(&mut self.held), std::mem::take(&mut self.new));
        held.jobs.into_iter().chain(new.jobs).collect()
    }
}

impl<J: Queued> Line<J> {
    /// Moves jobs while the batch is within its bounds; the first of a batch always.
    fn drain_into(&mut self, batch: &mut Vec<J>, bytes: &mut usize, max_ops: usize, max_bytes: usize) {
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
    use super::*;

    const LIMITS: LaneLimits =
        LaneLimits { batch_ops: 16, batch_bytes: 1_000, queue_ops: 20, queue_bytes: 4_000 };

    struct Job(Lane, usize);

    impl Queued for Job {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn push(lanes: &mut Lanes<Job>, lane: Lane, bytes: usize) -> Result<(), StoreError> {
        lanes.push(lane, Job(lane, bytes))
    }

    fn taken(lanes: &mut Lanes<Job>) -> (usize, usize) {
        let batch = lanes.next_batch();
        let held = batch.iter().filter(|job| job.0 == Lane::Held).count();
        assert!(batch[..held].iter().all(|job| job.0 == Lane::Held), "what is held goes first");
        (held, batch.len() - held)
    }

    #[test]
    fn what_keeps_work_alive_goes_first_and_new_work_is_not_forgotten() {
        let mut lanes = Lanes::new(LIMITS);
        for _ in 0..20 {
            push(&mut lanes, Lane::New, 1).unwrap();
            push(&mut lanes, Lane::Held, 0).unwrap();
        }
        assert_eq!(taken(&mut lanes), (14, 2));
        assert_eq!(taken(&mut lanes), (6, 10));
        assert_eq!(taken(&mut lanes), (0, 8));
        assert!(lanes.is_empty());
    }

    #[test]
    fn a_full_lane_refuses_and_leaves_the_other_open() {
        let mut lanes = Lanes::new(LIMITS);
        for _ in 0..20 {
            push(&mut lanes, Lane::New, 1).unwrap();
        }
        assert!(matches!(push(&mut lanes, Lane::New, 1), Err(StoreError::Unavailable(_))));
        push(&mut lanes, Lane::Held, 0).unwrap();
    }

    #[test]
    fn a_batch_is_bounded_by_its_size_and_one_of_any_size_fits() {
        let mut lanes = Lanes::new(LIMITS);
        push(&mut lanes, Lane::New, 10_000).unwrap();
        assert!(push(&mut lanes, Lane::New, 1).is_err(), "its lane is full of it");
        assert_eq!(taken(&mut lanes), (0, 1));
        for _ in 0..3 {
            push(&mut lanes, Lane::New, 400).unwrap();
        }
        assert_eq!((taken(&mut lanes), taken(&mut lanes)), ((0, 2), (0, 1)));
    }

    #[test]
    fn closed_lanes_hand_out_what_waits_and_take_nothing_more() {
        let mut lanes = Lanes::new(LIMITS);
        push(&mut lanes, Lane::Held, 0).unwrap();
        lanes.close(StoreError::fatal("closed"));
        lanes.close(StoreError::fatal("again"));
        assert!(matches!(push(&mut lanes, Lane::New, 0), Err(StoreError::Fatal(_))));
        assert!(!lanes.push_first(Job(Lane::Held, 0)));
        assert_eq!(taken(&mut lanes), (1, 0));
    }

    #[test]
    fn what_is_given_up_is_given_back() {
        let mut lanes = Lanes::new(LIMITS);
        push(&mut lanes, Lane::New, 0).unwrap();
        assert!(lanes.push_first(Job(Lane::Held, 5_000)));
        let lost = lanes.fail(StoreError::fatal("lost"));
        assert_eq!(lost.iter().map(|job| job.0).collect::<Vec<_>>(), [Lane::Held, Lane::New]);
        assert!(lanes.is_empty() && lanes.closed().is_some());
    }
}
