//! The load: calls are made faster than they are brought on, until the kill.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outlast_testkit::Seed;

use crate::{
    caller::{Called, Caller, Gone},
    clock,
    ledger::{Ledger, Line},
    plan::{self, Plan, Step},
    process::{Process, Site},
    upstream::Folder,
};

const CREATORS: usize = 4;
const DRIVERS: usize = 6;
/// How many tasks may be there that are not yet brought as far as their plans say.
const AHEAD: usize = 100;
/// How many tasks are there before the gateway may be killed.
const TASKS: usize = 200;
/// The owners that the tasks are spread over.
const OWNERS: u64 = 3;
/// Far more than a round takes.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a task is looked at: a little less often than the gateway lets anybody.
pub(crate) const PACE: Duration = Duration::from_millis(120);
/// A round that makes so many calls and never finds all states at once is broken.
const TOO_MANY: usize = 2_000;

/// How the load ended.
pub(crate) struct Killed {
    /// The lines of the log that were written after all states were hit, before the kill.
    pub(crate) lines_after: u64,
}

/// Starts a gateway, loads it, and kills it.
pub(crate) fn until_killed(site: &Site, seed: u64) -> Killed {
    let mut seed = Seed(seed);
    let lines_after = seed.below(60);
    let plans = plan::of_seed(&mut seed);
    let gateway = site.gateway();
    let load = Load {
        callers: (0..OWNERS).map(|owner| Caller::new(gateway.address(), owner)).collect(),
        folder: Folder::of(site.directory()),
        ledger: Mutex::new(Ledger::create(&log(site))),
        gateway: Mutex::new(gateway),
        lines_left: Mutex::new(lines_after),
        plans: Mutex::new(Box::new(plans.enumerate())),
        jobs: Mutex::default(),
        killed: AtomicBool::new(false),
        until: clock::now() + PATIENCE,
    };
    thread::scope(|scope| {
        for _ in 0..CREATORS {
            scope.spawn(|| load.work(Load::create));
        }
        for _ in 0..DRIVERS {
            scope.spawn(|| load.work(Load::bring_on));
        }
    });
    Killed { lines_after }
}

/// Where the log of a round is.
pub(crate) fn log(site: &Site) -> PathBuf {
    site.directory().join("acknowledged")
}

struct Load {
    callers: Vec<Caller>,
    folder: Folder,
    ledger: Mutex<Ledger>,
    gateway: Mutex<Process>,
    /// How many more lines are written before the kill, once all states are hit.
    lines_left: Mutex<u64>,
    plans: Mutex<Box<dyn Iterator<Item = (usize, Plan)> + Send>>,
    jobs: Mutex<VecDeque<Job>>,
    killed: AtomicBool,
    until: Instant,
}

/// A task that is to be brought on.
struct Job {
    label: String,
    id: String,
    plan: Plan,
    /// The steps that were taken.
    taken: usize,
    caller: Caller,
    /// When it may be looked at.
    next: Instant,
}

impl Load {
    /// Works until the gateway is gone under it.
    fn work(&self, one: fn(&Self) -> Result<(), Gone>) {
        loop {
            let done = one(self);
            let is_killed = self.killed.load(Ordering::SeqCst);
            assert!(is_killed || done.is_ok(), "the gateway went away and nobody killed it");
            if is_killed {
                return;
            }
            if clock::now() > self.until {
                // The others need not wait for a moment that does not come.
                self.killed.store(true, Ordering::SeqCst);
                panic!("no moment for the kill came; never all at once: {:?}", lock(&self.ledger).missing());
            }
        }
    }

