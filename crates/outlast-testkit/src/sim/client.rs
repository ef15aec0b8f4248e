//! Simulated clients: each makes one call and follows it, over whichever process takes its requests.
//!
//! They are as clients are: they lose answers and ask again, answer late or twice, answer as somebody else, and what
//! makes no sense.

use std::time::Duration;

use outlast_core::{
    Applied, By, Created, Event, IdempotencyKey, InputKey, NewTask, Owner, StoreError, Task, TaskId,
};
use outlast_runtime::{Ended, Inline, Run};
use tokio_util::sync::CancellationToken;

use super::{
    plan::{Plan, TaskPlan},
    process::Process,
    tool,
    world::{Happening, Shared, World},
};

/// What reached a client, or the simulation, from a process.
pub(super) enum Mail {
    Client {
        client: usize,
        request: u64,
        reply: Box<Reply>,
    },
    /// A process has drained.
    Drained {
        process: usize,
        incarnation: u32,
    },
}

pub(super) enum Reply {
    Created(Result<Created, StoreError>),
    Inline(Inline),
    Task(Result<Option<Task>, StoreError>),
    /// What became of events, and whether they were somebody else's to send.
    Applied(Result<Applied, StoreError>, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has no task yet.
    Calling,
    /// It made its call and does not know what became of it.
    InTheDark,
    Following(TaskId),
    Done,
}

pub(super) struct Client {
    number: usize,
    stage: Stage,
    /// The ids that its call was made under.
    pub(super) ids: Vec<TaskId>,
    by: By,
    requests: u64,
    /// The request that it waits for.
    waits_for: Option<u64>,
    leave: CancellationToken,
    /// The newest revision that it saw.
    revision: u64,
    cancelled: bool,
    /// How often it has yet to bother a task that is over.
    afterwards: u64,
}

impl Client {
    pub(super) fn new(number: usize, plan: &TaskPlan, afterwards: u64) -> Self {
        Self {
            number,
            stage: Stage::Calling,
            ids: Vec::new(),
            by: By::Owner(plan.owner.clone()),
            requests: 0,
            waits_for: None,
            leave: CancellationToken::new(),
            revision: 0,
            cancelled: false,
            afterwards,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Does the next thing, over this process.
    pub(super) fn act(&mut self, shared: &Shared, through: &Process) {
        if self.waits_for.is_some() {
            return;
        }
        let mut world = shared.lock();
        let plan = world.plan.clone();
        let task = &plan.tasks[self.number];
        match self.stage {
            Stage::Calling => self.call(&mut world, shared, task, &plan, through),
            Stage::InTheDark => self.look_around(&mut world, task),
            Stage::Following(id) => {
                let due = task.cancel_at.is_some_and(|at| at <= world.now);
                if due && !self.cancelled {
                    self.cancelled = true;
                    self.apply(&mut world, shared, through, id, self.by.clone(), vec![Event::Cancel]);
                } else {
                    let engine = through.engine.clone();
                    self.request(
                        &mut world,
                        shared,
                        through,
                        async move { Reply::Task(engine.get(id).await) },
                    );
                }
            }
            Stage::Done => {}
        }
    }

    fn request(
        &mut self,
        world: &mut World,
        shared: &Shared,
        through: &Process,
        request: impl Future<Output = Reply> + Send + 'static,
    ) {
        self.requests += 1;
        let (client, number) = (self.number, self.requests);
        self.waits_for = Some(number);
        let shared = shared.clone();
        through.spawn(async move {
            let reply = request.await;
            let reply = Box::new(reply);
            shared.lock().mail.push(Mail::Client { client, request: number, reply });
        });
        let patience = world.rng.between(1_000, 8_000);
        world.schedule(patience, Happening::GivenUp(client, number));
    }

    fn apply(
        &mut self,
        world: &mut World,
        shared: &Shared,
        through: &Process,
        id: TaskId,
        by: By,
        events: Vec<Event>,
    ) {
        let engine = through.engine.clone();
        let foreign = by != self.by;
        self.request(world, shared, through, async move {
            Reply::Applied(engine.apply(id, by, events).await, foreign)
        });
    }

    fn call(&mut self, world: &mut World, shared: &Shared, task: &TaskPlan, plan: &Plan, through: &Process) {
        let id = world.rng.id();
        let spec = outlast_core::Spec { version: through.version.to_owned(), ..task.spec.clone() };
        let mut new = NewTask::new(id, task.owner.clone(), spec, outlast_core::Call::new(tool::params(id)));
        new.max_open = plan.max_open;
        new.idempotency = task
            .keyed
            .then(|| IdempotencyKey { key: format!("call {}", self.number).into(), request: [1; 32] });
        self.ids.push(id);
        world.oracle.expect_task(new.clone(), task.program.clone());
        world.note(format_args!("client {} calls {id:?} through {}", self.number, through.caller.process));
        let engine = through.engine.clone();
        match task.inline.filter(|_| !task.keyed) {
            Some(patience) => {
                self.leave = CancellationToken::new();
                let (leave, run) = (self.leave.clone(), Run::inline(id, new.spec.asks));
                let patience = Duration::from_millis(patience);
                let always = self.number.is_multiple_of(2);
                self.request(world, shared, through, async move {
                    Reply::Inline(engine.begin_inline(new, patience, always, run, leave).await)
                });
            }
            None => {
                self.request(world, shared, through, async move { Reply::Created(engine.begin(new).await) });
            }
        }
    }

    /// A call without a key whose answer was lost: somebody at the machine finds what became of it.
    fn look_around(&mut self, world: &mut World, task: &TaskPlan) {
        if task.keyed {
            self.stage = Stage::Calling;
        } else if world.calm {
            self.stage = Stage::Done;
            self.takes_over(world);
        }
        self.again(world, 10);
    }

    /// Follows what became of its call after all, on the word of somebody at the machine.
    pub(super) fn takes_over(&mut self, world: &mut World) {
        if let Some(id) = world.oracle.unfinished_of(&self.ids).filter(|_| self.is_done()) {
            self.stage = Stage::Following(id);
            self.by = By::Operator;
            self.again(world, 10);
        }
    }

    fn again(&self, world: &mut World, soonest: u64) {
        let pause = if world.calm { 50 } else { 1_500 };
        let after = world.rng.between(soonest, soonest + pause);
        world.schedule(after, Happening::Client(self.number));
    }

    /// No answer came in time.
    pub(super) fn gives_up(&mut self, world: &mut World, request: u64) {
        if self.waits_for != Some(request) {
            return;
        }
        world.coverage.count("replies that clients lost");
        world.note(format_args!("client {} gives up {request}", self.number));
        self.waits_for = None;
        self.leave.cancel();
        if self.stage == Stage::Calling {
            self.stage = Stage::InTheDark;
        }
        self.again(world, 1);
    }

    /// An answer came, perhaps to a request that it has given up.
    pub(super) fn hears(&mut self, shared: &Shared, through: Option<&Process>, request: u64, reply: Reply) {
        let mut world = shared.lock();
        if self.waits_for != Some(request) || (!world.calm && world.rng.chance(30)) {
            return;
        }
        self.waits_for = None;
        match reply {
            Reply::Created(Ok(Created::Created { task, .. } | Created::Existing(task))) => {
                self.stage = Stage::Following(task.id);
            }
            Reply::Created(Ok(Created::KeySpent)) => {
                let ended = self.ids.iter().any(|id| world.oracle.was_purged(*id));
                world.oracle.expect("a key is spent only by a task that is gone", ended, String::new);
                self.stage = Stage::Done;
            }
            Reply::Created(Ok(Created::KeyReused)) => {
                world.oracle.expect("the same request is never refused for its key", false, String::new);
            }
            Reply::Created(Ok(Created::OverQuota)) | Reply::Inline(Inline::NotCreated(_)) => {
                return self.is_refused(&mut world);
            }
            Reply::Created(Err(_)) => self.stage = Stage::InTheDark,
            Reply::Inline(inline) => self.hears_inline(&mut world, inline),
            Reply::Task(Ok(Some(task))) => return self.reads(&mut world, shared, through, &task),
            Reply::Task(Ok(None)) => {
                let Stage::Following(id) = self.stage else { return };
                let purged = world.oracle.was_purged(id);
                world.oracle.expect("a task that was created is found", purged, || format!("{id:?}"));
                self.stage = Stage::Done;
            }
            Reply::Applied(Ok(Applied::NotFound), false) => {
                let purged = self.ids.iter().any(|id| world.oracle.was_purged(*id));
                world
                    .oracle
                    .expect("a task that was created is found", purged, || format!("{:?}", self.stage));
            }
            Reply::Task(Err(_)) | Reply::Applied(..) => {}
        }
        self.again(&mut world, 1);
    }

    /// There is no room for its task yet: it tries again.
    fn is_refused(&mut self, world: &mut World) {
        let id = self.ids.pop();
        world.oracle.ledgers.retain(|known, ledger| Some(*known) != id || ledger.view.is_some());
        world.coverage.count("calls over quota");
        self.again(world, 1_000);
    }

    fn hears_inline(&mut self, world: &mut World, inline: Inline) {
        match inline {
            Inline::Task(task) => self.stage = Stage::Following(task.id),
            Inline::Ended(ended) => {
                world.coverage.count("calls that ended inline");
                if let (Ended::Result(result), Some(id)) = (ended, self.ids.last()) {
                    let said = world.oracle.said(*id, &outlast_core::TaskState::Completed { result });
                    world.oracle.expect("a call ends as its tool said", said, || format!("{id:?}"));
                }
                self.stage = Stage::Done;
            }
            Inline::CallerLeft => self.stage = Stage::Done,
            Inline::Failed(_) => self.stage = Stage::InTheDark,
            Inline::NotCreated(_) => {}
        }
    }

    /// It reads its task.
    fn reads(&mut self, world: &mut World, shared: &Shared, through: Option<&Process>, task: &Task) {
        let newest = self.revision;
        world.oracle.expect("a read never shows less than one before it", task.revision >= newest, || {
            format!("{:?}, revision {} after {newest}", task.id, task.revision)
        });
        self.revision = task.revision;
        let Some(through) = through else { return self.again(world, 1) };
        if task.is_final() {
            if self.afterwards == 0 {
                self.stage = Stage::Done;
                return;
            }
            self.afterwards -= 1;
            let late = match self.afterwards {
                0 => Event::Cancel,
                _ => Event::Answer { key: tool::input("nobody"), answer: tool::nonsense() },
            };
            self.apply(world, shared, through, task.id, self.by.clone(), vec![late]);
            return;
        }
        let asked: Vec<InputKey> =
            task.live().map(|live| live.questions.keys().cloned().collect()).unwrap_or_default();
        if asked.is_empty() || world.withholds_answers() {
            return self.again(world, 20);
        }
        if world.calm {
            let answers = asked.iter().map(|key| (key, 0));
            let events = answers.map(|(key, variant)| answer(task.id, key, variant)).collect();
            return self.apply(world, shared, through, task.id, self.by.clone(), events);
        }
        let key = world.rng.pick(&asked.iter().collect::<Vec<_>>()).clone();
        let by = self.by.clone();
        let variant = world.rng.below(3);
        let (by, events) = match world.rng.below(12) {
            0..=4 => (by, vec![answer(task.id, &key, variant)]),
            5 => (by, asked.iter().map(|key| answer(task.id, key, variant)).collect()),
            // Twice at once, and not the same.
            6 => (by, vec![answer(task.id, &key, variant), answer(task.id, &key, variant + 1)]),
            7 => (By::Owner(Owner::new("eve")), vec![answer(task.id, &key, variant)]),
            8 => (by, vec![Event::Answer { key, answer: tool::nonsense() }]),
            9 => (by, vec![Event::Answer { key: tool::input("nobody"), answer: tool::nonsense() }]),
            _ => return self.again(world, 100),
        };
        self.apply(world, shared, through, task.id, by, events);
    }
}

fn answer(id: TaskId, key: &InputKey, variant: u64) -> Event {
    Event::Answer { key: key.clone(), answer: tool::answer(id, key, variant) }
}
