//! The one place that reads a clock.

use tokio::time::Instant;

/// The clock that holds go by.
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
