//! The reference store: everything under one lock, in memory.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    Applied, By, Call, ClaimRequest, Claimed, Clock, Counts, Created, Entry, Event, Exported, Filter, Head,
    Held, Hint, HintSender, Hints, IdempotencyKey, Inspect, JournalPage, Known, LeaseRequest, ListPage,
    NewTask, Owner, Record, Renewal, SpentKey, StepKey, Store, StoreClock, StoreError, Swept, Tally, Task,
    TaskId, TaskRecord, Timestamp, Token, ToolVersion, Transfer, Verdict, WorkerId, WorkerSeen,
};

/// A store that keeps tasks in memory: the contract in its plainest form, and what tests and simulations run on.
///
/// It is as durable as its process; clones share their tasks.
///
/// ```
/// use outlast_core::*;
/// # futures::executor::block_on(async {
/// let clock = ManualClock::new(Timestamp::from_millis(0));
/// let store = MemoryStore::new(clock);
/// let new = NewTask::new(TaskId::from_bytes([1; 16]), Owner::anonymous(), Spec::new("t"), Call::new(Payload::null()));
/// let Created::Created { task, .. } = store.create(new, None).await? else { panic!("it is new") };
/// assert_eq!(store.get(task.id).await?, Some(task));
/// # Ok::<(), StoreError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<dyn Clock>,
    hints: HintSender,
}

#[derive(Clone)]
struct Inner {
    time: StoreClock,
    tasks: BTreeMap<TaskId, Row>,
    keys: HashMap<(Owner, Arc<str>), KeyRow>,
    /// The owner that was served last, so that the next claim goes on behind it.
    last_served: Option<Owner>,
    created: u64,
    /// What each worker said at its last claim.
    workers: HashMap<WorkerId, WorkerSeen>,
}

#[derive(Clone)]
struct Row {
    task: Task,
    call: Call,
    journal: Vec<Entry>,
    known: HashMap<StepKey, Known>,
    key: Option<Arc<str>>,
    /// Its place in the order of creation.
    number: u64,
}

#[derive(Clone)]
struct KeyRow {
    request: [u8; 32],
    task: TaskId,
    /// When the key is forgotten; never while its task exists.
    until: Option<Timestamp>,
}

/// How many hints a slow reader may fall behind before it is told of a gap.
const HINTS: usize = 4_096;

