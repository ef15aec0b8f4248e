//! The second half of a transaction: what was decided, written by a few statements for any number of tasks, and the
//! commit, sent at once.

use std::task::Poll;

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use futures::{
    FutureExt,
    future::{BoxFuture, join, try_join_all},
};
use outlast_core::{Payload, Shape, StepKey, TaskId, Timestamp};
use tokio_postgres::Row as SqlRow;

use crate::{
    batch::{Batch, NewKey, Slot},
    clock::millis,
    digest,
    error::{Broken, Failure, PostgresError},
    row::{self, signed},
    session::{Session, params},
    shared::{Marks, Shared},
};

/// Expired tombstones go first: an insert then fails exactly where somebody else has taken the key.
const DROP_KEYS: &str = "DELETE FROM $S.keys WHERE key = ANY ($1::bytea[]) AND until <= $2::int8";

const INSERT_KEYS: &str = "INSERT INTO $S.keys (key, request, id, caller, until)
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::text[], $5::int8[])";

const INSERT_TASKS: &str = "INSERT INTO $S.tasks
    (number, id, owner, tool, status, leased, running, ready_at, due_at, revision, asked, value, body)
    SELECT * FROM unnest($1::int8[], $2::bytea[], $3::bytea[], $4::bytea[], $5::int2[], $6::bool[], $7::bool[],
    $8::int8[], $9::int8[], $10::int8[], $11::text[], $12::text[], $13::text[])";

const UPDATE_TASKS: &str = "UPDATE $S.tasks t SET status = u.status, leased = u.leased, running = u.running,
    ready_at = u.ready_at, due_at = u.due_at, revision = u.revision, asked = u.asked, value = u.value, body = u.body
    FROM unnest($1::int8[], $2::int2[], $3::bool[], $4::bool[], $5::int8[], $6::int8[], $7::int8[], $8::text[],
    $9::text[], $10::text[])
    u (number, status, leased, running, ready_at, due_at, revision, asked, value, body) WHERE t.number = u.number";

const INSERT_CALLS: &str = "INSERT INTO $S.calls (number, params, context, key)
    SELECT * FROM unnest($1::int8[], $2::text[], $3::text[], $4::bytea[])";

const INSERT_JOURNAL: &str = "INSERT INTO $S.journal (number, seq, at, kind, key, opens, body)
    SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[], $5::text[], $6::bool[], $7::text[])";

/// Waits for nobody: one of many replicas that keeps the mark is enough.
const KEEP_MARK: &str = "UPDATE $S.outlast SET value = $1::int8 WHERE name =
    (SELECT name FROM $S.outlast WHERE name = 'clock' AND value < $1::int8 FOR UPDATE SKIP LOCKED)";

/// Seldom: a deployment gives out leases of one length.
const KEEP_LEASE: &str = "INSERT INTO $S.outlast AS o VALUES ('lease', $1::int8)
    ON CONFLICT (name) DO UPDATE SET value = greatest(o.value, excluded.value)";

const NOTIFY: &str = "SELECT pg_notify($1::text, $2::text)";

/// What is prepared before a transaction begins.
pub(crate) const STATEMENTS: &[&str] = &[
    DROP_KEYS,
    INSERT_KEYS,
    INSERT_TASKS,
    UPDATE_TASKS,
    INSERT_CALLS,
    INSERT_JOURNAL,
    KEEP_MARK,
    KEEP_LEASE,
    NOTIFY,
];

/// The commit itself is waited for as long as it takes: where it waits for a standby, giving up would acknowledge what
/// only this server has.
const COMMIT: &str = "SET LOCAL statement_timeout = 0; COMMIT";

/// How far the mark that is kept may lag behind the time.
const MARK_LAG: i64 = 1_000;

/// Less than the 8,000 bytes that a notification may have.
const MAX_TOLD: usize = 7_900;

