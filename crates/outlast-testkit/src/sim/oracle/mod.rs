//! What must be true, checked after every call that reaches the store.
//!
//! It does not ask the state machine. It keeps a ledger of its own for each task: what the store showed last, what
//! anybody was told, what the work saw; and it compares each new state with those.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use outlast_core::{
    Applied, By, Created, Entry, EntryKind, Event, MemoryStore, NewTask, Owner, Renewal, Store as _, Task,
    TaskId, TaskState, Timestamp, Token,
};

mod change;
mod work;

use self::change::Changed;
use super::{
    coverage::{Coverage, State},
    program::{Fact, Program},
    request::{Answer, Request, at_once},
};

/// Something that must never be and was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What does not hold, as a sentence that should be true.
    pub invariant: &'static str,
    /// How it was seen.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

/// What is known about one task.
pub(in crate::sim) struct Ledger {
    pub(in crate::sim) new: NewTask,
    pub(in crate::sim) program: Arc<Program>,
    /// As the store showed it last.
    pub(in crate::sim) view: Option<Task>,
    pub(in crate::sim) journal: Vec<Entry>,
    /// What somebody was told.
    told: Told,
    /// The newest token that was handed out.
    granted: Token,
    /// What the work saw.
    pub(in crate::sim) facts: BTreeMap<String, Fact>,
    /// How attempts said that they end.
    endings: Vec<TaskState>,
    /// How often the tool's code began.
    begun: u32,
    /// The token under which a worker said that it runs nothing beside this.
    alone: Option<Token>,
    /// What the attempt that began last asks, by its own keys.
    wanted: BTreeSet<String>,
    /// How often it was taken up since anything else happened to it.
    idle_claims: u32,
    /// When each answer came, in simulated milliseconds.
    answered_at: BTreeMap<String, u64>,
    purged: bool,
}

/// What was acknowledged, and so must last.
#[derive(Debug, Default)]
struct Told {
    exists: bool,
    revision: u64,
    seq: u64,
    token: Token,
    end: Option<TaskState>,
}

#[derive(Default)]
pub(in crate::sim) struct Oracle {
    pub(in crate::sim) ledgers: BTreeMap<TaskId, Ledger>,
    keys: BTreeMap<(Owner, Arc<str>), TaskId>,
    found: Option<Violation>,
    changed: bool,
    /// Whether a task got on.
    pub(in crate::sim) progress: bool,
    /// When a task last got on, in simulated milliseconds.
    pub(in crate::sim) progress_at: u64,
    /// In simulated milliseconds.
    pub(in crate::sim) now: u64,
    /// When faults stopped, if they did.
    pub(in crate::sim) calm_since: Option<u64>,
}

/// The store as it is, past every fault.
pub(in crate::sim) struct Raw<'a> {
    pub(in crate::sim) store: &'a MemoryStore,
    /// Tasks that a planted bug took away.
    pub(in crate::sim) taken_away: &'a BTreeSet<TaskId>,
}

impl Raw<'_> {
    pub(in crate::sim) fn task(&self, id: TaskId) -> Option<Task> {
        if self.taken_away.contains(&id) {
            return None;
        }
        at_once(self.store.get(id)).ok().flatten()
    }

    fn entries(&self, id: TaskId, after: u64) -> Vec<Entry> {
        at_once(self.store.journal(id, after, u64::MAX)).map(|page| page.entries).unwrap_or_default()
    }
}

/// How often a task may be taken up in a row without anything else happening to it.
const ROUND_AND_ROUND: u32 = 20;

impl Oracle {
    pub(in crate::sim) fn found(&self) -> Option<&Violation> {
        self.found.as_ref()
    }

    /// Remembers the first thing that does not hold.
    pub(in crate::sim) fn expect(
        &mut self,
        invariant: &'static str,
        holds: bool,
        detail: impl FnOnce() -> String,
    ) {
        if !holds && self.found.is_none() {
            self.found = Some(Violation { invariant, detail: detail() });
        }
    }

    /// A client is about to create this task.
    pub(in crate::sim) fn expect_task(&mut self, new: NewTask, program: Arc<Program>) {
        let ledger = Ledger {
            program,
            view: None,
            journal: Vec::new(),
            told: Told::default(),
            granted: Token::default(),
            facts: BTreeMap::new(),
            endings: Vec::new(),
            begun: 0,
            alone: None,
            wanted: BTreeSet::new(),
            idle_claims: 0,
            answered_at: BTreeMap::new(),
            purged: false,
            new,
        };
        self.ledgers.insert(ledger.new.id, ledger);
    }

    // --- after each call

