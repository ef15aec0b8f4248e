//! The pace of retries while a store is down.

use std::time::Duration;

/// Doubling waits from 50 ms to 5 s.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// How long to wait before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = Duration::from_millis(50 << self.0.min(7)).min(Duration::from_secs(5));
        self.0 += 1;
        wait
    }
}