/// What the other replicas are told; they know the rest.
pub(crate) fn told(replica: &str, changed: &[TaskId]) -> String {
    let ids: Vec<u8> = changed.iter().flat_map(TaskId::as_bytes).copied().collect();
    let told = format!("c{replica}{}", BASE64_STANDARD_NO_PAD.encode(ids));
    if told.len() <= MAX_TOLD { told } else { format!("g{replica}") }
}

type Query<'a> = BoxFuture<'a, Result<Vec<SqlRow>, PostgresError>>;

/// Writes a batch and commits. When this returns `Ok` it is durable, and followers in this process were told.
pub(crate) async fn commit(
    shared: &Shared,
    session: &Session,
    batch: &Batch,
    marks: Marks,
) -> Result<(), Broken> {
    let columns = Columns::of(batch)?;
    let now = batch.now.as_millis();
    let notice = told(&shared.replica, batch.changed());
    let lagging = columns.is_dirty() && now - marks.clock.as_millis() >= MARK_LAG;
    let lease = millis(batch.lease);

    let channel = shared.channel.as_str();
    let mut writes: Vec<Query<'_>> = columns.writes(session, &now);
    if lagging {
        writes.push(async { session.query(KEEP_MARK, params![now]).await }.boxed());
    }
    if batch.lease > marks.lease {
        writes.push(async { session.query(KEEP_LEASE, params![lease]).await }.boxed());
    }
    if !batch.changed().is_empty() {
        writes.push(async { session.query(NOTIFY, params![channel, notice]).await }.boxed());
    }
    finish(session, writes).await?;
    shared.time().observe_lease(batch.lease);
    batch.tally.publish();
    shared.hint(batch.changed());
    Ok(())
}

/// Sends the writes and the commit, and says what became of them.
pub(crate) async fn finish(session: &Session, writes: Vec<Query<'_>>) -> Result<(), Broken> {
    let wrote = !writes.is_empty();
    let mut writes = try_join_all(writes);
    // What cannot even be sent must not be followed by a commit.
    let first = match futures::poll!(&mut writes) {
        Poll::Ready(written) => Some(written),
        Poll::Pending => None,
    };
    let (written, committed) = match first {
        Some(Err(error)) => return Err(error.into()),
        Some(Ok(_)) => (Ok(Vec::new()), session.run(COMMIT).await),
        None => join(writes, session.run(COMMIT)).await,
    };
    match (written, committed) {
        (Ok(_), Ok(())) => Ok(()),
        // The database refused it, and so its commit as well.
        (Err(error), _) if error.code().is_some() => Err(Broken::Undone(error.into())),
        (Err(error), _) | (Ok(_), Err(error)) if wrote => Err(Broken::Unknown(error.into())),
        (Err(error), _) | (Ok(_), Err(error)) => Err(Broken::Undone(error.into())),
    }
}

/// What is to be written, column by column.
#[derive(Default)]
struct Columns {
    tasks: Tasks,
    /// How many of the first rows of `tasks` are new.
    ids: Vec<Vec<u8>>,
    owners: Vec<[u8; 16]>,
    tools: Vec<[u8; 32]>,
    updated: Tasks,
    call_numbers: Vec<i64>,
    params: Vec<Payload>,
    contexts: Vec<Option<Payload>>,
    call_keys: Vec<Option<digest::CallerKey>>,
    keys: Vec<Key>,
    journal: Journal,
}

/// A caller's key.
struct Key {
    digest: digest::CallerKey,
    request: [u8; 32],
    id: TaskId,
    caller: String,
    until: Option<i64>,
}

impl Key {
    fn of(key: &NewKey, id: TaskId, until: Option<Timestamp>) -> Result<Self, Failure> {
        let NewKey { digest, owner, key } = key;
        let caller = serde_json::to_string(&(owner.as_str(), &*key.key))?;
        let until = until.map(Timestamp::as_millis);
        Ok(Self { digest: *digest, request: key.request, id, caller, until })
    }
}

