//! One transaction as decisions: what was loaded, and what becomes of it. Several operations on one task compose, each
//! decides on what the one before left, and nothing here waits for the database.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    time::Duration,
};

use outlast_core::{
    Applied, By, Call, Created, Entry, Event, Held, IdempotencyKey, Known, LeaseRequest, NewTask, Owner,
    Record, Renewal, SpentKey, StepKey, StoreError, Tally, Task, TaskId, TaskRecord, Timestamp, Token,
    Verdict, WorkerId,
};

use crate::{
    digest::{self, CallerKey, OwnerKey},
    error::Failure,
};

/// What a transaction knows, and what it is to write.
#[derive(Default)]
pub(crate) struct Batch {
    /// What the store's clock said after the rows were locked.
    pub(crate) now: Timestamp,
    /// The tasks that were locked, and those that are new.
    pub(crate) slots: HashMap<TaskId, Result<Slot, Failure>>,
    /// What the journals of those say about the keys that are asked for.
    pub(crate) known: HashMap<TaskId, HashMap<StepKey, Known>>,
    /// The callers' keys that are in use.
    pub(crate) keys: HashMap<CallerKey, UsedKey>,
    /// The tasks of those keys, where they are not in `slots`.
    pub(crate) existing: HashMap<TaskId, Result<Task, Failure>>,
    /// How many unfinished tasks an owner has; of an owner who is far from the limit it is not counted.
    pub(crate) open: HashMap<OwnerKey, i64>,
    /// Numbers for new tasks.
    pub(crate) numbers: VecDeque<i64>,
    /// The longest lease that was asked for.
    pub(crate) lease: Duration,
    /// Keys without a task that came from another store, and when they are forgotten.
    pub(crate) spent: Vec<(NewKey, TaskId, Timestamp)>,
    /// The tasks that a follower is to look at, in order, each once.
    changed: Vec<TaskId>,
    /// What all of it is to be counted as.
    pub(crate) tally: Tally,
    told: HashSet<TaskId>,
}

/// A task in a transaction.
pub(crate) struct Slot {
    pub(crate) number: i64,
    pub(crate) task: Task,
    /// What is new with it, if it is.
    pub(crate) birth: Option<Birth>,
    /// Whether its row is to be written.
    pub(crate) dirty: bool,
    /// What is to be appended to its journal.
    pub(crate) entries: Vec<Entry>,
}

/// What is written beside a new task.
pub(crate) struct Birth {
    pub(crate) call: Call,
    pub(crate) key: Option<NewKey>,
}

/// A caller's key that is new.
pub(crate) struct NewKey {
    pub(crate) digest: CallerKey,
    pub(crate) owner: Owner,
    pub(crate) key: IdempotencyKey,
}

/// A caller's key that was used before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsedKey {
    pub(crate) request: [u8; 32],
    pub(crate) id: TaskId,
    pub(crate) until: Option<Timestamp>,
}

impl Slot {
    pub(crate) fn stored(number: i64, task: Task) -> Self {
        Self { number, task, birth: None, dirty: false, entries: Vec::new() }
    }
}

