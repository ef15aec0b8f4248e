//! From the start of a run to the event that ends it, for claimed tasks and for calls that begin inline.

use std::{future::pending, sync::Arc, time::Duration};

use outlast_core::{
    Call, Created, Event, Illegal, InputKey, NewTask, Outcome, Payload, Recovery, StepKey, StoreError, Task,
    TaskError,
};
use serde::{Deserialize, Serialize};
use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    Ended, Round, Run, Runtime,
    ending::Ending,
    lock,
    run::{Lease, answer},
    spans,
};

/// How a call that began inline went on.
pub enum Inline {
    /// It ended before it had to become a task.
    Ended(Ended),
    /// It is this task now.
    Task(Box<Task>),
    /// Its key had been used: for this task, or in a way that cannot be repeated.
    NotCreated(Box<Created>),
    /// Its caller left, and the work was dropped with it.
    CallerLeft,
    /// The store would not take it.
    Failed(StoreError),
}

/// How an attempt ends that still has its lease.
enum End {
    /// The work is over, and these events say how.
    Over(Vec<Event>),
    /// It only waits.
    Parks(Still),
}

/// Work that only waited, and did not move, for a while.
struct Still {
    /// How often it had moved by then.
    moves: u64,
    /// Whether that was for so long that it has come to all that it waits for.
    for_long: bool,
}

/// For how long work has to stand still that is to park soon: what it began, a child of its own among that, gets to its
/// first wait in that time.
const MOMENT: Duration = Duration::from_millis(100);

/// From when on work that stands still has come to all that it waits for.
const LONG: Duration = Duration::from_secs(1);

/// What is journaled of a round of a multi-round-trip call: what came out of it.
#[derive(Debug, Serialize, Deserialize)]
struct RoundEntry {
    state: Option<String>,
    /// The tool's own key of each question, and the key that it was asked under.
    keys: Vec<(String, InputKey)>,
}

impl Runtime {
    /// Creates a task and begins it at once where a slot is free, else as soon as one is.
    pub async fn begin(&self, new: NewTask) -> Result<Created, StoreError> {
        let call = new.call.clone();
        let before = self.0.config.clock.monotonic();
        let place = self.place(&new.owner);
        let created = self.create(new, place.is_some(), None).await?;
        if let Created::Created { task, token } = &created {
            if token.is_none() {
                self.0.slots.work_may_be_ready();
            } else {
                let run = Run::inline(task.origin.unwrap_or(task.id), task.spec.asks);
                let lease = run.bind(task, &self.0, before);
                if self.load(&lease, &run) {
                    let (runtime, task) = (self.clone(), task.clone());
                    self.0.tracker.spawn(async move { runtime.drive(task, call, run).await });
                } else {
                    self.turn_away(&run, &lease, false).await;
                }
            }
        }
        Ok(created)
    }

    /// Begins a call inline, and makes it the task `new` when it is not over after `patience` or when its work needs to
    /// be one. `always_task` makes it a task even when it ends before that, though not when it asks before that (S16).
    pub async fn begin_inline(
        &self,
        new: NewTask,
        patience: Duration,
        always_task: bool,
        run: Run,
        caller_left: CancellationToken,
    ) -> Inline {
        run.set_span(spans::run_inline(&new));
        let begun = self.begun_inline(new, patience, always_task, &run, caller_left).await;
        // One that is a task now goes on.
        match &begun {
            Inline::Task(_) => {}
            Inline::Ended(_) => run.end_span(Ending::Inline),
            Inline::NotCreated(_) | Inline::Failed(_) => run.end_span(Ending::Refused),
            Inline::CallerLeft => run.end_span(Ending::CallerLeft),
        }
        begun
    }

