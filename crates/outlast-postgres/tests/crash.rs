//! A process, or the whole database, that is killed in mid-write loses nothing that was acknowledged.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

mod harness;

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use harness::{Cluster, fresh_schema, quoted, raw, url};
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, Hints, Inspect,
    JournalPage, LeaseRequest, ListPage, NewTask, Owner, Renewal, Status, Store, StoreError, Swept, Task,
    TaskId, WorkerId, WorkerSeen,
};
use outlast_postgres::{Options, PostgresStore};
use outlast_testkit::{
    crash::{self, Ack, Effect},
    run,
};

const CHILD: &str = "OUTLAST_CRASH_CHILD";
const CHILD_URL: &str = "OUTLAST_CRASH_URL";

async fn open(url: &str, schema: &str) -> PostgresStore {
    let options = Options::default().schema(schema).wait(Some(Duration::from_secs(60)));
    PostgresStore::connect(url, options).await.expect("the database opens after every kill")
}

/// The process that is killed. Without the variable it is a test that does nothing.
#[test]
fn crash_child() {
    let (Ok(schema), Ok(url)) = (std::env::var(CHILD), std::env::var(CHILD_URL)) else { return };
    run(async { crash::child_main(Arc::new(open(&url, &schema).await)).await });
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let schema = fresh_schema();
    let mut acks = Vec::new();
    let mut tasks = BTreeMap::new();
    for _ in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "crash_child", "--nocapture"]).env(CHILD, &schema).env(CHILD_URL, url());
        acks.extend(crash::run_and_kill(child, crash::seed()));
        run(async {
            tasks = crash::check(&acks, &open(url(), &schema).await).await.tasks;
            audit(url(), &schema).await;
        });
    }
    for status in Status::ALL {
        assert!(tasks.contains_key(&status), "no task is {}: {tasks:?}", status.as_str());
    }
}

#[test]
fn what_was_acknowledged_is_there_after_the_database_was_killed_under_load() {
    const KILLS: usize = 3;
    run(async {
        let cluster = Cluster::start();
        let schema = fresh_schema();
        let acks: Arc<Mutex<Vec<Ack>>> = Arc::default();
        let enough = Arc::new(AtomicBool::new(false));
        let mut working = Vec::new();
        for _ in 0..2 {
            let store = Arc::new(Persistent(open(&cluster.url, &schema).await));
            let (acks, enough) = (acks.clone(), enough.clone());
            working.push(tokio::spawn(async move {
                while !enough.load(Ordering::Relaxed) {
                    let acks = acks.clone();
                    let say = Arc::new(move |ack| acks.lock().unwrap().push(ack));
                    crash::work(store.clone(), 12, say).await;
                }
            }));
        }
        let seen = |acks: &Mutex<Vec<Ack>>| acks.lock().unwrap().len();
        for round in 0..KILLS {
            // Under load: when so many more effects were acknowledged.
            let until = seen(&acks) + 200 + usize::try_from(crash::seed() % 300).unwrap();
            while seen(&acks) < until {
                tokio::task::yield_now().await;
            }
            // All at work have waited for an answer that does not come.
            tokio::task::block_in_place(|| cluster.kill());
            println!("kill {round} after {} effects", seen(&acks));
            tokio::task::block_in_place(|| cluster.start_again());
        }
        enough.store(true, Ordering::Relaxed);
        for worker in working {
            worker.await.unwrap();
        }
        let acks = acks.lock().unwrap().clone();
        let checked = crash::check(&acks, &open(&cluster.url, &schema).await).await;
        audit(&cluster.url, &schema).await;
        println!("{} effects, all there: {:?}", acks.len(), checked.tasks);
        assert!(acks.iter().any(|ack| matches!(ack.what, Effect::Claimed(_))));
    });
}

/// Looks into the tables themselves, for what no answer of the store would show.
async fn audit(url: &str, schema: &str) {
    let client = raw(url).await;
    for (what, wrong) in [
        (
            "tasks without a call",
            "SELECT count(*) FROM $S.tasks WHERE number NOT IN (SELECT number FROM $S.calls)",
        ),
        (
            "calls without a task",
            "SELECT count(*) FROM $S.calls WHERE number NOT IN (SELECT number FROM $S.tasks)",
        ),
        (
            "tasks that ended without their end",
            "SELECT count(*) FROM $S.tasks WHERE status IN (2, 3) AND body IS NULL",
        ),
        (
            "journals without a task",
            "SELECT count(*) FROM $S.journal WHERE number NOT IN (SELECT number FROM $S.tasks)",
        ),
        (
            "keys that forget their task",
            "SELECT count(*) FROM $S.keys WHERE until IS NULL AND id NOT IN (SELECT id FROM $S.tasks)",
        ),
        (
            "tasks whose columns say something else than they",
            "SELECT count(*) FROM $S.tasks WHERE leased <>
          ((value::jsonb #> '{task,state,live,run,leased}') IS NOT NULL)
          OR revision <> (value::jsonb #> '{task,revision}')::int8",
        ),
        (
            "journals with a gap",
            "SELECT count(*) FROM $S.tasks t WHERE (value::jsonb #> '{task,seq}')::int8 <>
          (SELECT count(*) FROM $S.journal j WHERE j.number = t.number)",
        ),
    ] {
        let count = client.query_one(&wrong.replace("$S", &quoted(schema)), &[]).await.unwrap();
        assert_eq!(count.get::<_, i64>(0), 0, "{what}");
    }
}

/// A store as a patient caller has it: who is told to try again sends the same call again.
struct Persistent(PostgresStore);

macro_rules! until_answered {
    ($call:expr) => {
        loop {
            match $call.await {
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => break answer,
            }
        }
    };
}

#[async_trait]
impl Store for Persistent {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        until_answered!(self.0.create(new.clone(), lease.clone()))
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        let first = self.0.apply(id, by.clone(), events.clone()).await;
        if !first.as_ref().is_err_and(StoreError::is_retryable) {
            return first;
        }
        // What was kept the first time is absorbed the second: to the caller it is the same.
        match until_answered!(self.0.apply(id, by.clone(), events.clone())) {
            Ok(Applied::Absorbed(task)) => Ok(Applied::Applied(task)),
            answer => answer,
        }
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        until_answered!(self.0.claim(request.clone()))
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        until_answered!(self.0.renew(worker.clone(), held.clone(), lease))
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        until_answered!(self.0.get(id))
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        until_answered!(self.0.journal(id, after_seq, max_bytes))
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        until_answered!(self.0.heads(ids.clone()))
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        until_answered!(self.0.sweep(max))
    }

    fn watch(&self) -> Hints {
        self.0.watch()
    }
}

#[async_trait]
impl Inspect for Persistent {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        until_answered!(self.0.list(filter.clone(), after.clone(), max))
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        until_answered!(self.0.counts())
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        until_answered!(self.0.workers())
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        until_answered!(self.0.running(owner.clone()))
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        until_answered!(self.0.call(id))
    }

    fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }
}
