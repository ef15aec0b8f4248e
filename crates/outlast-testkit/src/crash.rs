//! A process that is killed in mid-write, and the check of what it left behind.
//!
//! The process works on a store on many lanes at once and writes a line for every effect that the store acknowledged.
//! Another kills it with SIGKILL after a number of lines, opens the same data again, and looks for each effect. The
//! test binary of a backend is both processes:
//!
//! ```no_run
//! # use std::{path::Path, process::Command, sync::Arc};
//! # use outlast_core::{ManualClock, MemoryStore, Store, Timestamp};
//! # async fn open(_: &Path) -> Arc<dyn Store> { Arc::new(MemoryStore::new(ManualClock::new(Timestamp::default()))) }
//! use outlast_testkit::{crash, run};
//!
//! const CHILD: &str = "OUTLAST_CRASH_CHILD";
//!
//! /// The process that is killed. Without the variable it is a test that does nothing.
//! #[test]
//! fn crash_child() {
//!     let Ok(directory) = std::env::var(CHILD) else { return };
//!     run(async { crash::child_main(open(Path::new(&directory)).await).await });
//! }
//!
//! #[test]
//! fn what_was_acknowledged_is_there_after_a_kill() {
//!     let directory = Path::new("a directory for this test alone");
//!     let mut acks = Vec::new();
//!     for _ in 0..10 {
//!         let mut child = Command::new(std::env::current_exe().unwrap());
//!         child.args(["--exact", "crash_child", "--nocapture"]).env(CHILD, directory);
//!         acks.extend(crash::run_and_kill(child, crash::seed()));
//!         run(async { drop(crash::check(&acks, &*open(directory).await).await) });
//!     }
//! }
//! ```
//!
//! The rounds share their data, so that a store recovers from what it recovered to before.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    str::FromStr,
    sync::Arc,
};

use outlast_core::{
    By, Call, ClaimRequest, Claimed, Created, Entry, EntryKind, Event, Filter, IdempotencyKey, LeaseRequest,
    NewTask, Payload, Spec, Status, Store, TakenUp, Task, TaskError, TaskId, TaskState, Token,
};
use serde_json::json;

use crate::story::{HOUR, Tell, after, ask, claim_by, finish, input, lease_for, owner, park, payload, rerun};

/// An effect that a store acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The task.
    pub id: TaskId,
    /// What became of it.
    pub what: Effect,
}

/// What an [`Ack`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The task was created.
    Created,
    /// It was claimed under this token.
    Claimed(u64),
    /// Its step of this number finished.
    Step(u64),
    /// Its question was asked.
    Asked,
    /// The question was answered.
    Answered,
    /// It was parked.
    Parked,
    /// It ended with its result.
    Completed,
    /// It ended with its error.
    Failed,
    /// It was cancelled before it began.
    Cancelled,
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "acked {} ", self.id)?;
        match self.what {
            Effect::Created => write!(f, "created"),
            Effect::Claimed(token) => write!(f, "claimed {token}"),
            Effect::Step(number) => write!(f, "step {number}"),
            Effect::Asked => write!(f, "asked"),
            Effect::Answered => write!(f, "answered"),
            Effect::Parked => write!(f, "parked"),
            Effect::Completed => write!(f, "completed"),
            Effect::Failed => write!(f, "failed"),
            Effect::Cancelled => write!(f, "cancelled"),
        }
    }
}

impl FromStr for Ack {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<_> = line.split(' ').collect();
        let number = |word: &str| word.parse().map_err(drop);
        let (id, what) = match words[..] {
            ["acked", id, "created"] => (id, Effect::Created),
            ["acked", id, "claimed", token] => (id, Effect::Claimed(number(token)?)),
            ["acked", id, "step", step] => (id, Effect::Step(number(step)?)),
            ["acked", id, "asked"] => (id, Effect::Asked),
            ["acked", id, "answered"] => (id, Effect::Answered),
            ["acked", id, "parked"] => (id, Effect::Parked),
            ["acked", id, "completed"] => (id, Effect::Completed),
            ["acked", id, "failed"] => (id, Effect::Failed),
            ["acked", id, "cancelled"] => (id, Effect::Cancelled),
            _ => return Err(()),
        };
        Ok(Self { id: id.parse().map_err(drop)?, what })
    }
}

