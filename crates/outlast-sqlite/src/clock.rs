//! The one clock of this crate, and the only module that reads one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outlast_core::{Clock, Timestamp};

/// The machine's clock. Its monotonic part goes on while the machine is suspended, wherever the system offers that.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[allow(clippy::disallowed_methods)]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A clock before 1970 is a broken one; the store's own mark keeps time from running back.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        monotonic()
    }
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
