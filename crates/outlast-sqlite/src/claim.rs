//! Handing out work: fair across owners, each task to one worker.

use std::time::Duration;

use outlast_core::{Applied, By, Call, ClaimRequest, Claimed, Event, Payload, ToolVersion, WorkerSeen};
use rusqlite::{OptionalExtension, params};

use crate::{
    batch::{Batch, Pace},
    error::Failure,
    row::{self, Row},
};

/// How many expired leases one claim ends at most, so that its transaction stays short; the next ends more.
const ENDED_LEASES: u32 = 256;

/// How a look at one owner's tasks ended.
enum Turn {
    Claimed(Box<Claimed>),
    /// It has ready tasks, none of which may be taken now.
    Blocked,
    /// It has none that is ready, and is not looked at again before it has.
    Idle,
}

/// Whether commits are so slow that a worker could lose what it is given before it can renew.
fn too_slow(pace: Option<Pace>, lease: Duration) -> bool {
    // What a commit took says nothing about the disk one lease later.
    pace.is_some_and(|pace| pace.took > lease / 4 && pace.ago < lease)
}

impl Batch<'_> {
    pub(crate) fn claim(&mut self, request: &ClaimRequest) -> Result<Vec<Claimed>, Failure> {
        self.lease = self.lease.max(request.lease);
        let mut claimed = Vec::new();
        if self.runtime {
            self.note_served(request)?;
        }
        if !self.runtime || too_slow(self.pace, request.lease) {
            return Ok(claimed);
        }
        if self.settled {
            // Also of tools that this worker does not serve: they would hold places of their owners for ever, and work
            // that must not run twice would never be told that it ended.
            self.end_leases(self.now, ENDED_LEASES)?;
        }
        let tools = self.tools(request)?;
        let mut owner = self.last_served;
        let mut first_blocked = None;
        while claimed.len() < request.max as usize {
            let next = match self.ready_owner_after(owner)? {
                Some(next) => next,
                // Round again from the first owner.
                None => match self.ready_owner_after(0)? {
                    Some(first) => first,
                    None => break,
                },
            };
            if first_blocked == Some(next) {
                break;
            }
            owner = next;
            match self.serve(owner, &tools, request)? {
                Turn::Claimed(task) => {
                    claimed.push(*task);
                    self.last_served = owner;
                    first_blocked = None;
                }
                Turn::Blocked => first_blocked = first_blocked.or(Some(owner)),
                Turn::Idle => {}
            }
        }
        Ok(claimed)
    }

    /// Writes down what a worker serves, where that is news.
    fn note_served(&mut self, request: &ClaimRequest) -> Result<(), Failure> {
        let ClaimRequest { worker, serves, per_owner, .. } = request;
        let seen = WorkerSeen { serves: serves.clone(), per_owner: *per_owner };
        if self.served.get(worker).or_else(|| self.known_served.get(worker)) == Some(&seen) {
            return Ok(());
        }
        self.connection.prepare_cached("DELETE FROM served WHERE worker = ?1")?.execute([worker.as_str()])?;
        let mut insert = self
            .connection
            .prepare_cached("INSERT OR IGNORE INTO served (worker, tool, version) VALUES (?1, ?2, ?3)")?;
        for ToolVersion { tool, version } in &**serves {
            insert.execute([worker.as_str(), tool, version])?;
        }
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO workers (worker, per_owner) VALUES (?1, ?2)")?
            .execute(params![worker.as_str(), per_owner])?;
        self.served.insert(worker.clone(), seen);
        self.dirty = true;
        Ok(())
    }

    /// Forgets what the workers of another runtime served.
    pub(crate) fn forget_served(&mut self) -> Result<(), Failure> {
        for forget in ["DELETE FROM served", "DELETE FROM workers"] {
            self.dirty |= self.connection.prepare_cached(forget)?.execute([])? > 0;
        }
        Ok(())
    }

    /// The numbers of the tools that the worker serves, as a JSON array for SQL.
    fn tools(&self, request: &ClaimRequest) -> Result<String, Failure> {
        let mut tools: Vec<i64> = Vec::with_capacity(request.serves.len());
        for served in &*request.serves {
            tools.extend(self.known_tool(&served.tool, &served.version)?);
        }
        Ok(serde_json::to_string(&tools)?)
    }

    fn ready_owner_after(&self, owner: i64) -> Result<Option<i64>, Failure> {
        let mut statement = self.connection.prepare_cached(
            "SELECT owner FROM owners WHERE owner > ?1 AND ready_from <= ?2 ORDER BY owner LIMIT 1",
        )?;
        Ok(statement.query_row([owner, self.now.as_millis()], |row| row.get(0)).optional()?)
    }

    /// Takes the next ready task of one owner.
    fn serve(&mut self, owner: i64, tools: &str, request: &ClaimRequest) -> Result<Turn, Failure> {
        if self.running(owner)? >= i64::from(request.per_owner) {
            return Ok(Turn::Blocked);
        }
        let Some((row, call)) = self.first_ready(owner, tools)? else { return self.note_idle(owner) };
        let claim = Event::Claim { worker: request.worker.clone(), lease: request.lease };
        let Applied::Applied(task) = self.apply_to(&row, &By::Store, &[claim])? else {
            return Ok(Turn::Blocked);
        };
        let token = task.token;
        Ok(Turn::Claimed(Box::new(Claimed { task, call, token })))
    }

    /// The owner's next ready task, and its call.
    fn first_ready(&self, owner: i64, tools: &str) -> Result<Option<(Row, Call)>, Failure> {
        // Stepped no further than to the first that can be read.
        let mut statement = self.connection.prepare_cached(
            "SELECT number FROM tasks INDEXED BY tasks_by_ready
             WHERE owner = ?1 AND leased = 0 AND ready_at IS NOT NULL AND ready_at <= ?2
             AND tool IN (SELECT value FROM json_each(?3))
             ORDER BY ready_at, number",
        )?;
        let mut rows = statement.query(params![owner, self.now.as_millis(), tools])?;
        while let Some(found) = rows.next()? {
            let number = found.get(0)?;
            if self.damaged.has(number) {
                continue;
            }
            let read = row::load_number(self.connection, number).and_then(|row| {
                let call = row::call(self.connection, number)?;
                Ok((row, call.unwrap_or_else(|| Call::new(Payload::null()))))
            });
            if let Some(ready) = self.damaged.pass_over(read)? {
                return Ok(Some(ready));
            }
        }
        Ok(None)
    }

    fn running(&self, owner: i64) -> Result<i64, Failure> {
        let mut statement = self.connection.prepare_cached("SELECT running FROM owners WHERE owner = ?1")?;
        Ok(statement.query_row([owner], |row| row.get(0))?)
    }

    /// Corrects from when on the owner is worth a look; what is ready and yet not served keeps it blocked.
    fn note_idle(&mut self, owner: i64) -> Result<Turn, Failure> {
        let mut statement = self.connection.prepare_cached(
            "SELECT number, ready_at FROM tasks INDEXED BY tasks_by_ready
             WHERE owner = ?1 AND leased = 0 AND ready_at IS NOT NULL ORDER BY ready_at",
        )?;
        let ready = self.first_sound(&mut statement, [owner])?;
        if ready.is_some_and(|ready| ready <= self.now.as_millis()) {
            return Ok(Turn::Blocked);
        }
        self.connection
            .prepare_cached("UPDATE owners SET ready_from = ?2 WHERE owner = ?1")?
            .execute(params![owner, ready])?;
        self.dirty = true;
        Ok(Turn::Idle)
    }
}
