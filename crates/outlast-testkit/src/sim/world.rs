//! Everything outside the processes: the one store, the network between it and them, time, and what goes wrong.
//!
//! Calls are values that are under way. The world carries them out and answers them at their times, whether or not the
//! process that sent them is awake, or alive.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use outlast_core::{
    Clock as _, Hint, HintSender, Hints, ManualClock, MemoryStore, Store as _, StoreError, TaskId, Timestamp,
    Token,
};

use super::{
    client::Mail,
    coverage::{Coverage, Fault},
    network::Call,
    oracle::{Oracle, Raw},
    plan::Plan,
    planted::Planted,
    request::at_once,
    rng::{Rng, mix},
    trace::Trace,
};

/// Something that is to happen at a time.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    /// A call reaches the store.
    Effect(u64),
    /// Its answer reaches its sender.
    Answered(u64),
    /// What was written becomes durable.
    Synced,
    /// A hint reaches a process of this incarnation.
    Hint(usize, u32, Hint),
    /// A client looks at its task.
    Client(usize),
    /// A client no longer waits for the answer to its request of this number.
    GivenUp(usize, u64),
    /// A process starts.
    Start(usize),
    /// A disaster of the plan.
    Disaster(usize),
    OutageEnds,
    /// The store loses its power, alone or with all processes.
    PowerLost {
        with_processes: bool,
    },
    /// Faults stop.
    Calm,
}

/// One incarnation of a process, as one of the world's calls knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) process: usize,
    pub(super) incarnation: u32,
}

/// Where a process meets the world.
pub(super) struct Door {
    pub(super) incarnation: u32,
    /// Whether it is alive.
    pub(super) open: bool,
    pub(super) hints: HintSender,
    /// What its worker calls itself.
    pub(super) worker: String,
    /// The newest token of each task that it was told.
    pub(super) tokens: BTreeMap<TaskId, Token>,
    pub(super) trap: Option<Trap>,
    /// Wakes whoever runs the process, to see that it is dead.
    pub(super) dies: Option<Waker>,
    /// The moment of its last call, and how many it made at that.
    pub(super) busy: (u64, u32),
}

/// A death at a store call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trap {
    /// So many calls before it.
    pub(super) calls: u64,
    pub(super) at: Fault,
}

pub(super) struct World {
    pub(super) plan: Arc<Plan>,
    pub(super) rng: Rng,
    /// In simulated milliseconds.
    pub(super) now: u64,
    pub(super) agenda: BTreeMap<(u64, u64), Happening>,
    pub(super) numbers: u64,
    pub(super) store: MemoryStore,
    pub(super) clock: ManualClock,
    pub(super) changes: Hints,
    /// The store as it would be after a power cut, where one may come.
    pub(super) durable: Option<MemoryStore>,
    pub(super) dirty: bool,
    pub(super) unsynced: Vec<u64>,
    pub(super) unsynced_hints: Vec<TaskId>,
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) doors: Vec<Door>,
    pub(super) down: bool,
    /// The store is about to lose its power, with all processes or alone, when there is something to lose.
    pub(super) failing: Option<bool>,
    pub(super) calm: bool,
    pub(super) oracle: Oracle,
    pub(super) coverage: Coverage,
    pub(super) trace: Trace,
    pub(super) planted: Planted,
    /// What reached clients since they last looked.
    pub(super) mail: Vec<Mail>,
}

/// The world, as all hold it.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(super) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first instant of 2026.
pub(super) const EPOCH: Timestamp = Timestamp::from_millis(1_767_225_600_000);

impl World {
    pub(super) fn new(seed: u64, plan: Arc<Plan>, planted: Planted, keep_trace: bool) -> Self {
        let clock = ManualClock::new(EPOCH);
        let store = MemoryStore::new(clock.clone());
        let changes = store.watch();
        let doors = (0..plan.processes).map(|_| Door::closed(&plan)).collect();
        let durable = plan.faults.power.then(|| store.fork());
        Self {
            rng: Rng::new(mix(seed, 0xc0de)),
            now: 0,
            agenda: BTreeMap::new(),
            numbers: 0,
            changes,
            durable,
            dirty: false,
            unsynced: Vec::new(),
            unsynced_hints: Vec::new(),
            calls: BTreeMap::new(),
            doors,
            down: false,
            failing: None,
            calm: false,
            oracle: Oracle::default(),
            coverage: Coverage::default(),
            trace: Trace::new(keep_trace),
            planted,
            mail: Vec::new(),
            store,
            clock,
            plan,
        }
    }