impl MemoryStore {
    /// An empty store on this clock.
    #[must_use]
    pub fn new(clock: impl Clock) -> Self {
        let inner = Inner {
            time: StoreClock::new(Timestamp::default()),
            tasks: BTreeMap::new(),
            keys: HashMap::new(),
            last_served: None,
            created: 0,
            workers: HashMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)), clock: Arc::new(clock), hints: HintSender::new(HINTS) }
    }

    /// A copy of the tasks as they are now, with a future of its own: on the same clock, with a feed of its own. What a
    /// simulation of a power cut goes on from.
    #[must_use]
    pub fn fork(&self) -> Self {
        let inner = self.lock().clone();
        Self { inner: Arc::new(Mutex::new(inner)), clock: self.clock.clone(), hints: HintSender::new(HINTS) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in another holder leaves whole rows: each is replaced at once.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Row {
    fn append(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            if let Some(key) = entry.key.clone().filter(|_| entry.kind.opens_key()) {
                self.known.insert(key, Known { kind: entry.kind, body: entry.body.clone() });
            }
            self.journal.push(entry);
        }
    }
}

impl Inner {
    fn write(&mut self, task: Task, entries: Vec<Entry>) {
        let Some(row) = self.tasks.get_mut(&task.id) else { return };
        row.append(entries);
        row.task = task;
    }

    fn apply(&mut self, id: TaskId, by: &By, events: &[Event], now: Timestamp) -> Applied {
        let Some(row) = self.tasks.get(&id) else { return Applied::NotFound };
        let known = |key: &StepKey| Ok::<_, std::convert::Infallible>(row.known.get(key).cloned());
        let Ok(verdict) = row.task.decide(by, events, now, known);
        match verdict {
            Verdict::Write(decision) => {
                let mut tally = Tally::default();
                tally.changed(&row.task, &decision, now);
                tally.publish();
                self.write(decision.task.clone(), decision.entries);
                Applied::Applied(decision.task)
            }
            Verdict::Absorbed => Applied::Absorbed(row.task.clone()),
            Verdict::NotFound => Applied::NotFound,
            Verdict::Fenced => Applied::Fenced,
            Verdict::Illegal(illegal) => Applied::Illegal(illegal),
        }
    }

    fn running(&self, owner: &Owner) -> usize {
        self.tasks.values().filter(|row| row.task.owner == *owner && row.task.holds_slot()).count()
    }

    /// The next ready task of each owner in turn, beginning behind the one that was served last.
    fn next_ready(&self, request: &ClaimRequest, now: Timestamp) -> Option<TaskId> {
        let mut first: BTreeMap<&Owner, (Timestamp, u64, TaskId)> = BTreeMap::new();
        for row in self.tasks.values() {
            let task = &row.task;
            let Some(ready) = task.ready_at().filter(|at| *at <= now) else { continue };
            let served = ToolVersion::new(&*task.spec.tool, &*task.spec.version);
            if task.lease().is_some() || !request.serves.contains(&served) {
                continue;
            }
            let place = (ready, row.number, task.id);
            let best = first.entry(&task.owner).or_insert(place);
            *best = place.min(*best);
        }
        first.retain(|owner, _| self.running(owner) < request.per_owner as usize);
        let behind =
            first.iter().find(|(owner, _)| self.last_served.as_ref().is_none_or(|last| **owner > last));
        behind.or_else(|| first.iter().next()).map(|(_, (_, _, id))| *id)
    }

    /// Ends the leases that ran out, also of tools that the claimer does not serve: they would hold places of their
    /// owners for ever, and work that must not run twice would never be told that it ended.
    fn end_leases(&mut self, now: Timestamp) -> Vec<TaskId> {
        let ran_out = |row: &&Row| row.task.lease().is_some_and(|lease| lease.until <= now);
        let ids: Vec<_> = self.tasks.values().filter(ran_out).map(|row| row.task.id).collect();
        for id in &ids {
            self.apply(*id, &By::Store, &[Event::LoseLease], now);
        }
        ids
    }

    fn purge(&mut self, id: TaskId, now: Timestamp) {
        let Some(row) = self.tasks.remove(&id) else { return };
        let tombstone = IdempotencyKey::MIN_TOMBSTONE.max(row.task.spec.ttl.unwrap_or_default());
        if let Some(key) = row.key.and_then(|key| self.keys.get_mut(&(row.task.owner, key))) {
            key.until = Some(now + tombstone);
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        let mut inner = self.lock();
        let now = inner.time.read(&self.clock).now;
        if let Some(row) = inner.tasks.get(&new.id) {
            // The same call again: its first answer was lost on the way. Its lease is the first of the task; a later
            // token, or another worker's first, is not this caller's to write with.
            let first = Token::default().next();
            let token = lease.and_then(|asked| {
                let held = row.task.lease().is_some_and(|held| held.worker == asked.worker);
                (held && row.task.token == first).then_some(first)
            });
            return Ok(Created::Created { task: row.task.clone(), token });
        }
        if let Some(key) = &new.idempotency {
            let slot = (new.owner.clone(), key.key.clone());
            if let Some(row) = inner.keys.get(&slot).filter(|row| row.until.is_none_or(|until| until > now)) {
                return Ok(match inner.tasks.get(&row.task) {
                    _ if row.request != key.request => Created::KeyReused,
                    Some(row) => Created::Existing(row.task.clone()),
                    None => Created::KeySpent,
                });
            }
        }
        let open =
            inner.tasks.values().filter(|row| row.task.owner == new.owner && !row.task.is_final()).count();
        if open >= new.max_open as usize {
            return Ok(Created::OverQuota);
        }
        let task = match lease {
            Some(LeaseRequest { worker, lease }) => {
                inner.time.observe_lease(lease);
                Task::create_leased(&new, worker, lease, now)
            }
            None => Task::create(&new, now),
        };
        if let Some(key) = &new.idempotency {
            let row = KeyRow { request: key.request, task: new.id, until: None };
            inner.keys.insert((new.owner.clone(), key.key.clone()), row);
        }
        inner.created += 1;
        let journal = new.journal();
        let mut row = Row {
            task: task.clone(),
            call: new.call,
            journal: Vec::new(),
            known: HashMap::new(),
            key: new.idempotency.map(|key| key.key),
            number: inner.created,
        };
        let mut tally = Tally::default();
        tally.created(&task, &journal);
        row.append(journal);
        inner.tasks.insert(new.id, row);
        drop(inner);
        tally.publish();
        self.hints.send(Hint::Changed(new.id));
        let token = task.lease().map(|_| task.token);
        Ok(Created::Created { task, token })
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        let mut inner = self.lock();
        let now = inner.time.read(&self.clock).now;
        let applied = inner.apply(id, &by, &events, now);
        drop(inner);
        if matches!(applied, Applied::Applied(_)) {
            self.hints.send(Hint::Changed(id));
        }
        Ok(applied)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let mut inner = self.lock();
        inner.time.observe_lease(request.lease);
        let seen = WorkerSeen { serves: request.serves.clone(), per_owner: request.per_owner };
        inner.workers.insert(request.worker.clone(), seen);
        let reading = inner.time.read(&self.clock);
        let ended = if reading.settled { inner.end_leases(reading.now) } else { Vec::new() };
        let mut claimed = Vec::new();
        while claimed.len() < request.max as usize {
            let Some(id) = inner.next_ready(&request, reading.now) else { break };
            inner.last_served = Some(inner.tasks[&id].task.owner.clone());
            let claim = Event::Claim { worker: request.worker.clone(), lease: request.lease };
            if let Applied::Applied(task) = inner.apply(id, &By::Store, &[claim], reading.now) {
                let (call, token) = (inner.tasks[&id].call.clone(), task.token);
                claimed.push(Claimed { task, call, token });
            }
        }
        drop(inner);
        ended.into_iter().for_each(|id| self.hints.send(Hint::Changed(id)));
        Ok(claimed)
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let mut inner = self.lock();
        inner.time.observe_lease(lease);
        let now = inner.time.read(&self.clock).now;
        let mut changed = Vec::new();
        let renewals = held
            .into_iter()
            .map(|Held { id, token }| {
                let holds = |task: &Task| {
                    task.token == token && task.lease().is_some_and(|lease| lease.worker == worker)
                };
                let Some(revision) =
                    inner.tasks.get(&id).filter(|row| holds(&row.task)).map(|row| row.task.revision)
                else {
                    return Renewal::Lost;
                };
                match inner.apply(id, &By::Store, &[Event::Renew { lease }], now) {
                    Applied::Applied(task) | Applied::Absorbed(task) => {
                        if task.revision > revision {
                            changed.push(id);
                        }
                        Renewal::Kept { inbox_seq: task.inbox_seq, cancel: task.cancel_requested() }
                    }
                    _ => Renewal::Lost,
                }
            })
            .collect();
        drop(inner);
        changed.into_iter().for_each(|id| self.hints.send(Hint::Changed(id)));
        Ok(renewals)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        Ok(self.lock().tasks.get(&id).map(|row| row.task.clone()))
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        let inner = self.lock();
        let Some(row) = inner.tasks.get(&id) else { return Ok(JournalPage::default()) };
        let mut page = JournalPage::default();
        let mut size = 0;
        for entry in row.journal.iter().filter(|entry| entry.seq > after_seq) {
            size += entry.size();
            if size > max_bytes && !page.entries.is_empty() {
                page.more = true;
                break;
            }
            page.entries.push(entry.clone());
        }
        Ok(page)
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        let inner = self.lock();
        let head = |task: &Task| Head { revision: task.revision, is_final: task.is_final() };
        Ok(ids.iter().map(|id| inner.tasks.get(id).map(|row| head(&row.task))).collect())
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        let mut inner = self.lock();
        let reading = inner.time.read(&self.clock);
        let now = reading.now;
        if !reading.settled {
            return Ok(Swept { done: 0, next_due: Some(Duration::from_secs(1)) });
        }
        inner.keys.retain(|_, key| key.until.is_none_or(|until| until > now));
        let mut due: Vec<_> = inner
            .tasks
            .values()
            .filter_map(|row| Some((row.task.sweep(now)?, row.task.id)))
            .take(max as usize + 1)
            .collect();
        let more = due.len() > max as usize;
        due.truncate(max as usize);
        for (what, id) in &due {
            match what.event() {
                Some(event) => drop(inner.apply(*id, &By::Store, &[event], now)),
                None => inner.purge(*id, now),
            }
        }
        let next = inner.tasks.values().filter_map(|row| row.task.next_deadline()).min();
        drop(inner);
        due.iter().for_each(|(_, id)| self.hints.send(Hint::Changed(*id)));
        let next_due = if more { Some(Duration::ZERO) } else { next.map(|at| at.since(now)) };
        Ok(Swept { done: u32::try_from(due.len()).unwrap_or(max), next_due })
    }

    fn watch(&self) -> Hints {
        self.hints.watch()
    }
}

#[async_trait]
impl Inspect for MemoryStore {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        let mut inner = self.lock();
        let now = inner.time.read(&self.clock).now;
        let before = after.map_or(Ok(u64::MAX), |place| place.parse()).unwrap_or(0);
        let mut rows: Vec<_> =
            inner.tasks.values().filter(|row| row.number < before && filter.admits(&row.task)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.number));
        let more = rows.len() > max as usize;
        rows.truncate(max as usize);
        let next = rows.last().filter(|_| more).map(|row| row.number.to_string());
        Ok(ListPage { tasks: rows.into_iter().map(|row| row.task.clone()).collect(), next, now })
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        let mut inner = self.lock();
        let now = inner.time.read(&self.clock).now;
        let mut counts = Counts::default();
        for row in inner.tasks.values() {
            counts.by_status[row.task.status() as usize] += 1;
            counts.leased += u64::from(row.task.lease().is_some());
            if let Some(since) = row.task.ready_at().filter(|at| *at <= now) {
                counts.ready += 1;
                counts.oldest_ready = counts.oldest_ready.max(Some(now.since(since)));
            }
        }
        Ok(counts)
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        Ok(self.lock().workers.values().cloned().collect())
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        Ok(u32::try_from(self.lock().running(&owner)).unwrap_or(u32::MAX))
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        Ok(self.lock().tasks.get(&id).map(|row| row.call.clone()))
    }

    /// `false`: tests run several workers on its clones as if each were a process.
    fn is_exclusive(&self) -> bool {
        false
    }

    fn is_front(&self) -> bool {
        false
    }
}

