//! How fast one caller may poll one task (S23).

use std::{collections::HashMap, time::Duration};

use outlast_core::{Owner, TaskId};

use crate::PollLimit;

/// Tokens per owner and task. What has refilled is forgotten, so memory is bounded by the recent polls.
pub(crate) struct PollLimiter {
    limit: Option<PollLimit>,
    buckets: HashMap<(Owner, TaskId), Bucket>,
    next_cleaning: Duration,
}

struct Bucket {
    tokens: f64,
    at: Duration,
}

impl PollLimiter {
    pub(crate) fn new(limit: Option<PollLimit>) -> Self {
        Self { limit, buckets: HashMap::new(), next_cleaning: Duration::ZERO }
    }

    /// Takes one poll at `now`; if there is none, says how long until there is.
    pub(crate) fn take(&mut self, owner: &Owner, id: TaskId, now: Duration) -> Result<(), Duration> {
        let Some(PollLimit { burst, per_second }) = self.limit else { return Ok(()) };
        let burst = f64::from(burst);
        let refilled = |bucket: &Bucket| {
            (bucket.tokens + now.saturating_sub(bucket.at).as_secs_f64() * per_second).min(burst)
        };
        if now >= self.next_cleaning {
            self.buckets.retain(|_, bucket| refilled(bucket) < burst);
            self.next_cleaning = now + Duration::from_secs(10);
        }
        let bucket = self.buckets.entry((owner.clone(), id)).or_insert(Bucket { tokens: burst, at: now });
        bucket.tokens = refilled(bucket);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            let wait = Duration::try_from_secs_f64((1.0 - bucket.tokens) / per_second);
            return Err(wait.unwrap_or(Duration::MAX));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> PollLimiter {
        PollLimiter::new(Some(PollLimit { burst: 2, per_second: 1.0 }))
    }

    #[test]
    fn a_burst_passes_and_then_one_a_second() {
        let (mut limiter, owner, id) = (limiter(), Owner::anonymous(), TaskId::from_bytes([1; 16]));
        let second = Duration::from_secs(1);
        assert_eq!(limiter.take(&owner, id, Duration::ZERO), Ok(()));
        assert_eq!(limiter.take(&owner, id, Duration::ZERO), Ok(()));
        assert_eq!(limiter.take(&owner, id, Duration::ZERO), Err(second));
        assert_eq!(limiter.take(&owner, id, second), Ok(()));
        assert_eq!(limiter.take(&owner, id, second), Err(second));
    }

    #[test]
    fn owners_and_tasks_do_not_share() {
        let mut limiter = limiter();
        for n in 0..3 {
            let id = TaskId::from_bytes([n; 16]);
            assert_eq!(limiter.take(&Owner::anonymous(), id, Duration::ZERO), Ok(()));
            assert_eq!(limiter.take(&Owner::new("bob"), id, Duration::ZERO), Ok(()));
        }
    }

    #[test]
    fn what_has_refilled_is_forgotten() {
        let mut limiter = limiter();
        for n in 0..100 {
            limiter.take(&Owner::anonymous(), TaskId::from_bytes([n; 16]), Duration::ZERO).unwrap();
        }
        limiter.take(&Owner::anonymous(), TaskId::from_bytes([0; 16]), Duration::from_secs(60)).unwrap();
        assert_eq!(limiter.buckets.len(), 1);
    }
}
