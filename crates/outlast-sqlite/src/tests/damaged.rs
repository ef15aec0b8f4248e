//! A task that cannot be read keeps nobody else's work back.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::executor::block_on;
use outlast_core::{Event, Filter, Held, Inspect, Renewal, Spec, Status, Store, StoreError, TaskId};
use outlast_testkit::story::*;
use rusqlite::Connection;
use serde_json::json;

use super::Rig;
use crate::{Options, SqliteStore, damaged::Damaged, error::Failure};

/// Each makes a task unreadable that has asked 'q'; `?1` is its id.
const DAMAGE: [&str; 5] = [
    "UPDATE tasks SET value = 'torn {' WHERE id = ?1",
    "UPDATE tasks SET value = '{}' WHERE id = ?1",
    "UPDATE tasks SET value = CAST(x'ff00' AS TEXT) WHERE id = ?1",
    "UPDATE journal SET body = 'torn {' WHERE number = (SELECT number FROM tasks WHERE id = ?1) AND key = 'q'",
    "UPDATE journal SET kind = 'unheard of' WHERE number = (SELECT number FROM tasks WHERE id = ?1) AND key = 'q'",
];

/// Does this to the file while the store is open. The connection is never closed: that would free the store's locks.
fn damage(rig: &Rig, sql: &str, id: TaskId) {
    let connection = Box::leak(Box::new(Connection::open(&rig.path).unwrap()));
    assert!(connection.execute(sql, [id.as_bytes()]).unwrap() > 0);
}

/// A task that asks, and waits for a worker.
async fn asking(rig: &Rig) -> TaskId {
    let (task, token) = rig.store.create_leased(new_task(), "one").await;
    rig.store.worked(task.id, token, vec![ask("q", "Sure?"), Event::Release { began: true }]).await;
    task.id
}

#[test]
fn a_claim_and_a_listing_pass_over_a_damaged_task() {
    for sql in DAMAGE {
        let rig = Rig::new();
        block_on(async {
            let (first, torn, last) = (asking(&rig).await, asking(&rig).await, asking(&rig).await);
            damage(&rig, sql, torn);

            let claimed = rig.store.claim_up_to("one", 10).await;
            assert_eq!(
                claimed.iter().map(|claimed| claimed.task.id).collect::<Vec<_>>(),
                [first, last],
                "{sql}"
            );
            assert_eq!(rig.store.claim_up_to("one", 10).await, []);
            assert_eq!(rig.store.counts().await.unwrap().ready, 0, "it waits for no worker: {sql}");

            let page = rig.store.list(Filter::default(), None, 1).await.unwrap();
            let next = rig.store.list(Filter::default(), page.next.clone(), 1).await.unwrap();
            let listed: Vec<_> = page.tasks.iter().chain(&next.tasks).map(|task| task.id).collect();
            assert_eq!((listed, next.next), (vec![last, first], None), "{sql}");
        });
    }
}

#[test]
fn a_task_whose_call_is_damaged_is_not_handed_out_and_stays_unclaimed() {
    let rig = Rig::new();
    block_on(async {
        let (torn, sound) = (rig.store.create_one(new_task()).await, rig.store.create_one(new_task()).await);
        damage(
            &rig,
            "UPDATE calls SET params = '{' WHERE number = (SELECT number FROM tasks WHERE id = ?1)",
            torn.id,
        );
        assert_eq!(rig.store.claim_only("one").await.task.id, sound.id);
        assert_eq!(rig.store.task(torn.id).await, torn);
        assert!(matches!(rig.store.call(torn.id).await, Err(StoreError::Damaged(_))));
    });
}

#[test]
fn who_asks_for_a_damaged_task_is_told_so_and_which_row_it_is() {
    let rig = Rig::new();
    block_on(async {
        asking(&rig).await;
        let torn = asking(&rig).await;
        damage(&rig, DAMAGE[0], torn);
        let read = rig.store.get(torn).await.unwrap_err();
        let written =
            rig.store.apply(torn, outlast_core::By::Operator, vec![Event::Cancel]).await.unwrap_err();
        for error in [read, written] {
            assert!(matches!(error, StoreError::Damaged(_)) && !error.is_retryable(), "{error:?}");
            let why = error.source().unwrap();
            assert!(why.to_string().starts_with("row 2 of the table `tasks`"), "{why}");
            assert_eq!(why.source().unwrap().to_string(), "it is not the JSON of what it should be");
        }
        let torn = asking(&rig).await;
        damage(&rig, DAMAGE[4], torn);
        assert!(matches!(rig.store.journal(torn, 0, u64::MAX).await, Err(StoreError::Damaged(_))));
    });
}

