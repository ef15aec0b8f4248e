//! A run from its plan to its verdict: whose turn it is, and when it is over.

use std::{sync::Arc, time::Duration};

use outlast_core::{Clock as _, Timestamp};

use super::{
    client::{Client, Mail},
    coverage::Coverage,
    oracle::Violation,
    plan::{Disaster, Plan},
    planted::{Bug, Planted},
    process::{Process, Turn},
    rng::{Rng, mix},
    world::{Happening, Shared, World},
};

/// How runs are made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup {
    /// A bug to plant.
    pub bug: Option<Bug>,
    /// Whether to keep what happened as text.
    pub trace: bool,
}

/// What came out of a run.
#[derive(Debug)]
pub struct Outcome {
    /// A hash of all that happened: two runs of one seed have the same.
    pub hash: u64,
    /// What was found, if anything.
    pub violation: Option<Violation>,
    /// What the run reached.
    pub coverage: Coverage,
    /// How much time went by in it, in simulated milliseconds.
    pub millis: u64,
    /// What happened, if it was to be kept.
    pub trace: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn simulate(seed: u64, setup: &Setup) -> Outcome {
    let plan = Arc::new(Plan::of(seed));
    let world = World::new(seed, plan.clone(), Planted::new(setup.bug), setup.trace);
    let mut rng = Rng::new(mix(seed, 0x7u64));
    let clients = plan.tasks.iter().enumerate().map(|(n, task)| Client::new(n, task, rng.below(3))).collect();
    let processes = (0..plan.processes).map(|_| None).collect();
    let mut run = Simulation { plan, shared: Shared::new(world), rng, processes, clients, waited: false };
    run.run();
    run.outcome()
}

struct Simulation {
    plan: Arc<Plan>,
    shared: Shared,
    /// Decides whose turn it is.
    rng: Rng,
    processes: Vec<Option<Process>>,
    clients: Vec<Client>,
    /// Whether it was seen that what does not end waits for something.
    waited: bool,
}

/// How long nothing may get on after faults stopped: longer than any sleep, lease or backoff.
const STUCK: u64 = 180_000;

impl Simulation {
    fn run(&mut self) {
        self.set_up();
        loop {
            let now = self.advance();
            while let Some(happening) = self.due() {
                self.happen(happening);
            }
            self.turns(now);
            self.deliver();
            self.bury();
            if self.shared.lock().oracle.found().is_some() || self.is_over() {
                return;
            }
        }
    }

    fn set_up(&self) {
        let mut world = self.shared.lock();
        (0..self.processes.len()).for_each(|process| world.schedule(0, Happening::Start(process)));
        for (client, task) in self.plan.tasks.iter().enumerate() {
            world.schedule(task.at, Happening::Client(client));
        }
        for (n, (at, _)) in self.plan.disasters.iter().enumerate() {
            world.schedule(*at, Happening::Disaster(n));
        }
        world.schedule(self.plan.calm_at, Happening::Calm);
    }

    /// Lets time pass to when something next happens, or a little while.
    fn advance(&mut self) -> u64 {
        let mut world = self.shared.lock();
        let idle = world.now + self.rng.between(1, self.plan.idle);
        let next = world.next_at().map_or(idle, |at| at.clamp(world.now + 1, idle.max(world.now + 1)));
        world.pass(next);
        next
    }

    fn due(&self) -> Option<Happening> {
        self.shared.lock().due()
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Effect(call) => self.shared.lock().effect(call),
            Happening::Answered(call) => self.shared.lock().answered(call),
            Happening::Synced => self.shared.lock().synced(),
            Happening::Hint(process, incarnation, hint) => {
                self.shared.lock().hinted(process, incarnation, hint);
            }
            Happening::Client(client) => self.client_acts(client),
            Happening::GivenUp(client, request) => {
                self.clients[client].gives_up(&mut self.shared.lock(), request);
            }
            Happening::Start(process) => self.start(process),
            Happening::Disaster(n) => self.strike(self.plan.disasters[n].1),
            Happening::OutageEnds => self.shared.lock().down = false,
            Happening::PowerLost { with_processes } => {
                self.shared.lock().lose_unsynced(with_processes);
                if with_processes {
                    (0..self.processes.len()).for_each(|process| self.crash(process));
                }
            }
            Happening::Calm => self.calm_down(),
        }
    }

    // --- processes

