//! The load: callers who create tasks, look at them, answer and cancel, until the server is gone under them or all of
//! their tasks are over. What they are told goes into the ledger, and whether it is right is for the verdict to say.

use std::{
    fs::File,
    io::Read,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use outlast_testkit::Seed;

use crate::{
    caller::{Caller, Front, Gone},
    clock,
    ledger::{Answered, Event, Known, Ledger},
    plan::{Cancel, OWNERS, Plan, Tool},
    process::Server,
    snapshot,
};

/// How long a caller waits before it looks at a task again.
const PACE: Duration = Duration::from_millis(15);
/// Far more than an answer takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Far more than it takes until every task is over once no more kills come.
pub(crate) const ALL_OVER: Duration = Duration::from_secs(180);
/// How many looks are under way at once after a start.
const AT_ONCE: usize = 16;

/// When a server is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Moment {
    After(Duration),
    /// When so many lines were added to the side file.
    Lines(usize),
}

/// The callers of one store.
pub(crate) struct Load {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    /// What the markers of this store's tasks begin with.
    pub(crate) prefix: String,
    pub(crate) seed: Seed,
    /// How many tasks are open at one time.
    pub(crate) open: usize,
    pub(crate) created: usize,
}

impl Load {
    /// Works on a server until it is killed at `moment`. What is wrong with how it ended is returned.
    pub(crate) async fn until_killed(&mut self, server: Server, side: &Path, moment: Moment) -> Vec<String> {
        let callers = Callers::new(&Front::new([server.url.clone()]), &self.ledger, false);
        let side = side.to_owned();
        let killer = tokio::task::spawn_blocking(move || kill_at(server, &side, moment));
        callers.look_at_all().await;
        let mut followed = JoinSet::new();
        for marker in lock(&self.ledger).unfinished() {
            followed.spawn(callers.clone().follow(marker));
        }
        loop {
            while followed.len() < self.open {
                let marker = self.new_task();
                followed.spawn(callers.clone().follow(marker));
            }
            // Nobody is created any more for a server that is gone.
            if let Some(Ok(Err(Gone)) | Err(_)) = followed.join_next().await {
                break;
            }
        }
        while followed.join_next().await.is_some() {}
        killer.await.unwrap_or_else(|error| vec![error.to_string()])
    }

    /// Works on a server until every task of its store is over. The server is killed then, too.
    pub(crate) async fn until_over(&self, mut server: Server, store: &Path) -> Vec<String> {
        let callers = Callers::new(&Front::new([server.url.clone()]), &self.ledger, true);
        callers.look_at_all().await;
        let mut followed = JoinSet::new();
        for marker in lock(&self.ledger).unfinished() {
            followed.spawn(callers.clone().follow(marker));
        }
        let all = async {
            while followed.join_next().await.is_some() {}
            // Also the tasks that nobody was told of, because their server died first.
            while snapshot::unfinished(store).await != Ok(0) {
                sleep(PACE).await;
            }
        };
        // What is not over by then is found by the verdict.
        let _ = within(ALL_OVER, all).await;
        followed.shutdown().await;
        // Once more, now that everything is over.
        callers.look_at_all().await;
        if server.kill() { Vec::new() } else { vec!["the server ended by itself".to_owned()] }
    }

    /// Works on servers of which one after the other dies, until it is told to `stop`; then until every task is over.
    pub(crate) async fn keep_going(&mut self, callers: &Callers, stop: &AtomicBool) {
        let mut followed = JoinSet::new();
        while !stop.load(Ordering::Relaxed) {
            while followed.len() < self.open {
                let marker = self.new_task();
                followed.spawn(callers.clone().follow(marker));
            }
            let _ = timeout(PACE, followed.join_next()).await;
        }
        while followed.join_next().await.is_some() {}
    }

    fn new_task(&mut self) -> String {
        let marker = format!("{}{}", self.prefix, self.created);
        let plan = Plan::new(&mut self.seed, marker.clone(), self.created);
        self.created += 1;
        lock(&self.ledger).tasks.insert(marker.clone(), Known::new(plan));
        marker
    }
}

/// Waits for the moment, and kills the server.
fn kill_at(mut server: Server, side: &Path, moment: Moment) -> Vec<String> {
    wait_for(side, moment, None);
    if server.kill() { Vec::new() } else { vec!["the server ended by itself".to_owned()] }
}

