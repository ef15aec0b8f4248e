//! The clocks of simulated processes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use outlast_core::{Clock, Timestamp};
use tokio::time::Instant;

use super::world::EPOCH;

/// The clock of a process: time passes on it as on its executor, and its wall clock can be set.
#[derive(Clone)]
pub(super) struct ProcessClock {
    start: Instant,
    set_by: Arc<AtomicI64>,
}

impl ProcessClock {
    /// Begins at the present time of the executor that this is called on.
    pub(super) fn start() -> Self {
        Self { start: instant(), set_by: Arc::default() }
    }

    /// The time of the executor so long after the clock began.
    pub(super) fn after(&self, since: Duration) -> Instant {
        self.start + since
    }

    /// Sets the wall clock forward by so many milliseconds, or back.
    pub(super) fn set(&self, by: i64) {
        self.set_by.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> Timestamp {
        let passed = i64::try_from(self.monotonic().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(EPOCH.as_millis() + passed + self.set_by.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        instant().saturating_duration_since(self.start)
    }
}

/// The paused time of the executor that this is called on.
#[allow(clippy::disallowed_methods, reason = "this is the simulated clock")]
pub(super) fn instant() -> Instant {
    Instant::now()
}