    fn start(&mut self, process: usize) {
        if self.processes[process].is_some() {
            return;
        }
        let (caller, calm, now) = {
            let mut world = self.shared.lock();
            let caller = world.open(process);
            let calm = world.calm;
            world.note(format_args!("{process}.{} starts", caller.incarnation));
            (caller, calm, world.now)
        };
        // A deploy may bring another version, and may leave out the older one.
        let versions = match self.rng.below(6) {
            _ if calm => &["2", "1"][..],
            0 => &["2"],
            1 => &["2", "1"],
            _ => &["1"],
        };
        self.processes[process] = Some(Process::start(&self.shared, caller, versions, now));
    }

    fn turns(&mut self, now: u64) {
        let many = self.processes.len();
        let first = self.rng.below(many as u64) as usize;
        let calm = self.shared.lock().calm;
        for n in 0..many {
            let Some(process) = &mut self.processes[(first + n) % many] else { continue };
            match process.stalled_until {
                Some(until) if until > now && !calm => continue,
                Some(_) => process.stalled_until = None,
                None => {}
            }
            let dies = !calm && self.rng.below(10_000) < self.plan.faults.death;
            let left_off = !calm && self.rng.chance(self.plan.left_off);
            let turn = if dies || left_off { Turn::Polls(self.rng.between(1, 6)) } else { Turn::Idle };
            process.run(turn, now);
            if dies {
                let number = process.caller.process;
                self.shared.lock().coverage.count("deaths between two polls");
                self.crash(number);
            }
        }
    }

    /// Ends what died in its turn, and has it started again.
    fn bury(&mut self) {
        for process in 0..self.processes.len() {
            let dead = self.processes[process].is_some() && !self.shared.lock().doors[process].open;
            if dead {
                self.crash(process);
            }
        }
    }

    fn crash(&mut self, process: usize) {
        let Some(dead) = self.processes[process].take() else { return };
        {
            let mut world = self.shared.lock();
            world.note(format_args!("{process}.{} crashes", dead.caller.incarnation));
            world.close(process);
        }
        // What its futures do when they are dropped reaches nobody any more.
        drop(dead);
        let pause = if self.shared.lock().calm { 1 } else { self.rng.pick(&[1, 100, 2_000, 6_000]) };
        self.shared.lock().schedule(pause, Happening::Start(process));
    }

    fn strike(&mut self, disaster: Disaster) {
        {
            let mut world = self.shared.lock();
            if world.calm {
                return;
            }
            world.note(format_args!("{disaster:?}"));
            world.coverage.count(disaster.name());
        }
        let now = self.shared.lock().now;
        match disaster {
            Disaster::Crash(process) => self.crash(process),
            Disaster::Drain(process) => {
                if let Some(process) = &mut self.processes[process] {
                    drain(process, &self.shared);
                }
            }
            Disaster::Stall(process, millis) => {
                if let Some(process) = &mut self.processes[process] {
                    process.stalled_until = Some(now + millis);
                }
            }
            Disaster::PowerCut => self.shared.lock().failing = Some(true),
            Disaster::StoreCrash => self.shared.lock().failing = Some(false),
            Disaster::Outage(millis) => {
                let mut world = self.shared.lock();
                world.down = true;
                world.schedule(millis, Happening::OutageEnds);
            }
            Disaster::SetStoreClock(by) => {
                let world = self.shared.lock();
                world.clock.set_wall(Timestamp::from_millis(world.clock.now().as_millis() + by));
            }
            Disaster::SetProcessClock(process, by) => {
                if let Some(process) = &self.processes[process] {
                    process.set_clock(by);
                }
            }
        }
    }

    /// Faults stop, and every version is served.
    fn calm_down(&mut self) {
        let mut world = self.shared.lock();
        world.calm_down();
        (0..self.processes.len()).for_each(|process| world.schedule(1, Happening::Start(process)));
        for process in self.processes.iter().flatten() {
            for version in ["1", "2"] {
                process.engine.serve(outlast_core::ToolVersion::new(super::plan::TOOL, version));
            }
        }
        (0..self.clients.len()).for_each(|client| world.schedule(1, Happening::Client(client)));
    }

    // --- clients

    fn open_process(&mut self) -> Option<usize> {
        let open: Vec<_> = (0..self.processes.len())
            .filter(|n| self.processes[*n].as_ref().is_some_and(|process| !process.draining))
            .collect();
        if open.is_empty() { None } else { Some(self.rng.pick(&open)) }
    }