    async fn begun_inline(
        &self,
        new: NewTask,
        patience: Duration,
        always_task: bool,
        run: &Run,
        caller_left: CancellationToken,
    ) -> Inline {
        let mut attempt = self.spawn_attempt(new.call.clone(), None, run.clone());
        let ended = tokio::select! {
            biased;
            ended = &mut attempt => Some(flatten(ended)),
            () = run.wants_task().cancelled() => None,
            () = sleep(patience) => None,
            () = caller_left.cancelled() => {
                run.gone().cancel();
                return Inline::CallerLeft;
            }
        };
        match ended {
            Some(ended @ Ended::InputRequired { .. }) => return Inline::Ended(ended),
            Some(Ended::Dropped) => return Inline::CallerLeft,
            Some(ended) if !always_task => return Inline::Ended(ended),
            _ => {}
        }
        let before = self.0.config.clock.monotonic();
        // Leased whether or not a slot is free: the work runs already.
        let refused = match self.create(new, true, Some(&run.span())).await {
            Ok(Created::Created { task, token: Some(_) }) => {
                let lease = run.bind(&task, &self.0, before);
                if self.load(&lease, run) {
                    run.write_early(&lease).await;
                    let (runtime, begun, run) = (self.clone(), task.clone(), run.clone());
                    self.0.tracker.spawn(async move {
                        let ended = async {
                            match ended {
                                Some(ended) => ended,
                                None => flatten(attempt.await),
                            }
                        };
                        runtime.supervise(&begun, &run, runtime.rounds(&run, ended)).await;
                    });
                } else if let Some(ended) = ended {
                    // The process stops, and nothing is left to do but to say how it ended.
                    let events = self.rounds(run, async { ended }).await;
                    let ending = Ending::of(&events);
                    self.conclude(run, &lease, events).await;
                    run.end_span(ending);
                    run.gone().cancel();
                } else {
                    self.turn_away(run, &lease, true).await;
                }
                return Inline::Task(Box::new(task));
            }
            // A process that may create and not run: another one begins it anew.
            Ok(Created::Created { task, token: None }) => {
                run.end_span(Ending::Released);
                run.gone().cancel();
                return Inline::Task(Box::new(task));
            }
            Ok(Created::OverQuota) => Inline::NotCreated(Box::new(Created::OverQuota)),
            Ok(known) => {
                run.gone().cancel();
                return Inline::NotCreated(Box::new(known));
            }
            Err(error) => Inline::Failed(error),
        };
        // There is no room for a task, but the work has begun: it may end inline, as it would for a caller who knows
        // nothing of tasks.
        if ended.is_none() && !always_task {
            tokio::select! {
                biased;
                ended = attempt => return Inline::Ended(flatten(ended)),
                () = run.wants_task().cancelled() => {}
                () = caller_left.cancelled() => {
                    run.gone().cancel();
                    return Inline::CallerLeft;
                }
            }
        }
        run.gone().cancel();
        refused
    }

    /// Gives a task back that was leased while the runtime was on its way out.
    pub(crate) async fn turn_away(&self, run: &Run, lease: &Lease, began: bool) {
        run.end_span(Ending::Released);
        run.gone().cancel();
        self.release(lease, began).await;
    }

    fn spawn_attempt(&self, call: Call, round: Option<Round>, run: Run) -> JoinHandle<Ended> {
        let runner = self.0.runner.clone();
        // A task of its own: the request that began it may go away.
        self.0.tracker.spawn(async move {
            let ended = runner.run(call, round, run.clone()).await;
            match run.misused() {
                Some(error) => Ended::Error(error.clone()),
                None => ended,
            }
        })
    }

    /// Runs a leased task from what its journal says to the event that ends this attempt.
    pub(crate) async fn drive(&self, task: Task, call: Call, run: Run) {
        run.set_span(spans::run(&task));
        let resume = self.resume(&task, call, &run);
        self.supervise(&task, &run, resume).await;
    }

    /// Sees an attempt to its end: by itself, by its deadline, or by the loss of its lease.
    async fn supervise(&self, task: &Task, run: &Run, attempt: impl Future<Output = Vec<Event>>) {
        let Some(lease) = run.lease() else { return };
        let end = tokio::select! {
            // First, because that ends the attempt too, and how it ends then says nothing of the work.
            biased;
            () = run.gone().cancelled() => None,
            events = attempt => Some(End::Over(events)),
            () = deadline(task, lease) => Some(End::Over(vec![Event::PassDeadline])),
            still = self.wants_to_park(run, lease) => Some(End::Parks(still)),
        };
        let ending = match end {
            Some(End::Over(events)) => {
                run.set_ended();
                let ending = Ending::of(&events);
                tokio::select! {
                    biased;
                    () = run.gone().cancelled() => Ending::Lost,
                    () = self.conclude(run, lease, events) => ending,
                }
            }
            Some(End::Parks(still)) => {
                tokio::select! {
                    biased;
                    () = run.gone().cancelled() => Ending::Lost,
                    parked = self.park(run, lease, &still) => if parked { Ending::Parked } else { Ending::Lost },
                }
            }
            None => Ending::Lost,
        };
        run.end_span(ending);
        if ending.leaves_work() {
            self.serve_again(task);
        }
        self.forget(run, lease, ending != Ending::Lost);
    }

