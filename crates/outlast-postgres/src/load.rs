//! The first half of the writer's transaction: locks, the time, and everything that the operations decide on, asked for
//! at once and answered in one round trip.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    time::Duration,
};

use outlast_core::{Known, Reading, TaskId, Timestamp};
use tokio_postgres::Row as SqlRow;

use crate::{
    batch::{Batch, Slot, UsedKey},
    digest::{Lock, OwnerKey},
    error::{Failure, PostgresError},
    job::Needs,
    row::{self, get},
    session::{Session, params},
    shared::{CLOCK, Marks, Shared},
};

const LOCK_OWNERS: &str = "SELECT pg_advisory_xact_lock(l.number) FROM unnest($1::int8[]) l (number)";

/// In the order of their numbers, so that no two replicas wait for each other.
const LOCK_TASKS: &str =
    "SELECT t.number, t.value, t.body, t.id FROM $S.tasks t WHERE t.id = ANY ($1::bytea[])
    ORDER BY t.number FOR UPDATE";

/// What the outstanding questions ask. It is a statement of its own because it has to see what was committed while the
/// one before it waited for locks.
const ASKED: &str = r"SELECT t.id, j.key, j.body FROM $S.tasks t
    CROSS JOIN LATERAL unnest(string_to_array(t.asked, E'\n')) k (key)
    JOIN $S.journal j ON j.number = t.number AND j.key = k.key AND j.opens
    WHERE t.id = ANY ($1::bytea[]) AND t.asked IS NOT NULL";

const KNOWN: &str =
    "SELECT u.id, j.key, j.kind, j.body, t.number FROM unnest($1::bytea[], $2::text[]) u (id, key)
    JOIN $S.tasks t ON t.id = u.id JOIN $S.journal j ON j.number = t.number AND j.key = u.key AND j.opens";

const CALLER_KEYS: &str = concat!(
    "SELECT k.key, k.request, k.id, k.until, t.number, ",
    row::task_columns!(),
    " FROM $S.keys k LEFT JOIN $S.tasks t ON t.id = k.id",
    row::join_questions!(),
    "WHERE k.key = ANY ($1::bytea[])"
);

const OPEN: &str = "SELECT o.owner, (SELECT count(*) FROM
    (SELECT 1 FROM $S.tasks t WHERE t.owner = o.owner AND t.status < 2 LIMIT o.most) counted)
    FROM unnest($1::bytea[], $2::int8[]) o (owner, most)";

const NUMBERS: &str =
    "SELECT nextval(s.numbers) FROM (SELECT $1::text::regclass AS numbers) s, generate_series(1, $2::int8)";

/// What is prepared before a transaction begins.
pub(crate) const STATEMENTS: &[&str] =
    &[LOCK_OWNERS, LOCK_TASKS, ASKED, KNOWN, CALLER_KEYS, OPEN, NUMBERS, CLOCK];

/// A transaction that has begun: what it decides on, and what the replicas keep in common about time.
pub(crate) struct Loaded {
    pub(crate) batch: Batch,
    pub(crate) marks: Marks,
    /// The owners that were counted.
    pub(crate) counted: Vec<OwnerKey>,
}

/// Begins a transaction, and loads what its operations need.
pub(crate) async fn load(shared: &Shared, session: &Session, needs: &Needs) -> Result<Loaded, Failure> {
    let ids: BTreeSet<TaskId> = needs.ids.iter().copied().collect();
    let ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
    let known_ids: Vec<&[u8]> = needs.keys.iter().map(|(id, _)| &id.as_bytes()[..]).collect();
    let known_keys: Vec<&str> = needs.keys.iter().map(|(_, key)| key.as_str()).collect();
    let caller_keys: Vec<&[u8]> = needs.caller_keys.iter().map(|key| &key[..]).collect();
    let near = near(shared, needs);
    let owners: Vec<&[u8]> = near.keys().map(|owner| &owner[..]).collect();
    let most: Vec<i64> = near.values().map(|most| i64::from(*most)).collect();
    let mut locks: Vec<i64> = owners.iter().map(|owner| session.address().lock(Lock::Open, owner)).collect();
    locks.sort_unstable();
    let numbers = session.address().named("$S.numbers");
    let births = needs.births;

    let (_, _, locked, clock, asked, known, used, open, numbers) = futures::try_join!(
        session.run(&shared.begin),
        unless(locks.is_empty(), async { session.query(LOCK_OWNERS, params![locks]).await }),
        unless(ids.is_empty(), async { session.query(LOCK_TASKS, params![ids]).await }),
        session.query(CLOCK, &[]),
        unless(ids.is_empty(), async { session.query(ASKED, params![ids]).await }),
        unless(known_ids.is_empty(), async { session.query(KNOWN, params![known_ids, known_keys]).await }),
        unless(caller_keys.is_empty(), async { session.query(CALLER_KEYS, params![caller_keys]).await }),
        unless(owners.is_empty(), async { session.query(OPEN, params![owners, most]).await }),
        unless(births == 0, async { session.query(NUMBERS, params![numbers, births]).await }),
    )?;

    let (reading, marks) = reading(shared, &clock)?;
    let mut batch = Batch::at(reading.now);
    slots(&mut batch, &locked, &asked)?;
    learn(&mut batch, &known)?;
    for row in &used {
        let used = UsedKey {
            request: row::bytes(get(row, 1)?)?,
            id: row::id(row, 2)?,
            until: get::<Option<i64>>(row, 3)?.map(Timestamp::from_millis),
        };
        batch.keys.insert(row::bytes(get(row, 0)?)?, used);
        if get::<Option<i64>>(row, 4)?.is_some() {
            batch.existing.insert(used.id, row::read_at(row, 4).map(|row| row.task));
        }
    }
    for row in &open {
        batch.open.insert(row::bytes(get(row, 0)?)?, get(row, 1)?);
    }
    batch.numbers = numbers.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    Ok(Loaded { batch, marks, counted: near.into_keys().collect() })
}