#[async_trait]
impl Transfer for MemoryStore {
    async fn export(&self, after: Option<String>, max_bytes: u64) -> Result<Exported, StoreError> {
        let inner = self.lock();
        let after: u64 = after.map_or(Ok(0), |place| place.parse()).unwrap_or(u64::MAX);
        let mut rows: Vec<_> = inner.tasks.values().filter(|row| row.number > after).collect();
        rows.sort_by_key(|row| row.number);
        let (mut page, mut size) = (Exported::default(), 0);
        for row in rows {
            let key = row.key.as_ref().and_then(|key| {
                let used = inner.keys.get(&(row.task.owner.clone(), key.clone()))?;
                Some(IdempotencyKey { key: key.clone(), request: used.request })
            });
            let (task, call, journal) = (row.task.clone(), row.call.clone(), row.journal.clone());
            let record = Record::Task(Box::new(TaskRecord { task, call, key, journal }));
            size += record.size();
            if size > max_bytes && !page.records.is_empty() {
                return Ok(page);
            }
            page.records.push(record);
            page.next = Some(row.number.to_string());
        }
        let spent = inner.keys.iter().filter_map(|((owner, key), used)| {
            let key = IdempotencyKey { key: key.clone(), request: used.request };
            Some(Record::SpentKey(SpentKey {
                owner: owner.clone(),
                key,
                task: used.task,
                until: used.until?,
            }))
        });
        page.records.extend(spent);
        page.next = None;
        Ok(page)
    }

