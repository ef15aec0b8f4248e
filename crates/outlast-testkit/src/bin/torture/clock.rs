//! The one place that reads the machine's clock. Nothing here is simulated: processes die in real time.

#![allow(clippy::disallowed_methods)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970, by the clock that the server's process and the trace of its writes read too.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// How long ago this moment was.
pub(crate) fn since(at: u64) -> Duration {
    Duration::from_nanos(now().saturating_sub(at))
}
