//! Handing out work: fair across owners, each task to one worker of one replica.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use futures::future::join_all;
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Event, Held, Payload, Reading, TaskId, Timestamp, WorkerId,
    WorkerSeen,
};
use tokio_postgres::Row as SqlRow;

use crate::{
    batch::Batch,
    digest::{self, Lock, OwnerKey},
    error::{Broken, Failure},
    job::Job,
    load::{self, lock_owners},
    quota::FAR,
    row::{self, get},
    save,
    session::{Session, params},
    shared::{CLOCK, Shared},
};

const EXPIRED: &str = "SELECT t.number, t.value, t.body, t.id FROM $S.tasks t
    WHERE t.leased AND t.ready_at <= $1::int8 AND t.number <> ALL ($2::int8[]) ORDER BY t.ready_at LIMIT $3::int8
    FOR UPDATE SKIP LOCKED";

/// The tasks that have waited longest, whoever they belong to.
const LONGEST: &str = "SELECT t.number, t.owner, t.ready_at, t.status = 0 FROM $S.tasks t
    WHERE NOT t.leased AND t.ready_at IS NOT NULL AND t.ready_at <= $1::int8 AND t.tool = ANY ($2::bytea[])
    AND t.number <> ALL ($3::int8[]) ORDER BY t.ready_at, t.number LIMIT $4::int8";

/// The first few tasks of each owner behind another: from owner to owner by the index, however many tasks one has.
const OF_EACH: &str = "WITH RECURSIVE o (owner) AS (
      (SELECT t.owner FROM $S.tasks t WHERE NOT t.leased AND t.ready_at IS NOT NULL AND t.owner > $5::bytea
       ORDER BY t.owner LIMIT 1)
      UNION ALL
      SELECT (SELECT t.owner FROM $S.tasks t WHERE NOT t.leased AND t.ready_at IS NOT NULL AND t.owner > o.owner
       ORDER BY t.owner LIMIT 1) FROM o WHERE o.owner IS NOT NULL)
    SELECT f.number, o.owner, f.ready_at, f.works FROM (SELECT owner FROM o WHERE owner IS NOT NULL LIMIT $6::int8) o
    CROSS JOIN LATERAL (SELECT t.number, t.ready_at, t.status = 0 AS works FROM $S.tasks t
      WHERE t.owner = o.owner AND NOT t.leased AND t.ready_at IS NOT NULL AND t.ready_at <= $1::int8
      AND t.tool = ANY ($2::bytea[]) AND t.number <> ALL ($3::int8[]) ORDER BY t.ready_at, t.number LIMIT $4::int8) f";

const RUNNING: &str =
    "SELECT o.owner, (SELECT count(*) FROM $S.tasks t WHERE t.owner = o.owner AND t.running)
    FROM unnest($1::bytea[]) o (owner)";

/// Locks the first of these that nobody else has locked or taken.
const TAKE: &str = "SELECT t.number, t.value, t.body, t.id, t.asked IS NOT NULL, c.params, c.context
    FROM unnest($1::int8[]) WITH ORDINALITY p (number, place)
    JOIN $S.tasks t ON t.number = p.number LEFT JOIN $S.calls c ON c.number = t.number
    WHERE NOT t.leased AND t.ready_at <= $2::int8 ORDER BY p.place LIMIT $3::int8 FOR UPDATE OF t SKIP LOCKED";

const SERVES: &str = "INSERT INTO $S.served (worker, serves, per_owner, seen_at)
    VALUES ($1::bytea, $2::text, $3::int8, $4::int8) ON CONFLICT (worker) DO UPDATE
    SET serves = excluded.serves, per_owner = excluded.per_owner, seen_at = excluded.seen_at";

const STATEMENTS: &[&str] = &[CLOCK, EXPIRED, LONGEST, RUNNING, TAKE, SERVES];

/// How many expired leases one transaction ends at most; the next ends more.
const ENDED_LEASES: i64 = 256;

/// How many tasks are looked at in one claim, by how long they have waited; where there are more, each owner's first few
/// are looked at as well.
const LOOKED_AT: i64 = 1_000;

/// How many owners are walked in one claim then, and how many tasks of each are looked at.
const OWNERS: i64 = 256;
const OF_ONE: i64 = 8;

/// How often a claim looks when leases had to be ended first, or others were quicker.
pub(crate) const ROUNDS: u32 = 4;

/// How long a worker's note of what it serves is good, and how often it is written anew. A worker that is gone says no
/// word.
pub(crate) const SERVED_FOR: Duration = Duration::from_secs(3_600);
const SERVED_AGAIN: Duration = Duration::from_secs(600);