// --- the process that is killed

/// How many callers work at once, so that a kill finds several writes under way.
const LANES: u64 = 16;

/// Works on `store` until it is killed, and writes a line to standard output for each effect that was acknowledged.
///
/// # Panics
/// When the store fails or answers wrongly.
pub async fn child_main(store: Arc<dyn Store>) {
    // The test harness may have left a line unfinished.
    println!();
    let say = Arc::new(|ack: Ack| {
        let mut out = std::io::stdout().lock();
        // One write a line, and nothing kept back: what is read is what was acknowledged.
        let written = out.write_all(format!("{ack}\n").as_bytes()).and_then(|()| out.flush());
        written.expect("somebody reads");
    });
    work(store, u64::MAX, say).await;
}

/// Works on `store` for this many rounds on each lane.
///
/// # Panics
/// When the store fails or answers wrongly.
pub async fn work(store: Arc<dyn Store>, rounds: u64, say: Arc<impl Fn(Ack) + Send + Sync + 'static>) {
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            let (store, say) = (store.clone(), say.clone());
            tokio::spawn(async move {
                for round in 0..rounds {
                    one_task(&*store, lane + round, &*say).await;
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.expect("the store answers rightly");
    }
}

/// Brings one new task as far as its number says, or another lane's task to its end.
async fn one_task(store: &dyn Store, number: u64, say: &(dyn Fn(Ack) + Send + Sync)) {
    let (kind, odd) = (number % 6, number / 6 % 2 == 1);
    if kind == 5 {
        return finish_what_is_ready(store, say).await;
    }
    let id = random_id();
    let say_of = say;
    let say = |what| say_of(Ack { id, what });
    if kind == 0 {
        // Waits for a worker; every other one is cancelled before it begins, unless a worker was quicker.
        store.create_one(new_of(id)).await;
        say(Effect::Created);
        if odd && after(store.tell(id, caller(), vec![Event::Cancel]).await).status() == Status::Cancelled {
            say(Effect::Cancelled);
        }
        return;
    }
    // So long a lease that it is over only when its holder died.
    let lease = LeaseRequest { lease: HOUR, ..lease_for("lane") };
    let token = match store.create(new_of(id), Some(lease)).await.expect("the store answers") {
        Created::Created { token: Some(token), .. } => token,
        other => panic!("a new task is created and leased, not {other:?}"),
    };
    say(Effect::Created);
    for step in 0..number % 4 {
        store.worked(id, token, vec![step_of(id, step)]).await;
        say(Effect::Step(step));
    }
    match kind {
        1 => {
            store.worked(id, token, vec![Event::Complete(result_of(id))]).await;
            say(Effect::Completed);
        }
        2 => {
            store.worked(id, token, vec![Event::Fail(error_of(id))]).await;
            say(Effect::Failed);
            if !odd {
                start_again(store, id, say_of).await;
            }
        }
        3 => {
            // Two effects of one call, durable together.
            store.worked(id, token, vec![ask("q", &id.to_string()), park(0)]).await;
            say(Effect::Asked);
            say(Effect::Parked);
            if odd {
                let answer = Event::Answer { key: input("q"), answer: answer_of(id) };
                after(store.tell(id, caller(), vec![answer]).await);
                say(Effect::Answered);
            }
        }
        // Stays in the hands of a worker that dies.
        _ => {}
    }
}

/// A new task that takes over the journal of one that failed, durable with it or not at all.
async fn start_again(store: &dyn Store, failed: TaskId, say: &(dyn Fn(Ack) + Send + Sync)) {
    let takes_up = TakenUp::of(&store.task(failed).await, store.entries(failed).await);
    let id = random_id();
    store.create_one(NewTask { takes_up, ..new_of(id) }).await;
    say(Ack { id, what: Effect::Created });
}

async fn finish_what_is_ready(store: &dyn Store, say: &(dyn Fn(Ack) + Send + Sync)) {
    let request = ClaimRequest { lease: HOUR, ..claim_by("finisher", 2) };
    for Claimed { task, token, .. } in store.claim(request).await.expect("the store answers") {
        let id = task.id;
        say(Ack { id, what: Effect::Claimed(token.0) });
        store.worked(id, token, vec![Event::Complete(result_of(id))]).await;
        say(Ack { id, what: Effect::Completed });
    }
}

// --- what a task is made of, so that it can be told from its id alone

/// An id that no other process makes: the data outlive this one.
fn random_id() -> TaskId {
    let half = || RandomState::new().build_hasher().finish().to_be_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&half());
    bytes[8..].copy_from_slice(&half());
    TaskId::from_bytes(bytes)
}

fn caller() -> By {
    By::Owner(owner("crash"))
}

fn new_of(id: TaskId) -> NewTask {
    let key = IdempotencyKey { key: format!("key {id}").into(), request: [7; 32] };
    // No limit ends a lane or a task, however often its worker is killed.
    let spec = Spec { max_attempts: u32::MAX, ..rerun() };
    NewTask {
        idempotency: Some(key),
        max_open: u32::MAX,
        ..NewTask::new(id, owner("crash"), spec, call_of(id))
    }
}

fn call_of(id: TaskId) -> Call {
    Call::new(payload(&json!({"call": id.to_string()})))
}

fn step_of(id: TaskId, number: u64) -> Event {
    finish(&format!("step {number}"), &json!([id.to_string(), number]))
}

fn result_of(id: TaskId) -> Payload {
    // Large enough that a write of several pages can be torn.
    payload(&json!({"result": id.to_string().repeat(200)}))
}

fn error_of(id: TaskId) -> TaskError {
    TaskError::new(-32_000, format!("failed on purpose: {id}"))
}

fn answer_of(id: TaskId) -> Payload {
    crate::story::accepted(&id.to_string())
}

// --- the process that kills

/// A seed of this run's own, for [`run_and_kill`].
#[must_use]
pub fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Starts a process that runs [`child_main`], kills it with SIGKILL after a number of acknowledged effects that the
/// seed decides, and returns all that it acknowledged. Prints the seed.
///
/// # Panics
/// When the process does not start, or ends by itself.
#[must_use]
pub fn run_and_kill(mut child: Command, seed: u64) -> Vec<Ack> {
    let lines = usize::try_from(50 + seed % 1_500).expect("small");
    println!("seed {seed}: killed after {lines} effects");
    let mut child = child.stdout(Stdio::piped()).spawn().expect("the process starts");
    let mut out = BufReader::new(child.stdout.take().expect("its output is a pipe"));
    let (mut acks, mut line) = (Vec::new(), String::new());
    while out.read_line(&mut line).expect("the pipe works") > 0 {
        // A line without its end was cut off by the kill. Lines of the test harness are no acknowledgements.
        if let Some(Ok(ack)) = line.strip_suffix('\n').map(str::parse) {
            acks.push(ack);
            if acks.len() == lines {
                child.kill().expect("it runs until it is killed");
            }
        }
        line.clear();
    }
    let status = child.wait().expect("it can be waited for");
    assert!(acks.len() >= lines, "the process ended by itself after {} effects: {status}", acks.len());
    acks
}

// --- the check

/// What [`check`] found, for a test to see that nothing was left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// How many tasks are in each status.
    pub tasks: BTreeMap<Status, u64>,
    /// How many acknowledged effects were there.
    pub acks: usize,
}

