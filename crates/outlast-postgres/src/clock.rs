//! Time: the database's clock, as each replica reads it, beside the time that really goes by here. The only module that
//! reads a clock.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlast_core::{Clock, Timestamp};

/// What tests add to the time of a store; for stores that share a database it is to be shared as well.
///
/// ```
/// use std::time::Duration;
/// use outlast_postgres::{Options, Skew};
/// let skew = Skew::default();
/// let options = Options::default().skew(skew.clone());
/// skew.advance(Duration::from_secs(60));
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default)]
pub struct Skew(Arc<Mutex<Offsets>>);

#[derive(Debug, Clone, Copy, Default)]
struct Offsets {
    /// Where time stands still; `None` where it goes on.
    still: Option<i64>,
    /// To the database's clock, in milliseconds.
    wall: i64,
    /// To the time that went by.
    gone: Duration,
}

impl Skew {
    /// Time that stands still at `at`, but for what is added to it.
    #[must_use]
    pub fn still(at: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(Offsets { still: Some(at.as_millis()), ..Offsets::default() })))
    }

    /// As if so much time had gone by.
    pub fn advance(&self, by: Duration) {
        let mut at = self.lock();
        at.wall = at.wall.saturating_add(millis(by));
        at.gone += by;
    }

    /// As if the database's clock had been set forward by so many milliseconds, or back.
    pub fn set_wall(&self, by: i64) {
        let mut at = self.lock();
        at.wall = at.wall.saturating_add(by);
    }

    /// The database's clock, with what was added to it.
    pub(crate) fn wall(&self, database: i64) -> Timestamp {
        let Offsets { still, wall, .. } = *self.lock();
        Timestamp::from_millis(still.unwrap_or(database).saturating_add(wall))
    }

    /// The time that went by here.
    pub(crate) fn monotonic(&self) -> Duration {
        let Offsets { still, gone, .. } = *self.lock();
        if still.is_some() { gone } else { monotonic() + gone }
    }

    fn lock(&self) -> MutexGuard<'_, Offsets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the clocks said when an answer of the database came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) wall: Timestamp,
    pub(crate) monotonic: Duration,
}

impl Clock for Seen {
    fn now(&self) -> Timestamp {
        self.wall
    }

    fn monotonic(&self) -> Duration {
        self.monotonic
    }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn monotonic() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(target_vendor = "apple")]
    let clock = ClockId::Monotonic; // Apple's counts suspend, and the one behind `Instant` does not.
    #[cfg(not(target_vendor = "apple"))]
    let clock = ClockId::Boottime;
    let at = clock_gettime(clock);
    let seconds = u64::try_from(at.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(at.tv_nsec).unwrap_or_default())
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
#[allow(clippy::disallowed_methods)]
fn monotonic() -> Duration {
    use std::{sync::OnceLock, time::Instant};
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