    /// An attempt is over: what it holds is let go.
    pub(crate) fn forget(&self, run: &Run, lease: &Lease, concluded: bool) {
        run.gone().cancel();
        if !concluded {
            lock(&self.0.let_go).insert(lease.id, lease.token);
        }
        self.unload(lease);
    }

    /// Resolves when the work has only waited for long enough to be unloaded. Work that must not run twice stays.
    async fn wants_to_park(&self, run: &Run, lease: &Lease) -> Still {
        if lease.recovery == Recovery::Fail {
            return pending().await;
        }
        let (activity, patience) = (&run.0.activity, self.0.config.park_after);
        tokio::select! {
            biased;
            moves = async {
                run.park_soon().cancelled().await;
                activity.only_waited(MOMENT).await
            } => Still { moves, for_long: false },
            moves = activity.only_waited(patience) => Still { moves, for_long: patience >= LONG },
        }
    }

    /// Drops the work and gives the task back until something wakes it; says whether that is written.
    async fn park(&self, run: &Run, lease: &Lease, still: &Still) -> bool {
        run.unload().cancel();
        run.0.activity.unattended().await;
        // What was on its way to the store has arrived.
        lease.writing.settled().await;
        // Work that went on in the last moment may have taken what it waited for, so that nothing is left to wake it.
        let went_on = run.0.activity.moves() != still.moves || run.has_unheard_answers(lease);
        let wake = went_on.then_some(Duration::ZERO);
        let mut events: Vec<_> = run.last_message().into_iter().collect();
        let park = {
            let seen = lock(&lease.seen);
            let used = lock(&run.0.used_keys);
            // A timer that nothing waits for any more would wake the work for nothing, over and over.
            let left = seen.due_timers(lease.store_now()).filter(|key| !used.contains(*key));
            events.extend(left.map(|key| Event::FireTimer { key: key.clone() }));
            // What the work dropped; and what an earlier attempt asked and this one came by without wanting it, as after a
            // crash before a dropped question was taken back. Work that stood still for a moment alone may come to it yet.
            let (wanted, dropped) = (lock(&run.0.wanted), lock(&run.0.dropped));
            let unwanted = seen
                .outstanding()
                .filter(|key| dropped.contains(key) || still.for_long && !wanted.contains(key));
            events.extend(unwanted.map(|key| Event::Withdraw { key }));
            // What came since was not seen, and wakes it at once.
            Event::Park { seen_seq: seen.seq, wake }
        };
        events.push(park);
        match run.write(lease, events).await {
            Some(Ok(_)) => true,
            Some(Err(illegal)) => {
                tracing::error!(task = ?lease.id, %illegal, "a task could not be parked; it is given back");
                self.release(lease, true).await;
                true
            }
            None => false,
        }
    }

    /// Writes the events that end an attempt; what the store refuses becomes the task's error.
    async fn conclude(&self, run: &Run, lease: &Arc<Lease>, mut events: Vec<Event>) {
        if let Some(message) = run.last_message() {
            events.insert(0, message);
        }
        if let Err(illegal) = run.commit(lease, events).await {
            let instead = match illegal {
                // The cancel came between the last look and the question.
                Illegal::CancelRequested => Event::ConfirmCancel,
                Illegal::Undeclared { .. } => Event::Fail(TaskError::new(-32021, illegal.to_string())),
                _ => Event::Fail(TaskError::internal(illegal.to_string())),
            };
            // An error is far smaller than any limit.
            if let Err(illegal) = run.commit(lease, vec![instead]).await {
                tracing::error!(task = ?lease.id, %illegal, "the end of a task was refused");
            }
        }
    }

    /// Where the journal says that the work is: at its start, or between two rounds.
    async fn resume(&self, task: &Task, call: Call, run: &Run) -> Vec<Event> {
        let Some(lease) = run.lease() else { return Vec::new() };
        if task.seq > 0 {
            run.refresh(lease).await;
        }
        let Some(last) = rounds_so_far(lease).pop() else {
            let attempt = self.spawn_attempt(call, None, run.clone());
            return self.rounds(run, async { flatten(attempt.await) }).await;
        };
        // Between rounds no tool code runs, so a cancel ends the task here.
        if task.cancel_requested() {
            return vec![Event::ConfirmCancel];
        }
        let answers: Option<Vec<_>> =
            last.keys.iter().map(|(own, key)| Some((own.clone(), answer(lease, key)?))).collect();
        let Some(answers) = answers else {
            // Woken by some of the answers: wait for the rest.
            return vec![Event::Park { seen_seq: Run::seen_seq(lease), wake: None }];
        };
        let round = Round { answers, state: last.state };
        let attempt = self.spawn_attempt(call, Some(round), run.clone());
        self.rounds(run, async { flatten(attempt.await) }).await
    }