    fn client_acts(&mut self, client: usize) {
        let Some(through) = self.open_process() else {
            return self.shared.lock().schedule(100, Happening::Client(client));
        };
        if let Some(process) = &self.processes[through] {
            self.clients[client].act(&self.shared, process);
        }
    }

    fn deliver(&mut self) {
        loop {
            let mail = std::mem::take(&mut self.shared.lock().mail);
            if mail.is_empty() {
                return;
            }
            for mail in mail {
                match mail {
                    Mail::Client { client, request, reply } => {
                        let through = self.open_process().and_then(|n| self.processes[n].as_ref());
                        self.clients[client].hears(&self.shared, through, request, *reply);
                    }
                    Mail::Drained { process, incarnation } => {
                        let same = |known: &Process| known.caller.incarnation == incarnation;
                        if self.processes[process].as_ref().is_some_and(same) {
                            self.crash(process);
                        }
                    }
                }
            }
        }
    }

    // --- the end

    fn is_over(&mut self) -> bool {
        let mut world = self.shared.lock();
        if !world.calm {
            return false;
        }
        if world.now > world.oracle.progress_at.max(self.plan.calm_at) + STUCK {
            let loaded: Vec<_> =
                self.processes.iter().flatten().map(|process| process.engine.loaded()).collect();
            let clients: Vec<_> = self.clients.iter().map(Client::is_done).collect();
            let stuck = format!(
                "unfinished: {}; loaded: {loaded:?}; clients that are done: {clients:?}; nothing under way: {}",
                world.oracle.unfinished(),
                world.is_quiet()
            );
            world.oracle.expect("when faults stop, every task ends", false, || stuck);
            return true;
        }
        // Long enough for every worker to hear what it lost, and to park what may be parked.
        let rest = self.plan.lease.max(self.plan.park_after).as_millis() as u64 + 1_000;
        if world.is_quiet() && world.now > world.oracle.progress_at.max(self.plan.calm_at) + rest {
            for process in self.processes.iter().flatten() {
                let (loaded, held) = (process.engine.loaded().0, world.held_by(process.caller));
                world.oracle.expect("what is parked or over holds no memory", loaded <= held, || {
                    format!("{} of {held} tasks are loaded in {}", loaded, process.caller.process)
                });
            }
            // What an earlier attempt asked is taken back by work that has stood still for a second, and not before.
            if self.plan.park_after >= Duration::from_secs(1) {
                world.oracle.at_rest();
            }
        }
        if !self.waited && self.plan.silence > 0 && !world.withholds_answers() {
            self.waited = true;
            let (now, stuck) = (world.store_now(), world.oracle.unfinished());
            let wait = world.oracle.all_wait(now);
            world.oracle.expect("what does not end waits for something", wait, || stuck);
        }
        if !world.oracle.all_ended() {
            self.clients.iter_mut().for_each(|client| client.takes_over(&mut world));
        }
        let ended = self.clients.iter().all(Client::is_done) && world.oracle.all_ended();
        if !ended || !world.is_quiet() {
            return false;
        }
        let loaded: Vec<_> = self.processes.iter().flatten().map(|process| process.engine.loaded()).collect();
        loaded.iter().all(|(loaded, _)| *loaded == 0)
    }

    fn outcome(self) -> Outcome {
        // Whatever is left in the processes does not count.
        drop(self.processes);
        let mut world = self.shared.lock();
        let violation = world.oracle.found().cloned();
        let trace = std::mem::take(&mut world.trace);
        Outcome {
            hash: trace.hash(),
            violation,
            coverage: std::mem::take(&mut world.coverage),
            millis: world.now,
            trace: trace.into_lines(),
        }
    }
}

fn drain(process: &mut Process, shared: &Shared) {
    if process.draining {
        return;
    }
    process.draining = true;
    let (engine, shared, caller) = (process.engine.clone(), shared.clone(), process.caller);
    process.spawn(async move {
        engine.drain().await;
        let drained = Mail::Drained { process: caller.process, incarnation: caller.incarnation };
        shared.lock().mail.push(drained);
    });
}

impl Disaster {
    fn name(self) -> &'static str {
        match self {
            Self::Crash(_) => "crashes",
            Self::Drain(_) => "drains",
            Self::Stall(..) => "stalls",
            Self::PowerCut => "power cuts to come",
            Self::StoreCrash => "store crashes to come",
            Self::Outage(_) => "outages",
            Self::SetStoreClock(_) => "store clocks set",
            Self::SetProcessClock(..) => "process clocks set",
        }
    }
}
