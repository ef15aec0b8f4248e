//! One transaction: the writing operations of the contract. Each decides before it writes, so a refusal leaves
//! nothing to undo.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use outlast_core::{
    Applied, By, Call, Created, Decision, Entry, Event, Held, LeaseRequest, NewTask, Owner, Payload, Renewal,
    Shape, Status, StepKey, Tally, Task, TaskId, Timestamp, Token, Verdict, WorkerId, WorkerSeen,
};
use rusqlite::{Connection, OptionalExtension, Params, Statement, params};

use crate::{
    damaged::Damaged,
    error::Failure,
    row::{self, Body, Row, Written},
};

/// An open transaction, and what is to be told once it is durable.
pub(crate) struct Batch<'c> {
    pub(crate) connection: &'c Connection,
    /// What the store's clock said when the transaction began.
    pub(crate) now: Timestamp,
    /// Whether expired leases may be taken over and overdue tasks swept.
    pub(crate) settled: bool,
    /// Whether this process is the file's runtime.
    pub(crate) runtime: bool,
    /// How long the last commit took, if it ended so short a time ago that it tells about now.
    pub(crate) pace: Option<Pace>,
    /// The owner that a claim served last.
    pub(crate) last_served: i64,
    /// The tasks that cannot be read.
    pub(crate) damaged: &'c Damaged,
    /// What each worker serves, as the file says.
    pub(crate) known_served: &'c Served,
    /// What workers serve since.
    pub(crate) served: Served,
    /// The longest lease that was asked for.
    pub(crate) lease: Duration,
    /// The tasks that a follower is to look at.
    pub(crate) changed: Vec<TaskId>,
    /// What all of it is to be counted as.
    pub(crate) tally: Tally,
    /// Whether anything was written.
    pub(crate) dirty: bool,
}

/// What each worker said at its last claim.
pub(crate) type Served = HashMap<WorkerId, WorkerSeen>;

/// How long a commit took, and how long ago that was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) took: Duration,
    pub(crate) ago: Duration,
}

