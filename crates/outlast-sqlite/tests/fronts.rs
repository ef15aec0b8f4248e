//! Several handles on one file, each as another process would have it: one runtime, and fronts beside it.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{executor::block_on, future::join_all};
use outlast_core::{
    Applied, ClaimRequest, Created, Event, Hint, Hints, Inspect, ManualClock, NewTask, Recovery, Spec,
    Status, Store, StoreError, Swept, TaskId, Timestamp, ToolVersion,
};
use outlast_sqlite::{Options, Role, SqliteStore};
use outlast_testkit::{run, story::*};
use serde_json::json;
use tempfile::TempDir;

struct File {
    clock: ManualClock,
    path: PathBuf,
    _directory: TempDir,
}

impl File {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tasks.db");
        Self { clock: ManualClock::new(Timestamp::from_millis(1_000_000)), path, _directory: directory }
    }

    fn open(&self, role: Role) -> SqliteStore {
        let options = Options::default().clock(self.clock.clone()).role(role);
        SqliteStore::open_with(&self.path, options).unwrap()
    }
}

/// Waits until a task is hinted.
async fn heard(hints: &mut Hints, id: TaskId) {
    soon(async { while hints.next().await.expect("the feed goes on") != Hint::Changed(id) {} }).await;
}

#[test]
fn a_store_knows_whether_it_is_a_front() {
    run(async {
        let file = File::new();
        let runtime = file.open(Role::Runtime);
        let (auto, front) = (file.open(Role::Auto), file.open(Role::Front));
        assert!(!runtime.is_front() && auto.is_front() && front.is_front());
        runtime.close().await;
        // It takes over when it next looks for work.
        auto.claim(claim_by("two", 1)).await.unwrap();
        assert!(!auto.is_front() && front.is_front());
    });
}

#[test]
fn a_front_reads_answers_and_cancels_while_the_runtime_runs_and_each_hears_of_the_other() {
    run(async {
        let file = File::new();
        let (runtime, front) = (file.open(Role::Runtime), file.open(Role::Front));
        let (mut at_runtime, mut at_front) = (runtime.watch(), front.watch());

        let (task, token) = runtime.create_leased(new_task(), "one").await;
        runtime.worked(task.id, token, vec![ask("q", "Sure?")]).await;
        heard(&mut at_front, task.id).await;
        assert_eq!(front.task(task.id).await.status(), Status::InputRequired);

        let answered = after(front.alice(task.id, vec![answer("q", "yes")]).await);
        assert_eq!(runtime.task(task.id).await, answered, "once it is acknowledged, everyone reads it");
        while at_runtime.try_next().is_some() {}
        let cancelled = after(front.alice(task.id, vec![Event::Cancel]).await);
        heard(&mut at_runtime, task.id).await;
        assert!(runtime.task(task.id).await.cancel_requested());
        assert!(cancelled.cancel_requested());
        runtime.worked(task.id, token, vec![Event::ConfirmCancel]).await;
        heard(&mut at_front, task.id).await;
        assert_eq!(front.task(task.id).await.status(), Status::Cancelled);
    });
}

#[test]
fn a_task_that_a_front_created_is_run_by_the_runtime() {
    run(async {
        let file = File::new();
        let (runtime, front) = (file.open(Role::Runtime), file.open(Role::Front));
        let mut hints = runtime.watch();
        // Without a lease, although one is asked for: the front's work would be nobody's when it goes.
        let created = front.create(new_task(), Some(lease_for("front"))).await.unwrap();
        let Created::Created { task, token: None } = created else { panic!("{created:?}") };
        heard(&mut hints, task.id).await;
        assert_eq!(runtime.claim_only("one").await.task.id, task.id);
    });
}

#[test]
fn a_front_is_handed_no_work_and_sweeps_nothing() {
    run(async {
        let file = File::new();
        let front = file.open(Role::Front);
        let spec = Spec { deadline: Some(MINUTE), ..rerun() };
        let task = front.create_one(new_with(spec)).await;
        assert_eq!(front.claim_up_to("front", 9).await, []);
        file.clock.advance(HOUR);
        assert_eq!(front.sweep(50).await.unwrap(), Swept::default());
        assert_eq!(front.task(task.id).await.status(), Status::Working);
        assert_eq!(file.open(Role::Runtime).sweep_all().await, 1);
    });
}

