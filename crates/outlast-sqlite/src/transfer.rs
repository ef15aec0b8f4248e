//! Giving away what a file keeps, and taking in what another store kept.

use std::sync::Arc;

use async_trait::async_trait;
use outlast_core::{
    Call, Exported, IdempotencyKey, Lane, Owner, Payload, Record, SpentKey, StoreError, TaskId, TaskRecord,
    Timestamp, Transfer,
};
use rusqlite::{Connection, OptionalExtension, params};

use crate::{
    SqliteStore,
    batch::Batch,
    damaged::Damaged,
    error::Failure,
    read,
    row::{self, Row, select_task},
};

/// What a place in the export begins with: among the tasks, or behind them among the keys.
const TASKS: char = 't';
const KEYS: char = 'k';

#[async_trait]
impl Transfer for SqliteStore {
    async fn export(&self, after: Option<String>, max_bytes: u64) -> Result<Exported, StoreError> {
        let place = after.as_deref().unwrap_or("t0");
        let number = place.get(1..).and_then(|number| number.parse().ok()).unwrap_or(i64::MAX);
        let is_among_keys = place.starts_with(KEYS);
        let damaged = &self.shared().damaged;
        self.read(|connection| {
            let mut page = Page::new(max_bytes);
            if is_among_keys || tasks(connection, damaged, number, &mut page)? {
                keys(connection, if is_among_keys { number } else { 0 }, &mut page)?;
            }
            Ok(page.exported)
        })
    }

    async fn import(&self, records: Vec<Record>) -> Result<u64, StoreError> {
        let bytes: u64 = records.iter().map(Record::size).sum();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.write(Lane::New, bytes, move |batch| batch.import(&records)).await
    }
}

/// A page as it fills.
struct Page {
    exported: Exported,
    size: u64,
    max: u64,
}

impl Page {
    fn new(max: u64) -> Self {
        Self { exported: Exported::default(), size: 0, max }
    }

    /// Adds a record, which is at this place; `false` where there is no more room for it.
    fn add(&mut self, record: Record, kind: char, number: i64) -> bool {
        self.size += record.size();
        if self.size > self.max && !self.exported.records.is_empty() {
            return false;
        }
        self.exported.records.push(record);
        self.exported.next = Some(format!("{kind}{number}"));
        true
    }
}

/// Adds the tasks behind `number`; whether these were all.
fn tasks(connection: &Connection, damaged: &Damaged, number: i64, page: &mut Page) -> Result<bool, Failure> {
    let mut statement = connection.prepare_cached(select_task!("WHERE t.number > ?1 ORDER BY t.number"))?;
    let mut rows = statement.query([number])?;
    while let Some(row) = rows.next()? {
        let number = row.get(0)?;
        let record = row::read(connection, row).and_then(|row| record(connection, row));
        let Some(record) = damaged.pass_over(record)? else {
            page.exported.damaged += 1;
            continue;
        };
        if !page.add(record, TASKS, number) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn record(connection: &Connection, Row { number, task, .. }: Row) -> Result<Record, Failure> {
    let call = row::call(connection, number)?.unwrap_or_else(|| Call::new(Payload::null()));
    let journal = read::journal(connection, task.id, 0, u64::MAX)?.entries;
    let mut statement = connection.prepare_cached(
        "SELECT k.key, k.request FROM calls c JOIN keys k ON k.owner = ?2 AND k.key = c.key WHERE c.number = ?1",
    )?;
    let key = statement
        .query_row(params![number, task.owner.as_str()], |row| {
            Ok(IdempotencyKey { key: Arc::from(row.get_ref(0)?.as_str()?), request: row.get(1)? })
        })
        .optional()?;
    Ok(Record::Task(Box::new(TaskRecord { task, call, key, journal })))
}

/// Adds the keys behind `entry` whose tasks are gone.
fn keys(connection: &Connection, entry: i64, page: &mut Page) -> Result<(), Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT entry, owner, key, request, id, until FROM keys
         WHERE entry > ?1 AND until IS NOT NULL ORDER BY entry",
    )?;
    let mut rows = statement.query([entry])?;
    while let Some(row) = rows.next()? {
        let spent = SpentKey {
            owner: Owner::new(row.get_ref(1)?.as_str()?),
            key: IdempotencyKey { key: Arc::from(row.get_ref(2)?.as_str()?), request: row.get(3)? },
            task: TaskId::from_bytes(row.get(4)?),
            until: Timestamp::from_millis(row.get(5)?),
        };
        if !page.add(Record::SpentKey(spent), KEYS, row.get(0)?) {
            return Ok(());
        }
    }
    page.exported.next = None;
    Ok(())
}

impl Batch<'_> {
    fn import(&mut self, records: &[Record]) -> Result<u64, Failure> {
        let mut new = 0;
        for record in records {
            new += u64::from(match record {
                Record::Task(record) => self.import_task(record)?,
                Record::SpentKey(spent) => {
                    self.import_key(&spent.owner, &spent.key, spent.task, Some(spent.until))?
                }
            });
        }
        Ok(new)
    }

    fn import_task(&mut self, record: &TaskRecord) -> Result<bool, Failure> {
        let TaskRecord { task, call, key, journal } = record;
        if row::number(self.connection, task.id)?.is_some() {
            return Ok(false);
        }
        // A key that is in use here stays with its own task.
        let key = match key {
            Some(key) if self.import_key(&task.owner, key, task.id, None)? => Some(&*key.key),
            _ => None,
        };
        let owner = self.owner(&task.owner)?;
        let owner = owner.map_or_else(|| self.add_owner(&task.owner), |owner| Ok(owner.number))?;
        self.insert_rows(owner, task, call, key, journal)?;
        Ok(true)
    }

    fn import_key(
        &mut self,
        owner: &Owner,
        key: &IdempotencyKey,
        task: TaskId,
        until: Option<Timestamp>,
    ) -> Result<bool, Failure> {
        if self.used_key(owner, &key.key)?.is_some() {
            return Ok(false);
        }
        // Replaces one whose time is over.
        self.connection
            .prepare_cached(
                "INSERT OR REPLACE INTO keys (owner, key, request, id, until) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                owner.as_str(),
                &*key.key,
                key.request,
                task.as_bytes(),
                until.map(Timestamp::as_millis)
            ])?;
        self.dirty = true;
        Ok(true)
    }
}