    async fn import(&self, records: Vec<Record>) -> Result<u64, StoreError> {
        let mut inner = self.lock();
        let mut new = Vec::new();
        let mut keys = 0;
        for record in records {
            match record {
                Record::Task(record) if inner.tasks.contains_key(&record.task.id) => {}
                Record::Task(record) => {
                    let TaskRecord { task, call, key, journal } = *record;
                    let id = task.id;
                    // A key that is in use here stays with its own task.
                    let key = key.and_then(|IdempotencyKey { key, request }| {
                        let used = KeyRow { request, task: id, until: None };
                        let used = inner.keys.entry((task.owner.clone(), key.clone())).or_insert(used);
                        (used.task == id).then_some(key)
                    });
                    inner.created += 1;
                    let number = inner.created;
                    let (entries, known) = (Vec::new(), HashMap::new());
                    let mut row = Row { task, call, journal: entries, known, key, number };
                    row.append(journal);
                    inner.tasks.insert(id, row);
                    new.push(id);
                }
                Record::SpentKey(SpentKey { owner, key, task, until }) => {
                    inner.keys.entry((owner, key.key)).or_insert_with(|| {
                        keys += 1;
                        KeyRow { request: key.request, task, until: Some(until) }
                    });
                }
            }
        }
        drop(inner);
        new.iter().for_each(|id| self.hints.send(Hint::Changed(*id)));
        Ok(new.len() as u64 + keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ManualClock, Payload, Spec, Sweep};

    #[test]
    fn a_fork_has_the_same_tasks_and_a_future_of_its_own() {
        futures::executor::block_on(async {
            let clock = ManualClock::new(Timestamp::default());
            let store = MemoryStore::new(clock.clone());
            let (owner, lease) = (Owner::anonymous(), Duration::from_secs(30));
            let new = |n| {
                let call = Call::new(Payload::null());
                NewTask::new(TaskId::from_bytes([n; 16]), owner.clone(), Spec::new("t"), call)
            };
            let leased = LeaseRequest { worker: WorkerId::new("w"), lease };
            let Created::Created { task, token: Some(token) } =
                store.create(new(1), Some(leased)).await.unwrap()
            else {
                panic!("it is new and leased")
            };
            let finish = |key, value: u8| Event::FinishStep {
                key: StepKey::new(key).unwrap(),
                outcome: crate::Outcome::Value(Payload::encode(&value).unwrap()),
                took: Duration::ZERO,
                tries: 1,
            };
            store.apply(task.id, By::Lease(token), vec![finish("a", 1)]).await.unwrap();

            let fork = store.fork();
            let (mut here, mut there) = (store.watch(), fork.watch());
            assert_eq!(fork.get(task.id).await.unwrap(), store.get(task.id).await.unwrap());
            // What the journal knows is known there too.
            let again = fork.apply(task.id, By::Lease(token), vec![finish("a", 2)]).await.unwrap();
            assert!(matches!(again, Applied::Absorbed(_)));

            let ended = fork.apply(task.id, By::Lease(token), vec![Event::Complete(Payload::null())]).await;
            assert!(matches!(ended, Ok(Applied::Applied(_))));
            store.apply(task.id, By::Lease(token), vec![finish("b", 1)]).await.unwrap();
            assert!(!store.get(task.id).await.unwrap().unwrap().is_final());
            assert_eq!(store.journal(task.id, 0, u64::MAX).await.unwrap().entries.len(), 2);
            assert_eq!(fork.journal(task.id, 0, u64::MAX).await.unwrap().entries.len(), 1);
            assert_eq!((here.try_next(), here.try_next()), (Some(Hint::Changed(task.id)), None));
            assert_eq!((there.try_next(), there.try_next()), (Some(Hint::Changed(task.id)), None));

            // One clock for both.
            clock.advance(lease);
            let Created::Created { task, .. } = fork.create(new(2), None).await.unwrap() else {
                panic!("it is new")
            };
            assert_eq!((task.created_at, store.get(task.id).await.unwrap()), (clock.now(), None));
        });
    }

    #[test]
    fn the_sweep_order_puts_a_passed_deadline_first() {
        assert!(Sweep::PassDeadline < Sweep::RefreshTtl);
        let store = MemoryStore::new(ManualClock::new(Timestamp::default()));
        let new = NewTask::new(
            TaskId::from_bytes([1; 16]),
            Owner::anonymous(),
            Spec::new("t"),
            Call::new(Payload::null()),
        );
        let created = futures::executor::block_on(store.create(new, None)).unwrap();
        assert!(matches!(created, Created::Created { token: None, .. }));
    }
}
