//! The one place where this crate reads a clock.

#![allow(clippy::disallowed_methods, reason = "this is the module that the rule points to")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outlast_core::{Clock, Timestamp};

/// The clocks of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// On Linux this counts the time that the machine was suspended, so that a worker that slept knows that its leases
    /// are over.
    fn monotonic(&self) -> Duration {
        monotonic()
    }
}

/// How long something in this process takes.
pub(crate) struct Stopwatch(tokio::time::Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(target_os = "linux")]
fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(target_os = "linux"))]
fn monotonic() -> Duration {
    use std::{sync::OnceLock, time::Instant};
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
