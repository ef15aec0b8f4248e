//! The network between the processes and the store: calls that are under way, their faults, and hints.

use outlast_core::{Created, Event, Hint, MemoryStore, Store as _, StoreError, TaskId};
use tokio::sync::oneshot;

use super::{
    coverage::Fault,
    oracle::Raw,
    plan::Faults,
    request::{Answer, Request},
    world::{Caller, Happening, World},
};

/// A call on its way.
pub(super) struct Call {
    pub(super) from: Caller,
    pub(super) request: Request,
    pub(super) fault: Option<Fault>,
    /// From its effect to its answer.
    pub(super) answer_in: u64,
    pub(super) answer: Option<Result<Answer, StoreError>>,
    pub(super) reply: Option<oneshot::Sender<Result<Answer, StoreError>>>,
}

/// How a call goes on for its sender.
pub(super) enum Sent {
    Done(Box<Result<Answer, StoreError>>),
    UnderWay(oneshot::Receiver<Result<Answer, StoreError>>),
    /// Its process is dead.
    Never,
}

impl World {
    // --- calls

    /// A process calls the store.
    pub(super) fn send(&mut self, from: Caller, request: Request) -> Sent {
        if !self.lives(from) {
            return Sent::Never;
        }
        if self.goes_round(from) {
            return Sent::Never;
        }
        let operation = request.operation();
        self.learn_name(from, &request);
        let trapped = self.trap(from);
        let fault = trapped.or_else(|| self.fault(&request));
        if let Some(fault) = fault {
            self.coverage.fault(fault, operation);
        }
        let (mut effect_in, answer_in) = self.times(fault);
        self.note(format_args!("{}.{} {request}{}", from.process, from.incarnation, Said(fault)));
        if fault == Some(Fault::CrashBefore) {
            self.close(from.process);
            return Sent::Never;
        }
        let early = self.planted.hints_early(&request);
        if let Some(id) = early {
            self.hint(id);
            effect_in += 20;
        }
        self.numbers += 1;
        let number = self.numbers;
        self.calls.insert(number, Call { from, request, fault, answer_in, answer: None, reply: None });
        if effect_in == 0 {
            self.effect(number);
        } else {
            self.schedule(effect_in, Happening::Effect(number));
        }
        if fault == Some(Fault::CrashAfter) {
            self.close(from.process);
            return Sent::Never;
        }
        let done = self.calls.get(&number).is_some_and(|call| call.answer.is_some() && call.answer_in == 0);
        if done && !self.unsynced.contains(&number) {
            return self.take_answer(number).map_or(Sent::Never, |answer| Sent::Done(Box::new(answer)));
        }
        let (sender, receiver) = oneshot::channel();
        if let Some(call) = self.calls.get_mut(&number) {
            call.reply = Some(sender);
        }
        Sent::UnderWay(receiver)
    }

    /// Whether a process does the same over and over, without any time going by.
    fn goes_round(&mut self, from: Caller) -> bool {
        const TOO_MANY: u32 = 1_000;
        let busy = &mut self.doors[from.process].busy;
        *busy = (self.now, if busy.0 == self.now { busy.1 + 1 } else { 1 });
        let many = busy.1;
        self.oracle.expect("nothing goes round and round", many < TOO_MANY, || {
            format!("{many} calls of process {} at one moment", from.process)
        });
        many >= TOO_MANY
    }

    fn learn_name(&mut self, from: Caller, request: &Request) {
        let name = match request {
            Request::Claim(claim) => &claim.worker,
            Request::Create(_, Some(lease)) => &lease.worker,
            _ => return,
        };
        let door = &mut self.doors[from.process];
        if door.worker != name.as_str() {
            name.as_str().clone_into(&mut door.worker);
        }
    }

    fn trap(&mut self, from: Caller) -> Option<Fault> {
        let trap = self.doors[from.process].trap.as_mut()?;
        trap.calls -= 1;
        let at = trap.at;
        (trap.calls == 0).then(|| {
            self.doors[from.process].trap = None;
            at
        })
    }

