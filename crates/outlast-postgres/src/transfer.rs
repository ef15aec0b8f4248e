//! Giving away what a schema keeps, and taking in what another store kept.

use async_trait::async_trait;
use outlast_core::{
    Call, Exported, IdempotencyKey, Owner, Payload, Record, SpentKey, StoreError, Task, TaskRecord,
    Timestamp, Transfer,
};
use tokio_postgres::Row as SqlRow;

use crate::{
    PostgresStore, digest,
    error::Failure,
    job::Job,
    read::{self, Readers},
    row::{self, get, join_questions, task_columns},
    session::params,
    shared::Shared,
};

/// What a place in the export begins with: among the tasks, or behind them among the keys.
const TASKS: char = 't';
const KEYS: char = 'k';

/// How many rows are read at once.
const ROWS: i64 = 64;

const FIRST_TASKS: &str = concat!(
    "SELECT t.number, ",
    task_columns!(),
    ", c.params, c.context, k.caller, k.request FROM $S.tasks t",
    join_questions!(),
    "LEFT JOIN $S.calls c ON c.number = t.number LEFT JOIN $S.keys k ON k.key = c.key
     WHERE t.number > $1::int8 ORDER BY t.number LIMIT $2::int8"
);

const FIRST_KEYS: &str = "SELECT k.key, k.caller, k.request, k.id, k.until FROM $S.keys k
    WHERE k.key > $1::bytea AND k.until IS NOT NULL ORDER BY k.key LIMIT $2::int8";

#[async_trait]
impl Transfer for PostgresStore {
    async fn export(&self, after: Option<String>, max_bytes: u64) -> Result<Exported, StoreError> {
        let place = after.unwrap_or_else(|| format!("{TASKS}0"));
        let shared = self.shared();
        self.read(async {
            let mut page = Page { exported: Exported::default(), size: 0, max: max_bytes };
            match place.strip_prefix(KEYS) {
                Some(key) => keys(&shared.readers, &digest::unhex(key), &mut page).await?,
                None => {
                    let number = place.strip_prefix(TASKS).and_then(|number| number.parse().ok());
                    if tasks(shared, number.unwrap_or(i64::MAX), &mut page).await? {
                        keys(&shared.readers, &[], &mut page).await?;
                    }
                }
            }
            Ok(page.exported)
        })
        .await
    }

    async fn import(&self, records: Vec<Record>) -> Result<u64, StoreError> {
        self.write(Job::import(records)).await
    }
}

/// A page as it fills.
struct Page {
    exported: Exported,
    size: u64,
    max: u64,
}

impl Page {
    /// Adds a record, which is at this place; `false` where there is no more room for it.
    fn add(&mut self, record: Record, place: String) -> bool {
        self.size += record.size();
        if self.size > self.max && !self.exported.records.is_empty() {
            return false;
        }
        self.exported.records.push(record);
        self.exported.next = Some(place);
        true
    }
}

/// Adds the tasks behind `number`; whether these were all.
async fn tasks(shared: &Shared, number: i64, page: &mut Page) -> Result<bool, Failure> {
    let mut after = number;
    loop {
        let rows = shared.readers.query(FIRST_TASKS, params![after, ROWS]).await?;
        for row in &rows {
            after = get(row, 0)?;
            let record = match row::read(row) {
                Ok(read) => record(&shared.readers, row, read.task).await,
                Err(failure) => Err(failure),
            };
            let record = record.map_err(|failure| failure.of_task(after));
            let Some(record) = shared.damaged.pass_over(record)? else {
                page.exported.damaged += 1;
                continue;
            };
            if !page.add(record, format!("{TASKS}{after}")) {
                return Ok(false);
            }
        }
        if (rows.len() as i64) < ROWS {
            return Ok(true);
        }
    }
}

async fn record(readers: &Readers, row: &SqlRow, task: Task) -> Result<Record, Failure> {
    let params = row::payload(get(row, 5)?)?.unwrap_or_else(Payload::null);
    let call = Call { params, context: row::payload(get(row, 6)?)? };
    let caller: Option<&str> = get(row, 7)?;
    let key = match caller {
        Some(caller) => Some(key(caller, get(row, 8)?)?.1),
        None => None,
    };
    let journal = read::journal(readers, task.id, 0, u64::MAX).await?.entries;
    Ok(Record::Task(Box::new(TaskRecord { task, call, key, journal })))
}

/// Whose key it is, and the key.
fn key(caller: &str, request: &[u8]) -> Result<(Owner, IdempotencyKey), Failure> {
    let (owner, key): (String, String) = serde_json::from_str(caller)?;
    Ok((Owner::new(owner), IdempotencyKey { key: key.into(), request: row::bytes(request)? }))
}

/// Adds the keys behind `after` whose tasks are gone.
async fn keys(readers: &Readers, after: &[u8], page: &mut Page) -> Result<(), Failure> {
    let mut after = after.to_vec();
    loop {
        let rows = readers.query(FIRST_KEYS, params![&after[..], ROWS]).await?;
        for row in &rows {
            let (owner, key) = key(get(row, 1)?, get(row, 2)?)?;
            let until = Timestamp::from_millis(get(row, 4)?);
            let spent = SpentKey { owner, key, task: row::id(row, 3)?, until };
            after = get(row, 0)?;
            if !page.add(Record::SpentKey(spent), format!("{KEYS}{}", digest::hex(&after))) {
                return Ok(());
            }
        }
        if (rows.len() as i64) < ROWS {
            page.exported.next = None;
            return Ok(());
        }
    }
}
