//! When an upstream that could not be reached is tried again. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// How often in a row an upstream could not be reached, and until when it is left alone for that.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// How long the upstream is still left alone.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// It could not be reached. Those who shared one try count as one: who comes during the pause brings no news.
    pub(crate) fn failed(&mut self, now: Instant) {
        if self.pause(now).is_none() {
            let pause = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST);
            self.failures = self.failures.saturating_add(1);
            self.until = Some(now + pause);
        }
    }

    /// It was reached. Whether it could not be before.
    pub(crate) fn reached(&mut self) -> bool {
        std::mem::take(self).failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_pause_up_to_a_limit() {
        let mut now = crate::clock::now();
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(now), None);
        for millis in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            backoff.failed(now);
            assert_eq!(backoff.pause(now), Some(Duration::from_millis(millis)));
            // Another one who waited for the same try.
            backoff.failed(now + Duration::from_millis(1));
            now += Duration::from_millis(millis);
            assert_eq!(backoff.pause(now), None);
        }
        assert!(backoff.reached());
        assert!(!backoff.reached());
        backoff.failed(now);
        assert_eq!(backoff.pause(now), Some(FIRST));
    }
}
