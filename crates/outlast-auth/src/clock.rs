//! The one place that reads a clock.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The clock that ages go by.
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The clock on the wall, in seconds since 1970, by which tokens are good.
#[allow(clippy::disallowed_methods)]
pub(crate) fn wall() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
