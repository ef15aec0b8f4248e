//! A task that cannot be read keeps nobody else's work back.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

mod harness;

use std::error::Error;

use harness::{fresh_schema, open, quoted, raw, still, url};
use outlast_core::{By, Event, Filter, Held, Inspect, Renewal, Spec, Store, StoreError, TaskId, Transfer};
use outlast_postgres::{PostgresStore, Skew};
use outlast_testkit::{run, story::*};
use serde_json::json;

/// Each makes a task unreadable that has asked 'q'; `$1` is its id.
const DAMAGE: [&str; 4] = [
    "UPDATE $S.tasks SET value = 'torn {' WHERE id = $1",
    "UPDATE $S.tasks SET value = '{}' WHERE id = $1",
    "UPDATE $S.journal SET body = 'torn {' WHERE number = (SELECT number FROM $S.tasks WHERE id = $1) AND key = 'q'",
    "DELETE FROM $S.journal WHERE number = (SELECT number FROM $S.tasks WHERE id = $1) AND key = 'q'",
];

struct Rig {
    store: PostgresStore,
    skew: Skew,
    schema: String,
}

impl Rig {
    async fn new() -> Self {
        let (schema, skew) = (fresh_schema(), still());
        Self { store: open(&schema, &skew).await, skew, schema: quoted(&schema) }
    }

    async fn damage(&self, sql: &str, id: TaskId) {
        let sql = sql.replace("$S", &self.schema);
        assert!(raw(url()).await.execute(&sql, &[&&id.as_bytes()[..]]).await.unwrap() > 0);
    }

    /// A task that asks, and waits for a worker.
    async fn asking(&self) -> TaskId {
        let (task, token) = self.store.create_leased(new_task(), "one").await;
        self.store.worked(task.id, token, vec![ask("q", "Sure?"), Event::Release { began: true }]).await;
        task.id
    }
}

#[test]
fn a_claim_a_listing_and_an_export_pass_over_a_damaged_task() {
    run(async {
        for sql in DAMAGE {
            let rig = Rig::new().await;
            let (first, torn, last) = (rig.asking().await, rig.asking().await, rig.asking().await);
            rig.damage(sql, torn).await;

            let mut claimed = Vec::new();
            for _ in 0..3 {
                claimed.extend(rig.store.claim_up_to("one", 1).await);
            }
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

            let exported = rig.store.export(None, u64::MAX).await.unwrap();
            assert_eq!((exported.records.len(), exported.damaged), (2, 1), "{sql}");
        }
    });
}

#[test]
fn who_asks_for_a_damaged_task_is_told_so_and_which_row_it_is() {
    run(async {
        let rig = Rig::new().await;
        rig.asking().await;
        let torn = rig.asking().await;
        rig.damage(DAMAGE[0], torn).await;
        let read = rig.store.get(torn).await.unwrap_err();
        let (written, other) = futures::join!(
            rig.store.apply(torn, By::Operator, vec![Event::Cancel]),
            rig.store.create(new_task(), None)
        );
        assert!(other.is_ok(), "its neighbours in the batch are not concerned");
        for error in [read, written.unwrap_err()] {
            assert!(matches!(error, StoreError::Damaged(_)) && !error.is_retryable(), "{error:?}");
            let why = error.source().unwrap();
            assert!(why.to_string().starts_with("row 2 of the table `tasks`"), "{why}");
            assert_eq!(why.source().unwrap().to_string(), "it is not the JSON of what it should be");
        }
    });
}

#[test]
fn a_task_whose_call_is_damaged_is_not_handed_out() {
    run(async {
        let rig = Rig::new().await;
        let (torn, sound) = (rig.store.create_one(new_task()).await, rig.store.create_one(new_task()).await);
        let sql =
            "UPDATE $S.calls SET params = '{' WHERE number = (SELECT number FROM $S.tasks WHERE id = $1)";
        rig.damage(sql, torn.id).await;
        assert_eq!(rig.store.claim_only("one").await.task.id, sound.id);
        assert_eq!(rig.store.task(torn.id).await, torn);
        assert!(matches!(rig.store.call(torn.id).await, Err(StoreError::Damaged(_))));
    });
}

#[test]
fn a_renewal_loses_the_damaged_task_alone() {
    run(async {
        let rig = Rig::new().await;
        let (torn, one) = rig.store.create_leased(new_task(), "one").await;
        let (sound, two) = rig.store.create_leased(new_task(), "one").await;
        rig.damage(DAMAGE[0], torn.id).await;
        let held = vec![Held { id: torn.id, token: one }, Held { id: sound.id, token: two }];
        let renewals = rig.store.renew(worker("one"), held, LEASE).await.unwrap();
        assert_eq!(renewals, [Renewal::Lost, Renewal::Kept { inbox_seq: 0, cancel: false }]);
    });
}

#[test]
fn a_sweep_does_what_is_due_on_others_and_does_not_come_back_for_the_damaged_one() {
    run(async {
        let rig = Rig::new().await;
        let short = || new_with(Spec { deadline: Some(MINUTE), ..rerun() });
        let (torn, sound) = (rig.store.create_one(short()).await, rig.store.create_one(short()).await);
        let (lost, _) = rig.store.create_leased(new_task(), "dead").await;
        rig.damage(DAMAGE[0], torn.id).await;
        rig.damage(DAMAGE[0], lost.id).await;
        rig.skew.advance(MINUTE);
        let swept = rig.store.sweep(10).await.unwrap();
        assert_eq!(swept.done, 1);
        assert!(rig.store.task(sound.id).await.is_final());
        assert!(rig.store.sweep(10).await.unwrap().next_due.is_some_and(|due| !due.is_zero()));
        // Nor does a claim come to nothing for a lease that cannot be ended.
        let waiting = rig.store.create_one(new_task()).await;
        assert_eq!(rig.store.claim_only("two").await.task.id, waiting.id);
        rig.store.worked(waiting.id, outlast_core::Token(1), vec![complete(&json!(1))]).await;
    });
}
