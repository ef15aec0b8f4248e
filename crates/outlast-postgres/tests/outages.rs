//! What a database can do to a store: be away, be read only, be full, be slow, be locked, and come back.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

mod harness;

use std::time::Duration;

use harness::{Cluster, fresh_schema, open, quoted, raw, still, url};
use outlast_core::{Applied, By, Created, Event, Hint, Inspect, NewTask, Status, Store, StoreError};
use outlast_postgres::{Options, PostgresStore, Skew};
use outlast_testkit::{run, story::*};
use serde_json::json;

/// A store and somebody who does it harm.
struct Harm {
    store: PostgresStore,
    client: tokio_postgres::Client,
    schema: String,
    skew: Skew,
}

impl Harm {
    async fn new() -> Self {
        Self::with(Options::default()).await
    }

    async fn with(options: Options) -> Self {
        let (schema, skew) = (fresh_schema(), still());
        let options = options.schema(&schema).skew(skew.clone());
        let store = PostgresStore::connect(url(), options).await.unwrap();
        Self { store, client: raw(url()).await, schema: quoted(&schema), skew }
    }

    /// Runs statements in which `$S` is the schema.
    async fn sql(&self, sql: &str) {
        self.client.batch_execute(&sql.replace("$S", &self.schema)).await.unwrap();
    }

    /// Has this happen where a task of the tool `bad` is created.
    async fn on_bad(&self, happens: &str) {
        self.sql(&format!(
            "CREATE OR REPLACE FUNCTION $S.harm() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN IF NEW.value LIKE '%\"tool\":\"bad\"%' THEN {happens}; END IF; RETURN NEW; END $$;
             CREATE OR REPLACE TRIGGER harm BEFORE INSERT ON $S.tasks FOR EACH ROW EXECUTE FUNCTION $S.harm()"
        ))
        .await;
    }

    async fn mend(&self) {
        self.sql("DROP FUNCTION $S.harm CASCADE").await;
    }
}

fn bad() -> outlast_core::NewTask {
    new_with(outlast_core::Spec::new("bad"))
}