    fn fault(&mut self, request: &Request) -> Option<Fault> {
        if self.calm {
            return None;
        }
        let rates = self.plan.faults;
        let kinds = [
            (rates.before, Fault::Before),
            (rates.lost, Fault::Lost),
            (rates.after, Fault::After),
            (rates.late_effect, Fault::LateEffect),
            (rates.late_answer, Fault::LateAnswer),
            (rates.never, Fault::Never),
            (rates.slow, Fault::Slow),
        ];
        // What is seldom sent is struck more often.
        let seldom = match request {
            Request::Apply(_, _, events) => {
                events.iter().any(|event| matches!(event, Event::RunAlone | Event::Park { .. }))
            }
            Request::Sweep(_) | Request::List(..) => true,
            _ => false,
        };
        let times = if seldom { 5 } else { 1 };
        kinds.into_iter().find(|(rate, _)| *rate > 0 && self.rng.chance(rate * times)).map(|(_, fault)| fault)
    }

    /// From sending to the effect, and from the effect to the answer, in milliseconds.
    fn times(&mut self, fault: Option<Fault>) -> (u64, u64) {
        let lease = self.plan.lease.as_millis() as u64;
        let (effect, answer) = if self.rng.chance(self.plan.instant) {
            (0, 0)
        } else {
            (self.rng.between(1, 3), self.rng.below(3))
        };
        match fault {
            Some(Fault::LateEffect) => (self.rng.between(lease, 2 * lease), answer),
            Some(Fault::LateAnswer) => (effect, self.rng.between(lease, 2 * lease)),
            Some(Fault::Never) => (effect, u64::MAX),
            Some(Fault::Slow) => (self.rng.between(1, 900), self.rng.below(900)),
            _ => (effect, answer),
        }
    }

    /// A call reaches the store.
    pub(super) fn effect(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        let (from, fault, request) = (call.from, call.fault, call.request.clone());
        let answer = match fault {
            _ if self.down => {
                self.coverage.fault(Fault::Outage, request.operation());
                Err(StoreError::unavailable("an outage"))
            }
            Some(Fault::Before) => Err(StoreError::unavailable("a fault before the effect")),
            Some(Fault::Lost) => Err(StoreError::unknown("lost on the way to the store")),
            _ => self.perform(from, request),
        };
        let answer = match answer {
            Ok(answer) if fault == Some(Fault::After) => {
                self.note(format_args!("  did {number}: {answer}"));
                Err(StoreError::unknown("a fault after the effect"))
            }
            other => other,
        };
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.answer = Some(answer);
        let unsynced = self.durable.is_some() && self.dirty;
        if let Some(with_processes) = self.failing.filter(|_| unsynced)
            && self.rng.chance(150)
        {
            self.failing = None;
            self.schedule(0, Happening::PowerLost { with_processes });
        }
        if unsynced && !self.planted.answers_before_sync() {
            self.unsynced.push(number);
        } else {
            self.settle(number);
        }
    }

    /// Carries out a request and judges it.
    fn perform(&mut self, from: Caller, request: Request) -> Result<Answer, StoreError> {
        let now = self.store_now();
        // Judged by what was asked, whatever a planted bug makes of it.
        let done = self.planted.request(from, request.clone(), &self.store, now).perform(&self.store)?;
        let answer = self.planted.answer(from, &request, done, &self.store);
        let raw = Raw { store: &self.store, taken_away: &self.planted.taken_away };
        self.oracle.now = self.now;
        if self.oracle.after(&request, &answer, &raw, now, &mut self.coverage) {
            self.written();
            if std::mem::take(&mut self.oracle.progress) {
                self.oracle.progress_at = self.now;
            }
        }
        let mut changed = Vec::new();
        while let Some(hint) = self.changes.try_next() {
            if let Hint::Changed(id) = hint {
                changed.push(id);
            }
        }
        self.changed(changed);
        Ok(answer)
    }

    fn changed(&mut self, mut ids: Vec<TaskId>) {
        ids.retain(|id| !self.planted.hides_hint(*id, &self.store));
        if self.durable.is_none() {
            ids.into_iter().for_each(|id| self.hint(id));
        } else {
            self.unsynced_hints.extend(ids);
        }
    }

    /// Something was written that is not durable yet.
    fn written(&mut self) {
        if self.durable.is_some() && !self.dirty {
            self.dirty = true;
            let within = self.rng.between(1, 15);
            self.schedule(within, Happening::Synced);
        }
    }

    /// What was written is durable now: whoever waits for that is answered.
    pub(super) fn synced(&mut self) {
        if self.durable.is_some() && self.dirty {
            self.durable = Some(self.store.fork());
            self.dirty = false;
        }
        for number in std::mem::take(&mut self.unsynced) {
            self.settle(number);
        }
        for id in std::mem::take(&mut self.unsynced_hints) {
            self.hint(id);
        }
    }