/// Waits for the moment, as it is for one process of several: from when that one has begun to work, by its own lines.
pub(crate) fn wait_for(side: &Path, moment: Moment, process: Option<u64>) {
    const LOOK: Duration = Duration::from_micros(300);
    /// A server that does so little that its lines never come is killed all the same.
    const AT_THE_LATEST: Duration = Duration::from_secs(10);
    let began = clock::now();
    let mut lines = Lines::from_end(side, process);
    while process.is_some() && lines.count() == 0 && clock::since(began) < AT_THE_LATEST {
        std::thread::sleep(LOOK);
    }
    let began = clock::now();
    let is_time = |lines: usize| match moment {
        Moment::After(time) => clock::since(began) >= time,
        Moment::Lines(number) => lines >= number || clock::since(began) >= AT_THE_LATEST,
    };
    while !is_time(lines.count()) {
        std::thread::sleep(LOOK);
    }
}

/// Counts the lines that are added to a file: all, or those of one process.
struct Lines {
    file: Option<File>,
    /// What the lines of that process have in them.
    with: Option<String>,
    count: usize,
}

impl Lines {
    fn from_end(path: &Path, process: Option<u64>) -> Self {
        let mut file = File::open(path).ok();
        if let Some(file) = &mut file {
            let _ = file.read_to_end(&mut Vec::new());
        }
        Self { file, with: process.map(|process| format!("\"process\":{process},")), count: 0 }
    }

    fn count(&mut self) -> usize {
        let mut new = Vec::new();
        if let Some(file) = &mut self.file {
            let _ = file.read_to_end(&mut new);
        }
        self.count += match &self.with {
            None => new.iter().filter(|byte| **byte == b'\n').count(),
            Some(with) => String::from_utf8_lossy(&new).matches(&**with).count(),
        };
        self.count
    }
}

/// The owners of the tasks, on one life of the server or on several servers.
#[derive(Clone)]
pub(crate) struct Callers {
    owners: Vec<Caller>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    front: Arc<Front>,
    /// Everything is to come to its end: every question is answered at once.
    pub(crate) hurry: Arc<AtomicBool>,
}

impl Callers {
    pub(crate) fn new(front: &Arc<Front>, ledger: &Arc<Mutex<Ledger>>, hurry: bool) -> Self {
        let owners = (0..OWNERS).map(|owner| Caller::new(front, owner)).collect();
        let hurry = Arc::new(AtomicBool::new(hurry));
        Self { owners, ledger: ledger.clone(), front: front.clone(), hurry }
    }

    /// Looks at every task that is known, over or not.
    pub(crate) async fn look_at_all(&self) {
        let markers: Vec<_> = lock(&self.ledger).tasks.keys().cloned().collect();
        stream::iter(markers)
            .for_each_concurrent(AT_ONCE, async |marker| {
                let known = self.known(&marker);
                if let Some(id) = known.id() {
                    // A server that is gone is noticed by whoever follows the task.
                    let _ = self.look(&marker, &known.plan, id).await;
                }
            })
            .await;
    }

    /// Brings a task on until it is over or the server is gone and there is no other.
    async fn follow(self, marker: String) -> Result<(), Gone> {
        loop {
            let known = self.known(&marker);
            if known.is_over() {
                return Ok(());
            }
            match self.act(&marker, &known).await {
                Ok(()) => {}
                Err(Gone) if self.front.is_many() => self.note(&marker, Event::Unanswered),
                Err(Gone) => return Err(Gone),
            }
            sleep(PACE).await;
        }
    }

    /// The next thing that the caller of a task does.
    async fn act(&self, marker: &str, known: &Known) -> Result<(), Gone> {
        let plan = &known.plan;
        let Some(id) = known.id() else { return self.create(marker, plan).await };
        self.look(marker, plan, id).await?;
        let known = self.known(marker);
        if known.is_over() {
            return Ok(());
        }
        let due = self.due_questions(&known);
        let age = known.events.first().map_or(Duration::ZERO, |(at, _)| clock::since(*at));
        let (sent_cancel, cancelled) = known.cancel();
        let is_time = sent_cancel.is_some()
            || match plan.cancel {
                Some(Cancel::AtOnce) => true,
                Some(Cancel::After(millis)) => age >= Duration::from_millis(millis),
                Some(Cancel::WhenAsked) => !due.is_empty(),
                None => false,
            };
        if is_time && cancelled.is_none() {
            self.note(marker, Event::WillCancel);
            let answer = self.send(self.owners[plan.owner].cancel(id)).await?;
            self.acknowledged(marker, "tasks/cancel", answer, [Event::Cancelled]);
        } else if !due.is_empty() {
            let sends = known.sends();
            // A request that had no answer may still be carried out: what is sent again is the same.
            let sent = known.sent();
            let again =
                |key: &str| sent.get(key).filter(|_| self.front.is_many()).map(|name| (*name).to_owned());
            let name = |key: &str| again(key).unwrap_or_else(|| format!("{marker} {key} {sends}"));
            let mut names: Vec<_> = due.into_iter().map(|key| (key.clone(), name(&key))).collect();
            if sends.is_multiple_of(2) {
                // One answer at a time, or all of them.
                names.truncate(1);
            }
            for (key, name) in &names {
                self.note(marker, Event::WillAnswer { key: key.clone(), name: name.clone() });
            }
            let answer = self.send(self.owners[plan.owner].answer(id, &names)).await?;
            let answered = names.into_iter().map(|(key, _)| Event::Answered { key });
            self.acknowledged(marker, "tasks/update", answer, answered);
        }
        Ok(())
    }