    /// Compares what the store shows after `request` with what it showed before, and says whether anything changed.
    pub(in crate::sim) fn after(
        &mut self,
        request: &Request,
        answer: &Answer,
        raw: &Raw<'_>,
        now: Timestamp,
        coverage: &mut Coverage,
    ) -> bool {
        self.changed = false;
        if let (Request::Apply(id, _, events), Answer::Apply(applied)) = (request, answer) {
            let state = self.ledgers.get(id).and_then(|ledger| ledger.view.as_ref()).map(State::of);
            coverage.applied(state, events, applied);
            if let (Request::Apply(_, By::Lease(token), _), Applied::Applied(_), Some(ledger)) =
                (request, applied, self.ledgers.get_mut(id))
                && events.contains(&Event::RunAlone)
            {
                ledger.alone = Some(*token);
            }
        }
        match request {
            Request::Create(new, _) => self.look(new.id, request, raw, now, coverage),
            Request::Apply(id, ..) => self.look(*id, request, raw, now, coverage),
            Request::Claim(_) | Request::Renew(..) | Request::Sweep(_) => {
                let ids: Vec<_> = self.ledgers.keys().copied().collect();
                ids.into_iter().for_each(|id| self.look(id, request, raw, now, coverage));
            }
            _ => {}
        }
        self.judge_answer(request, answer);
        self.changed
    }

    fn judge_answer(&mut self, request: &Request, answer: &Answer) {
        match (request, answer) {
            (Request::Create(new, _), Answer::Create(Created::Created { task, token })) => {
                if let Some(key) = &new.idempotency {
                    let slot = (new.owner.clone(), key.key.clone());
                    let known = *self.keys.entry(slot).or_insert(task.id);
                    self.expect("one key makes one task", known == task.id, || {
                        format!("{:?} and {:?} were made for one key", known, task.id)
                    });
                }
                if let Some(token) = token {
                    self.grant(task.id, *token, true);
                }
            }
            (Request::Create(new, _), Answer::Create(Created::Existing(task))) => {
                let slot = new.idempotency.as_ref().map(|key| (new.owner.clone(), key.key.clone()));
                let known = slot.and_then(|slot| self.keys.get(&slot).copied());
                self.expect("one key makes one task", known == Some(task.id), || {
                    format!("the key's task was {known:?} and is {:?}", task.id)
                });
            }
            (_, Answer::Claim(claimed)) => {
                claimed.iter().for_each(|claimed| self.grant(claimed.task.id, claimed.token, false));
            }
            (Request::Apply(id, By::Owner(owner), _), Answer::Apply(applied)) => {
                let foreign = self.ledgers.get(id).is_some_and(|ledger| ledger.new.owner != *owner);
                self.expect(
                    "to another owner a task looks like none (S25)",
                    !foreign || *applied == Applied::NotFound,
                    || format!("{id:?} was shown to {}", owner.as_str()),
                );
            }
            _ => {}
        }
    }

    /// A worker is handed a task under a token. A creation that is repeated hands out the first token again.
    fn grant(&mut self, id: TaskId, token: Token, creation: bool) {
        let Some(ledger) = self.ledgers.get_mut(&id) else { return };
        let older = ledger.granted;
        ledger.granted = older.max(token);
        self.expect(
            "every claim has a newer token than all before",
            token > older || (creation && token == older),
            || format!("{id:?} was handed out under token {} after token {}", token.0, older.0),
        );
    }