#[test]
fn a_renewal_loses_the_damaged_task_alone() {
    let rig = Rig::new();
    block_on(async {
        let (torn, one) = rig.store.create_leased(new_task(), "one").await;
        let (sound, two) = rig.store.create_leased(new_task(), "one").await;
        damage(&rig, DAMAGE[0], torn.id);
        let held = vec![Held { id: torn.id, token: one }, Held { id: sound.id, token: two }];
        let renewals = rig.store.renew(worker("one"), held, LEASE).await.unwrap();
        assert_eq!(renewals, [Renewal::Lost, Renewal::Kept { inbox_seq: 0, cancel: false }]);
    });
}

#[test]
fn a_sweep_does_what_is_due_on_others_and_does_not_come_back_for_the_damaged_one() {
    let rig = Rig::new();
    block_on(async {
        let short = || new_with(Spec { ttl: Some(MINUTE), ..rerun() });
        let mut ids = Vec::new();
        for _ in 0..3 {
            let (task, token) = rig.store.create_leased(short(), "one").await;
            rig.store.worked(task.id, token, vec![complete(&json!(1))]).await;
            ids.push(task.id);
        }
        damage(&rig, DAMAGE[0], ids[0]);
        let later = rig.store.create_one(new_with(Spec { ttl: Some(HOUR * 2), ..rerun() })).await;
        rig.clock.advance(MINUTE);

        // One at a time, so that the damaged one is in nobody's place.
        let swept = rig.store.sweep(1).await.unwrap();
        assert_eq!((swept.done, swept.next_due), (1, Some(std::time::Duration::ZERO)));
        let swept = rig.store.sweep(1).await.unwrap();
        assert_eq!((swept.done, swept.next_due), (1, Some(HOUR - MINUTE)));
        assert_eq!(rig.store.sweep_all().await, 0);
        assert_eq!(rig.store.list(Filter::default(), None, 9).await.unwrap().tasks, [later]);
    });
}

#[test]
fn a_store_full_of_damaged_leases_opens_and_ends_the_sound_one() {
    let rig = Rig::new();
    block_on(async {
        for _ in 0..600 {
            rig.store.create_leased(new_task(), "one").await;
        }
        rig.clock.advance(MOMENT);
        let (sound, _) = rig.store.create_leased(new_task(), "one").await;
        rig.store.close().await;
        let connection = Connection::open(&rig.path).unwrap();
        let damaged =
            connection.execute("UPDATE tasks SET value = '{}' WHERE id <> ?1", [sound.id.as_bytes()]);
        assert_eq!(damaged, Ok(600));
        drop(connection);

        let store = SqliteStore::open_with(&rig.path, Options::default().clock(rig.clock.clone())).unwrap();
        assert_eq!(store.claim_only("two").await.task.id, sound.id);
        assert_eq!(store.task(sound.id).await.status(), Status::Working);
    });
}

#[test]
fn a_damaged_row_is_logged_once() {
    let damaged = Damaged::default();
    let torn = |number| {
        let json = serde_json::from_str::<i64>("{").unwrap_err();
        Err::<(), _>(Failure::from(json).of_task(number))
    };
    let logged = Errors::default();
    tracing::subscriber::with_default(logged.clone(), || {
        for number in [7, 7, 8, 7] {
            assert!(matches!(damaged.pass_over(torn(number)), Ok(None)));
        }
        // What is wrong with the disk is wrong with every row.
        let failed = Failure::from(super::error(super::FSYNC.0, super::FSYNC.1));
        assert!(damaged.pass_over::<()>(Err(failed.of_task(9))).is_err());
    });
    assert_eq!(logged.0.load(Ordering::Relaxed), 2);
    assert!(damaged.has(7) && damaged.has(8) && !damaged.has(9));
}

/// Counts what is logged as an error.
#[derive(Clone, Default)]
struct Errors(Arc<AtomicUsize>);

impl tracing::Subscriber for Errors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