    /// The store loses what is not durable, and all that it was about to say of it.
    pub(super) fn lose_unsynced(&mut self, with_processes: bool) {
        let Some(durable) = self.durable.as_ref().map(MemoryStore::fork).filter(|_| !self.calm) else {
            return;
        };
        self.trace
            .note(self.now, format_args!("power is lost, {} calls are not durable", self.unsynced.len()));
        self.coverage.count(if with_processes { "power cuts" } else { "store crashes" });
        self.store = durable;
        self.changes = self.store.watch();
        self.dirty = false;
        self.unsynced_hints.clear();
        let raw = Raw { store: &self.store, taken_away: &self.planted.taken_away };
        self.oracle.power_was_cut(&raw);
        let unsynced = std::mem::take(&mut self.unsynced);
        if with_processes {
            self.calls.clear();
            return;
        }
        for number in unsynced {
            if let Some(call) = self.calls.get_mut(&number) {
                self.coverage.fault(Fault::StoreCrash, call.request.operation());
                call.answer = Some(Err(StoreError::unknown("the store died before it was durable")));
            }
            self.settle(number);
        }
    }

    /// The answer is on its way.
    fn settle(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        match call.answer_in {
            // Its sender is still in the call, and takes it.
            0 if call.reply.is_none() && self.lives(call.from) => {}
            u64::MAX => {}
            wait => self.schedule(wait, Happening::Answered(number)),
        }
    }

    /// The answer arrives.
    pub(super) fn answered(&mut self, number: u64) {
        let Some(reply) = self.calls.get_mut(&number).and_then(|call| call.reply.take()) else {
            self.calls.remove(&number);
            return;
        };
        if let Some(answer) = self.take_answer(number) {
            // A sender that no longer waits is not told.
            let _ = reply.send(answer);
        }
    }

    fn take_answer(&mut self, number: u64) -> Option<Result<Answer, StoreError>> {
        let call = self.calls.remove(&number)?;
        if !self.lives(call.from) {
            return None;
        }
        if call.fault == Some(Fault::CrashAtAnswer) {
            self.close(call.from.process);
            return None;
        }
        let answer = call.answer?;
        match &answer {
            Ok(answer) => {
                self.note(format_args!("  {}.{} told: {answer}", call.from.process, call.from.incarnation));
                self.oracle.told(&call.request, answer);
                self.remember_tokens(call.from, answer);
            }
            Err(error) => {
                self.note(format_args!("  {}.{} told: {error}", call.from.process, call.from.incarnation));
            }
        }
        Some(answer)
    }

    fn remember_tokens(&mut self, from: Caller, answer: &Answer) {
        let tokens = &mut self.doors[from.process].tokens;
        match answer {
            Answer::Create(Created::Created { task, token: Some(token) }) => {
                tokens.insert(task.id, *token);
            }
            Answer::Claim(claimed) => {
                tokens.extend(claimed.iter().map(|claimed| (claimed.task.id, claimed.token)));
            }
            _ => {}
        }
    }

    // --- hints

    fn hint(&mut self, id: TaskId) {
        for process in 0..self.doors.len() {
            if !self.doors[process].open {
                continue;
            }
            let incarnation = self.doors[process].incarnation;
            let rates = if self.calm { Faults::default() } else { self.plan.faults };
            if self.rng.chance(rates.hint_gap) {
                self.schedule(1, Happening::Hint(process, incarnation, Hint::Gap));
                continue;
            }
            if self.rng.chance(rates.hint_lost) {
                continue;
            }
            let times = if self.rng.chance(rates.hint_twice) { 2 } else { 1 };
            for _ in 0..times {
                // Later ones overtake.
                let after = if self.rng.chance(rates.hint_late) { self.rng.between(5, 3_000) } else { 1 };
                self.schedule(after, Happening::Hint(process, incarnation, Hint::Changed(id)));
            }
        }
    }

    pub(super) fn hinted(&mut self, process: usize, incarnation: u32, hint: Hint) {
        let door = &self.doors[process];
        if door.open && door.incarnation == incarnation {
            door.hints.send(hint);
        }
    }
}

/// A fault in a trace.
struct Said(Option<Fault>);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |fault| write!(f, " ({})", fault.name()))
    }
}