impl Batch {
    /// A transaction that decides at this time, and knows nothing yet.
    pub(crate) fn at(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// Whether it was this call that created the task comes with the answer.
    pub(crate) fn create(
        &mut self,
        new: &NewTask,
        lease: Option<&LeaseRequest>,
    ) -> Result<(Created, bool), StoreError> {
        match self.slots.get(&new.id) {
            Some(Err(damaged)) => return Err(damaged.clone().without_effect()),
            Some(Ok(Slot { task, .. })) => {
                // The same call again: its first answer was lost on the way. Its lease is the first of the task; a later
                // token, or another worker's first, is not this caller's to write with.
                let first = Token::default().next();
                let token = lease.and_then(|asked| {
                    let held = task.lease().is_some_and(|held| held.worker == asked.worker);
                    (held && task.token == first).then_some(first)
                });
                return Ok((Created::Created { task: task.clone(), token }, false));
            }
            None => {}
        }
        let key = new.idempotency.as_ref().map(|key| NewKey {
            digest: digest::caller_key(&new.owner, &key.key),
            owner: new.owner.clone(),
            key: key.clone(),
        });
        if let Some(key) = &key
            && let Some(used) =
                self.keys.get(&key.digest).filter(|used| used.until.is_none_or(|until| until > self.now))
        {
            if used.request != key.key.request {
                return Ok((Created::KeyReused, false));
            }
            let task = self.task(used.id)?;
            return Ok((task.map_or(Created::KeySpent, Created::Existing), false));
        }
        let owner = digest::owner(&new.owner);
        let open = self.open.get(&owner);
        if open.is_some_and(|open| *open >= i64::from(new.max_open)) || new.max_open == 0 {
            return Ok((Created::OverQuota, false));
        }
        let Some(number) = self.numbers.pop_front() else {
            return Err(StoreError::unavailable("a new task got no number"));
        };
        let task = match lease {
            Some(LeaseRequest { worker, lease }) => {
                self.lease = self.lease.max(*lease);
                Task::create_leased(new, worker.clone(), *lease, self.now)
            }
            None => Task::create(new, self.now),
        };
        if let Some(key) = &key {
            let used = UsedKey { request: key.key.request, id: new.id, until: None };
            self.keys.insert(key.digest, used);
        }
        if let Some(open) = self.open.get_mut(&owner) {
            *open += 1;
        }
        let entries = new.journal();
        self.tally.created(&task, &entries);
        self.learn(new.id, &entries);
        let birth = Some(Birth { call: new.call.clone(), key });
        let slot = Slot { number, task: task.clone(), birth, dirty: true, entries };
        self.slots.insert(new.id, Ok(slot));
        self.tell(new.id);
        let token = task.lease().map(|_| task.token);
        Ok((Created::Created { task, token }, true))
    }

    pub(crate) fn apply(&mut self, id: TaskId, by: &By, events: &[Event]) -> Result<Applied, StoreError> {
        let applied = self.apply_quietly(id, by, events)?;
        if matches!(applied, Applied::Applied(_)) {
            self.tell(id);
        }
        Ok(applied)
    }

    /// Takes in what another store kept; how much of it is new.
    pub(crate) fn import(&mut self, records: &[Record]) -> Result<u64, StoreError> {
        let mut new = 0;
        for record in records {
            new += u64::from(match record {
                Record::Task(record) => self.import_task(record)?,
                Record::SpentKey(SpentKey { owner, key, task, until }) => {
                    let key = self.import_key(owner, key, *task, Some(*until));
                    key.map(|key| self.spent.push((key, *task, *until))).is_some()
                }
            });
        }
        Ok(new)
    }

    fn import_task(&mut self, record: &TaskRecord) -> Result<bool, StoreError> {
        let TaskRecord { task, call, key, journal } = record;
        if self.slots.contains_key(&task.id) {
            return Ok(false);
        }
        let Some(number) = self.numbers.pop_front() else {
            return Err(StoreError::unavailable("a task got no number"));
        };
        // A key that is in use here stays with its own task.
        let key = key.as_ref().and_then(|key| self.import_key(&task.owner, key, task.id, None));
        let birth = Some(Birth { call: call.clone(), key });
        self.learn(task.id, journal);
        let slot = Slot { number, task: task.clone(), birth, dirty: true, entries: journal.clone() };
        self.slots.insert(task.id, Ok(slot));
        self.tell(task.id);
        Ok(true)
    }

    /// A key that is to be kept, unless it is in use.
    fn import_key(
        &mut self,
        owner: &Owner,
        key: &IdempotencyKey,
        id: TaskId,
        until: Option<Timestamp>,
    ) -> Option<NewKey> {
        let digest = digest::caller_key(owner, &key.key);
        if self.keys.get(&digest).is_some_and(|used| used.until.is_none_or(|until| until > self.now)) {
            return None;
        }
        self.keys.insert(digest, UsedKey { request: key.request, id, until });
        Some(NewKey { digest, owner: owner.clone(), key: key.clone() })
    }

    /// Whether a task is in the hands of this worker.
    pub(crate) fn is_held_by(&self, id: TaskId, worker: &WorkerId) -> bool {
        let slot = self.slots.get(&id).and_then(|slot| slot.as_ref().ok());
        slot.and_then(|slot| slot.task.lease()).is_some_and(|lease| lease.worker == *worker)
    }

    /// Applies, and tells no follower.
    pub(crate) fn apply_quietly(
        &mut self,
        id: TaskId,
        by: &By,
        events: &[Event],
    ) -> Result<Applied, StoreError> {
        let slot = match self.slots.get_mut(&id) {
            None => return Ok(Applied::NotFound),
            Some(Err(damaged)) => return Err(damaged.clone().without_effect()),
            Some(Ok(slot)) => slot,
        };
        // The mark that is kept lags a little; a task is never changed before its last change.
        let now = self.now.max(slot.task.updated_at);
        let known = self.known.get(&id);
        let look_up = |key: &StepKey| Ok::<_, Infallible>(known.and_then(|known| known.get(key)).cloned());
        let Ok(verdict) = slot.task.decide(by, events, now, look_up);
        Ok(match verdict {
            Verdict::Write(decision) => {
                self.tally.changed(&slot.task, &decision, now);
                let ended = decision.task.is_final() && !slot.task.is_final();
                slot.task = decision.task.clone();
                slot.dirty = true;
                slot.entries.extend(decision.entries.iter().cloned());
                if ended && let Some(open) = self.open.get_mut(&digest::owner(&decision.task.owner)) {
                    *open -= 1;
                }
                self.learn(id, &decision.entries);
                Applied::Applied(decision.task)
            }
            Verdict::Absorbed => Applied::Absorbed(slot.task.clone()),
            Verdict::NotFound => Applied::NotFound,
            Verdict::Fenced => Applied::Fenced,
            Verdict::Illegal(illegal) => Applied::Illegal(illegal),
        })
    }

    pub(crate) fn renew(&mut self, worker: &WorkerId, held: &[Held], lease: Duration) -> Vec<Renewal> {
        self.lease = self.lease.max(lease);
        held.iter().map(|held| self.renew_one(worker, *held, lease)).collect()
    }

    fn renew_one(&mut self, worker: &WorkerId, held: Held, lease: Duration) -> Renewal {
        let holds = |task: &Task| {
            task.token == held.token && task.lease().is_some_and(|lease| lease.worker == *worker)
        };
        // One that cannot be read is lost, and the others are kept.
        let Some(Ok(slot)) = self.slots.get(&held.id) else { return Renewal::Lost };
        if !holds(&slot.task) {
            return Renewal::Lost;
        }
        let revision = slot.task.revision;
        match self.apply_quietly(held.id, &By::Store, &[Event::Renew { lease }]) {
            Ok(Applied::Applied(task) | Applied::Absorbed(task)) => {
                // A lease that goes on is nothing that a follower can see.
                if task.revision > revision {
                    self.tell(held.id);
                }
                Renewal::Kept { inbox_seq: task.inbox_seq, cancel: task.cancel_requested() }
            }
            _ => Renewal::Lost,
        }
    }

    /// Has a follower look at a task.
    pub(crate) fn tell(&mut self, id: TaskId) {
        if self.told.insert(id) {
            self.changed.push(id);
        }
    }

    /// The tasks that a follower is to look at.
    pub(crate) fn changed(&self) -> &[TaskId] {
        &self.changed
    }

    fn task(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        let task = match self.slots.get(&id) {
            Some(slot) => Some(slot.as_ref().map(|slot| &slot.task)),
            None => self.existing.get(&id).map(Result::as_ref),
        };
        match task {
            Some(Ok(task)) => Ok(Some(task.clone())),
            Some(Err(damaged)) => Err(damaged.clone().without_effect()),
            None => Ok(None),
        }
    }

    fn learn(&mut self, id: TaskId, entries: &[Entry]) {
        for entry in entries {
            if let Some(key) = entry.key.clone().filter(|_| entry.kind.opens_key()) {
                let known = Known { kind: entry.kind, body: entry.body.clone() };
                self.known.entry(id).or_default().insert(key, known);
            }
        }
    }
}
