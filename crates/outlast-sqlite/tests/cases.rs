//! Faults that other implementations shipped, reduced to an input and the right outcome, on SQLite.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

use futures::executor::block_on;
use outlast_core::{Applied, Inspect, ManualClock, Spec, Status, Store, Timestamp};
use outlast_sqlite::{Options, Role, SqliteStore};
use outlast_testkit::{run, story::*};
use serde_json::json;

#[test]
fn c18_after_a_restart_the_same_caller_polls_the_same_task() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    let store = SqliteStore::open(&path).unwrap();
    let ended = block_on(async {
        let (task, token) = store.create_leased(new_task(), "one").await;
        store.worked(task.id, token, vec![complete(&json!({"answer": 42}))]).await
    });
    let asking = block_on(async {
        let (task, token) = store.create_leased(new_task(), "one").await;
        store.worked(task.id, token, vec![ask("q", "Sure?"), park(1)]).await
    });
    drop(store);

    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(block_on(store.task(ended.id)), ended);
    assert_eq!(block_on(store.task(asking.id)), asking);
    assert_eq!(asking.status(), Status::InputRequired);
    let answered = after(block_on(store.alice(asking.id, vec![answer("q", "yes")])));
    assert_eq!(answered.status(), Status::Working);
}

#[test]
fn c20_a_result_that_comes_after_its_task_was_deleted_is_dropped_quietly() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let options = Options::default().clock(clock.clone());
    let store = SqliteStore::open_with(directory.path().join("tasks.db"), options).unwrap();
    block_on(async {
        let spec = Spec { ttl: Some(MINUTE), ..rerun() };
        let (task, token) = store.create_leased(new_with(spec), "one").await;
        store.worked(task.id, token, vec![complete(&json!(1))]).await;
        clock.advance(HOUR);
        assert_eq!(store.sweep_all().await, 1);
        let late = store.work(task.id, token, vec![complete(&json!(2))]).await;
        assert_eq!(late, Applied::NotFound);
        assert_eq!(store.get(task.id).await.unwrap(), None);
    });
}

/// Creates sixteen tasks at once through one handle and finishes them through the other, again and again.
async fn sixteen_at_once(creating: &SqliteStore, finishing: &SqliteStore) {
    const ROUNDS: u64 = 20;
    let before = creating.counts().await.unwrap().of(Status::Completed);
    at_once((0..16).map(|lane| {
        let (creating, finishing) = (creating.clone(), finishing.clone());
        async move {
            for round in 0..ROUNDS {
                let (task, token) = creating.create_leased(new_task(), "one").await;
                let ended = finishing.worked(task.id, token, vec![complete(&json!([lane, round]))]).await;
                assert_eq!(creating.task(task.id).await, ended);
            }
        }
    }))
    .await;
    assert_eq!(creating.counts().await.unwrap().of(Status::Completed) - before, 16 * ROUNDS);
}

#[test]
fn c24_sixteen_tasks_created_and_finished_at_once_over_and_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    let runtime = SqliteStore::open(&path).unwrap();
    let front = SqliteStore::open_with(&path, Options::default().role(Role::Front)).unwrap();
    run(async {
        sixteen_at_once(&runtime, &runtime).await;
        // Two writers on one file: "database is locked" reaches nobody.
        sixteen_at_once(&runtime, &front).await;
    });
}
