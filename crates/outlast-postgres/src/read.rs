//! Reads, on connections of their own: they never wait for writes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use deadpool::{
    Runtime,
    managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult},
};
use outlast_core::{
    Call, Counts, Filter, Head, JournalPage, Owner, Status, Task, TaskId, Timestamp, ToolVersion, WorkerSeen,
};
use tokio_postgres::Row as SqlRow;

use crate::{
    claim::SERVED_FOR,
    clock::millis,
    damaged::Damaged,
    digest,
    error::{Failure, PostgresError},
    row::{self, get, select_task},
    session::{Address, Param, Session, params},
    shared::CLOCK,
};

/// Connections that read.
pub(crate) struct Readers(Pool<Sessions>);

struct Sessions(Arc<Address>);

/// How long a read waits for a connection.
const FREE: Duration = Duration::from_secs(5);

impl Manager for Sessions {
    type Type = Session;
    type Error = PostgresError;

    async fn create(&self) -> Result<Session, PostgresError> {
        self.0.connect().await
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<PostgresError> {
        if session.is_closed() { Err(RecycleError::message("the connection is closed")) } else { Ok(()) }
    }
}

impl Readers {
    pub(crate) fn new(address: Arc<Address>, count: usize) -> Self {
        let pool = Pool::builder(Sessions(address))
            .max_size(count.max(1))
            .wait_timeout(Some(FREE))
            .runtime(Runtime::Tokio1)
            .build();
        // It refuses timeouts without a runtime, and has one.
        Self(pool.expect("a pool with a runtime may have timeouts"))
    }

    pub(crate) fn close(&self) {
        self.0.close();
    }