/// The owners that have to be counted, and up to what.
fn near(shared: &Shared, needs: &Needs) -> BTreeMap<OwnerKey, u32> {
    let now = shared.skew.monotonic();
    let mut least: HashMap<OwnerKey, (u32, u32)> = HashMap::new();
    for (owner, max_open) in &needs.quotas {
        let (least, most) = least.entry(*owner).or_insert((*max_open, *max_open));
        (*least, *most) = ((*least).min(*max_open), (*most).max(*max_open));
    }
    let near = |(owner, (least, most)): (OwnerKey, (u32, u32))| {
        shared.quotas.is_near(&owner, least, now).then_some((owner, most))
    };
    least.into_iter().filter_map(near).collect()
}

async fn unless(
    skip: bool,
    query: impl Future<Output = Result<Vec<SqlRow>, PostgresError>>,
) -> Result<Vec<SqlRow>, PostgresError> {
    if skip { Ok(Vec::new()) } else { query.await }
}

/// The time to decide with, and what the replicas keep in common about it, from what [`CLOCK`] answered.
pub(crate) fn reading(shared: &Shared, clock: &[SqlRow]) -> Result<(Reading, Marks), Failure> {
    let row = clock.first().ok_or_else(|| Failure::Value("the clock did not answer".into()))?;
    let marks = Marks {
        clock: Timestamp::from_millis(get(row, 1)?),
        lease: Duration::from_millis(row::unsigned(get::<Option<i64>>(row, 2)?.unwrap_or(0))?),
    };
    Ok((shared.read_clock(get(row, 0)?, marks), marks))
}

/// What the questions of locked tasks ask.
pub(crate) async fn asked(session: &Session, ids: &[TaskId]) -> Result<Vec<SqlRow>, PostgresError> {
    let ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
    unless(ids.is_empty(), async { session.query(ASKED, params![ids]).await }).await
}

/// Locks owners, in the order of the locks' numbers.
pub(crate) async fn lock_owners(
    session: &Session,
    what: Lock,
    owners: impl IntoIterator<Item = &OwnerKey>,
) -> Result<(), PostgresError> {
    let mut locks: Vec<i64> = owners.into_iter().map(|owner| session.address().lock(what, owner)).collect();
    locks.sort_unstable();
    unless(locks.is_empty(), async { session.query(LOCK_OWNERS, params![locks]).await }).await.map(drop)
}

/// Puts locked tasks into a batch, from rows of `number, value, body, id` and of [`ASKED`].
pub(crate) fn slots(batch: &mut Batch, locked: &[SqlRow], asked: &[SqlRow]) -> Result<(), Failure> {
    let mut questions: HashMap<TaskId, BTreeMap<&str, Option<&str>>> = HashMap::new();
    for row in asked {
        // A text that cannot be read is missed below.
        if let (Ok(key), Ok(body)) = (get(row, 1), get(row, 2)) {
            questions.entry(row::id(row, 0)?).or_default().insert(key, body);
        }
    }
    let none = BTreeMap::new();
    for row in locked {
        let (number, id) = (get(row, 0)?, row::id(row, 3)?);
        let asked = questions.get(&id).unwrap_or(&none);
        let task = || row::decode(get(row, 1)?, get(row, 2)?, asked);
        let slot = task().map(|task| Slot::stored(number, task)).map_err(|failure| failure.of_task(number));
        batch.slots.insert(id, slot);
    }
    Ok(())
}

fn learn(batch: &mut Batch, rows: &[SqlRow]) -> Result<(), Failure> {
    for row in rows {
        let id = row::id(row, 0)?;
        let known = || {
            let known = Known { kind: row::kind(get(row, 2)?)?, body: row::payload(get(row, 3)?)? };
            Ok((row::step_key(get(row, 1)?)?, known))
        };
        match known() {
            Ok((key, known)) => drop(batch.known.entry(id).or_default().insert(key, known)),
            Err(failure) => {
                let failure: Failure = failure;
                batch.slots.insert(id, Err(failure.of_task(get(row, 4)?)));
            }
        }
    }
    Ok(())
}