/// What claims remember.
#[derive(Default)]
pub(crate) struct Turns {
    /// The owner that was served last, so that the next claim goes on behind it.
    last: OwnerKey,
    /// What each worker said, as it was written down, and when.
    served: HashMap<WorkerId, (WorkerSeen, Timestamp)>,
}

/// A task that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    at: i64,
    number: i64,
    /// Whether it takes a place of its owner; work that waits for an answer does not.
    works: bool,
}

/// The ready tasks of each owner, those that waited longest first.
type Candidates = BTreeMap<OwnerKey, BTreeSet<Ready>>;

/// How a look for work ended.
pub(crate) enum Look {
    /// These are the worker's now.
    Claimed(Vec<Claimed>),
    /// Leases were ended, or others were quicker: there may be more.
    Again,
}

pub(crate) fn statements() -> Vec<&'static str> {
    [STATEMENTS, save::STATEMENTS, load::STATEMENTS, &[OF_EACH]].concat()
}

/// Looks for work once, in a transaction of its own.
pub(crate) async fn look(
    shared: &Shared,
    session: &Session,
    request: &ClaimRequest,
    turns: &mut Turns,
) -> Result<Look, Broken> {
    let began = shared.skew.monotonic();
    shared.time().observe_lease(request.lease);
    let (_, clock) = futures::try_join!(session.run(&shared.begin), session.query(CLOCK, &[]))?;
    let (reading, marks) = load::reading(shared, &clock)?;
    let mut batch = Batch::at(reading.now);
    batch.lease = request.lease;
    let served = note_served(session, request, turns, reading.now).await?;
    if shared.is_too_slow(request.lease) {
        save::commit(shared, session, &batch, marks).await?;
        return Ok(Look::Claimed(Vec::new()));
    }

    if end_leases(shared, session, reading, &mut batch).await? {
        save::commit(shared, session, &batch, marks).await?;
        return Ok(Look::Again);
    }

    let tools: Vec<[u8; 32]> =
        request.serves.iter().map(|served| digest::tool(&served.tool, &served.version)).collect();
    let places = Places { shared, session, tools: &tools, now: reading.now, last: turns.last };
    let mut candidates = places.candidates().await?;
    let mut room = places.room(&candidates, request.per_owner).await?;
    let mut picked = pick(&candidates, &room, turns.last, request.max);
    let near: BTreeSet<OwnerKey> =
        picked.iter().map(|(owner, _)| *owner).filter(|owner| room[owner] <= FAR).collect();
    if !near.is_empty() {
        // Nobody else takes of these owners' work from here on, and what was taken until now is seen.
        lock_owners(session, Lock::Running, &near).await?;
        let clock = session.query(CLOCK, &[]).await?;
        batch.now = load::reading(shared, &clock)?.0.now;
        let far: BTreeSet<OwnerKey> =
            room.iter().filter(|(_, room)| **room > FAR).map(|(owner, _)| *owner).collect();
        candidates = places.candidates().await?;
        candidates.retain(|owner, _| near.contains(owner) || far.contains(owner));
        room = places.room(&candidates, request.per_owner).await?;
        picked = pick(&candidates, &room, turns.last, request.max);
    }

    let claimed = take(shared, session, request, &picked, &mut batch).await?;
    if let Err(broken) = save::commit(shared, session, &batch, marks).await {
        if matches!(broken, Broken::Unknown(_)) {
            give_back(shared, &request.worker, claimed).await;
        }
        return Err(broken);
    }
    if !batch.slots.is_empty() {
        shared.note_commit(began);
    }
    if let Some(note) = served {
        turns.served.insert(request.worker.clone(), note);
    }
    match claimed {
        claimed if claimed.is_empty() && !picked.is_empty() => Ok(Look::Again),
        claimed => {
            if let Some(last) = claimed.last() {
                turns.last = digest::owner(&last.task.owner);
            }
            Ok(Look::Claimed(claimed))
        }
    }
}

/// Gives back what may have been claimed: the same call again would get other tasks. Waits for it, so that nothing is
/// claimed anew in between and given back then.
async fn give_back(shared: &Shared, worker: &WorkerId, claimed: Vec<Claimed>) {
    let answers = claimed.into_iter().map(|claimed| {
        let held = Held { id: claimed.task.id, token: claimed.token };
        let (job, answer) = Job::give_back(held, worker.clone());
        shared.queue.push_first(job);
        answer
    });
    // Where that fails as well, the leases run out.
    drop(join_all(answers.collect::<Vec<_>>()).await);
}

