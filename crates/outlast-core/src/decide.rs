//! What a store does inside its atomic step: authority, fencing, and several events as one.

use std::collections::HashMap;

use crate::{
    By, Change, Entry, Event, Illegal, Known, Lease, Run, StepKey, Task, TaskState, Timestamp, WorkerId,
};

/// What a store is to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The task as it becomes.
    pub task: Task,
    /// The entries to append to its journal.
    pub entries: Vec<Entry>,
}

/// What a store is to do about a call of [`Store::apply`](crate::Store::apply).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Write this.
    Write(Box<Decision>),
    /// Acknowledge without writing: nothing changes.
    Absorbed,
    /// The task does not exist for this sender (S25).
    NotFound,
    /// The sender's lease was taken over.
    Fenced,
    /// Refuse all of it.
    Illegal(Illegal),
}

impl Task {
    /// Decides about `events` sent `by` someone at `now`, all or none.
    ///
    /// `journal` looks up what the journal says about a key. Fencing compares the token and never the lease's time:
    /// an expired lease that nobody took still commits.
    ///
    /// # Errors
    /// Whatever `journal` fails with.
    pub fn decide<E>(
        &self,
        by: &By,
        events: &[Event],
        now: Timestamp,
        mut journal: impl FnMut(&StepKey) -> Result<Option<Known>, E>,
    ) -> Result<Verdict, E> {
        match by {
            By::Owner(owner) if *owner != self.owner => return Ok(Verdict::NotFound),
            By::Lease(token) if *token != self.token => return Ok(Verdict::Fenced),
            // The lease is over although nobody took the task yet.
            By::Lease(_) if !self.is_final() && self.lease().is_none() => {
                let repeated = self.gave_back_with(events, now, journal)?;
                return Ok(if repeated { Verdict::Absorbed } else { Verdict::Fenced });
            }
            _ => {}
        }
        let mut task = self.clone();
        let mut entries: Vec<Entry> = Vec::new();
        let mut opened: HashMap<StepKey, Known> = HashMap::new();
        for event in events {
            if !event.allowed_to(by) {
                let state = "asked of it by this sender";
                return Ok(Verdict::Illegal(Illegal::State { event: event.name(), state }));
            }
            let known = match event.key() {
                Some(key) => match opened.get(&key) {
                    Some(known) => Some(known.clone()),
                    None => journal(&key)?,
                },
                None => None,
            };
            match task.apply(event, known.as_ref(), now) {
                Ok(Change::Nothing) => {}
                Ok(Change::To { task: next, entry }) => {
                    task = *next;
                    if let Some(entry) = entry {
                        if let Some(key) = entry.key.clone().filter(|_| entry.kind.opens_key()) {
                            opened.insert(key, Known { kind: entry.kind, body: entry.body.clone() });
                        }
                        entries.push(entry);
                    }
                }
                Err(illegal) => return Ok(Verdict::Illegal(illegal)),
            }
        }
        if task == *self {
            return Ok(Verdict::Absorbed);
        }
        Ok(Verdict::Write(Box::new(Decision { task, entries })))
    }

    /// Whether `events` are those that gave the lease back, sent again because their answer was lost: everything that
    /// they would journal is in the journal. What was never kept must not be acknowledged.
    fn gave_back_with<E>(
        &self,
        events: &[Event],
        now: Timestamp,
        mut journal: impl FnMut(&StepKey) -> Result<Option<Known>, E>,
    ) -> Result<bool, E> {
        let Some((Event::Park { .. } | Event::Release { .. }, before)) = events.split_last() else {
            return Ok(false);
        };
        // As if it had the lease still: a repetition would change nothing.
        let mut held = self.clone();
        if let TaskState::Live(live) = &mut held.state {
            live.run = Run::Leased(Lease { worker: WorkerId::new(""), until: now, alone: false });
        }
        for event in before {
            // Not journaled, and nothing is lost with them.
            if matches!(
                event,
                Event::SetMessage(_) | Event::ExtendTtl(_) | Event::RunAlone | Event::RunBeside
            ) {
                continue;
            }
            let known = event.key().map(|key| journal(&key)).transpose()?.flatten();
            if held.apply(event, known.as_ref(), now) != Ok(Change::Nothing) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