#[test]
fn when_the_runtime_goes_the_next_claim_takes_over_and_ends_its_leases_first() {
    run(async {
        let file = File::new();
        let (first, second) = (file.open(Role::Auto), file.open(Role::Auto));
        let (task, token) = first.create_leased(new_task(), "one").await;
        let once = NewTask { spec: run_once().into(), ..new_task() };
        let (once, _) = first.create_leased(once, "one").await;
        assert_eq!(second.claim_up_to("two", 9).await, [], "a front, while the first is there");
        drop(first);

        let claimed = second.claim_only("two").await;
        assert_eq!((claimed.task.id, claimed.token), (task.id, token.next()));
        assert_eq!(second.work(task.id, token, vec![complete(&json!(1))]).await, Applied::Fenced);
        assert_eq!(once.spec.recovery, Recovery::Fail);
        assert_eq!(second.task(once.id).await.status(), Status::Failed);
        // It is the runtime in every way by now.
        assert!(SqliteStore::open(&file.path).is_err());
        let (leased, _) = second.create_leased(new_task(), "two").await;
        assert_eq!(second.claim_up_to("three", 9).await, []);
        assert!(second.task(leased.id).await.lease().is_some(), "its own leases stay");
    });
}

#[test]
fn a_front_knows_what_the_runtime_serves_and_the_next_runtime_begins_anew() {
    run(async {
        let file = File::new();
        let (first, front) = (file.open(Role::Auto), file.open(Role::Auto));
        let serving = |name: &str, tools: &[&str]| ClaimRequest {
            serves: tools.iter().map(|tool| ToolVersion::new(*tool, "1")).collect(),
            ..claim_by(name, 1)
        };
        let served = async |store: &SqliteStore| {
            ToolVersion::served_by(&store.workers().await.unwrap())
                .into_iter()
                .map(|served| served.tool)
                .collect::<Vec<_>>()
        };
        first.claim(serving("one", &["b", "a", "a"])).await.unwrap();
        first.claim(serving("two", &["c"])).await.unwrap();
        // A front is handed nothing, whatever it could do.
        front.claim(serving("front", &["never"])).await.unwrap();
        assert_eq!(served(&front).await, ["a", "b", "c"]);
        first.claim(serving("two", &[])).await.unwrap();
        assert_eq!(served(&front).await, ["a", "b"]);
        drop(first);
        assert_eq!(served(&front).await, ["a", "b"], "as of the last claim");

        front.claim(serving("front", &["new"])).await.unwrap();
        assert_eq!(served(&front).await, ["new"]);
    });
}

#[test]
fn who_falls_behind_the_changes_of_others_learns_of_a_gap() {
    run(async {
        let file = File::new();
        let options = Options::default().role(Role::Front).poll(Duration::from_secs(3_600));
        let front = SqliteStore::open_with(&file.path, options).unwrap();
        let mut hints = front.watch();
        let runtime = file.open(Role::Runtime);
        let new = || NewTask { max_open: 10_000, ..new_task() };
        join_all((0..4_200).map(|_| runtime.create_one(new()))).await;
        // The front's own next write finds that the oldest changes are not told any more.
        let own = front.create_one(new()).await;
        assert_eq!(hints.try_next(), Some(Hint::Gap));
        heard(&mut hints, own.id).await;
    });
}

#[test]
fn a_front_gets_its_turn_while_the_runtime_writes_batch_after_batch() {
    run(async {
        let file = File::new();
        let (runtime, front) = (file.open(Role::Runtime), file.open(Role::Front));
        let (task, _) = runtime.create_leased(new_task(), "one").await;
        let done = Arc::new(AtomicBool::new(false));
        let load: Vec<_> = (0..64)
            .map(|_| {
                let (runtime, done) = (runtime.clone(), done.clone());
                async move {
                    while !done.load(Ordering::Relaxed) {
                        let new = NewTask { max_open: u32::MAX, ..new_task() };
                        runtime.create_one(new).await;
                    }
                }
            })
            .collect();
        let turns = async {
            for _ in 0..20 {
                let cancelled = soon(front.alice(task.id, vec![Event::Cancel])).await;
                assert!(after(cancelled).cancel_requested());
            }
            done.store(true, Ordering::Relaxed);
        };
        futures::join!(at_once(load), turns);
    });
}