/// Writes down what a worker serves, where that is news.
async fn note_served(
    session: &Session,
    request: &ClaimRequest,
    turns: &Turns,
    now: Timestamp,
) -> Result<Option<(WorkerSeen, Timestamp)>, Failure> {
    let seen = WorkerSeen { serves: request.serves.clone(), per_owner: request.per_owner };
    let known = turns.served.get(&request.worker);
    if known.is_some_and(|(known, at)| *known == seen && now.since(*at) < SERVED_AGAIN) {
        return Ok(None);
    }
    let serves: Vec<_> = request.serves.iter().map(|served| (&served.tool, &served.version)).collect();
    let (worker, at) = (digest::worker(&request.worker), now.as_millis());
    let (worker, serves) = (&worker[..], serde_json::to_string(&serves)?);
    let per_owner = i64::from(request.per_owner);
    session.query(SERVES, params![worker, serves, per_owner, at]).await?;
    Ok(Some((seen, now)))
}

/// Ends leases that ran out, also of tools that the worker does not serve: they would hold places of their owners for
/// ever, and work that must not run twice would never be told that it ended.
async fn end_leases(
    shared: &Shared,
    session: &Session,
    reading: Reading,
    batch: &mut Batch,
) -> Result<bool, Failure> {
    if !reading.settled {
        return Ok(false);
    }
    let (until, damaged) = (reading.now.as_millis(), shared.damaged.numbers());
    let expired = session.query(EXPIRED, params![until, damaged, ENDED_LEASES]).await?;
    if expired.is_empty() {
        return Ok(false);
    }
    let ids: Vec<TaskId> = expired.iter().filter_map(|row| row::id(row, 3).ok()).collect();
    let asked = load::asked(session, &ids).await?;
    load::slots(batch, &expired, &asked)?;
    for id in ids {
        if pass_over(shared, batch, id) {
            // A refusal would be that of an event that has its place here; the task is left as it is.
            drop(batch.apply(id, &By::Store, &[Event::LoseLease]));
        }
    }
    Ok(true)
}

/// Whether a task that was loaded can be read; one that cannot is noted, and taken out of the batch.
pub(crate) fn pass_over(shared: &Shared, batch: &mut Batch, id: TaskId) -> bool {
    match batch.slots.get(&id) {
        Some(Ok(_)) => true,
        Some(Err(failure)) => {
            // Damage alone is noted; it is the only failure that a loaded row can have.
            drop(shared.damaged.pass_over::<()>(Err(failure.clone())));
            batch.slots.remove(&id);
            false
        }
        None => false,
    }
}

/// Where work is looked for.
struct Places<'a> {
    shared: &'a Shared,
    session: &'a Session,
    tools: &'a [[u8; 32]],
    now: Timestamp,
    last: OwnerKey,
}

impl Places<'_> {
    async fn candidates(&self) -> Result<Candidates, Failure> {
        let (now, damaged) = (self.now.as_millis(), self.shared.damaged.numbers());
        let tools: Vec<&[u8]> = self.tools.iter().map(|tool| &tool[..]).collect();
        let rows = self.session.query(LONGEST, params![now, tools, damaged, LOOKED_AT]).await?;
        let mut candidates = Candidates::new();
        gather(&rows, &mut candidates)?;
        if rows.len() as i64 == LOOKED_AT {
            // A flood: those whose turn it is may be far behind in it.
            for after in [&self.last[..], &[]] {
                let params = params![now, tools, damaged, OF_ONE, after, OWNERS];
                let rows = self.session.query(OF_EACH, params).await?;
                gather(&rows, &mut candidates)?;
                if rows.len() as i64 >= OWNERS {
                    break;
                }
            }
        }
        Ok(candidates)
    }

    /// How many more tasks of each owner may run.
    async fn room(
        &self,
        candidates: &Candidates,
        per_owner: u32,
    ) -> Result<BTreeMap<OwnerKey, i64>, Failure> {
        if candidates.is_empty() {
            return Ok(BTreeMap::new());
        }
        let owners: Vec<&[u8]> = candidates.keys().map(|owner| &owner[..]).collect();
        let rows = self.session.query(RUNNING, params![owners]).await?;
        let room = |row: &SqlRow| Ok((row::bytes(get(row, 0)?)?, i64::from(per_owner) - get::<i64>(row, 1)?));
        rows.iter().map(room).collect()
    }
}

fn gather(rows: &[SqlRow], candidates: &mut Candidates) -> Result<(), Failure> {
    for row in rows {
        let owner = row::bytes(get(row, 1)?)?;
        candidates.entry(owner).or_default().insert(Ready {
            at: get(row, 2)?,
            number: get(row, 0)?,
            works: get(row, 3)?,
        });
    }
    Ok(())
}