    /// Turns the end of a run into events; a further round parks the task, and holds nothing while it waits.
    async fn rounds(&self, run: &Run, ended: impl Future<Output = Ended>) -> Vec<Event> {
        let (questions, state) = match ended.await {
            Ended::Result(result) => return vec![Event::Complete(result)],
            Ended::Error(error) => return vec![Event::Fail(error)],
            Ended::Cancelled => return vec![Event::ConfirmCancel],
            Ended::InputRequired { questions, state, .. } => (questions, state),
            // The attempt is unloaded, or the process is on its way out: nothing is to be written.
            Ended::Dropped => pending().await,
        };
        let Some(lease) = run.lease() else { return Vec::new() };
        if run.cancel().is_cancelled() {
            return vec![Event::ConfirmCancel];
        }
        run.refresh(lease).await;
        let rounds = rounds_so_far(lease);
        let number = u32::try_from(rounds.len()).unwrap_or(u32::MAX).saturating_add(1);
        let idle = rounds.iter().rev().take_while(|round| round.keys.is_empty()).count();
        let mut asks = Vec::new();
        let mut keys = Vec::new();
        for (own, question) in questions {
            let Some(key) = unused_key(lease, &own, &keys) else {
                let message =
                    format!("the tool asked under a key that is no valid key: '{}'", own.escape_debug());
                return vec![Event::Fail(TaskError::internal(message))];
            };
            keys.push((own, key.clone()));
            asks.push(Event::Ask { key, question });
        }
        // "Come back later" (S20b): sooner at first, then less often.
        let wake = keys.is_empty().then(|| Duration::from_secs(1 << idle.min(6)));
        let entry = match Payload::encode(&RoundEntry { state, keys }) {
            Ok(entry) => entry,
            Err(error) => return vec![Event::Fail(TaskError::internal(error.to_string()))],
        };
        let (key, outcome) = (round_key(number), Outcome::Value(entry));
        let mut events = vec![Event::FinishStep { key, outcome, took: Duration::ZERO, tries: 1 }];
        events.extend(asks);
        events.push(Event::Park { seen_seq: Run::seen_seq(lease), wake });
        events
    }
}

/// Resolves when the work has taken longer than its author allows.
pub(crate) async fn deadline(task: &Task, lease: &Lease) {
    match task.hard_deadline() {
        Some(deadline) => sleep(deadline.since(lease.store_now())).await,
        None => pending().await,
    }
}

/// The journal key of a round; tools cannot use it, because their keys do not begin so.
fn round_key(number: u32) -> StepKey {
    StepKey::new(format!("outlast:round:{number}")).expect("a short text is a key")
}

fn rounds_so_far(lease: &Arc<Lease>) -> Vec<RoundEntry> {
    (1..)
        .map_while(|number| match lock(&lease.seen).step(&round_key(number)) {
            Some(Outcome::Value(entry)) => entry.decode().ok(),
            _ => None,
        })
        .collect()
}

/// The tool's own key where it is unused in this task, else the first of `key#2`, `key#3`, ... that is (S18).
fn unused_key(lease: &Lease, own: &str, taken: &[(String, InputKey)]) -> Option<InputKey> {
    let first = InputKey::new(own).ok()?;
    let further = (2..).map_while(|n| InputKey::new(format!("{own}#{n}")).ok());
    std::iter::once(first)
        .chain(further)
        .find(|key| !lock(&lease.seen).was_asked(key) && taken.iter().all(|(_, other)| other != key))
}

/// The end of a run; one that was aborted with its process has none.
fn flatten(ended: Result<Ended, tokio::task::JoinError>) -> Ended {
    ended.unwrap_or_else(|error| {
        if error.is_cancelled() {
            return Ended::Dropped;
        }
        Ended::Error(TaskError::internal("the work stopped unexpectedly"))
    })
}
