//! Bugs that are put in on purpose, to see that they are found.
//!
//! Each is a store, or a network, that breaks one promise. Nothing of the product knows of them.

use std::collections::{BTreeMap, BTreeSet};

use outlast_core::{
    Applied, By, Claimed, EntryKind, Event, IdempotencyKey, MemoryStore, Payload, Renewal, StepKey,
    Store as _, Task, TaskId, Timestamp, Token,
};

use super::{
    request::{Answer, Request, at_once},
    world::Caller,
};

/// A promise that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Calls are answered before what they wrote is durable.
    AnswerBeforeSync,
    /// Work parks as if it had seen everything, also what came in the meantime.
    ParkWithoutSeenSeq,
    /// A process that starts first removes what is old, and recovers then.
    SweepBeforeRecovery,
    /// A worker's word counts as long as it believes in its lease, whoever has the task by then.
    FencingByTime,
    /// The hint of an answer goes out before the answer can be read.
    HintBeforeCommit,
    /// A claim hands out what another worker holds.
    ClaimTwice,
    /// Nobody tells loaded work that it is cancelled.
    CancelUnheard,
    /// What a task reads back of its journal lacks its last step.
    StepForgotten,
    /// A later answer takes the place of the first.
    AnswerOverwritten,
    /// A parked task has no timers.
    TimerLostOnPark,
    /// An idempotency key is known only to the process that it came through.
    KeyPerProcess,
    /// A sweep removes what its time is over for, although it is not finished.
    UnfinishedPurged,
    /// What work takes back stays asked.
    WithdrawDropped,
    /// A claim hands out the token of the worker before.
    TokenReused,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::AnswerBeforeSync,
        Self::ParkWithoutSeenSeq,
        Self::SweepBeforeRecovery,
        Self::FencingByTime,
        Self::HintBeforeCommit,
        Self::ClaimTwice,
        Self::CancelUnheard,
        Self::StepForgotten,
        Self::AnswerOverwritten,
        Self::TimerLostOnPark,
        Self::KeyPerProcess,
        Self::UnfinishedPurged,
        Self::WithdrawDropped,
        Self::TokenReused,
    ];
}

/// The bug of a run, if it has one, and what that has to remember.
#[derive(Debug, Default)]
pub(super) struct Planted {
    bug: Option<Bug>,
    pub(super) taken_away: BTreeSet<TaskId>,
    /// Those whose next change is not hinted at any more.
    hinted: BTreeSet<TaskId>,
    held: BTreeMap<TaskId, (usize, Claimed)>,
    answers: BTreeMap<(TaskId, StepKey), Payload>,
    started: BTreeSet<(usize, u32)>,
}

impl Planted {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        Self { bug, ..Self::default() }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(super) fn answers_before_sync(&self) -> bool {
        self.is(Bug::AnswerBeforeSync)
    }

    /// The task that is to be hinted at now, before the request has its effect.
    pub(super) fn hints_early(&mut self, request: &Request) -> Option<TaskId> {
        let Request::Apply(id, By::Owner(_) | By::Operator, events) = request else { return None };
        let answers = events.iter().any(|event| matches!(event, Event::Answer { .. }));
        (self.is(Bug::HintBeforeCommit) && answers).then(|| {
            self.hinted.insert(*id);
            *id
        })
    }

    /// Whether a change of this task is not hinted at.
    pub(super) fn hides_hint(&mut self, id: TaskId, store: &MemoryStore) -> bool {
        self.hinted.remove(&id)
            || self.is(Bug::CancelUnheard)
                && at_once(store.get(id)).ok().flatten().is_some_and(|task| task.cancel_requested())
    }

    /// What the store makes of a request.
    pub(super) fn request(
        &mut self,
        from: Caller,
        request: Request,
        store: &MemoryStore,
        now: Timestamp,
    ) -> Request {
        let Some(bug) = self.bug else { return request };
        let task = |id| at_once(store.get(id)).ok().flatten();
        match (bug, request) {
            (Bug::ParkWithoutSeenSeq, Request::Apply(id, by, mut events)) => {
                for event in &mut events {
                    if let Event::Park { seen_seq, .. } = event {
                        *seen_seq = u64::MAX;
                    }
                }
                Request::Apply(id, by, events)
            }
            (Bug::TimerLostOnPark, Request::Apply(id, by, mut events)) => {
                let timers =
                    task(id).and_then(|task| Some(task.live()?.timers.keys().cloned().collect::<Vec<_>>()));
                if let Some(at) = events.iter().position(|event| matches!(event, Event::Park { .. })) {
                    let fired = timers.unwrap_or_default().into_iter().map(|key| Event::FireTimer { key });
                    events.splice(at..at, fired);
                }
                Request::Apply(id, by, events)
            }
            (Bug::WithdrawDropped, Request::Apply(id, by, mut events)) => {
                events.retain(|event| !matches!(event, Event::Withdraw { .. }));
                Request::Apply(id, by, events)
            }
            (Bug::FencingByTime | Bug::TokenReused, Request::Apply(id, By::Lease(token), events)) => {
                let newest = task(id).filter(|task| task.lease().is_some()).map_or(token, |task| task.token);
                Request::Apply(id, By::Lease(newest), events)
            }
            (Bug::AnswerOverwritten, Request::Apply(id, by, events)) => {
                for event in &events {
                    if let (Event::Answer { key, answer }, By::Owner(_)) = (event, &by) {
                        self.answers.insert((id, key.into()), answer.clone());
                    }
                }
                Request::Apply(id, by, events)
            }
            (Bug::KeyPerProcess, Request::Create(mut new, lease)) => {
                if let Some(key) = new.idempotency.take() {
                    let own = format!("{} of {}", key.key, from.process).into();
                    new.idempotency = Some(IdempotencyKey { key: own, ..key });
                }
                Request::Create(new, lease)
            }
            (Bug::SweepBeforeRecovery, request @ Request::Claim(_)) => {
                if self.started.insert((from.process, from.incarnation)) {
                    self.remove_old(store, now);
                }
                request
            }
            (Bug::UnfinishedPurged, request @ Request::Sweep(_)) => {
                self.remove_old(store, now);
                request
            }
            (_, request) => request,
        }
    }