#[test]
fn a_write_that_another_process_keeps_out_for_too_long_is_refused_and_may_be_tried_again() {
    let file = File::new();
    let options = Options::default().busy_timeout(Duration::from_millis(20));
    let store = SqliteStore::open_with(&file.path, options).unwrap();
    let other = rusqlite::Connection::open(&file.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let new = new_task();
    let error = block_on(store.create(new.clone(), None)).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)));
    assert!(!error.to_string().contains("locked"), "{error}");
    assert_eq!(block_on(store.get(new.id)).unwrap(), None, "reads go on");
    other.execute_batch("COMMIT").unwrap();
    block_on(store.create_one(new));
}

#[test]
fn keys_and_quotas_hold_across_processes() {
    let file = File::new();
    let (runtime, front) = (file.open(Role::Runtime), file.open(Role::Front));
    block_on(async {
        let task = runtime.create_one(new_keyed("k", 1)).await;
        assert_eq!(front.try_create(new_keyed("k", 1)).await, Created::Existing(task));
        assert_eq!(front.try_create(new_keyed("k", 2)).await, Created::KeyReused);
        let limited = NewTask { max_open: 1, ..new_task() };
        assert_eq!(front.try_create(limited).await, Created::OverQuota);
        assert_eq!(front.counts().await.unwrap().total(), 1);
    });
}

#[test]
fn time_does_not_run_back_from_one_process_to_another() {
    let file = File::new();
    let ahead = ManualClock::new(Timestamp::from_millis(9_000_000));
    let options = Options::default().clock(ahead).role(Role::Front);
    let (runtime, front) = (file.open(Role::Runtime), SqliteStore::open_with(&file.path, options).unwrap());
    block_on(async {
        let first = front.create_one(new_task()).await;
        let second = runtime.create_one(new_task()).await;
        assert!(second.created_at >= first.created_at);
        file.clock.advance(MINUTE);
        assert_eq!(runtime.create_one(new_task()).await.created_at, second.created_at + MINUTE);
    });
}

const FILE: &str = "OUTLAST_TEST_FILE";
const TASK: &str = "OUTLAST_TEST_TASK";

/// Not a test of its own: what [`look_from_another_process`] runs in another process.
#[test]
fn a_front_looks() {
    let (Ok(path), Ok(id)) = (std::env::var(FILE), std::env::var(TASK)) else { return };
    let front = SqliteStore::open_with(path, Options::default().role(Role::Front)).unwrap();
    assert!(block_on(front.get(id.parse().unwrap())).unwrap().is_some(), "the task is there");
    block_on(front.close());
}

/// Whether a front in a process of its own finds a task; it closes the file again before this returns.
fn look_from_another_process(file: &File, id: TaskId) -> bool {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_front_looks", "--nocapture"]).env(FILE, &file.path).env(TASK, id.to_string());
    child.output().unwrap().status.success()
}

#[test]
fn a_front_that_closes_never_takes_the_log_with_it_even_when_the_runtime_lost_its_locks() {
    run(async {
        let file = File::new();
        let runtime = file.open(Role::Runtime);
        let first = runtime.create_one(new_task()).await;
        // What any code of the process does that reads the folder: the operating system now drops SQLite's locks.
        for name in ["tasks.db", "tasks.db-wal", "tasks.db-shm"] {
            drop(std::fs::File::open(file.path.with_file_name(name)).unwrap());
        }
        assert!(look_from_another_process(&file, first.id));
        let second = runtime.create_one(new_task()).await;
        assert!(
            look_from_another_process(&file, second.id),
            "a task that was acknowledged is lost to others"
        );
    });
}