/// The owners' first tasks in turn, beginning behind the owner that was served last, then their second ones, and so on:
/// no more of one than it has room for, and twice as many in all as are wanted, because others may be quicker.
fn pick(
    candidates: &Candidates,
    room: &BTreeMap<OwnerKey, i64>,
    last: OwnerKey,
    max: u32,
) -> Vec<(OwnerKey, i64)> {
    let most = max as usize * 2;
    let behind = candidates.range((std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded));
    let mut lines: Vec<_> = behind
        .chain(candidates.range(..=last))
        .map(|(owner, ready)| (*owner, room.get(owner).copied().unwrap_or(0), ready.iter()))
        .collect();
    let mut picked = Vec::new();
    while !lines.is_empty() && picked.len() < most {
        lines.retain_mut(|(owner, room, line)| {
            let next = if *room > 0 && picked.len() < most { line.next() } else { None };
            if let Some(ready) = next {
                picked.push((*owner, ready.number));
                *room -= i64::from(ready.works);
            }
            next.is_some()
        });
    }
    picked
}

/// Takes the first of the picked tasks that are still to be had.
async fn take(
    shared: &Shared,
    session: &Session,
    request: &ClaimRequest,
    picked: &[(OwnerKey, i64)],
    batch: &mut Batch,
) -> Result<Vec<Claimed>, Failure> {
    if picked.is_empty() {
        return Ok(Vec::new());
    }
    let numbers: Vec<i64> = picked.iter().map(|(_, number)| *number).collect();
    let (now, max) = (batch.now.as_millis(), i64::from(request.max));
    let rows = session.query(TAKE, params![numbers, now, max]).await?;
    let mut asking = Vec::new();
    let mut calls: Vec<(TaskId, Call)> = Vec::new();
    for row in &rows {
        let (number, id) = (get(row, 0)?, row::id(row, 3)?);
        if get(row, 4)? {
            asking.push(id);
        }
        if let Some(call) = shared.damaged.pass_over(call(row, number))? {
            calls.push((id, call));
        }
    }
    let asked = load::asked(session, &asking).await?;
    load::slots(batch, &rows, &asked)?;
    let mut claimed = Vec::new();
    for (id, call) in calls {
        if !pass_over(shared, batch, id) {
            continue;
        }
        let claim = Event::Claim { worker: request.worker.clone(), lease: request.lease };
        if let Ok(Applied::Applied(task)) = batch.apply_quietly(id, &By::Store, &[claim]) {
            let token = task.token;
            claimed.push(Claimed { task, call, token });
        }
    }
    Ok(claimed)
}

/// The call that comes with a row of [`TAKE`].
fn call(row: &SqlRow, number: i64) -> Result<Call, Failure> {
    let call = || {
        let params: Option<&str> = get(row, 5)?;
        let params = row::payload(params)?.unwrap_or_else(Payload::null);
        Ok(Call { params, context: row::payload(get(row, 6)?)? })
    };
    call().map_err(|failure: Failure| failure.of_task(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: u8) -> OwnerKey {
        [number; 16]
    }

    fn ready(numbers: impl IntoIterator<Item = i64>) -> BTreeSet<Ready> {
        numbers.into_iter().map(|number| Ready { at: 0, number, works: number % 2 == 0 }).collect()
    }

    fn picked(candidates: &Candidates, room: i64, last: u8, max: u32) -> Vec<i64> {
        let room = candidates.keys().map(|owner| (*owner, room)).collect();
        pick(candidates, &room, owner(last), max).into_iter().map(|(_, number)| number).collect()
    }

    #[test]
    fn owners_are_served_in_turn_beginning_behind_the_last() {
        let candidates = Candidates::from([
            (owner(1), ready([10, 11, 12])),
            (owner(2), ready([20])),
            (owner(3), ready([30, 31])),
        ]);
        assert_eq!(picked(&candidates, 9, 0, 3), [10, 20, 30, 11, 31, 12]);
        assert_eq!(picked(&candidates, 9, 1, 1), [20, 30]);
        assert_eq!(picked(&candidates, 9, 3, 2), [10, 20, 30, 11]);
    }

    #[test]
    fn nobody_gets_more_than_there_is_room_for() {
        let candidates = Candidates::from([(owner(1), ready([10, 12, 14])), (owner(2), ready([20, 22]))]);
        assert_eq!(picked(&candidates, 1, 0, 5), [10, 20]);
        assert!(picked(&candidates, 0, 0, 5).is_empty());
        // Odd ones wait for an answer, and take no place.
        let waiting = Candidates::from([(owner(1), ready([11, 13, 14, 15]))]);
        assert_eq!(picked(&waiting, 1, 0, 5), [11, 13, 14]);
        assert!(picked(&candidates, -1, 0, 5).is_empty());
    }
}