/// The columns that every write of a task has.
#[derive(Default)]
struct Tasks {
    numbers: Vec<i64>,
    statuses: Vec<i16>,
    leased: Vec<bool>,
    running: Vec<bool>,
    ready: Vec<Option<i64>>,
    due: Vec<Option<i64>>,
    revisions: Vec<i64>,
    asked: Vec<Option<String>>,
    values: Vec<String>,
    bodies: Vec<Option<String>>,
}

#[derive(Default)]
struct Journal {
    numbers: Vec<i64>,
    seqs: Vec<i64>,
    at: Vec<i64>,
    kinds: Vec<String>,
    keys: Vec<Option<StepKey>>,
    opens: Vec<bool>,
    bodies: Vec<Option<Payload>>,
}

impl Columns {
    fn of(batch: &Batch) -> Result<Self, Failure> {
        let mut columns = Self::default();
        let mut dirty: Vec<&Slot> =
            batch.slots.values().filter_map(|slot| slot.as_ref().ok()).filter(|slot| slot.dirty).collect();
        // In one order everywhere, so that no two replicas wait for each other's ids.
        dirty.sort_by_key(|slot| slot.task.id);
        for slot in dirty {
            columns.add(slot)?;
        }
        for (key, id, until) in &batch.spent {
            columns.keys.push(Key::of(key, *id, Some(*until))?);
        }
        columns.keys.sort_unstable_by_key(|key| key.digest);
        Ok(columns)
    }

    fn add(&mut self, slot: &Slot) -> Result<(), Failure> {
        let Slot { number, task, birth, entries, .. } = slot;
        match birth {
            None => self.updated.add(slot)?,
            Some(birth) => {
                self.tasks.add(slot)?;
                self.ids.push(task.id.as_bytes().to_vec());
                self.owners.push(digest::owner(&task.owner));
                self.tools.push(digest::tool(&task.spec.tool, &task.spec.version));
                self.call_numbers.push(*number);
                self.params.push(birth.call.params.clone());
                self.contexts.push(birth.call.context.clone());
                self.call_keys.push(birth.key.as_ref().map(|key| key.digest));
                if let Some(key) = &birth.key {
                    self.keys.push(Key::of(key, task.id, None)?);
                }
            }
        }
        for entry in entries {
            self.journal.numbers.push(*number);
            self.journal.seqs.push(signed(entry.seq));
            self.journal.at.push(entry.at.as_millis());
            self.journal.kinds.push(row::kind_name(entry.kind)?);
            self.journal.keys.push(entry.key.clone());
            self.journal.opens.push(entry.kind.opens_key());
            self.journal.bodies.push(entry.body.clone());
        }
        Ok(())
    }

    fn is_dirty(&self) -> bool {
        !self.tasks.numbers.is_empty() || !self.updated.numbers.is_empty()
    }

