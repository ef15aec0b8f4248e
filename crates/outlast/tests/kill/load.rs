//! The load: tasks are created faster than they are brought on, until the kill.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};

use outlast_testkit::Seed;

use crate::{
    caller::{Caller, Gone},
    ledger::{Ledger, Line},
    plan::{self, Plan, Step},
    process::Server,
    tools::Folder,
};

const CREATORS: usize = 4;
const DRIVERS: usize = 8;
/// How many tasks may be created and not yet brought as far as their plans say. Far more than there are slots.
const AHEAD: usize = 100;
/// How many tasks are there before the server may be killed.
const TASKS: usize = 200;
/// How many of the tasks have not begun by then: more than are just beginning, so that some are queued for certain.
const QUEUED: usize = 6;
/// The owners that the tasks are spread over.
const OWNERS: u64 = 3;
/// Far more than a round takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// A round that creates so many tasks and never finds all states at once is broken.
const TOO_MANY: usize = 2_000;

/// How the load ended.
pub(crate) struct Killed {
    /// The lines of the log that were written after all states were hit, before the kill.
    pub(crate) lines_after: u64,
}

/// Starts a server in `directory`, loads it, and kills it.
pub(crate) async fn until_killed(directory: &Path, seed: u64) -> Killed {
    let mut seed = Seed(seed);
    let lines_after = seed.below(60);
    let plans = plan::of_seed(&mut seed);
    let server = Server::start(directory);
    let load = Arc::new(Load {
        callers: (0..OWNERS).map(|owner| Caller::new(&server.url, owner)).collect(),
        folder: Folder::of(directory),
        ledger: Mutex::new(Ledger::create(&log(directory))),
        server: Mutex::new(server),
        lines_left: Mutex::new(lines_after),
        killed: AtomicBool::new(false),
    });
    timeout(PATIENCE, load.clone().run(plans)).await.unwrap_or_else(|_| {
        panic!("no moment for the kill came; never all at once: {:?}", lock(&load.ledger).missing())
    });
    Killed { lines_after }
}

/// Where the log of a round is.
pub(crate) fn log(directory: &Path) -> std::path::PathBuf {
    directory.join("acknowledged")
}

struct Load {
    callers: Vec<Caller>,
    folder: Folder,
    ledger: Mutex<Ledger>,
    server: Mutex<Server>,
    /// How many more lines are written before the kill, once all states are hit.
    lines_left: Mutex<u64>,
    killed: AtomicBool,
}

/// A task that is to be brought on.
struct Job {
    label: String,
    id: String,
    plan: Plan,
    /// The steps that were taken.
    taken: usize,
    caller: Caller,
}

impl Load {
    async fn run(self: Arc<Self>, plans: impl Iterator<Item = Plan> + Send + 'static) {
        let (jobs, queue) = mpsc::unbounded_channel();
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        let ahead = Arc::new(Semaphore::new(AHEAD));
        let plans = Arc::new(Mutex::new(plans.enumerate()));
        let mut workers = JoinSet::new();
        for _ in 0..CREATORS {
            let (load, jobs, plans, ahead) = (self.clone(), jobs.clone(), plans.clone(), ahead.clone());
            workers.spawn(async move {
                loop {
                    ahead.acquire().await.unwrap().forget();
                    let (number, plan) = lock(&plans).next().unwrap();
                    jobs.send(load.create(number, plan).await?).unwrap();
                }
            });
        }
        for _ in 0..DRIVERS {
            let (load, jobs, queue, ahead) = (self.clone(), jobs.clone(), queue.clone(), ahead.clone());
            workers.spawn(async move {
                loop {
                    let mut job: Job = queue.lock().await.recv().await.unwrap();
                    if load.bring_on(&mut job).await? {
                        ahead.add_permits(1);
                    } else {
                        // The others have their turns before it is looked at again.
                        jobs.send(job).unwrap();
                    }
                }
            });
        }
        // All of them go on until the server is gone under them.
        while let Some(ended) = workers.join_next().await {
            let Err::<(), Gone>(Gone) = ended.unwrap() else { unreachable!("they have no other end") };
            assert!(self.killed.load(Ordering::SeqCst), "the server went away and nobody killed it");
            workers.abort_all();
            while workers.join_next().await.is_some() {}
        }
    }

    async fn create(&self, number: usize, plan: Plan) -> Result<Job, Gone> {
        assert!(number < TOO_MANY, "never all at once: {:?}", lock(&self.ledger).missing());
        let owner = number as u64 % OWNERS;
        let (label, caller) = (format!("t{number}"), self.callers[owner as usize].clone());
        self.note(&label, Line::WillCreate { plan: plan.name, owner });
        let id = caller.create(&label, plan.tool).await?;
        self.note(&label, Line::Created { id: id.clone() });
        Ok(Job { label, id, plan, taken: 0, caller })
    }

    /// Takes the next steps of a plan; whether they were the last.
    async fn bring_on(&self, job: &mut Job) -> Result<bool, Gone> {
        while let Some(step) = job.plan.steps.get(job.taken) {
            match step {
                Step::SeeAsked(_) | Step::SeeAtWork | Step::SeeEnd => {
                    if !self.see(job, *step).await? {
                        return Ok(false);
                    }
                }
                Step::Answer(key) => {
                    self.note(&job.label, Line::WillAnswer { key: (*key).to_owned() });
                    job.caller.answer(&job.id, key, &before(&job.label, key)).await?;
                    self.note(&job.label, Line::Answered { key: (*key).to_owned() });
                }
                Step::Cancel => {
                    self.note(&job.label, Line::WillCancel);
                    job.caller.cancel(&job.id).await?;
                    self.note(&job.label, Line::Cancelled);
                }
                Step::Open => {
                    self.note(&job.label, Line::WillOpen);
                    self.folder.open(&job.label);
                }
            }
            job.taken += 1;
        }
        Ok(true)
    }

    /// Looks whether a task is as far as the step waits for.
    async fn see(&self, job: &Job, step: Step) -> Result<bool, Gone> {
        let shown = job.caller.get(&job.id).await?;
        let is_there = match step {
            Step::SeeAsked(key) => shown.asks().iter().any(|asked| asked == key),
            Step::SeeAtWork => shown.is_at_work(),
            _ => shown.is_final(),
        };
        assert!(is_there || !shown.is_final(), "{} ended otherwise than planned: {shown:?}", job.label);
        if is_there {
            self.note(&job.label, Line::Saw(shown));
        }
        Ok(is_there)
    }

    /// Writes a line, and kills the server when its moment has come.
    fn note(&self, label: &str, line: Line) {
        let mut ledger = lock(&self.ledger);
        ledger.write(label, line);
        // The server may have acknowledged more before it died than the client has read so far.
        if self.killed.load(Ordering::SeqCst) || !self.is_time(&ledger) {
            return;
        }
        self.killed.store(true, Ordering::SeqCst);
        lock(&self.server).kill();
    }

    fn is_time(&self, ledger: &Ledger) -> bool {
        if ledger.created() < TASKS || !ledger.missing().is_empty() {
            return false;
        }
        let mut lines_left = lock(&self.lines_left);
        if *lines_left > 0 {
            *lines_left -= 1;
            return false;
        }
        let runs = self.folder.runs();
        ledger.labels().filter(|label| !runs.contains_key(*label)).count() >= QUEUED
    }
}

/// A worker that panicked says why itself; the others need not add to it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a task is answered before the kill.
pub(crate) fn before(label: &str, key: &str) -> String {
    format!("{label}-{key}-before")
}