#[test]
fn one_bad_operation_fails_alone() {
    run(async {
        let harm = Harm::new().await;
        harm.on_bad("RAISE EXCEPTION 'no' USING ERRCODE = '22000'").await;
        let made =
            at_once(
                (0..40).map(|number| {
                    let store = harm.store.clone();
                    async move {
                        (number, store.create(if number == 17 { bad() } else { new_task() }, None).await)
                    }
                }),
            )
            .await;
        for (number, created) in made {
            match created {
                Ok(Created::Created { .. }) => assert_ne!(number, 17),
                Err(StoreError::Unavailable(_)) => assert_eq!(number, 17),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(harm.store.counts().await.unwrap().total(), 39);
    });
}

#[test]
fn a_full_disk_refuses_and_keeps_nothing_until_there_is_room() {
    run(async {
        let harm = Harm::new().await;
        harm.on_bad("RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'").await;
        let new = bad();
        let refused = harm.store.create(new.clone(), None).await.unwrap_err();
        assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
        assert_eq!(harm.store.get(new.id).await.unwrap(), None);
        harm.mend().await;
        assert!(matches!(harm.store.create(new, None).await, Ok(Created::Created { .. })));
    });
}

#[test]
fn a_statement_that_takes_too_long_is_given_up() {
    run(async {
        let harm = Harm::with(Options::default().statement_timeout(Duration::from_millis(200))).await;
        harm.on_bad("PERFORM pg_sleep(60)").await;
        let new = bad();
        let refused = harm.store.create(new.clone(), None).await.unwrap_err();
        assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
        assert_eq!(harm.store.get(new.id).await.unwrap(), None);
        harm.store.create_one(new_task()).await;
    });
}

#[test]
fn a_connection_that_is_lost_at_the_commit_leaves_it_unknown_and_a_repeat_tells() {
    run(async {
        let harm = Harm::new().await;
        harm.sql(
            "CREATE FUNCTION $S.harm() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER harm AFTER INSERT ON $S.tasks DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION $S.harm()",
        )
        .await;
        let new = new_keyed("k", 1);
        let unknown = harm.store.create(new.clone(), Some(lease_for("one"))).await.unwrap_err();
        assert!(matches!(unknown, StoreError::Unknown(_)), "{unknown:?}");
        harm.mend().await;
        let created = harm.store.create(new, Some(lease_for("one"))).await.unwrap();
        assert!(matches!(created, Created::Created { token: Some(_), .. }), "{created:?}");
    });
}

#[test]
fn a_claim_whose_commit_is_lost_keeps_nothing_from_anyone() {
    run(async {
        let harm = Harm::new().await;
        let task = harm.store.create_one(new_task()).await;
        harm.sql(
            "CREATE FUNCTION $S.harm() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER harm AFTER UPDATE ON $S.tasks DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION $S.harm()",
        )
        .await;
        let unknown = harm.store.claim(claim_by("one", 1)).await.unwrap_err();
        assert!(matches!(unknown, StoreError::Unknown(_)), "{unknown:?}");
        harm.mend().await;
        // The next claim gets the very token that was lost, and keeps it.
        let claimed = harm.store.claim_only("one").await;
        assert_eq!((claimed.task.id, claimed.token.0), (task.id, 1));
        harm.store.worked(task.id, claimed.token, vec![complete(&json!(1))]).await;
    });
}

#[test]
fn a_row_that_somebody_keeps_locked_is_refused_and_hides_no_other() {
    run(async {
        let harm = Harm::with(Options::default().lock_timeout(Duration::from_millis(100))).await;
        let (held, one) = harm.store.create_leased(new_task(), "one").await;
        let (free, two) = harm.store.create_leased(new_task(), "one").await;
        let mut holder = raw(url()).await;
        let transaction = holder.transaction().await.unwrap();
        let lock = format!("SELECT 1 FROM {}.tasks WHERE id = $1 FOR UPDATE", harm.schema);
        transaction.query(&lock, &[&&held.id.as_bytes()[..]]).await.unwrap();

        let told = at_once([(held.id, one), (free.id, two)].map(|(id, token)| {
            let store = harm.store.clone();
            async move { store.apply(id, By::Lease(token), vec![complete(&json!(1))]).await }
        }))
        .await;
        assert!(matches!(told[0], Err(StoreError::Unavailable(_))), "{:?}", told[0]);
        assert!(matches!(told[1], Ok(Applied::Applied(_))), "{:?}", told[1]);
        // Neither a claim nor a read waits for it.
        let waiting = harm.store.create_one(new_task()).await;
        assert_eq!(harm.store.claim_only("two").await.task.id, waiting.id);
        assert_eq!(harm.store.task(held.id).await, held);
        // What is due on it is looked at again after a while, and not at once.
        harm.skew.advance(held.spec.ttl.unwrap());
        harm.store.sweep_all().await;
        let swept = harm.store.sweep(10).await.unwrap();
        assert!(swept.done == 0 && swept.next_due.is_some_and(|due| !due.is_zero()), "{swept:?}");

        transaction.rollback().await.unwrap();
        harm.store.worked(held.id, one, vec![complete(&json!(1))]).await;
    });
}

#[test]
fn rows_that_somebody_keeps_locked_do_not_hold_a_batch_for_ever() {
    run(async {
        let harm = Harm::with(Options::default().lock_timeout(Duration::from_millis(50))).await;
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(harm.store.create_leased(NewTask { max_open: u32::MAX, ..new_task() }, "one").await);
        }
        let mut holder = raw(url()).await;
        let transaction = holder.transaction().await.unwrap();
        transaction.query(&format!("SELECT 1 FROM {}.tasks FOR UPDATE", harm.schema), &[]).await.unwrap();
        // Each by itself would wait for as many times as there are of them.
        let told = at_once(held.iter().map(|(task, token)| {
            let (store, id, by) = (harm.store.clone(), task.id, By::Lease(*token));
            async move { store.apply(id, by, vec![complete(&json!(1))]).await }
        }));
        let told = tokio::time::timeout(Duration::from_secs(4), told).await.expect("they are told soon");
        assert!(told.iter().all(|told| matches!(told, Err(StoreError::Unavailable(_)))));
        transaction.rollback().await.unwrap();
        harm.store.worked(held[99].0.id, held[99].1, vec![complete(&json!(1))]).await;
    });
}

#[test]
fn a_replica_that_stops_in_the_middle_of_a_write_loses_its_locks() {
    run(async {
        let harm = Harm::new().await;
        // What the store asks of the database for each of its own transactions.
        let kept = "SELECT setting::int FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'";
        harm.sql(
            "CREATE TABLE $S.seen (idle text, lock text, sync text);
             CREATE FUNCTION $S.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO $S.seen VALUES (current_setting('idle_in_transaction_session_timeout'),
                 current_setting('lock_timeout'), current_setting('synchronous_commit')); RETURN NEW; END $$;
             CREATE TRIGGER look BEFORE INSERT ON $S.tasks FOR EACH ROW EXECUTE FUNCTION $S.look()",
        )
        .await;
        harm.store.create_one(new_task()).await;
        let seen = harm.client.query_one(&format!("SELECT * FROM {}.seen", harm.schema), &[]).await.unwrap();
        let seen: [&str; 3] = [seen.get(0), seen.get(1), seen.get(2)];
        assert_eq!(seen, ["1s", "1s", "on"]);
        assert!(
            harm.client.query_one(kept, &[]).await.unwrap().get::<_, i32>(0) == 0,
            "and of nobody else's"
        );
    });
}

#[test]
fn a_table_that_is_locked_makes_reads_fail_after_their_time() {
    run(async {
        let harm = Harm::with(Options::default().statement_timeout(Duration::from_millis(1))).await;
        let mut holder = raw(url()).await;
        let transaction = holder.transaction().await.unwrap();
        transaction
            .batch_execute(&format!("LOCK TABLE {}.tasks IN ACCESS EXCLUSIVE MODE", harm.schema))
            .await
            .unwrap();
        let read = harm.store.get(fresh_id()).await.unwrap_err();
        assert!(matches!(read, StoreError::Unavailable(_)), "{read:?}");
        transaction.rollback().await.unwrap();
        assert_eq!(harm.store.get(fresh_id()).await.unwrap(), None);
    });
}

#[test]
fn a_read_that_gets_no_connection_is_refused_and_the_next_one_is_not() {
    run(async {
        let harm = Harm::with(Options::default().readers(1)).await;
        let task = harm.store.create_one(new_task()).await;
        let mut holder = raw(url()).await;
        let transaction = holder.transaction().await.unwrap();
        transaction.batch_execute(&format!("LOCK TABLE {}.tasks", harm.schema)).await.unwrap();

        // The only connection waits for the table, and the second read for the connection.
        let (store, id) = (harm.store.clone(), task.id);
        let first = tokio::spawn(async move { store.get(id).await });
        while waiting(&harm.schema).await == 0 {
            tokio::task::yield_now().await;
        }
        let refused = harm.store.get(task.id).await;

        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        transaction.rollback().await.unwrap();
        assert_eq!(first.await.unwrap().unwrap().map(|task| task.id), Some(task.id));
        assert_eq!(harm.store.task(task.id).await, task);
    });
}

/// How many statements wait for a lock on the tasks of this schema.
async fn waiting(schema: &str) -> i64 {
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    raw(url()).await.query_one(waits, &[&format!("{schema}.tasks")]).await.unwrap().get(0)
}

#[test]
fn a_server_that_takes_no_writes_any_more_refuses_and_is_left_for_one_that_does() {
    run(async {
        let cluster = Cluster::start();
        let store = PostgresStore::connect(&cluster.url, Options::default()).await.unwrap();
        let task = store.create_one(new_task()).await;
        let client = raw(&cluster.url).await;
        let read_only = async |on: &str| {
            client
                .batch_execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {on}"))
                .await
                .unwrap();
            client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
            // Each connection takes it up in its own time; this one as an example of a new one.
            soon(async {
                loop {
                    let now = raw(&cluster.url).await;
                    let now = now.query_one("SHOW default_transaction_read_only", &[]).await.unwrap();
                    if now.get::<_, &str>(0) == on {
                        break;
                    }
                }
            })
            .await;
        };
        // As a primary that became a standby under us.
        read_only("on").await;
        soon(async {
            loop {
                match store.create(new_task(), None).await {
                    Ok(_) => {}
                    Err(StoreError::Unavailable(_)) => break,
                    Err(other) => panic!("nothing was changed: {other:?}"),
                }
            }
        })
        .await;
        assert!(matches!(store.claim(claim_by("w", 1)).await, Err(StoreError::Unavailable(_)) | Ok(_)));
        client.batch_execute("SET default_transaction_read_only = off").await.unwrap();
        read_only("off").await;
        store.create_one(new_task()).await;
        assert_eq!(store.task(task.id).await, task);
    });
}

#[test]
fn a_database_that_crashes_and_comes_back_is_used_again_without_a_restart() {
    run(async {
        let cluster = Cluster::start();
        let skew = still();
        let store =
            PostgresStore::connect(&cluster.url, Options::default().skew(skew.clone())).await.unwrap();
        let (task, token) = store.create_leased(new_task(), "one").await;
        let (dead, _) = store.create_leased(new_task(), "dead").await;
        let mut hints = store.watch();
        cluster.kill();

        for refused in [
            store.create(new_task(), None).await.err(),
            store.get(task.id).await.err(),
            store.apply(task.id, By::Lease(token), vec![complete(&json!(1))]).await.err(),
            store.claim(claim_by("w", 1)).await.err(),
            store.renew(worker("one"), vec![outlast_core::Held { id: task.id, token }], LEASE).await.err(),
            store.sweep(1).await.err(),
            store.counts().await.err(),
        ] {
            let refused = refused.expect("nothing is acknowledged");
            assert!(refused.is_retryable(), "{refused:?}");
        }
        skew.advance(LEASE);
        cluster.start_again();

        // Who could not renew for the outage is given a lease of time to do so.
        assert!(store.claim_up_to("two", 9).await.is_empty());
        store.worked(task.id, token, vec![complete(&json!(1))]).await;
        assert_eq!(store.task(task.id).await.status(), Status::Completed);
        skew.advance(LEASE);
        assert_eq!(store.claim_only("two").await.task.id, dead.id);
        // And who follows is told that something may have been missed.
        soon(async { while hints.next().await.expect("the feed goes on") != Hint::Gap {} }).await;
        let heard = store.create_one(new_task()).await;
        soon(async { while hints.next().await.expect("the feed goes on") != Hint::Changed(heard.id) {} })
            .await;
    });
}

#[test]
fn a_pooler_need_not_listen() {
    run(async {
        let (schema, skew) = (fresh_schema(), still());
        let options = Options::default().schema(&schema).skew(skew.clone()).direct_url(url());
        let (one, two) = (PostgresStore::connect(url(), options).await.unwrap(), open(&schema, &skew).await);
        let mut hints = one.watch();
        let task = two.create_one(new_task()).await;
        assert_eq!(soon(hints.next()).await, Some(Hint::Changed(task.id)));
        after(one.alice(task.id, vec![Event::Cancel]).await);
    });
}
