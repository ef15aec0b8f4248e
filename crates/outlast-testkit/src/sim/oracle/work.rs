//! What the work saw, and what must be true of that.

use outlast_core::{EntryKind, Payload, Recovery, Run, Task, TaskId, TaskState, Timestamp, Token};

use super::{Ledger, Oracle, Raw, has, own_key, questions};
use crate::sim::{
    coverage::State,
    program::{Body, Fact},
    request::line,
};

/// How long a hint may take to have its effect when nothing goes wrong, in simulated milliseconds: far less than the time
/// between two renewals.
const PROMPT: u64 = 150;

impl Oracle {
    /// The tool's code begins. Returns the token that this attempt has, as far as anybody was told.
    pub(in crate::sim) fn begins(&mut self, id: TaskId) {
        let Some(ledger) = self.ledgers.get_mut(&id) else { return };
        ledger.begun += 1;
        ledger.wanted.clear();
        let once =
            ledger.new.spec.recovery == Recovery::Fail && matches!(ledger.program.body, Body::Straight(_));
        let begun = ledger.begun;
        self.expect("work that must not run twice begins once", !once || begun == 1, || {
            format!("{id:?} began {begun} times")
        });
    }

    /// The code of a step begins, in an attempt that has this token and belongs to this worker.
    pub(in crate::sim) fn step_begins(
        &mut self,
        id: TaskId,
        key: &str,
        token: Option<Token>,
        worker: &str,
        raw: &Raw<'_>,
    ) {
        let Some(task) = raw.task(id) else { return };
        let current =
            token == Some(task.token) && task.lease().is_some_and(|lease| lease.worker.as_str() == worker);
        let Some(ledger) = self.ledgers.get(&id).filter(|_| current) else { return };
        let finished = ledger.journal.iter().any(|entry| {
            entry.kind == EntryKind::Step && entry.key.as_ref().is_some_and(|had| had.as_str() == key)
        });
        self.expect("a finished step is never run again", !finished, || format!("{id:?} ran '{key}' again"));
    }

    /// The work went on after a timer, at this time of the store.
    pub(in crate::sim) fn timer_passed(&mut self, id: TaskId, key: &str, now: Timestamp) {
        let Some(ledger) = self.ledgers.get(&id) else { return };
        let set = ledger.journal.iter().find(|entry| {
            entry.kind == EntryKind::TimerSet && entry.key.as_ref().is_some_and(|had| had.as_str() == key)
        });
        let due: Option<Timestamp> = set.and_then(|set| set.body.as_ref()?.decode().ok());
        self.expect("no wait ends early", due.is_some_and(|due| due <= now), || {
            format!("{id:?} went on after '{key}' at {now:?}, and it is due at {due:?}")
        });
    }

    /// The work begins, or ends, to want an answer.
    pub(in crate::sim) fn wants(&mut self, id: TaskId, key: &str, wanted: bool) {
        let Some(ledger) = self.ledgers.get_mut(&id) else { return };
        if wanted {
            ledger.wanted.insert(key.to_owned());
        } else {
            ledger.wanted.remove(key);
        }
    }

    /// Nothing has happened for a while: what is asked by now is wanted.
    pub(in crate::sim) fn at_rest(&mut self) {
        let mut unwanted = Vec::new();
        for (id, ledger) in &self.ledgers {
            let Some(task) = ledger.view.as_ref().filter(|task| State::of(task) != State::Queued) else {
                continue;
            };
            if matches!(ledger.program.body, Body::Straight(_)) {
                let asked = questions(task);
                unwanted.extend(
                    asked
                        .iter()
                        .filter(|key| !ledger.wanted.contains(own_key(key)))
                        .map(|key| (*id, key.clone())),
                );
            }
        }
        for (id, key) in unwanted {
            self.expect("a question that nobody wants answered is taken back", false, || {
                format!("{id:?}, '{key}'")
            });
        }
    }

    /// The work sees something that is decided once.
    pub(in crate::sim) fn fact(&mut self, id: TaskId, key: &str, fact: Fact) {
        let Some(ledger) = self.ledgers.get_mut(&id) else { return };
        let first = *ledger.facts.entry(key.to_owned()).or_insert(fact);
        self.expect("every attempt sees the same", first == fact, || {
            format!("{id:?} saw {first:?} for '{key}', and then {fact:?}")
        });
    }

