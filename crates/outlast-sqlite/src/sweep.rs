//! What is due on tasks that no worker holds, a few rows at a time.

use std::time::Duration;

use outlast_core::{By, IdempotencyKey, Shape, Sweep, Swept, Timestamp};
use rusqlite::params;

use crate::{
    batch::Batch,
    error::Failure,
    row::{self, Row, select_task},
};

/// How many tasks one transaction sweeps at most.
pub(crate) const ROWS: u32 = 50;

/// How many entries of a long journal one purge removes at most; the rest follows with the next sweep.
const PURGED_ENTRIES: u32 = 1_000;

impl Batch<'_> {
    pub(crate) fn sweep(&mut self, max: u32) -> Result<Swept, Failure> {
        if !self.runtime {
            return Ok(Swept::default());
        }
        if !self.settled {
            return Ok(Swept { done: 0, next_due: Some(Duration::from_secs(1)) });
        }
        self.forget_keys()?;
        let due = self.due(max)?;
        for row in &due {
            match row.task.sweep(self.now).map(Sweep::event) {
                Some(Some(event)) => drop(self.apply_to(row, &By::Store, &[event])?),
                Some(None) => self.purge(row)?,
                None => continue,
            }
            self.changed.push(row.task.id);
        }
        let next = self.next_due()?;
        Ok(Swept {
            done: u32::try_from(due.len()).unwrap_or(max),
            next_due: next.map(|at| at.since(self.now)),
        })
    }

    fn due(&self, max: u32) -> Result<Vec<Row>, Failure> {
        let mut statement = self.connection.prepare_cached(select_task!(
            "WHERE t.due_at IS NOT NULL AND t.due_at <= ?1 ORDER BY t.due_at"
        ))?;
        let mut rows = statement.query([self.now.as_millis()])?;
        let mut due = Vec::new();
        while due.len() < max as usize
            && let Some(row) = rows.next()?
        {
            due.extend(self.damaged.pass_over(row::read(self.connection, row))?);
        }
        Ok(due)
    }

    fn next_due(&self) -> Result<Option<Timestamp>, Failure> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT number, due_at FROM tasks WHERE due_at IS NOT NULL ORDER BY due_at")?;
        Ok(self.first_sound(&mut statement, [])?.map(Timestamp::from_millis))
    }

    fn purge(&mut self, row: &Row) -> Result<(), Failure> {
        self.dirty = true;
        let removed = self
            .connection
            .prepare_cached(
                "DELETE FROM journal WHERE entry IN (SELECT entry FROM journal WHERE number = ?1 LIMIT ?2)",
            )?
            .execute(params![row.number, PURGED_ENTRIES])?;
        if removed == PURGED_ENTRIES as usize {
            return Ok(());
        }
        let tombstone = IdempotencyKey::MIN_TOMBSTONE.max(row.task.spec.ttl.unwrap_or_default());
        self.connection
            .prepare_cached(
                "UPDATE keys SET until = ?3 WHERE owner = ?2
                 AND key = (SELECT key FROM calls WHERE number = ?1)",
            )?
            .execute(params![row.number, row.task.owner.as_str(), (self.now + tombstone).as_millis()])?;
        for table in [
            "DELETE FROM bodies WHERE number = ?1",
            "DELETE FROM calls WHERE number = ?1",
            "DELETE FROM tasks WHERE number = ?1",
        ] {
            self.connection.prepare_cached(table)?.execute([row.number])?;
        }
        self.count(row.owner, Some(Shape::of(&row.task)), None)?;
        self.connection
            .prepare_cached(
                "DELETE FROM owners
                 WHERE owner = ?1 AND working + input_required + completed + failed + cancelled = 0",
            )?
            .execute([row.owner])?;
        Ok(())
    }

    fn forget_keys(&mut self) -> Result<(), Failure> {
        let forgotten = self
            .connection
            .prepare_cached(
                "DELETE FROM keys WHERE entry IN
                 (SELECT entry FROM keys WHERE until IS NOT NULL AND until <= ?1 LIMIT ?2)",
            )?
            .execute(params![self.now.as_millis(), ROWS])?;
        self.dirty |= forgotten > 0;
        Ok(())
    }
}