    fn writes<'a>(&'a self, session: &'a Session, now: &'a i64) -> Vec<Query<'a>> {
        let mut writes: Vec<Query<'a>> = Vec::new();
        if !self.keys.is_empty() {
            writes.push(self.drop_keys(session, now).boxed());
            writes.push(self.insert_keys(session).boxed());
        }
        if !self.tasks.numbers.is_empty() {
            writes.push(self.insert(session).boxed());
            writes.push(self.insert_calls(session).boxed());
        }
        if !self.updated.numbers.is_empty() {
            writes.push(self.updated.update(session).boxed());
        }
        if !self.journal.numbers.is_empty() {
            writes.push(self.journal.append(session).boxed());
        }
        writes
    }

    async fn drop_keys(&self, session: &Session, now: &i64) -> Result<Vec<SqlRow>, PostgresError> {
        let keys: Vec<&[u8]> = self.keys.iter().map(|key| &key.digest[..]).collect();
        session.query(DROP_KEYS, params![keys, *now]).await
    }

    async fn insert_keys(&self, session: &Session) -> Result<Vec<SqlRow>, PostgresError> {
        let keys: Vec<&[u8]> = self.keys.iter().map(|key| &key.digest[..]).collect();
        let requests: Vec<&[u8]> = self.keys.iter().map(|key| &key.request[..]).collect();
        let ids: Vec<&[u8]> = self.keys.iter().map(|key| &key.id.as_bytes()[..]).collect();
        let callers: Vec<&str> = self.keys.iter().map(|key| key.caller.as_str()).collect();
        let until: Vec<Option<i64>> = self.keys.iter().map(|key| key.until).collect();
        session.query(INSERT_KEYS, params![keys, requests, ids, callers, until]).await
    }

    async fn insert(&self, session: &Session) -> Result<Vec<SqlRow>, PostgresError> {
        let ids: Vec<&[u8]> = self.ids.iter().map(|id| &id[..]).collect();
        let owners: Vec<&[u8]> = self.owners.iter().map(|owner| &owner[..]).collect();
        let tools: Vec<&[u8]> = self.tools.iter().map(|tool| &tool[..]).collect();
        let tasks = &self.tasks;
        session
            .query(
                INSERT_TASKS,
                params![
                    tasks.numbers,
                    ids,
                    owners,
                    tools,
                    tasks.statuses,
                    tasks.leased,
                    tasks.running,
                    tasks.ready,
                    tasks.due,
                    tasks.revisions,
                    tasks.asked,
                    tasks.values,
                    tasks.bodies,
                ],
            )
            .await
    }

    async fn insert_calls(&self, session: &Session) -> Result<Vec<SqlRow>, PostgresError> {
        let params: Vec<&str> = self.params.iter().map(Payload::as_str).collect();
        let contexts: Vec<Option<&str>> =
            self.contexts.iter().map(|context| context.as_ref().map(Payload::as_str)).collect();
        let keys: Vec<Option<&[u8]>> =
            self.call_keys.iter().map(|key| key.as_ref().map(|key| &key[..])).collect();
        session.query(INSERT_CALLS, params![self.call_numbers, params, contexts, keys]).await
    }
}

impl Tasks {
    fn add(&mut self, slot: &Slot) -> Result<(), Failure> {
        let shape = Shape::of(&slot.task);
        let written = row::write(&slot.task)?;
        self.numbers.push(slot.number);
        self.statuses.push(shape.status as i16);
        self.leased.push(shape.leased);
        self.running.push(shape.running);
        self.ready.push(shape.ready_at.map(Timestamp::as_millis));
        self.due.push(shape.due_at.map(Timestamp::as_millis));
        self.revisions.push(signed(slot.task.revision));
        self.asked.push(written.asked);
        self.values.push(written.value);
        self.bodies.push(written.body);
        Ok(())
    }

    async fn update(&self, session: &Session) -> Result<Vec<SqlRow>, PostgresError> {
        session
            .query(
                UPDATE_TASKS,
                params![
                    self.numbers,
                    self.statuses,
                    self.leased,
                    self.running,
                    self.ready,
                    self.due,
                    self.revisions,
                    self.asked,
                    self.values,
                    self.bodies,
                ],
            )
            .await
    }
}

impl Journal {
    async fn append(&self, session: &Session) -> Result<Vec<SqlRow>, PostgresError> {
        let keys: Vec<Option<&str>> = self.keys.iter().map(|key| key.as_ref().map(StepKey::as_str)).collect();
        let bodies: Vec<Option<&str>> =
            self.bodies.iter().map(|body| body.as_ref().map(Payload::as_str)).collect();
        session
            .query(
                INSERT_JOURNAL,
                params![self.numbers, self.seqs, self.at, self.kinds, keys, self.opens, bodies],
            )
            .await
    }
}

/// Keeps the mark as it is, when a store closes in good order.
pub(crate) async fn keep_mark(session: &Session, mark: Timestamp) -> Result<(), PostgresError> {
    let mark = mark.as_millis();
    session.query(KEEP_MARK, params![mark]).await.map(drop)
}
