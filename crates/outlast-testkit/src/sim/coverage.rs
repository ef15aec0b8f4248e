//! What a run reached. A simulation that finds nothing says something only where it has been.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use outlast_core::{
    Applied, Asks, Call, Entry, EntryKind, Event, InputKey, Known, NewTask, Outcome, Owner, Payload,
    Question, Recovery, Run, Spec, StepKey, Task, TaskError, TaskId, Timestamp, Wake, WorkerId,
};
use serde_json::json;

use super::request::{Operation, Request};

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// It fails before it has an effect.
    Before,
    /// It never reaches the store, and its sender cannot know that.
    Lost,
    /// It has its effect, and its answer is lost.
    After,
    /// It reaches the store when its sender's lease may be over.
    LateEffect,
    /// It is answered when its sender's lease may be over.
    LateAnswer,
    /// It is not answered as long as faults last.
    Never,
    /// It takes longer than usual.
    Slow,
    /// The store takes no calls.
    Outage,
    /// The store dies after the effect, before that is durable.
    StoreCrash,
    /// Its sender dies instead of sending it.
    CrashBefore,
    /// Its sender dies after sending it.
    CrashAfter,
    /// Its sender dies when the answer arrives.
    CrashAtAnswer,
}

impl Fault {
    const ALL: [Self; 12] = [
        Self::Before,
        Self::Lost,
        Self::After,
        Self::LateEffect,
        Self::LateAnswer,
        Self::Never,
        Self::Slow,
        Self::Outage,
        Self::StoreCrash,
        Self::CrashBefore,
        Self::CrashAfter,
        Self::CrashAtAnswer,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Before => "fails before",
            Self::Lost => "lost",
            Self::After => "fails after",
            Self::LateEffect => "late",
            Self::LateAnswer => "answered late",
            Self::Never => "never answered",
            Self::Slow => "slow",
            Self::Outage => "outage",
            Self::StoreCrash => "store crash",
            Self::CrashBefore => "crash before",
            Self::CrashAfter => "crash after",
            Self::CrashAtAnswer => "crash at answer",
        }
    }
}

/// The calls that the runtime makes.
const OPERATIONS: [Operation; 8] = [
    Operation::Create,
    Operation::Apply,
    Operation::Claim,
    Operation::Renew,
    Operation::Get,
    Operation::Journal,
    Operation::Sweep,
    Operation::List,
];

/// The states that the state machine tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Queued,
    Leased,
    Parked,
    Final,
}

impl State {
    pub(super) fn of(task: &Task) -> Self {
        match task.live().map(|live| &live.run) {
            Some(Run::Queued { .. }) => Self::Queued,
            Some(Run::Leased(_)) => Self::Leased,
            Some(Run::Parked { .. }) => Self::Parked,
            None => Self::Final,
        }
    }
}

/// What one run, or many, reached.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Coverage {
    events: BTreeMap<(State, &'static str), u64>,
    faults: BTreeMap<(Fault, Operation), u64>,
    /// How often other things happened that are worth a count.
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Adds what another run reached.
    pub fn add(&mut self, other: &Self) {
        other.events.iter().for_each(|(key, n)| *self.events.entry(*key).or_default() += n);
        other.faults.iter().for_each(|(key, n)| *self.faults.entry(*key).or_default() += n);
        other.counts.iter().for_each(|(key, n)| *self.counts.entry(key).or_default() += n);
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn fault(&mut self, fault: Fault, operation: Operation) {
        *self.faults.entry((fault, operation)).or_default() += 1;
    }

    /// Events were sent to a task in this state.
    pub(super) fn applied(&mut self, state: Option<State>, events: &[Event], applied: &Applied) {
        let Some(state) = state.filter(|_| matches!(applied, Applied::Applied(_) | Applied::Absorbed(_)))
        else {
            return;
        };
        events.iter().for_each(|event| self.event(state, event.name()));
    }

    fn event(&mut self, state: State, event: &'static str) {
        *self.events.entry((state, event)).or_default() += 1;
    }

    /// A task changed; what the store did by itself shows in how.
    pub(super) fn changed(&mut self, before: &Task, after: &Task, entries: &[Entry], cause: &Request) {
        let state = State::of(before);
        match cause {
            Request::Claim(_) => {
                let lost = entries.iter().any(|entry| entry.kind == EntryKind::LeaseLost);
                if lost || (state == State::Leased && after.is_final()) {
                    self.event(State::Leased, "lose lease");
                }
                if entries.iter().any(|entry| entry.kind == EntryKind::Claimed) {
                    self.event(if lost { State::Queued } else { state }, "claim");
                }
            }
            Request::Renew(..) => self.event(state, "renew"),
            Request::Sweep(_) => match after.status() {
                outlast_core::Status::Failed => self.event(state, "pass deadline"),
                outlast_core::Status::Cancelled => self.event(state, "abandon cancelled"),
                _ => self.event(state, "refresh ttl"),
            },
            _ => {}
        }
    }

    /// Pairs of state and event that the state machine accepts, and of fault and call, that no run reached.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let events = accepted().into_iter().filter(|pair| !self.events.contains_key(pair));
        let faults = Fault::ALL
            .into_iter()
            .flat_map(|fault| OPERATIONS.map(|operation| (fault, operation)))
            .filter(|pair| !self.faults.contains_key(pair));
        events
            .map(|(state, event)| format!("{event} in {state:?}"))
            .chain(faults.map(|(fault, operation)| format!("{} at {operation:?}", fault.name())))
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} pairs of state and event:", self.events.len())?;
        for ((state, event), n) in &self.events {
            writeln!(f, "  {:<8}{event:<20}{n:>10}", format!("{state:?}").to_lowercase())?;
        }
        writeln!(f, "{} pairs of fault and call:", self.faults.len())?;
        for ((fault, operation), n) in &self.faults {
            writeln!(f, "  {:<16}{:<12}{n:>10}", fault.name(), format!("{operation:?}").to_lowercase())?;
        }
        writeln!(f, "what else happened:")?;
        self.counts.iter().try_for_each(|(what, n)| writeln!(f, "  {what:<28}{n:>10}"))
    }
}