    pub(crate) async fn query(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<SqlRow>, Failure> {
        let mut again = true;
        loop {
            let session = self.0.get().await.map_err(|error| match error {
                PoolError::Backend(error) => Failure::Sql(error),
                _ => Failure::Busy,
            })?;
            match session.query(sql, params).await {
                Err(error) if error.is_connection() => {
                    // One that was kept may have died unseen, with a server that was started again.
                    let dead = session.is_closed();
                    Object::take(session).abandon();
                    if !std::mem::replace(&mut again, false) || !dead {
                        return Err(error.into());
                    }
                }
                answer => return Ok(answer?),
            }
        }
    }
}

const GET: &str = select_task!("WHERE t.id = $1::bytea");

const CALL: &str =
    "SELECT c.params, c.context, c.number FROM $S.calls c JOIN $S.tasks t ON t.number = c.number
    WHERE t.id = $1::bytea";

/// As many entries as fit, with one more to tell whether there is one.
const JOURNAL: &str = "SELECT j.seq, j.at, j.kind, j.key, j.body, j.number FROM (SELECT j.*,
      sum(coalesce(octet_length(j.key), 0) + coalesce(octet_length(j.body), 0)) OVER (ORDER BY j.seq) AS size,
      row_number() OVER (ORDER BY j.seq) AS place
    FROM $S.journal j WHERE j.number = (SELECT number FROM $S.tasks WHERE id = $1::bytea) AND j.seq > $2::int8) j
    WHERE j.size <= $3::int8 OR j.place = 1 ORDER BY j.seq";

const LAST_SEQ: &str = "SELECT max(j.seq) FROM $S.journal j
    WHERE j.number = (SELECT number FROM $S.tasks WHERE id = $1::bytea)";

const HEADS: &str = "SELECT id, revision, status FROM $S.tasks WHERE id = ANY ($1::bytea[])";

const COUNTS: &str = "SELECT status, count(*) FROM $S.tasks GROUP BY status
    UNION ALL SELECT -1::int2, count(*) FROM $S.tasks WHERE leased";

/// How many tasks are ready, and since when the first of them is; and the same of the leases that ran out. Apart, so that
/// each goes by its index: what is parked, queued for later or held costs nothing, however much of it there is.
const READY: &str = "SELECT count(*), min(ready_at) FROM $S.tasks
    WHERE NOT leased AND ready_at IS NOT NULL AND ready_at <= $1::int8 AND number <> ALL ($2::int8[])
    UNION ALL SELECT count(*), min(ready_at) FROM $S.tasks
    WHERE leased AND ready_at <= $1::int8 AND number <> ALL ($2::int8[])";

const SERVED: &str = "SELECT serves, per_owner FROM $S.served WHERE seen_at > $1::int8";

const RUNNING: &str = "SELECT count(*) FROM $S.tasks WHERE owner = $1::bytea AND running";

const LIST: &str = select_task!(
    "WHERE t.number < $1::int8 AND ($2::bytea IS NULL OR t.owner = $2::bytea)
     AND ($3::int8 IS NULL OR t.status = $3::int8) AND ($4::bytea IS NULL OR substring(t.tool FROM 1 FOR 16) = $4::bytea)
     AND t.number <> ALL ($5::int8[]) ORDER BY t.number DESC LIMIT $6::int8"
);

pub(crate) async fn task(readers: &Readers, id: TaskId) -> Result<Option<Task>, Failure> {
    let rows = readers.query(GET, params![&id.as_bytes()[..]]).await?;
    rows.first().map(|row| row::read(row).map(|row| row.task)).transpose()
}

pub(crate) async fn call(readers: &Readers, id: TaskId) -> Result<Option<Call>, Failure> {
    let rows = readers.query(CALL, params![&id.as_bytes()[..]]).await?;
    rows.first().map(|row| row::call(row, get(row, 2)?)).transpose()
}

pub(crate) async fn journal(
    readers: &Readers,
    id: TaskId,
    after_seq: u64,
    max_bytes: u64,
) -> Result<JournalPage, Failure> {
    let id = &id.as_bytes()[..];
    let (after, most) = (row::signed(after_seq), row::signed(max_bytes));
    let rows = readers.query(JOURNAL, params![id, after, most]).await?;
    let entry =
        |row: &SqlRow| row::entry(row).map_err(|failure| failure.of_task(get(row, 5).unwrap_or_default()));
    let mut page =
        JournalPage { entries: rows.iter().map(entry).collect::<Result<_, _>>()?, ..JournalPage::default() };
    if let Some(last) = page.entries.last() {
        // Appended to meanwhile or not: what is behind this page follows.
        let rows = readers.query(LAST_SEQ, params![id]).await?;
        let newest: Option<i64> = rows.first().map_or(Ok(None), |row| get(row, 0))?;
        page.more = newest.is_some_and(|newest| newest > row::signed(last.seq));
    }
    Ok(page)
}

pub(crate) async fn heads(readers: &Readers, ids: &[TaskId]) -> Result<Vec<Option<Head>>, Failure> {
    let keys: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
    let rows = readers.query(HEADS, params![keys]).await?;
    let mut heads = HashMap::new();
    for row in &rows {
        let is_final = status(get(row, 2)?).is_none_or(Status::is_final);
        heads.insert(row::id(row, 0)?, Head { revision: row::unsigned(get(row, 1)?)?, is_final });
    }
    Ok(ids.iter().map(|id| heads.get(id).copied()).collect())
}

pub(crate) async fn counts(readers: &Readers, damaged: &Damaged, now: Timestamp) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    for row in &readers.query(COUNTS, &[]).await? {
        let count = row::unsigned(get(row, 1)?)?;
        match status(get(row, 0)?) {
            Some(status) => counts.by_status[status as usize] = count,
            None => counts.leased = count,
        }
    }
    for row in &readers.query(READY, params![now.as_millis(), damaged.numbers()]).await? {
        counts.ready += row::unsigned(get(row, 0)?)?;
        let since: Option<i64> = get(row, 1)?;
        let waited = since.map(|since| now.since(Timestamp::from_millis(since)));
        counts.oldest_ready = counts.oldest_ready.max(waited);
    }
    Ok(counts)
}

pub(crate) async fn workers(readers: &Readers, now: Timestamp) -> Result<Vec<WorkerSeen>, Failure> {
    let since = now.as_millis().saturating_sub(millis(SERVED_FOR));
    let seen = |row: &SqlRow| {
        let serves: Vec<(String, String)> = serde_json::from_str(get(row, 0)?)?;
        let serves = serves.into_iter().map(|(tool, version)| ToolVersion { tool, version }).collect();
        let per_owner = u32::try_from(get::<i64>(row, 1)?).unwrap_or(u32::MAX);
        Ok(WorkerSeen { serves, per_owner })
    };
    readers.query(SERVED, params![since]).await?.iter().map(seen).collect()
}

