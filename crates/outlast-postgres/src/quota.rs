//! How many unfinished tasks an owner may have: counted under a lock where the limit is near, and now and then where it
//! is far.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::digest::OwnerKey;

/// With more places left than this, no lock is needed: what other replicas create in one batch each fits in.
pub(crate) const FAR: i64 = 4_096;

/// No database creates more tasks a second than this, all replicas together; so fast may a count go out of date.
const FASTEST: f64 = 100_000.0;

/// How many owners are remembered at most.
const REMEMBERED: usize = 10_000;

/// The owners who were far from their limit when they were last counted.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<HashMap<OwnerKey, Count>>);

#[derive(Debug, Clone, Copy)]
struct Count {
    open: i64,
    /// On the monotonic clock.
    at: Duration,
}

impl Quotas {
    /// Whether the owner may be so near to this limit that it has to be counted.
    pub(crate) fn is_near(&self, owner: &OwnerKey, max_open: u32, now: Duration) -> bool {
        let Some(count) = self.counts().get(owner).copied() else { return true };
        let since = now.saturating_sub(count.at).as_secs_f64() * FASTEST;
        (i64::from(max_open) - count.open) as f64 - since <= FAR as f64
    }

    pub(crate) fn note(&self, owner: OwnerKey, open: i64, now: Duration) {
        let mut counts = self.counts();
        if counts.len() >= REMEMBERED {
            counts.clear();
        }
        counts.insert(owner, Count { open, at: now });
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<OwnerKey, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_far_from_the_limit_is_counted_again_before_it_can_be_near() {
        let (quotas, owner) = (Quotas::default(), [1; 16]);
        let second = Duration::from_secs(1);
        assert!(quotas.is_near(&owner, u32::MAX, Duration::ZERO), "nobody counted yet");
        quotas.note(owner, 1_000, Duration::ZERO);
        assert!(quotas.is_near(&owner, 1_000 + 4_096, Duration::ZERO));
        assert!(!quotas.is_near(&owner, 1_000 + 4_097, Duration::ZERO));
        assert!(!quotas.is_near(&owner, 1_000_000, second * 9));
        assert!(quotas.is_near(&owner, 1_000_000, second * 10));
    }
}
