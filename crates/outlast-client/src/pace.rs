//! How often to ask: the pace of polls, and how long to wait after a failure. Pure; randomness is a parameter.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// The pace where the server names none.
const UNNAMED: Duration = Duration::from_secs(1);
/// No server is asked more often than this, whatever it says.
const SHORTEST: Duration = Duration::from_millis(100);
/// No server is asked less often than this: one that says "in 30,000 years" means something else.
const LONGEST: Duration = Duration::from_secs(3600);
/// The first wait after a failure; each further one doubles it.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest wait after a failure, unless the server asks for a longer one.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// How long to wait for the next poll, from what the newest answer asked for (S23): never shorter than that, save for what
/// no server can mean. `random` in 0..=255 spreads clients by up to a tenth.
pub(crate) fn next_poll(asked_ms: Option<u64>, random: u8) -> Duration {
    let asked = asked_ms.map_or(UNNAMED, Duration::from_millis).clamp(SHORTEST, LONGEST);
    asked + asked.mul_f64(f64::from(random) / 2550.0)
}

/// How long to wait after the `failures`th failure in a row (from 1), from half to the whole of a doubling time, and never
/// shorter than the server asked for.
pub(crate) fn next_retry(failures: u32, asked: Option<Duration>, random: u8) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LAST_RETRY);
    let spread = doubled.mul_f64(0.5 + f64::from(random) / 510.0);
    spread.max(asked.unwrap_or_default().min(LONGEST))
}

/// Randomness for the two above.
pub(crate) fn random() -> u8 {
    let mut byte = [0];
    // Without randomness clients are spread less well, and nothing else is lost.
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

/// The delay that a `Retry-After` header asks for: in seconds, or up to an instant by the wall clock.
pub(crate) fn retry_after(header: &str, wall: DateTime<Utc>) -> Option<Duration> {
    let header = header.trim();
    match header.parse::<u64>() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => DateTime::parse_from_rfc2822(header)
            .ok()
            .map(|at| (at.with_timezone(&Utc) - wall).to_std().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c30_any_interval_gives_a_sane_pace_that_is_never_faster_than_asked() {
        for random in [0, 128, 255] {
            assert!(next_poll(None, random) >= UNNAMED);
            assert!(next_poll(Some(0), random) >= SHORTEST);
            assert!(next_poll(Some(5_000), random) >= Duration::from_secs(5));
            assert!(next_poll(Some(5_000), random) <= Duration::from_millis(5_500));
            for absurd in [1_000_000_000_000_000, u64::MAX] {
                assert!(next_poll(Some(absurd), random) <= LONGEST.mul_f64(1.1));
            }
        }
    }

    #[test]
    fn failures_double_the_wait_up_to_a_bound_and_respect_what_the_server_asks() {
        assert!(next_retry(1, None, 0) >= Duration::from_millis(250));
        assert!(next_retry(4, None, 0) > next_retry(1, None, 255));
        assert_eq!(next_retry(u32::MAX, None, 255), LAST_RETRY);
        assert_eq!(next_retry(1, Some(Duration::from_secs(90)), 0), Duration::from_secs(90));
        assert!(next_retry(1, Some(Duration::MAX), 0) <= LONGEST);
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_as_an_instant() {
        let wall = DateTime::parse_from_rfc3339("2026-10-21T07:27:30Z").unwrap().with_timezone(&Utc);
        assert_eq!(retry_after(" 7 ", wall), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Wed, 21 Oct 2026 07:28:00 GMT", wall), Some(Duration::from_secs(30)));
        assert_eq!(retry_after("Wed, 21 Oct 2020 07:28:00 GMT", wall), Some(Duration::ZERO));
        assert_eq!(retry_after("-1", wall), None);
    }
}