    /// Takes away what is unfinished and older than its time.
    fn remove_old(&mut self, store: &MemoryStore, now: Timestamp) {
        let all = outlast_core::Inspect::list(store, outlast_core::Filter::default(), None, u32::MAX);
        let tasks = at_once(all).map(|page| page.tasks).unwrap_or_default();
        let old = |task: &Task| {
            let held = task.lease().is_some_and(|lease| lease.until > now);
            !task.is_final() && !held && task.spec.ttl.is_some_and(|ttl| task.created_at + ttl <= now)
        };
        self.taken_away.extend(tasks.iter().filter(|task| old(task)).map(|task| task.id));
    }

    /// What the store says to a request.
    pub(super) fn answer(
        &mut self,
        from: Caller,
        request: &Request,
        mut answer: Answer,
        store: &MemoryStore,
    ) -> Answer {
        let Some(bug) = self.bug else { return answer };
        match (bug, request, &mut answer) {
            (Bug::ClaimTwice, Request::Claim(asked), Answer::Claim(claimed)) => {
                let still = |known: &Claimed| {
                    let task = at_once(store.get(known.task.id)).ok().flatten();
                    task.is_some_and(|task| task.token == known.token && task.lease().is_some())
                };
                let others =
                    self.held.values().filter(|(process, known)| *process != from.process && still(known));
                let room = (asked.max as usize).saturating_sub(claimed.len());
                let twice: Vec<_> = others.take(room).map(|(_, known)| known.clone()).collect();
                for new in claimed.iter() {
                    self.held.insert(new.task.id, (from.process, new.clone()));
                }
                claimed.extend(twice);
            }
            (Bug::CancelUnheard, _, Answer::Renew(renewals)) => {
                for renewal in renewals {
                    if matches!(renewal, Renewal::Kept { cancel: true, .. }) {
                        *renewal = Renewal::Kept { inbox_seq: 0, cancel: false };
                    }
                }
            }
            (Bug::StepForgotten, Request::Journal(_, 0, _), Answer::Journal(page)) => {
                let last = page.entries.iter().rposition(|entry| entry.kind == EntryKind::Step);
                let again = page.entries.iter().filter(|entry| entry.kind == EntryKind::Claimed).count() > 1;
                if let Some(last) = last.filter(|_| again) {
                    page.entries.remove(last);
                }
            }
            (Bug::AnswerOverwritten, Request::Journal(id, ..), Answer::Journal(page)) => {
                for entry in &mut page.entries {
                    let later = entry.key.clone().and_then(|key| self.answers.get(&(*id, key)));
                    if entry.kind == EntryKind::Answered && later.is_some() {
                        entry.body = later.cloned();
                    }
                }
            }
            (Bug::TokenReused, _, Answer::Claim(claimed)) => {
                for claimed in claimed.iter_mut().filter(|claimed| claimed.token > Token(1)) {
                    claimed.token = Token(claimed.token.0 - 1);
                    claimed.task.token = claimed.token;
                }
            }
            _ => {}
        }
        self.without_taken(request, answer)
    }

    /// What is taken away is nowhere.
    fn without_taken(&self, request: &Request, mut answer: Answer) -> Answer {
        if self.taken_away.is_empty() {
            return answer;
        }
        let away = |id: &TaskId| self.taken_away.contains(id);
        match (request, &mut answer) {
            (_, Answer::Claim(claimed)) => claimed.retain(|claimed| !away(&claimed.task.id)),
            (_, Answer::List(page)) => page.tasks.retain(|task| !away(&task.id)),
            (Request::Apply(id, ..), Answer::Apply(applied)) if away(id) => *applied = Applied::NotFound,
            (Request::Get(id), Answer::Get(task)) if away(id) => *task = None,
            (Request::Renew(_, held, _), Answer::Renew(renewals)) => {
                for (held, renewal) in held.iter().zip(renewals) {
                    if away(&held.id) {
                        *renewal = Renewal::Lost;
                    }
                }
            }
            _ => {}
        }
        answer
    }
}