impl Batch<'_> {
    /// Whether it was this call that created the task comes with the answer.
    pub(crate) fn create(
        &mut self,
        new: &NewTask,
        lease: Option<&LeaseRequest>,
    ) -> Result<(Created, bool), Failure> {
        if let Some(Row { task, .. }) = row::load(self.connection, new.id)? {
            // The same call again: its first answer was lost on the way. Its lease is the first of the task; a later
            // token, or another worker's first, is not this caller's to write with.
            let first = Token::default().next();
            let token = lease.and_then(|asked| {
                let held = task.lease().is_some_and(|held| held.worker == asked.worker);
                (held && task.token == first).then_some(first)
            });
            return Ok((Created::Created { task, token }, false));
        }
        if let Some(key) = &new.idempotency
            && let Some(used) = self.used_key(&new.owner, &key.key)?
        {
            if used.request != key.request {
                return Ok((Created::KeyReused, false));
            }
            let task = row::load(self.connection, used.id)?;
            return Ok((task.map_or(Created::KeySpent, |row| Created::Existing(row.task)), false));
        }
        let owner = self.owner(&new.owner)?;
        if owner.as_ref().is_some_and(|owner| owner.open >= i64::from(new.max_open)) || new.max_open == 0 {
            return Ok((Created::OverQuota, false));
        }
        // Only the runtime may hold leases: the next one would end them without a word.
        let task = match lease.filter(|_| self.runtime) {
            Some(LeaseRequest { worker, lease }) => {
                self.lease = self.lease.max(*lease);
                Task::create_leased(new, worker.clone(), *lease, self.now)
            }
            None => Task::create(new, self.now),
        };
        let owner = owner.map_or_else(|| self.add_owner(&new.owner), |owner| Ok(owner.number))?;
        self.insert(new, owner, &task)?;
        let token = task.lease().map(|_| task.token);
        Ok((Created::Created { task, token }, true))
    }

    pub(crate) fn apply(&mut self, id: TaskId, by: &By, events: &[Event]) -> Result<Applied, Failure> {
        let Some(row) = row::load(self.connection, id)? else { return Ok(Applied::NotFound) };
        let applied = self.apply_to(&row, by, events)?;
        if matches!(applied, Applied::Applied(_)) {
            self.changed.push(id);
        }
        Ok(applied)
    }

    /// Applies to a task that was just loaded, and tells no follower.
    pub(crate) fn apply_to(&mut self, row: &Row, by: &By, events: &[Event]) -> Result<Applied, Failure> {
        let known = |key: &StepKey| row::known(self.connection, row.number, key);
        Ok(match row.task.decide(by, events, self.now, known)? {
            Verdict::Write(decision) => {
                self.update(row, &decision)?;
                Applied::Applied(decision.task)
            }
            Verdict::Absorbed => Applied::Absorbed(row.task.clone()),
            Verdict::NotFound => Applied::NotFound,
            Verdict::Fenced => Applied::Fenced,
            Verdict::Illegal(illegal) => Applied::Illegal(illegal),
        })
    }

    pub(crate) fn renew(
        &mut self,
        worker: &WorkerId,
        held: &[Held],
        lease: Duration,
    ) -> Result<Vec<Renewal>, Failure> {
        self.lease = self.lease.max(lease);
        held.iter().map(|held| self.renew_one(worker, *held, lease)).collect()
    }

    fn renew_one(&mut self, worker: &WorkerId, held: Held, lease: Duration) -> Result<Renewal, Failure> {
        let holds = |task: &Task| {
            task.token == held.token && task.lease().is_some_and(|lease| lease.worker == *worker)
        };
        // One that cannot be read is lost, and the others are kept.
        let loaded = self.damaged.pass_over(row::load(self.connection, held.id))?.flatten();
        let Some(row) = loaded.filter(|row| holds(&row.task)) else { return Ok(Renewal::Lost) };
        Ok(match self.apply_to(&row, &By::Store, &[Event::Renew { lease }])? {
            Applied::Applied(task) | Applied::Absorbed(task) => {
                // A lease that goes on is nothing that a follower can see.
                if task.revision > row.task.revision {
                    self.changed.push(held.id);
                }
                Renewal::Kept { inbox_seq: task.inbox_seq, cancel: task.cancel_requested() }
            }
            _ => Renewal::Lost,
        })
    }

    /// Ends up to `max` leases that end by `until`; fewer ended means that none is left.
    pub(crate) fn end_leases(&mut self, until: Timestamp, max: u32) -> Result<u32, Failure> {
        let mut ended = Vec::new();
        {
            let mut statement = self.connection.prepare_cached(
                "SELECT number FROM tasks INDEXED BY tasks_by_lease WHERE leased = 1 AND ready_at <= ?1",
            )?;
            let mut rows = statement.query([until.as_millis()])?;
            while ended.len() < max as usize
                && let Some(row) = rows.next()?
            {
                let number = row.get(0)?;
                if !self.damaged.has(number) {
                    ended.push(number);
                }
            }
        }
        for number in &ended {
            let Some(row) = self.damaged.pass_over(row::load_number(self.connection, *number))? else {
                continue;
            };
            self.apply_to(&row, &By::Store, &[Event::LoseLease])?;
            self.changed.push(row.task.id);
        }
        Ok(u32::try_from(ended.len()).unwrap_or(max))
    }

    /// The second column of the first row that is not damaged; the first column is the row's number.
    pub(crate) fn first_sound(
        &self,
        statement: &mut Statement<'_>,
        params: impl Params,
    ) -> Result<Option<i64>, Failure> {
        let mut rows = statement.query(params)?;
        while let Some(row) = rows.next()? {
            if !self.damaged.has(row.get(0)?) {
                return Ok(Some(row.get(1)?));
            }
        }
        Ok(None)
    }

    /// The last writes: what others need in order to follow.
    pub(crate) fn finish(&mut self, seen_change: i64) -> Result<i64, Failure> {
        if !self.dirty {
            return Ok(seen_change);
        }
        self.connection
            .prepare_cached("UPDATE meta SET value = max(value, ?1) WHERE name = 'clock'")?
            .execute([self.now.as_millis()])?;
        let mut last = seen_change;
        let mut insert = self.connection.prepare_cached("INSERT INTO changes (id) VALUES (?1)")?;
        let mut told = HashSet::new();
        self.changed.retain(|id| told.insert(*id));
        for id in &self.changed {
            last = insert.insert([id.as_bytes()])?;
        }
        self.connection
            .prepare_cached("DELETE FROM changes WHERE change <= ?1")?
            .execute([last - KEPT_CHANGES])?;
        Ok(last)
    }

    // --- rows

    fn insert(&mut self, new: &NewTask, owner: i64, task: &Task) -> Result<(), Failure> {
        if let Some(key) = &new.idempotency {
            // Replaces a tombstone whose time is over.
            self.connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO keys (owner, key, request, id) VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute(params![new.owner.as_str(), &*key.key, key.request, new.id.as_bytes()])?;
        }
        let key = new.idempotency.as_ref().map(|key| &*key.key);
        let journal = new.journal();
        self.tally.created(task, &journal);
        self.insert_rows(owner, task, &new.call, key, &journal)
    }

    /// Writes the rows of a task that is not there yet.
    pub(crate) fn insert_rows(
        &mut self,
        owner: i64,
        task: &Task,
        call: &Call,
        key: Option<&str>,
        journal: &[Entry],
    ) -> Result<(), Failure> {
        let tool = self.tool(&task.spec.tool, &task.spec.version)?;
        let Written { value, body } = row::write(task)?;
        let shape = Shape::of(task);
        let number = self
            .connection
            .prepare_cached(
                "INSERT INTO tasks (id, owner, tool, status, leased, revision, ready_at, due_at, value)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?
            .insert(params![
                task.id.as_bytes(),
                owner,
                tool,
                shape.status as i64,
                shape.leased,
                task.revision,
                shape.ready_at.map(Timestamp::as_millis),
                shape.due_at.map(Timestamp::as_millis),
                value,
            ])?;
        self.connection
            .prepare_cached("INSERT INTO calls (number, params, context, key) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![
                number,
                call.params.as_str(),
                call.context.as_ref().map(Payload::as_str),
                key,
            ])?;
        for entry in journal {
            row::append(self.connection, number, entry)?;
        }
        self.insert_body(number, body)?;
        self.count(owner, None, Some(shape))?;
        self.changed.push(task.id);
        self.dirty = true;
        Ok(())
    }

    fn insert_body(&self, number: i64, body: Option<Body>) -> Result<(), Failure> {
        if let Some(Body { body, data }) = body {
            self.connection
                .prepare_cached("INSERT INTO bodies (number, body, data) VALUES (?1, ?2, ?3)")?
                .execute(params![number, body, data.as_ref().map(Payload::as_str)])?;
        }
        Ok(())
    }

    fn update(&mut self, row: &Row, decision: &Decision) -> Result<(), Failure> {
        let (before, after) = (Shape::of(&row.task), Shape::of(&decision.task));
        let Written { value, body } = row::write(&decision.task)?;
        if before == after {
            // Leaves the indexes alone.
            self.connection
                .prepare_cached("UPDATE tasks SET revision = ?2, value = ?3 WHERE number = ?1")?
                .execute(params![row.number, decision.task.revision, value])?;
        } else {
            self.connection
                .prepare_cached(
                    "UPDATE tasks SET revision = ?2, value = ?3, status = ?4, leased = ?5, ready_at = ?6,
                     due_at = ?7 WHERE number = ?1",
                )?
                .execute(params![
                    row.number,
                    decision.task.revision,
                    value,
                    after.status as i64,
                    after.leased,
                    after.ready_at.map(Timestamp::as_millis),
                    after.due_at.map(Timestamp::as_millis),
                ])?;
            self.count(row.owner, Some(before), Some(after))?;
        }
        for entry in &decision.entries {
            row::append(self.connection, row.number, entry)?;
        }
        self.insert_body(row.number, body)?;
        self.tally.changed(&row.task, decision, self.now);
        self.dirty = true;
        Ok(())
    }

    /// Keeps an owner's numbers when one of its tasks takes another shape, comes, or goes.
    pub(crate) fn count(
        &mut self,
        owner: i64,
        before: Option<Shape>,
        after: Option<Shape>,
    ) -> Result<(), Failure> {
        let step = |holds: &dyn Fn(Shape) -> bool| {
            i64::from(after.is_some_and(holds)) - i64::from(before.is_some_and(holds))
        };
        let by_status = Status::ALL.map(|status| step(&|shape| shape.status == status));
        let (leased, running) = (step(&|shape| shape.leased), step(&|shape| shape.running));
        if by_status.iter().chain([&leased, &running]).any(|step| *step != 0) {
            let [working, input_required, completed, failed, cancelled] = by_status;
            self.connection
                .prepare_cached(
                    "UPDATE owners SET working = working + ?2, input_required = input_required + ?3,
                     completed = completed + ?4, failed = failed + ?5, cancelled = cancelled + ?6,
                     leased = leased + ?7, running = running + ?8 WHERE owner = ?1",
                )?
                .execute(params![
                    owner,
                    working,
                    input_required,
                    completed,
                    failed,
                    cancelled,
                    leased,
                    running
                ])?;
        }
        let earlier = |now: Timestamp| before.and_then(Shape::claimable_at).is_none_or(|then| now < then);
        if let Some(ready) = after.and_then(Shape::claimable_at).filter(|now| earlier(*now)) {
            self.connection
                .prepare_cached(
                    "UPDATE owners SET ready_from = ?2
                     WHERE owner = ?1 AND (ready_from IS NULL OR ready_from > ?2)",
                )?
                .execute(params![owner, ready.as_millis()])?;
        }
        Ok(())
    }

    pub(crate) fn owner(&self, owner: &Owner) -> Result<Option<OwnerRow>, Failure> {
        let row = self
            .connection
            .prepare_cached("SELECT owner, working + input_required FROM owners WHERE name = ?1")?
            .query_row([owner.as_str()], |row| Ok(OwnerRow { number: row.get(0)?, open: row.get(1)? }))
            .optional()?;
        Ok(row)
    }

    pub(crate) fn add_owner(&self, owner: &Owner) -> Result<i64, Failure> {
        Ok(self
            .connection
            .prepare_cached("INSERT INTO owners (name) VALUES (?1)")?
            .insert([owner.as_str()])?)
    }

    fn tool(&self, name: &str, version: &str) -> Result<i64, Failure> {
        if let Some(tool) = self.known_tool(name, version)? {
            return Ok(tool);
        }
        Ok(self
            .connection
            .prepare_cached("INSERT INTO tools (name, version) VALUES (?1, ?2)")?
            .insert([name, version])?)
    }

    pub(crate) fn known_tool(&self, name: &str, version: &str) -> Result<Option<i64>, Failure> {
        let mut statement =
            self.connection.prepare_cached("SELECT tool FROM tools WHERE name = ?1 AND version = ?2")?;
        Ok(statement.query_row([name, version], |row| row.get(0)).optional()?)
    }

    pub(crate) fn used_key(&self, owner: &Owner, key: &str) -> Result<Option<UsedKey>, Failure> {
        let mut statement = self.connection.prepare_cached(
            "SELECT request, id FROM keys
             WHERE owner = ?1 AND key = ?2 AND (until IS NULL OR until > ?3)",
        )?;
        let used = statement
            .query_row(params![owner.as_str(), key, self.now.as_millis()], |row| {
                Ok(UsedKey { request: row.get(0)?, id: TaskId::from_bytes(row.get(1)?) })
            })
            .optional()?;
        Ok(used)
    }
}

/// How many changes are kept for other processes; one that falls further behind is told of a gap.
pub(crate) const KEPT_CHANGES: i64 = 4_096;

pub(crate) struct OwnerRow {
    pub(crate) number: i64,
    /// How many unfinished tasks it has.
    open: i64,
}

pub(crate) struct UsedKey {
    request: [u8; 32],
    pub(crate) id: TaskId,
}