    pub(super) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// A number that no other call returned.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The code of a step begins.
    pub(super) fn step_begins(&mut self, id: TaskId, key: &str, token: Option<Token>, worker: &str) {
        let raw = Raw { store: &self.store, taken_away: &self.planted.taken_away };
        self.oracle.step_begins(id, key, token, worker, &raw);
        self.coverage.count("steps that were run");
    }

    // --- time

    pub(super) fn schedule(&mut self, after: u64, what: Happening) {
        self.numbers += 1;
        self.agenda.insert((self.now + after, self.numbers), what);
    }

    /// When something next happens.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    /// Lets time pass, and takes what is due by then.
    pub(super) fn pass(&mut self, to: u64) {
        self.clock.advance(Duration::from_millis(to - self.now));
        self.now = to;
    }

    pub(super) fn due(&mut self) -> Option<Happening> {
        let first = self.agenda.first_entry()?;
        if first.key().0 > self.now { None } else { Some(first.remove()) }
    }

    /// The store's time, as its last answer told it.
    pub(super) fn store_now(&self) -> Timestamp {
        at_once(outlast_core::Inspect::list(
            &self.store,
            outlast_core::Filter::default(),
            Some("0".to_owned()),
            0,
        ))
        .map_or_else(|_| self.clock.now(), |page| page.now)
    }

    // --- processes

    /// A process starts anew.
    pub(super) fn open(&mut self, process: usize) -> Caller {
        let trap = (!self.calm && self.rng.chance(self.plan.faults.trap)).then(|| Trap {
            calls: self.rng.between(1, 40),
            at: self.rng.pick(&[Fault::CrashBefore, Fault::CrashAfter, Fault::CrashAtAnswer]),
        });
        let incarnation = self.doors[process].incarnation + 1;
        self.doors[process] = Door { incarnation, open: true, trap, ..Door::closed(&self.plan) };
        Caller { process, incarnation }
    }

    /// A process is dead. What it sent may still arrive.
    pub(super) fn close(&mut self, process: usize) {
        let door = &mut self.doors[process];
        door.open = false;
        if let Some(waker) = door.dies.take() {
            waker.wake();
        }
        let arrives = !self.plan.exclusive && self.rng.chance(500);
        self.calls.retain(|_, call| {
            if call.from.process != process {
                return true;
            }
            call.reply = None;
            arrives && call.answer.is_none()
        });
    }

    /// How many tasks the worker of this process holds.
    pub(super) fn held_by(&self, caller: Caller) -> usize {
        self.oracle.held_by(&self.doors[caller.process].worker)
    }

    pub(super) fn lives(&self, caller: Caller) -> bool {
        let door = &self.doors[caller.process];
        door.open && door.incarnation == caller.incarnation
    }

    // --- the end of faults

    /// Faults stop: what hangs is told so.
    pub(super) fn calm_down(&mut self) {
        self.note(format_args!("calm"));
        self.calm = true;
        self.failing = None;
        self.oracle.calm_since = Some(self.now);
        self.down = false;
        self.doors.iter_mut().for_each(|door| door.trap = None);
        // What is late arrives.
        let far = self.agenda.split_off(&(self.now + 10, 0));
        for (at, what) in far {
            match what {
                Happening::Effect(_) | Happening::Answered(_) | Happening::Hint(..) => self.schedule(1, what),
                _ => drop(self.agenda.insert(at, what)),
            }
        }
        self.calls.values_mut().filter(|call| call.answer_in != u64::MAX).for_each(|call| call.answer_in = 1);
        let mut hanging = Vec::new();
        for (number, call) in &mut self.calls {
            if call.answer_in == u64::MAX {
                call.answer_in = 1;
                if call.answer.is_some() {
                    call.answer = Some(Err(StoreError::unknown("the connection was lost")));
                    hanging.push(*number);
                }
            }
        }
        hanging.retain(|number| !self.unsynced.contains(number));
        for number in hanging {
            self.schedule(1, Happening::Answered(number));
        }
    }

    /// Whether clients keep their answers back for a while.
    pub(super) fn withholds_answers(&self) -> bool {
        self.calm && self.now < self.plan.calm_at + self.plan.silence
    }

    /// Whether nothing is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.calls.is_empty()
    }
}

impl Door {
    fn closed(plan: &Plan) -> Self {
        Self {
            incarnation: 0,
            open: false,
            hints: HintSender::new(plan.hint_room),
            worker: String::new(),
            tokens: BTreeMap::new(),
            trap: None,
            dies: None,
            busy: (0, 0),
        }
    }
}
