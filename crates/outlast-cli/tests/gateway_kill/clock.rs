//! How long a round takes: the processes that it watches go by the real time.

use std::time::Instant;

#[allow(clippy::disallowed_methods, reason = "the one place where the clock is read")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
