//! One change of a task: whether it may be so.

use outlast_core::{By, Entry, EntryKind, Event, Recovery, Run, Task, TaskState, Timestamp};

use super::{Ledger, Violation, has, own_key, questions};
use crate::sim::request::Request;

/// A task that is not as it was.
pub(super) struct Changed<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) before: Option<&'a Task>,
    pub(super) after: &'a Task,
    pub(super) entries: &'a [Entry],
    pub(super) cause: &'a Request,
    pub(super) now: Timestamp,
}

impl Changed<'_> {
    /// What of it must not be.
    pub(super) fn judge(&self) -> Result<(), Violation> {
        self.judge_authority()?;
        self.judge_numbers()?;
        for (n, entry) in self.entries.iter().enumerate() {
            self.judge_entry(entry, &self.entries[..n])?;
        }
        self.judge_questions()?;
        if self.after.is_final() && self.before.is_none_or(|before| !before.is_final()) {
            self.judge_end()?;
        }
        Ok(())
    }

    fn require(
        &self,
        holds: bool,
        invariant: &'static str,
        detail: impl FnOnce() -> String,
    ) -> Result<(), Violation> {
        if holds {
            return Ok(());
        }
        Err(Violation { invariant, detail: format!("{:?}, {}: {}", self.after.id, self.cause, detail()) })
    }

    /// Who may change it at all.
    fn judge_authority(&self) -> Result<(), Violation> {
        let Some(before) = self.before else {
            return self.require(
                matches!(self.cause, Request::Create(..)),
                "tasks are made by creations alone",
                String::new,
            );
        };
        self.require(!before.is_final(), "a final task never changes (S12)", || {
            before.status().as_str().to_owned()
        })?;
        match self.cause {
            Request::Apply(_, By::Owner(owner), _) => {
                self.require(*owner == self.ledger.new.owner, "nobody changes another's task (S25)", || {
                    owner.as_str().to_owned()
                })
            }
            Request::Apply(_, By::Lease(token), _) => self.require(
                *token == self.ledger.granted,
                "a worker whose task was taken over writes nothing",
                || format!("token {} wrote, and {} is the newest", token.0, self.ledger.granted.0),
            ),
            _ => Ok(()),
        }
    }

    fn judge_numbers(&self) -> Result<(), Violation> {
        let (after, seq) = (self.after, self.ledger.journal.len() as u64 + self.entries.len() as u64);
        self.require(after.seq == seq, "the journal has every entry", || format!("{} of {seq}", after.seq))?;
        let Some(before) = self.before else { return Ok(()) };
        self.require(after.revision >= before.revision, "a revision never goes back", || {
            format!("{} after {}", after.revision, before.revision)
        })?;
        self.require(after.token >= before.token, "a token never goes back", || {
            format!("{} after {}", after.token.0, before.token.0)
        })?;
        let seen = |task: &Task| (task.status(), task.status_message.clone(), questions(task));
        self.require(
            seen(before) == seen(after) || after.revision > before.revision,
            "what a caller can see changes with its revision",
            || format!("revision {}", after.revision),
        )
    }

    fn judge_entry(&self, entry: &Entry, earlier: &[Entry]) -> Result<(), Violation> {
        let before = |kind, key| has(&self.ledger.journal, kind, key) || has(earlier, kind, key);
        let key = Some(entry);
        let name = || entry.key.as_ref().map(ToString::to_string).unwrap_or_default();
        match entry.kind {
            EntryKind::Asked => {
                self.require(
                    !before(EntryKind::Asked, key),
                    "no question is asked twice under one key (S18)",
                    name,
                )?;
                self.require(
                    !before(EntryKind::CancelRequested, None),
                    "nothing is asked after a cancel",
                    name,
                )
            }
            EntryKind::Answered => {
                let sent = |event: &Event| match event {
                    Event::Answer { key, answer } => {
                        entry.key.as_ref().is_some_and(|had| had.as_str() == key.as_str())
                            && entry.body.as_ref() == Some(answer)
                    }
                    _ => false,
                };
                let from_caller = match self.cause {
                    Request::Apply(_, By::Owner(_) | By::Operator, events) => events.iter().any(sent),
                    _ => false,
                };
                self.require(from_caller, "answers come from callers", name)?;
                self.require(!before(EntryKind::Answered, key), "the first answer counts (S20)", name)?;
                self.require(
                    before(EntryKind::Asked, key) && !before(EntryKind::Withdrawn, key),
                    "only what is asked is answered",
                    name,
                )
            }
            EntryKind::Step => self.require(!before(EntryKind::Step, key), "a step is journaled once", name),
            EntryKind::TimerSet => {
                self.require(!before(EntryKind::TimerSet, key), "a timer is set once", name)
            }
            EntryKind::TimerFired => {
                let due = self.due(entry);
                let early = due.is_none_or(|due| entry.at < due);
                self.require(!early || self.is_limit_of_answered(entry), "a timer never fires early", || {
                    format!("{} at {:?}, due at {due:?}", name(), entry.at)
                })
            }
            EntryKind::LeaseLost => {
                let until = self.before.and_then(Task::lease).map(|lease| lease.until);
                self.require(
                    until.is_some_and(|until| entry.at >= until),
                    "a lease is never ended early",
                    || format!("at {:?}, held until {until:?}", entry.at),
                )
            }
            EntryKind::Claimed => self.judge_claim(entry, earlier),
            EntryKind::CancelRequested => self.require(
                !before(EntryKind::CancelRequested, None),
                "a cancel is journaled once",
                String::new,
            ),
            _ => Ok(()),
        }
    }

    /// Whether the timer of this entry limits the wait for an answer that came.
    fn is_limit_of_answered(&self, entry: &Entry) -> bool {
        let own = entry.key.as_ref().and_then(|key| key.as_str().strip_prefix("outlast:limit:"));
        let answered = |other: &Entry| {
            let key = other.key.as_ref().map(|key| own_key(key.as_str()));
            other.kind == EntryKind::Answered && key == own
        };
        own.is_some() && self.ledger.journal.iter().chain(self.entries).any(answered)
    }

    /// When the timer of this entry is due.
    fn due(&self, entry: &Entry) -> Option<Timestamp> {
        let entries = self.ledger.journal.iter().chain(self.entries);
        let mut set = entries.filter(|set| set.kind == EntryKind::TimerSet && set.key == entry.key);
        set.next()?.body.as_ref()?.decode().ok()
    }

    fn judge_claim(&self, entry: &Entry, earlier: &[Entry]) -> Result<(), Violation> {
        let Some(live) = self.before.and_then(Task::live) else { return Ok(()) };
        match &live.run {
            Run::Leased(_) => self.require(
                has(earlier, EntryKind::LeaseLost, None),
                "a task that a worker holds is handed to nobody else",
                String::new,
            ),
            Run::Queued { .. } => Ok(()),
            Run::Parked { seen_seq, wake } => {
                let all = || self.ledger.journal.iter().chain(earlier);
                let news = all().any(|entry| {
                    entry.seq > *seen_seq
                        && matches!(entry.kind, EntryKind::Answered | EntryKind::CancelRequested)
                });
                let fired = |set: &Entry| has(&self.ledger.journal, EntryKind::TimerFired, Some(set));
                let timer = all().any(|set| {
                    set.kind == EntryKind::TimerSet
                        && !fired(set)
                        && self.due(set).is_some_and(|due| due <= entry.at)
                });
                let woken = wake.is_some_and(|wake| wake <= entry.at);
                self.require(news || timer || woken, "a parked task wakes for a reason", String::new)
            }
        }
    }

    fn judge_questions(&self) -> Result<(), Violation> {
        let Some(live) = self.after.live() else { return Ok(()) };
        for key in live.questions.keys() {
            let entries = || self.ledger.journal.iter().chain(self.entries);
            let said = |kind| {
                entries().any(|entry| {
                    entry.kind == kind && entry.key.as_ref().is_some_and(|had| had.as_str() == key.as_str())
                })
            };
            self.require(said(EntryKind::Asked), "what is shown as a question was asked", || {
                key.to_string()
            })?;
            self.require(!said(EntryKind::Answered), "no question is shown again after its answer", || {
                key.to_string()
            })?;
            self.require(
                !said(EntryKind::Withdrawn),
                "no question is shown after it was taken back",
                || key.to_string(),
            )?;
        }
        let cancelled = has(&self.ledger.journal, EntryKind::CancelRequested, None)
            || has(self.entries, EntryKind::CancelRequested, None);
        self.require(!cancelled || live.questions.is_empty(), "nothing is asked after a cancel", String::new)
    }

    /// How it may end: as an attempt said, or for a reason that the ledger knows.
    fn judge_end(&self) -> Result<(), Violation> {
        let spec = &self.ledger.new.spec;
        let cancelled = has(&self.ledger.journal, EntryKind::CancelRequested, None)
            || has(self.entries, EntryKind::CancelRequested, None);
        let said = self.ledger.endings.contains(&self.after.state);
        match &self.after.state {
            TaskState::Failed { error } if !said => {
                let deadline =
                    spec.deadline.is_some_and(|deadline| self.now >= self.after.created_at + deadline);
                let (reason, holds) = if error.message.contains("outcome is unknown") {
                    (
                        "work is given up as unknown only where it must not run twice",
                        spec.recovery == Recovery::Fail,
                    )
                } else if error.message.contains("was given up") {
                    let enough = self.lost_in_a_row() >= spec.max_attempts as usize;
                    let alone = self.ledger.alone.is_some()
                        && self.ledger.alone == self.before.map(|task| task.token);
                    ("work is given up after all its attempts, the last of them alone", enough && alone)
                } else if error.message.contains("longer than its tool allows") {
                    ("a deadline fails work when it is due", deadline)
                } else if let Some(key) = self.misused(&error.message) {
                    ("a key that is used twice is named", error.message.contains(&format!("'{key}'")))
                } else {
                    let undeclared = error.code == -32021 && spec.asks == outlast_core::Asks::none();
                    ("a task ends as its tool said", undeclared)
                };
                self.require(holds, reason, || error.message.clone())
            }
            TaskState::Cancelled => {
                let at_once = matches!(self.cause, Request::Apply(_, By::Owner(_) | By::Operator, events) if events.contains(&Event::Cancel));
                self.require(cancelled || at_once, "only what its caller cancelled is cancelled", String::new)
            }
            _ => self.require(said, "a task ends as its tool said", || format!("{:?}", self.after.state)),
        }
    }

    /// The key that the program uses twice, where the task says that one was.
    fn misused(&self, message: &str) -> Option<&String> {
        self.ledger.program.misuses.as_ref().filter(|_| message.contains("twice"))
    }

    /// How many attempts in a row ended by a lost lease since the work last got on.
    fn lost_in_a_row(&self) -> usize {
        let all: Vec<_> = self.ledger.journal.iter().chain(self.entries).collect();
        let since = all.iter().rev().take_while(|entry| {
            !matches!(entry.kind, EntryKind::Asked | EntryKind::Step | EntryKind::TimerSet)
        });
        since.filter(|entry| entry.kind == EntryKind::LeaseLost).count()
    }
}