/// The pairs that the state machine accepts, found by asking it.
fn accepted() -> BTreeSet<(State, &'static str)> {
    let now = Timestamp::from_millis(0);
    let mut found = BTreeSet::new();
    for task in samples(now) {
        for event in events() {
            let known = |known: &Option<Known>| task.apply(&event, known.as_ref(), now).is_ok();
            let journaled = event.key().map(|_| Known { kind: EntryKind::Step, body: None });
            if known(&None) || known(&journaled) {
                found.insert((State::of(&task), event.name()));
            }
        }
    }
    found
}

fn question() -> Question {
    Question::new(&json!({"method": "roots/list"})).expect("that may be asked")
}

fn input() -> InputKey {
    InputKey::new("question").expect("a short text is a key")
}

fn timer() -> StepKey {
    StepKey::new("timer").expect("a short text is a key")
}

/// A task in each state, with all that events may be about.
fn samples(now: Timestamp) -> Vec<Task> {
    let spec = Spec { asks: Asks::all(), recovery: Recovery::Rerun, ..Spec::new("tool") };
    let new = NewTask::new(TaskId::from_bytes([1; 16]), Owner::anonymous(), spec, Call::new(Payload::null()));
    let on = |task: &Task, events: &[Event]| {
        events.iter().fold(task.clone(), |task, event| {
            let change = task.apply(event, None, now).expect("a sample can be made");
            change.task().cloned().unwrap_or(task)
        })
    };
    let queued = Task::create(&new, now);
    let leased = Task::create_leased(&new, WorkerId::new("worker"), Duration::from_secs(30), now);
    let busy = on(
        &leased,
        &[
            Event::Ask { key: input(), question: question() },
            Event::SetTimer { key: timer(), wake: Wake::After(Duration::ZERO) },
        ],
    );
    let cancelled = on(&busy, &[Event::Cancel]);
    let live = [queued.clone(), leased.clone(), busy, cancelled];
    let parked = live
        .clone()
        .into_iter()
        .filter(|task| task.lease().is_some())
        .map(|task| on(&task, &[Event::Park { seen_seq: task.seq, wake: None }]));
    let released = live
        .clone()
        .into_iter()
        .filter(|task| task.lease().is_some())
        .map(|task| on(&task, &[Event::Release { began: true }]));
    let ended = on(&leased, &[Event::Complete(Payload::null())]);
    live.clone().into_iter().chain(parked).chain(released).chain([ended]).collect()
}

/// One event of each kind, as one that is legal where any is.
fn events() -> Vec<Event> {
    let lease = Duration::from_secs(30);
    vec![
        Event::Answer { key: input(), answer: Payload::from_value(&json!({"roots": []})) },
        Event::Cancel,
        Event::Ask { key: InputKey::new("another").expect("a key"), question: question() },
        Event::Withdraw { key: input() },
        Event::FinishStep {
            key: StepKey::new("step").expect("a key"),
            outcome: Outcome::Value(Payload::null()),
            took: Duration::ZERO,
            tries: 1,
        },
        Event::SetTimer { key: StepKey::new("new").expect("a key"), wake: Wake::After(lease) },
        Event::FireTimer { key: timer() },
        Event::SetMessage(Some("on it".to_owned())),
        Event::ExtendTtl(lease),
        Event::RunAlone,
        Event::Complete(Payload::null()),
        Event::Fail(TaskError::internal("it broke")),
        Event::ConfirmCancel,
        Event::Park { seen_seq: 0, wake: None },
        Event::Release { began: true },
        Event::Claim { worker: WorkerId::new("worker"), lease },
        Event::Renew { lease },
        Event::LoseLease,
        Event::PassDeadline,
        Event::RefreshTtl,
        Event::AbandonCancelled,
    ]
}
