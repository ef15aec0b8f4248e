//! Who wrote: nothing is written on the word of a worker after another one has claimed the task.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Case;
use crate::{
    plan::Signature,
    side::{Line, What},
    snapshot::Kept,
};

/// An entry of a journal, as far as the verdict reads it.
#[derive(Debug, Clone)]
pub(super) struct Record {
    /// By the store's time, in nanoseconds as the side file has them.
    pub(super) at: u64,
    pub(super) kind: String,
    key: String,
    body: Value,
    /// Which process the entry names as the worker.
    worker: Option<u64>,
}

/// Entries that end the right of the attempt before them.
const REVOKES: [&str; 2] = ["lease_lost", "claimed"];

/// The journal of a task; workers have the number of their process in their names.
pub(super) fn records(kept: &Kept, workers: &BTreeMap<u32, u64>) -> Vec<Record> {
    let read = |entry: &String| {
        let entry: Value = serde_json::from_str(entry).ok()?;
        let number = entry["body"].as_str().and_then(|worker| worker.split('-').next()?.parse().ok());
        Some(Record {
            at: entry["at"].as_u64().unwrap_or_default().saturating_mul(1_000_000),
            kind: entry["kind"].as_str().unwrap_or_default().to_owned(),
            key: entry["key"].as_str().unwrap_or_default().to_owned(),
            worker: number.and_then(|number: u32| workers.get(&number).copied()),
            body: entry["body"].clone(),
        })
    };
    kept.journal.iter().filter_map(read).collect()
}

/// Who may write, from one claim to the next.
#[derive(Default)]
struct Writers {
    /// The process that claimed the task last; not known of one that was leased when it was created.
    holder: Option<u64>,
    /// The attempt that wrote under this lease.
    now: Option<Signature>,
    /// Those that wrote under earlier ones.
    before: BTreeSet<Signature>,
    wrong: Vec<String>,
}

impl Writers {
    fn wrote(&mut self, signed: u64, what: &str) {
        let by = Signature::of(signed);
        let Signature { process, attempt } = by;
        if self.before.contains(&by) || self.holder.is_some_and(|holder| holder != process) {
            self.wrong.push(format!(
                "{what} was written by attempt {attempt} of process {process} after another had claimed the task"
            ));
        } else if self.now.replace(by).is_some_and(|writer| writer != by) {
            self.wrong
                .push(format!("{what} was written by attempt {attempt} of process {process} beside another"));
        }
    }
}

impl Case<'_> {
    /// Each value and each result says which attempt it came from: that must be the one whose lease it was.
    pub(super) fn fenced(&self) -> Vec<String> {
        let mut writers = Writers::default();
        for entry in &self.journal {
            match &*entry.kind {
                "claimed" => {
                    writers.before.extend(writers.now.take());
                    writers.holder = entry.worker;
                }
                "step" => {
                    // What the runtime journals for itself is no number.
                    if let Some(value) = entry.body["value"].as_u64() {
                        writers.wrote(value, &format!("the step {}", entry.key));
                    }
                }
                _ => {}
            }
        }
        let end = self.history.end.tasks.get(self.marker).and_then(|kept| kept.first()?.end.as_ref());
        if let Some(by) = end.and_then(signed_end) {
            writers.wrote(by, "the end");
        }
        writers.wrong
    }

    /// When the attempt of this line lost its right to the task, if it did: the journal says so.
    pub(super) fn revoked_at(&self, of: &Line) -> Option<u64> {
        let began = self.lines.iter().map(|(_, line)| line).find(|line| {
            (line.process, line.attempt) == (of.process, of.attempt) && line.what == What::Attempt
        })?;
        let claim = self.journal.iter().rposition(|entry| {
            entry.kind == "claimed" && entry.worker == Some(of.process) && entry.at <= began.at
        });
        let since = claim.map_or(0, |claim| claim + 1);
        let end = self.journal[since..].iter().find(|entry| REVOKES.contains(&&*entry.kind));
        end.map(|entry| entry.at)
    }

    /// Whether the attempt of this line had no right to the task any more when it was written: what it does then is of no
    /// account, as long as nothing of it is kept. A process that was stopped goes on where it was.
    pub(super) fn is_stale(&self, line: &Line) -> bool {
        self.history.replicas.is_some() && self.revoked_at(line).is_some_and(|at| at <= line.at)
    }

    /// Whether what `earlier` began had ended with its process or its lease by the time of `line`.
    pub(super) fn is_off(&self, earlier: &Line, line: &Line) -> bool {
        let Some(deaths) = &self.history.replicas else { return earlier.process != line.process };
        deaths.get(&earlier.process).is_some_and(|at| *at <= line.at)
            || self.revoked_at(earlier).is_some_and(|at| at <= line.at)
    }
}

/// Which attempt a result or an error came from, if it says so: an error of the runtime's own does not.
fn signed_end(end: &Value) -> Option<u64> {
    let text = end["content"][0]["text"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    text.unwrap_or_else(|| end["data"].clone())["by"].as_u64()
}
