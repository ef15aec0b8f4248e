//! How soon the work of a replica that is gone is taken over.
//!
//! "Soon" cannot be so many seconds: a machine that stands still, or one whose disk does, must fail nothing. So time is
//! counted in beats. A beat is a short pause and a commit to the same database, made while the others take over; on an
//! idle machine forty of them are two seconds, and on a busy one they take as long as everything else does there.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::snapshot::Snapshot;

/// The pause before each beat.
pub(crate) const BEAT: Duration = Duration::from_millis(50);
/// Two seconds.
pub(crate) const PATIENCE: usize = 40;

/// What a replica held when it was killed or stopped. All times are the store's, in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Takeover {
    /// When that was.
    pub(crate) at: i64,
    /// Its worker's name.
    pub(crate) worker: String,
    /// When its lease of each task ended, by marker.
    pub(crate) until: BTreeMap<String, i64>,
    /// Nobody had to take anything over before this.
    pub(crate) not_before: i64,
    /// When each beat was.
    pub(crate) beats: Vec<i64>,
}

/// An entry by its kind, its time and what it is about.
type Entry = (String, i64, Value);

impl Takeover {
    /// What was not taken over in time.
    pub(crate) fn late(&self, store: &Snapshot) -> Vec<String> {
        let mut wrong = Vec::new();
        let taken = self.taken(store);
        // A suspect is waited for, and runs alone: then everything else waits as well.
        if taken.values().any(|(_, losses)| *losses > 1) {
            return wrong;
        }
        for (marker, (at, _)) in taken {
            let due = self.until[marker].max(self.not_before);
            let beats = self.beats.iter().filter(|beat| (due..at).contains(*beat)).count();
            if beats > PATIENCE {
                wrong.push(format!(
                    "{marker}: was taken over {} ms after its lease of {} had ended, {beats} beats of at least {BEAT:?}",
                    at - due,
                    self.worker,
                ));
            }
        }
        wrong
    }

    /// How long after the kill the last of it was taken over, and how much that was.
    pub(crate) fn last(&self, store: &Snapshot) -> Option<(Duration, usize)> {
        let taken = self.taken(store);
        let last = taken.values().map(|(at, _)| *at).max()?;
        Some((Duration::from_millis((last - self.at).unsigned_abs()), taken.len()))
    }

    /// When each task was taken over, and how often it was lost since its work last got on. What the replica had written
    /// to its end, or parked, just before it went was not there to be taken.
    fn taken(&self, store: &Snapshot) -> BTreeMap<&str, (i64, usize)> {
        let mut taken = BTreeMap::new();
        for (marker, until) in &self.until {
            let Some(kept) = store.tasks.get(marker).and_then(|kept| kept.first()) else { continue };
            let journal: Vec<Entry> = kept.journal.iter().filter_map(|entry| read(entry)).collect();
            let is_it = |(kind, at, body): &Entry| {
                kind == "lease_lost" && *at >= *until && body.as_str() == Some(&self.worker)
            };
            let Some(lost) = journal.iter().position(is_it) else { continue };
            let since = journal[..=lost].iter().rev();
            let since = since.take_while(|(kind, ..)| !matches!(&**kind, "asked" | "step" | "timer_set"));
            let losses = since.filter(|(kind, ..)| kind == "lease_lost").count();
            let claim = journal[lost..].iter().find(|(kind, ..)| kind == "claimed");
            // What must not run twice is over with its lease.
            let (_, at, _) = claim.unwrap_or(&journal[lost]);
            taken.insert(&**marker, (*at, losses));
        }
        taken
    }
}

fn read(entry: &str) -> Option<Entry> {
    let entry: Value = serde_json::from_str(entry).ok()?;
    Some((entry["kind"].as_str()?.to_owned(), entry["at"].as_i64()?, entry["body"].clone()))
}