    /// The work is given this answer to the question that was asked under `key`.
    pub(in crate::sim) fn answered(&mut self, id: TaskId, key: &str, answer: &Payload) {
        let Some(ledger) = self.ledgers.get(&id) else { return };
        let first = ledger.journal.iter().find(|entry| {
            entry.kind == EntryKind::Answered && entry.key.as_ref().is_some_and(|had| had.as_str() == key)
        });
        let same = first.is_some_and(|entry| entry.body.as_ref() == Some(answer));
        self.expect("work is given the answer that was acknowledged", same, || format!("{id:?}, '{key}'"));
    }

    /// Work that has waited since `since` is given the answers to these questions.
    pub(in crate::sim) fn heard(&mut self, id: TaskId, keys: &[String], since: u64, now: u64) {
        let Some(calm_since) = self.calm_since else { return };
        let Some(ledger) = self.ledgers.get(&id) else { return };
        let Some(came) = keys.iter().filter_map(|key| ledger.answered_at.get(key)).max().copied() else {
            return;
        };
        // With every hint sound, and while it waited.
        let judged = came > since && came > calm_since + PROMPT;
        self.expect("loaded work hears of its answer at once", !judged || now <= came + PROMPT, || {
            format!("{id:?}, answered at {came}, heard of it at {now}")
        });
    }

    /// An attempt says how it ends.
    pub(in crate::sim) fn ends(&mut self, id: TaskId, end: TaskState) {
        if let Some(ledger) = self.ledgers.get_mut(&id) {
            ledger.endings.push(end);
        }
    }

    /// Whether an attempt said that it ends so.
    pub(in crate::sim) fn said(&self, id: TaskId, end: &TaskState) -> bool {
        self.ledgers.get(&id).is_some_and(|ledger| ledger.endings.contains(end))
    }

    /// Whether the task was there and its time is over.
    pub(in crate::sim) fn was_purged(&self, id: TaskId) -> bool {
        self.ledgers.get(&id).is_some_and(|ledger| ledger.purged)
    }

    /// Whether every task that was created has ended.
    pub(in crate::sim) fn all_ended(&self) -> bool {
        self.ledgers.values().all(|ledger| ledger.view.as_ref().is_none_or(Task::is_final))
    }

    /// One of these tasks that has not ended.
    pub(in crate::sim) fn unfinished_of(&self, ids: &[TaskId]) -> Option<TaskId> {
        let live = |id: &&TaskId| {
            let view = self.ledgers.get(id).and_then(|ledger| ledger.view.as_ref());
            view.is_some_and(|task| !task.is_final())
        };
        ids.iter().find(live).copied()
    }

    /// Whether every task that has not ended waits for something: an answer, or a time.
    pub(in crate::sim) fn all_wait(&self, now: Timestamp) -> bool {
        let live = || self.ledgers.values().filter_map(|ledger| ledger.view.as_ref()?.live());
        let held = live().any(|live| matches!(live.run, Run::Leased(_)));
        live().all(|live| {
            let later = |run: &Run| match run {
                // Where others are loaded there may be no room.
                Run::Queued { not_before } => *not_before > now || held,
                Run::Parked { wake, .. } => wake.is_some_and(|wake| wake > now),
                Run::Leased(_) => false,
            };
            !live.questions.is_empty() || live.timers.values().any(|due| *due > now) || later(&live.run)
        })
    }

    /// How many tasks a worker of this name holds.
    pub(in crate::sim) fn held_by(&self, worker: &str) -> usize {
        let held = |ledger: &&Ledger| {
            let lease = ledger.view.as_ref().and_then(Task::lease);
            lease.is_some_and(|lease| lease.worker.as_str() == worker)
        };
        self.ledgers.values().filter(held).count()
    }

    /// The tasks that have not ended, for a person.
    pub(in crate::sim) fn unfinished(&self) -> String {
        let live =
            self.ledgers.values().filter_map(|ledger| ledger.view.as_ref()).filter(|task| !task.is_final());
        let lines: Vec<_> = live.map(line).collect();
        lines.join("; ")
    }

    /// Whether the caller asked for the end of the work.
    pub(in crate::sim) fn was_cancelled(&self, id: TaskId) -> bool {
        self.ledgers.get(&id).is_some_and(|ledger| has(&ledger.journal, EntryKind::CancelRequested, None))
    }
}
