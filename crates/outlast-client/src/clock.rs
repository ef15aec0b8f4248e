//! The one place that reads a clock.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

/// The clock that deadlines and paces go by.
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The clock on the wall, for what a saved handle carries into another process.
#[allow(clippy::disallowed_methods)]
pub(crate) fn wall() -> DateTime<Utc> {
    Utc::now()
}