    /// Compares a task with how it was.
    fn look(&mut self, id: TaskId, cause: &Request, raw: &Raw<'_>, now: Timestamp, coverage: &mut Coverage) {
        let Some(ledger) = self.ledgers.get_mut(&id) else { return };
        let after = raw.task(id);
        let before = std::mem::replace(&mut ledger.view, after.clone());
        if before == after {
            return;
        }
        self.changed = true;
        // A mere renewal is none.
        let place = |task: &Task| (task.seq, task.token, State::of(task));
        self.progress |= before.as_ref().map(place) != after.as_ref().map(place);
        let Some(after) = after else {
            ledger.purged = true;
            let before = before.unwrap_or_else(|| unreachable!("it was there and is not"));
            let due = before.expires_at().is_some_and(|at| at <= now);
            return self.expect(
                "only a task that ended, and whose time is over, is forgotten",
                matches!(cause, Request::Sweep(_)) && due,
                || format!("{id:?} was forgotten in {}", before.status().as_str()),
            );
        };
        let known = ledger.journal.len() as u64;
        let entries = if after.seq > known { raw.entries(id, known) } else { Vec::new() };
        let changed =
            Changed { ledger, before: before.as_ref(), after: &after, entries: &entries, cause, now };
        let wrong = changed.judge().err();
        for entry in &entries {
            ledger.idle_claims = match entry.kind {
                EntryKind::Claimed => ledger.idle_claims + 1,
                EntryKind::Parked => ledger.idle_claims,
                _ => 0,
            };
        }
        let idle_claims = ledger.idle_claims;
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Answered) {
            let key = entry.key.as_ref().map(ToString::to_string).unwrap_or_default();
            ledger.answered_at.insert(key, self.now);
        }
        if let Some(before) = &before {
            coverage.changed(before, &after, &entries, cause);
        }
        ledger.journal.extend(entries);
        if let Some(violation) = wrong {
            self.found.get_or_insert(violation);
        }
        self.expect("nothing goes round and round", idle_claims < ROUND_AND_ROUND, || {
            format!("{id:?} was taken up {idle_claims} times for nothing")
        });
    }

    /// The store lost what was not durable. What somebody was told must be there still.
    pub(in crate::sim) fn power_was_cut(&mut self, raw: &Raw<'_>) {
        let mut lost = Vec::new();
        for (id, ledger) in &mut self.ledgers {
            ledger.view = raw.task(*id);
            let kept = ledger.view.as_ref();
            let told = &ledger.told;
            let gone = if kept.is_none() {
                (told.exists && !ledger.purged).then(|| "the task".to_owned())
            } else if kept.is_some_and(|task| task.revision < told.revision) {
                Some(format!("revision {}", told.revision))
            } else if kept.is_some_and(|task| task.token < told.token) {
                Some(format!("token {}", told.token.0))
            } else if kept.is_some_and(|task| task.seq < told.seq) {
                Some(format!("entry {}", told.seq))
            } else if told.end.as_ref().is_some_and(|end| kept.is_none_or(|task| task.state != *end)) {
                Some("the end".to_owned())
            } else {
                None
            };
            let entries = raw.entries(*id, 0);
            let acknowledged = (told.seq as usize).min(ledger.journal.len()).min(entries.len());
            let rewritten = ledger.journal[..acknowledged] != entries[..acknowledged];
            lost.extend(
                gone.or_else(|| rewritten.then(|| "what its journal said".to_owned()))
                    .map(|what| (*id, what)),
            );
            ledger.journal = entries;
            ledger.granted = kept.map(|task| task.token).unwrap_or_default();
        }
        let ledgers = &self.ledgers;
        self.keys
            .retain(|_, id| ledgers.get(id).is_some_and(|ledger| ledger.view.is_some() || ledger.purged));
        for (id, what) in lost {
            self.expect("what was acknowledged outlasts a power cut", false, || {
                format!("{id:?} lost {what}")
            });
        }
    }

    /// Somebody was told this.
    pub(in crate::sim) fn told(&mut self, request: &Request, answer: &Answer) {
        match answer {
            Answer::Create(Created::Created { task, .. } | Created::Existing(task))
            | Answer::Apply(Applied::Applied(task) | Applied::Absorbed(task))
            | Answer::Get(Some(task)) => self.told_of(task),
            Answer::Claim(claimed) => claimed.iter().for_each(|claimed| self.told_of(&claimed.task)),
            Answer::List(page) => page.tasks.iter().for_each(|task| self.told_of(task)),
            Answer::Journal(page) => {
                let Request::Journal(id, ..) = request else { return };
                let told = self.ledgers.get_mut(id).map(|ledger| &mut ledger.told);
                if let (Some(told), Some(last)) = (told, page.entries.last()) {
                    told.seq = told.seq.max(last.seq);
                }
            }
            Answer::Renew(renewals) => {
                let Request::Renew(_, held, _) = request else { return };
                for (held, renewal) in held.iter().zip(renewals) {
                    if let (Some(ledger), Renewal::Kept { inbox_seq, .. }) =
                        (self.ledgers.get_mut(&held.id), renewal)
                    {
                        ledger.told.seq = ledger.told.seq.max(*inbox_seq);
                    }
                }
            }
            _ => {}
        }
    }

    fn told_of(&mut self, task: &Task) {
        let Some(ledger) = self.ledgers.get_mut(&task.id) else { return };
        let told = &mut ledger.told;
        told.exists = true;
        told.revision = told.revision.max(task.revision);
        told.seq = told.seq.max(task.seq);
        told.token = told.token.max(task.token);
        if !task.is_final() {
            return;
        }
        let first = told.end.get_or_insert_with(|| task.state.clone()).clone();
        self.expect("an end that was told is the end (S12)", first == task.state, || {
            format!("{:?}", task.id)
        });
    }
}

fn has(journal: &[Entry], kind: EntryKind, key: Option<&Entry>) -> bool {
    journal.iter().any(|entry| entry.kind == kind && key.is_none_or(|other| other.key == entry.key))
}

/// The key that the tool asked under, of the one that its question is asked under by now.
fn own_key(key: &str) -> &str {
    key.strip_prefix("outlast:").and_then(|key| key.split_once(':')).map_or(key, |(_, own)| own)
}

fn questions(task: &Task) -> Vec<String> {
    task.live().map(|live| live.questions.keys().map(ToString::to_string).collect()).unwrap_or_default()
}