pub(crate) async fn running(readers: &Readers, owner: &Owner) -> Result<u32, Failure> {
    let owner = digest::owner(owner);
    let rows = readers.query(RUNNING, params![&owner[..]]).await?;
    let running: i64 = rows.first().map_or(Ok(0), |row| get(row, 0))?;
    Ok(u32::try_from(running).unwrap_or(u32::MAX))
}

/// What the database's clock says, and the store's mark.
pub(crate) async fn clock(readers: &Readers) -> Result<Vec<SqlRow>, Failure> {
    readers.query(CLOCK, &[]).await
}

/// The tasks that `filter` lets through, newest first, from before number `before`, with their numbers.
pub(crate) async fn list(
    readers: &Readers,
    damaged: &Damaged,
    filter: &Filter,
    before: i64,
    max: u32,
) -> Result<Vec<(i64, Task)>, Failure> {
    let owner = filter.owner.as_ref().map(digest::owner);
    let owner = owner.as_ref().map(|owner| &owner[..]);
    let status = filter.status.map(|status| status as i64);
    let tool = filter.tool.as_deref().map(digest::tool_name);
    let tool = tool.as_ref().map(|tool| &tool[..]);
    let mut tasks: Vec<(i64, Task)> = Vec::new();
    let mut before = before;
    // Again where rows were passed over: the statement did not know of them.
    while tasks.len() < max as usize {
        let (known, wanted) = (damaged.numbers(), i64::from(max) - tasks.len() as i64);
        let rows = readers.query(LIST, params![before, owner, status, tool, known, wanted]).await?;
        for row in &rows {
            before = get(row, 0)?;
            tasks.extend(damaged.pass_over(row::read(row))?.map(|row| (row.number, row.task)));
        }
        if (rows.len() as i64) < wanted {
            break;
        }
    }
    Ok(tasks)
}

fn status(place: i16) -> Option<Status> {
    Status::ALL.get(usize::try_from(place).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use outlast_testkit::run;

    use super::READY;
    use crate::harness::{fresh_schema, open, quoted, raw, still, url};

    /// A hundred thousand tasks: most have ended, many are parked, some are held, few are ready.
    const MANY: &str =
        "INSERT INTO $S.tasks (number, id, owner, tool, status, leased, running, ready_at, revision, value)
        SELECT n, decode(md5(n::text), 'hex'), decode(md5((n % 50)::text), 'hex'), '\\x00',
        CASE WHEN n % 10 < 7 THEN 2 ELSE 0 END, n % 10 = 7, n % 10 = 7,
        CASE WHEN n % 10 < 7 THEN NULL WHEN n % 1000 = 8 THEN 1 ELSE 1000 END, 1, repeat('x', 300)
        FROM generate_series(1, 100000) n";

    #[test]
    fn what_is_ready_is_counted_by_the_indexes_however_the_statement_is_planned() {
        run(async {
            let schema = fresh_schema();
            let _store = open(&schema, &still()).await;
            let named = |sql: &str| sql.replace("$S", &quoted(&schema));
            let database = raw(url()).await;
            database.batch_execute(&named(MANY)).await.unwrap();
            database.batch_execute(&named("VACUUM ANALYZE $S.tasks")).await.unwrap();
            database.batch_execute(&named(&format!("PREPARE ready AS {READY}"))).await.unwrap();
            for mode in ["force_custom_plan", "force_generic_plan"] {
                database.batch_execute(&format!("SET plan_cache_mode = {mode}")).await.unwrap();
                let explained = database
                    .simple_query("EXPLAIN (ANALYZE, BUFFERS) EXECUTE ready (500, '{}')")
                    .await
                    .unwrap();
                let line = |message: &_| match message {
                    tokio_postgres::SimpleQueryMessage::Row(row) => {
                        row.get(0).map(|line| format!("{line}\n"))
                    }
                    _ => None,
                };
                let plan: String = explained.iter().filter_map(line).collect();
                assert!(!plan.contains("Seq Scan"), "{mode}:\n{plan}");
                // By them alone, too, once a vacuum has seen the rows: with an old snapshot somewhere it could not.
                for index in ["tasks_by_ready", "tasks_by_lease"] {
                    assert!(plan.contains(index), "{mode}: {index} is not in\n{plan}");
                }
            }
        });
    }
}