    /// The outstanding questions that were looked at for long enough.
    fn due_questions(&self, known: &Known) -> Vec<String> {
        let Some(now) = known.last_shown() else { return Vec::new() };
        let think = known.plan.think.map(Duration::from_millis);
        let is_due = |key: &&String| {
            let first = known.shown().find(|(_, shown)| shown.asks().any(|(asked, _)| asked == *key));
            let seen = first.map_or(Duration::ZERO, |(at, _)| clock::since(at));
            self.hurry.load(Ordering::Relaxed) || think.is_some_and(|think| seen >= think)
        };
        now.asks().map(|(key, _)| key).filter(is_due).cloned().collect()
    }

    async fn create(&self, marker: &str, plan: &Plan) -> Result<(), Gone> {
        self.note(marker, Event::WillCreate);
        let arguments = json!({"marker": marker, "program": plan.program});
        let key = (plan.tool != Tool::Later).then_some(marker);
        let called = self.send(self.owners[plan.owner].call(plan.tool.name(), arguments, key)).await?;
        let event = match called {
            Answered::Result(result) if result["resultType"] == "task" => {
                Event::Created { id: result["taskId"].as_str().unwrap_or_default().to_owned() }
            }
            Answered::Result(body) if plan.tool == Tool::Later => Event::EndedInline { error: false, body },
            Answered::Error(error) if plan.tool == Tool::Later => {
                let body = serde_json::from_str(&error).unwrap_or(Value::String(error));
                Event::EndedInline { error: true, body }
            }
            Answered::Result(other) => refused("tools/call", other.to_string()),
            Answered::Error(error) => refused("tools/call", error),
        };
        self.note(marker, event);
        Ok(())
    }

    async fn look(&self, marker: &str, plan: &Plan, id: &str) -> Result<(), Gone> {
        let event = match self.send(self.owners[plan.owner].get(id)).await? {
            Answered::Result(shown) => Event::Saw(shown),
            Answered::Error(error) => refused("tasks/get", error),
        };
        self.note(marker, event);
        Ok(())
    }

    /// Waits for an answer, and not for ever.
    async fn send<T>(
        &self,
        request: impl Future<Output = Result<Answered<T>, Gone>>,
    ) -> Result<Answered<T>, Gone> {
        let late = || Ok(Answered::Error(format!("there was no answer for {PATIENCE:?}")));
        within(PATIENCE, request).await.unwrap_or_else(late)
    }

    fn acknowledged(
        &self,
        marker: &str,
        what: &str,
        answer: Answered<Value>,
        events: impl IntoIterator<Item = Event>,
    ) {
        match answer {
            Answered::Result(result) if result == json!({"resultType": "complete"}) => {
                events.into_iter().for_each(|event| self.note(marker, event));
            }
            Answered::Result(other) => self.note(marker, refused(what, other.to_string())),
            Answered::Error(error) => self.note(marker, refused(what, error)),
        }
    }

    fn known(&self, marker: &str) -> Known {
        lock(&self.ledger).tasks[marker].clone()
    }

    fn note(&self, marker: &str, event: Event) {
        lock(&self.ledger).note(marker, clock::now(), event);
    }
}

/// Waits for `work` for so long at the most; time in which the whole machine stood still does not count.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    const TICK: Duration = Duration::from_millis(50);
    let ticks = async {
        for _ in 0..limit.as_millis() / TICK.as_millis() {
            sleep(TICK).await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = ticks => None,
    }
}

fn refused(what: &str, error: String) -> Event {
    Event::Refused { what: what.to_owned(), error }
}

/// A caller that panicked says why itself; the others need not add to it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
