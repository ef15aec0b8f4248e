//! What is due on tasks that no worker holds, a few rows at a time.

use std::time::Duration;

use outlast_core::{By, Event, IdempotencyKey, Sweep, Swept, TaskId, Timestamp};

use crate::{
    batch::Batch,
    claim::{SERVED_FOR, pass_over},
    error::{Broken, Failure},
    load,
    row::{self, get},
    save,
    session::{Session, params},
    shared::{CLOCK, Shared},
};

/// How many tasks one transaction sweeps at most.
pub(crate) const ROWS: u32 = 50;

/// How many entries of journals one transaction removes at most; the rest follows with the next.
const PURGED_ENTRIES: i64 = 5_000;

/// When to look again for what another replica has locked.
const AGAIN: Duration = Duration::from_millis(100);

const DUE: &str = "SELECT t.number, t.value, t.body, t.id FROM $S.tasks t
    WHERE t.due_at IS NOT NULL AND t.due_at <= $1::int8 AND t.number <> ALL ($2::int8[]) ORDER BY t.due_at
    LIMIT $3::int8 FOR UPDATE SKIP LOCKED";

const NEXT_DUE: &str =
    "SELECT t.due_at FROM $S.tasks t WHERE t.due_at IS NOT NULL AND t.number <> ALL ($1::int8[])
    ORDER BY t.due_at LIMIT 1";

const FORGET_KEYS: &str = "DELETE FROM $S.keys WHERE key IN
    (SELECT key FROM $S.keys WHERE until IS NOT NULL AND until <= $1::int8 LIMIT $2::int8 FOR UPDATE SKIP LOCKED)";

const FORGET_SERVED: &str = "DELETE FROM $S.served WHERE worker IN
    (SELECT worker FROM $S.served WHERE seen_at <= $1::int8 LIMIT 50 FOR UPDATE SKIP LOCKED)";

const PURGE_JOURNAL: &str = "WITH gone AS (DELETE FROM $S.journal j USING
    (SELECT number, seq FROM $S.journal WHERE number = ANY ($1::int8[]) LIMIT $2::int8) first
    WHERE j.number = first.number AND j.seq = first.seq RETURNING 1) SELECT count(*) FROM gone";

const BURY_KEYS: &str =
    "UPDATE $S.keys k SET until = u.until FROM unnest($1::int8[], $2::int8[]) u (number, until)
    JOIN $S.calls c ON c.number = u.number WHERE k.key = c.key";

const PURGE_CALLS: &str = "DELETE FROM $S.calls WHERE number = ANY ($1::int8[])";

const PURGE_TASKS: &str = "DELETE FROM $S.tasks WHERE number = ANY ($1::int8[])";

pub(crate) fn statements() -> Vec<&'static str> {
    let own = [
        CLOCK,
        DUE,
        NEXT_DUE,
        FORGET_KEYS,
        FORGET_SERVED,
        PURGE_JOURNAL,
        BURY_KEYS,
        PURGE_CALLS,
        PURGE_TASKS,
    ];
    [&own, save::STATEMENTS, load::STATEMENTS].concat()
}

/// Sweeps once, in a transaction of its own.
pub(crate) async fn sweep(shared: &Shared, session: &Session, max: u32) -> Result<Swept, Broken> {
    let (_, clock) = futures::try_join!(session.run(&shared.begin), session.query(CLOCK, &[]))?;
    let (reading, marks) = load::reading(shared, &clock)?;
    let mut batch = Batch::at(reading.now);
    if !reading.settled {
        save::commit(shared, session, &batch, marks).await?;
        return Ok(Swept { done: 0, next_due: Some(Duration::from_secs(1)) });
    }
    let (now, rows) = (reading.now.as_millis(), i64::from(ROWS));
    let unseen = (reading.now - SERVED_FOR).as_millis();
    session.query(FORGET_KEYS, params![now, rows]).await?;
    session.query(FORGET_SERVED, params![unseen]).await?;
    let damaged = shared.damaged.numbers();
    let due = session.query(DUE, params![now, damaged, i64::from(max)]).await?;
    let ids: Vec<TaskId> = due.iter().filter_map(|row| row::id(row, 3).ok()).collect();
    let asked = load::asked(session, &ids).await?;
    load::slots(&mut batch, &due, &asked)?;
    let mut purged = Vec::new();
    let mut done = 0;
    for id in ids {
        if !pass_over(shared, &mut batch, id) {
            continue;
        }
        done += 1;
        match swept(&batch, id) {
            // A refusal would be that of an event that has its place here; the task is left as it is.
            Some(Some(event)) => drop(batch.apply_quietly(id, &By::Store, &[event])),
            Some(None) => purged.push(id),
            None => continue,
        }
        batch.tell(id);
    }
    purge(session, &batch, &purged).await?;
    save::commit(shared, session, &batch, marks).await?;

    let damaged = shared.damaged.numbers();
    let next = session.query(NEXT_DUE, params![damaged]).await?;
    let next: Option<i64> = next.first().map(|row| get(row, 0)).transpose()?;
    let next_due = next.map(|at| match Timestamp::from_millis(at).since(batch.now) {
        // Somebody else has what is due.
        Duration::ZERO if done == 0 => AGAIN,
        in_time => in_time,
    });
    Ok(Swept { done, next_due })
}

/// What is to be done with a task that was loaded; `Some(None)` is a purge.
fn swept(batch: &Batch, id: TaskId) -> Option<Option<Event>> {
    let slot = batch.slots.get(&id)?.as_ref().ok()?;
    slot.task.sweep(batch.now).map(Sweep::event)
}

async fn purge(session: &Session, batch: &Batch, purged: &[TaskId]) -> Result<(), Failure> {
    let slots: Vec<_> = purged.iter().filter_map(|id| batch.slots.get(id)?.as_ref().ok()).collect();
    let numbers: Vec<i64> = slots.iter().map(|slot| slot.number).collect();
    if numbers.is_empty() {
        return Ok(());
    }
    let gone = session.query(PURGE_JOURNAL, params![numbers, PURGED_ENTRIES]).await?;
    let gone: i64 = gone.first().map_or(Ok(0), |row| get(row, 0))?;
    if gone >= PURGED_ENTRIES {
        return Ok(());
    }
    let until: Vec<i64> = slots
        .iter()
        .map(|slot| {
            let tombstone = IdempotencyKey::MIN_TOMBSTONE.max(slot.task.spec.ttl.unwrap_or_default());
            (batch.now + tombstone).as_millis()
        })
        .collect();
    session.query(BURY_KEYS, params![numbers, until]).await?;
    session.query(PURGE_CALLS, params![numbers]).await?;
    session.query(PURGE_TASKS, params![numbers]).await?;
    Ok(())
}