/// Looks for each acknowledged effect in a store that was opened again after the kill, and checks that every task of
/// it is whole, acknowledged or not.
///
/// # Panics
/// When an effect is missing or a task is torn; the message names the task and what it lacks.
pub async fn check(acks: &[Ack], store: &dyn Store) -> Checked {
    let mut by_task: BTreeMap<TaskId, Vec<Effect>> = BTreeMap::new();
    for ack in acks {
        by_task.entry(ack.id).or_default().push(ack.what);
    }
    for (id, effects) in &by_task {
        let task = store.get(*id).await.expect("the store answers");
        let task = task.unwrap_or_else(|| panic!("{id} was acknowledged and is gone"));
        let journal = store.entries(*id).await;
        for effect in effects {
            assert!(
                holds(*effect, &task, &journal),
                "{id}: {effect:?} was acknowledged, and the task is {task:?}"
            );
        }
        let again = NewTask { id: random_id(), ..new_of(*id) };
        let Created::Existing(found) = store.try_create(again).await else {
            panic!("{id}: its key was acknowledged and is forgotten")
        };
        assert_eq!(found.id, *id, "the key finds its task");
    }

    let mut checked = Checked { acks: acks.len(), ..Checked::default() };
    let mut place = None;
    loop {
        let page = store.list(Filter::default(), place, 500).await.expect("the store answers");
        for task in &page.tasks {
            is_whole(task, &store.entries(task.id).await);
            let call = store.call(task.id).await.expect("the store answers");
            assert_eq!(call, Some(call_of(task.id)), "{}: its call", task.id);
            *checked.tasks.entry(task.status()).or_default() += 1;
        }
        place = page.next;
        if place.is_none() {
            return checked;
        }
    }
}