    fn create(&self) -> Result<(), Gone> {
        if lock(&self.jobs).len() >= AHEAD {
            thread::sleep(PACE / 10);
            return Ok(());
        }
        let (number, plan) = lock(&self.plans).next().unwrap();
        assert!(number < TOO_MANY, "never all at once: {:?}", lock(&self.ledger).missing());
        let owner = number as u64 % OWNERS;
        let (label, caller) = (format!("t{number}"), self.callers[owner as usize].clone());
        self.note(&label, Line::WillCall { plan: plan.name, owner });
        let tool = format!("{}__{}", plan.upstream.name(), plan.tool);
        let id = match caller.call(&label, &tool, plan.is_held())? {
            Called::Task(id) if !plan.is_held() => id,
            Called::GoesOn(id) if plan.is_held() => id,
            other => panic!("{label} of {plan:?} was answered otherwise than planned: {other:?}"),
        };
        self.note(&label, Line::Called { id: id.clone() });
        let next = clock::now();
        lock(&self.jobs).push_back(Job { label, id, plan, taken: 0, caller, next });
        Ok(())
    }

    /// Takes the next steps of the task that has waited longest.
    fn bring_on(&self) -> Result<(), Gone> {
        let job = lock(&self.jobs).pop_front();
        let Some(mut job) = job else {
            thread::sleep(PACE / 10);
            return Ok(());
        };
        thread::sleep(job.next.saturating_duration_since(clock::now()));
        while let Some(step) = job.plan.steps.get(job.taken) {
            if !self.step(&job, *step)? {
                // The others have their turns before it is looked at again.
                job.next = clock::now() + PACE;
                lock(&self.jobs).push_back(job);
                return Ok(());
            }
            job.taken += 1;
        }
        Ok(())
    }

    /// Takes a step, unless it is not time for it.
    fn step(&self, job: &Job, step: Step) -> Result<bool, Gone> {
        let Job { label, id, caller, .. } = job;
        match step {
            Step::SeeAsked | Step::SeeAtWork | Step::SeeEnd => return self.see(job, step),
            Step::Answer => {
                let asks = lock(&self.ledger).asks(label);
                for key in asks {
                    self.note(label, Line::WillAnswer { key: key.clone() });
                    caller.answer(id, &key, &before(label))?;
                    self.note(label, Line::Answered { key });
                }
            }
            Step::Cancel => {
                self.note(label, Line::WillCancel);
                caller.cancel(id)?;
                self.note(label, Line::Cancelled);
            }
            Step::Open => {
                self.note(label, Line::WillOpen);
                self.folder.open(label);
            }
        }
        Ok(true)
    }

    /// Looks whether a task is as far as the step waits for.
    fn see(&self, job: &Job, step: Step) -> Result<bool, Gone> {
        let Some(shown) = job.caller.get(&job.id)? else { return Ok(false) };
        let is_there = match step {
            Step::SeeAsked => !shown.asks().is_empty(),
            Step::SeeAtWork => shown.is_at_work(),
            _ => shown.is_final(),
        };
        let Job { label, plan, .. } = job;
        assert!(is_there || !shown.is_final(), "{label} of {plan:?} ended otherwise than planned: {shown:?}");
        if is_there {
            self.note(label, Line::Saw(shown));
        }
        Ok(is_there)
    }

    /// Writes a line, and kills the gateway when its moment has come.
    fn note(&self, label: &str, line: Line) {
        let mut ledger = lock(&self.ledger);
        ledger.write(label, line);
        // The gateway may have acknowledged more before it died than the client has read so far.
        if self.killed.load(Ordering::SeqCst) || !self.is_time(&ledger) {
            return;
        }
        self.killed.store(true, Ordering::SeqCst);
        lock(&self.gateway).kill();
    }

    fn is_time(&self, ledger: &Ledger) -> bool {
        if ledger.acknowledged() < TASKS || !ledger.missing().is_empty() {
            return false;
        }
        let mut lines_left = lock(&self.lines_left);
        if *lines_left > 0 {
            *lines_left -= 1;
            return false;
        }
        true
    }
}

/// A worker that panicked says why itself; the others need not add to it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a task is answered before the kill.
pub(crate) fn before(label: &str) -> String {
    format!("{label}-before")
}