/// Whether what was acknowledged is still so, or followed by what may follow it.
fn holds(effect: Effect, task: &Task, journal: &[Entry]) -> bool {
    let (id, entry) = (task.id, |kind| journal.iter().find(|entry| entry.kind == kind));
    match effect {
        Effect::Created => true,
        Effect::Claimed(token) => task.token >= Token(token),
        Effect::Step(number) => {
            let Event::FinishStep { key, outcome, .. } = step_of(id, number) else { return false };
            let is_it = |entry: &&Entry| entry.kind == EntryKind::Step && entry.key.as_ref() == Some(&key);
            let finished = journal.iter().find(is_it).and_then(Entry::finished);
            finished.is_some_and(|finished| finished.outcome == outcome)
        }
        Effect::Asked => entry(EntryKind::Asked).is_some(),
        Effect::Answered => entry(EntryKind::Answered).is_some_and(|entry| entry.body == Some(answer_of(id))),
        // The lease that it gave back is never the task's again.
        Effect::Parked => task.lease().is_none() || task.token > Token(1),
        Effect::Completed => task.state == TaskState::Completed { result: result_of(id) },
        Effect::Failed => task.state == TaskState::Failed { error: error_of(id) },
        Effect::Cancelled => task.state == TaskState::Cancelled,
    }
}

/// A task and its journal fit together: no half of a change is there without the other.
fn is_whole(task: &Task, journal: &[Entry]) {
    let id = task.id;
    let numbers = journal.iter().map(|entry| entry.seq);
    assert!(numbers.eq(1..=task.seq), "{id}: its journal has a gap");
    assert_eq!(journal.iter().map(Entry::size).sum::<u64>(), task.journal_bytes, "{id}: its journal's size");
    let count = |kind| journal.iter().filter(|entry| entry.kind == kind).count();
    assert!(count(EntryKind::Answered) <= count(EntryKind::Asked), "{id}: an answer without its question");
    let opened: Vec<_> =
        journal.iter().filter(|entry| entry.kind.opens_key()).map(|entry| &entry.key).collect();
    assert_eq!(opened.iter().collect::<BTreeSet<_>>().len(), opened.len(), "{id}: a key was used twice");
    // Work that fails here and starts again has finished two steps; they came with the task.
    assert!(task.origin.is_none() || count(EntryKind::Step) == 2, "{id}: what it took over");
    match &task.state {
        TaskState::Live(live) => {
            let outstanding = count(EntryKind::Asked) - count(EntryKind::Answered);
            assert_eq!(live.questions.len(), outstanding, "{id}: its outstanding questions");
            // Asking and parking were one call.
            let asked = count(EntryKind::Asked) > 0;
            assert!(!asked || task.lease().is_none() || task.token > Token(1), "{id}: asked, and not parked");
        }
        TaskState::Completed { result } => assert!(*result == result_of(id), "{id}: its result is torn"),
        TaskState::Failed { error } => assert_eq!(*error, error_of(id), "{id}: its error"),
        TaskState::Cancelled => {}
    }
}
