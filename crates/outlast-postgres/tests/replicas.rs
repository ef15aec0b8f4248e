//! Several replicas on one database, each as another process would have it.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

mod harness;

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use harness::{fresh_schema, open, quoted, raw, still, url};
use outlast_core::{
    Applied, ClaimRequest, Created, Hint, Inspect, NewTask, Renewal, Status, Store, StoreError, ToolVersion,
};
use outlast_postgres::{Options, PostgresStore, Skew};
use outlast_testkit::{run, story::*};
use serde_json::json;

async fn two() -> (String, Skew, PostgresStore, PostgresStore) {
    let (schema, skew) = (fresh_schema(), still());
    let (one, two) = (open(&schema, &skew).await, open(&schema, &skew).await);
    (schema, skew, one, two)
}

#[test]
fn a_key_that_is_sent_to_two_replicas_at_once_makes_one_task_a_thousand_times() {
    run(async {
        let (_, _, one, two) = two().await;
        let made = at_once((0..1_000).map(|number| {
            let (one, two) = (one.clone(), two.clone());
            async move {
                let new = || NewTask { max_open: u32::MAX, ..new_keyed(&format!("key {number}"), 1) };
                let (here, there) = futures::join!(one.create(new(), None), two.create(new(), None));
                (here.unwrap(), there.unwrap())
            }
        }))
        .await;
        let mut ids = BTreeSet::new();
        for (here, there) in made {
            let id = |created: &Created| match created {
                Created::Created { task, .. } | Created::Existing(task) => task.id,
                other => panic!("there is one task of this key, not {other:?}"),
            };
            assert_eq!(id(&here), id(&there));
            let fresh = [&here, &there].into_iter().filter(|made| matches!(made, Created::Created { .. }));
            assert_eq!(fresh.count(), 1);
            ids.insert(id(&here));
        }
        assert_eq!(ids.len(), 1_000);
        assert_eq!(one.counts().await.unwrap().total(), 1_000);
    });
}

#[test]
fn an_owners_quota_is_exact_over_replicas() {
    run(async {
        let (_, _, one, two) = two().await;
        let made = at_once((0..200).map(|number| {
            let store = if number % 2 == 0 { one.clone() } else { two.clone() };
            async move { store.try_create(NewTask { max_open: 50, ..new_task() }).await }
        }))
        .await;
        let created = made.iter().filter(|made| matches!(made, Created::Created { .. })).count();
        assert_eq!(created, 50);
        assert!(made.iter().all(|made| matches!(made, Created::Created { .. } | Created::OverQuota)));
    });
}

#[test]
fn replicas_that_claim_at_once_share_the_work_and_keep_each_owners_limit() {
    run(async {
        let (_, _, one, two) = two().await;
        for number in 0..120 {
            one.create_one(new_of(["alice", "bob", "carol"][number % 3])).await;
        }
        let request = |name: &str| ClaimRequest { per_owner: 7, ..claim_by(name, 5) };
        let mut taken = Vec::new();
        for _ in 0..4 {
            let claims = join_all([&one, &two, &one, &two].map(|store| store.claim(request("w")))).await;
            taken.extend(claims.into_iter().flat_map(Result::unwrap));
        }
        let ids: BTreeSet<_> = taken.iter().map(|claimed| claimed.task.id).collect();
        assert_eq!(ids.len(), taken.len(), "no task goes to two");
        for name in ["alice", "bob", "carol"] {
            let running = taken.iter().filter(|claimed| claimed.task.owner == owner(name)).count();
            assert_eq!(running, 7, "{name}");
        }
    });
}

#[test]
fn answers_that_come_in_at_two_replicas_each_count_once() {
    run(async {
        let (_, _, one, two) = two().await;
        let (task, token) = one.create_leased(new_task(), "one").await;
        let questions = (0..40).map(|number| ask(&format!("q{number}"), "Sure?")).collect();
        one.worked(task.id, token, questions).await;
        let told = at_once((0..80).map(|number| {
            let store = if number % 2 == 0 { one.clone() } else { two.clone() };
            async move { store.alice(task.id, vec![answer(&format!("q{}", number / 2), "yes")]).await }
        }))
        .await;
        let counted = told.iter().filter(|told| matches!(told, Applied::Applied(_))).count();
        assert_eq!(counted, 40);
        let entries = two.entries(task.id).await;
        assert!(
            entries.iter().map(|entry| entry.seq).eq(1..=80),
            "the journal has no gap and no entry twice"
        );
    });
}

#[test]
fn a_replica_takes_over_what_another_one_left_and_the_other_is_fenced() {
    run(async {
        let (_, skew, dead, alive) = two().await;
        let (task, token) = dead.create_leased(new_task(), "dead").await;
        dead.worked(task.id, token, vec![finish("a", &json!(1))]).await;
        assert!(alive.claim_up_to("alive", 9).await.is_empty(), "its lease runs");
        skew.advance(LEASE);
        let claimed = alive.claim_only("alive").await;
        assert_eq!((claimed.task.id, claimed.token), (task.id, token.next()));

        assert_eq!(dead.work(task.id, token, vec![complete(&json!("late"))]).await, Applied::Fenced);
        assert_eq!(dead.renew_one("dead", task.id, token).await, Renewal::Lost);
        alive.worked(task.id, claimed.token, vec![complete(&json!("done"))]).await;
        assert_eq!(dead.task(task.id).await.status(), Status::Completed);
    });
}

#[test]
fn who_comes_last_is_served_with_the_first_however_many_wait_before() {
    run(async {
        let (_, _, one, two) = two().await;
        let flood = (0..1_200).map(|_| {
            let one = one.clone();
            async move { one.create_one(NewTask { max_open: u32::MAX, ..new_of("flooder") }).await }
        });
        at_once(flood).await;
        for name in ["quiet", "shy"] {
            one.create_one(new_of(name)).await;
        }
        let served: BTreeSet<_> =
            two.claim_up_to("w", 3).await.into_iter().map(|claimed| claimed.task.owner).collect();
        assert_eq!(served, [owner("flooder"), owner("quiet"), owner("shy")].into());
    });
}

#[test]
fn what_a_caller_claimed_who_left_goes_to_the_next_at_once() {
    run(async {
        let (_, _, one, two) = two().await;
        let task = one.create_one(new_task()).await;
        let mut claiming = Box::pin(one.claim(claim_by("gone", 1)));
        assert!(futures::poll!(&mut claiming).is_pending());
        drop(claiming);
        // No time passes, so that its lease does not run out.
        soon(async {
            loop {
                let claimed = two.claim_up_to("here", 1).await;
                if claimed.iter().any(|claimed| claimed.task.id == task.id) {
                    break;
                }
            }
        })
        .await;
    });
}

#[test]
fn a_change_at_one_replica_is_heard_at_the_other() {
    run(async {
        let (_, _, one, two) = two().await;
        let mut hints = two.watch();
        let (task, token) = one.create_leased(new_task(), "one").await;
        assert_eq!(soon(hints.next()).await, Some(Hint::Changed(task.id)));
        one.worked(task.id, token, vec![complete(&json!(1))]).await;
        assert_eq!(soon(hints.next()).await, Some(Hint::Changed(task.id)));
        assert!(two.task(task.id).await.is_final());
    });
}

#[test]
fn a_listener_that_is_killed_misses_no_end() {
    run(async {
        let (schema, skew) = (fresh_schema(), still());
        let one = open(&schema, &skew).await;
        let name = schema.replace(' ', "_");
        let options = Options::default().schema(&schema).skew(skew);
        let named = format!("{}?application_name={name}", url());
        let two = PostgresStore::connect(&named, options).await.unwrap();
        let mut hints = two.watch();
        let (task, token) = one.create_leased(new_task(), "one").await;

        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE application_name = $1 AND query LIKE '%pg_notify%'";
        let killed: i64 = raw(url()).await.query_one(kill, &[&name]).await.unwrap().get(0);
        assert_eq!(killed, 1);
        one.worked(task.id, token, vec![complete(&json!(1))]).await;
        soon(async {
            // Told of it, or that something was missed: who follows reads again until it is final.
            while hints.next().await.expect("the feed goes on") != Hint::Gap {}
            assert!(two.task(task.id).await.is_final());
            // And it hears again.
            let later = one.create_one(new_task()).await;
            while hints.next().await.expect("the feed goes on") != Hint::Changed(later.id) {}
        })
        .await;
    });
}

#[test]
fn a_replica_that_comes_later_does_not_run_back_in_time() {
    run(async {
        let (schema, skew) = (fresh_schema(), still());
        let one = open(&schema, &skew).await;
        let before = one.create_one(new_task()).await;
        skew.set_wall(-86_400_000);
        let two = open(&schema, &skew).await;
        assert!(two.create_one(new_task()).await.created_at >= before.created_at);
    });
}

#[test]
fn what_workers_of_all_replicas_serve_is_known_until_they_are_gone() {
    run(async {
        let (_, skew, one, two) = two().await;
        let serves = |name: &str, tool: &str| ClaimRequest {
            serves: [ToolVersion::new(tool, "1\0")].into(),
            ..claim_by(name, 1)
        };
        one.claim(serves("a", "one")).await.unwrap();
        two.claim(serves("b", "two")).await.unwrap();
        let both = [ToolVersion::new("one", "1\0"), ToolVersion::new("two", "1\0")];
        let served = async || ToolVersion::served_by(&one.workers().await.unwrap());
        assert_eq!(served().await, both);
        skew.advance(Duration::from_secs(1_800));
        two.claim(serves("b", "two")).await.unwrap();
        skew.advance(Duration::from_secs(1_801));
        assert_eq!(served().await, both[1..]);
    });
}

#[test]
fn stores_in_two_schemas_share_nothing() {
    run(async {
        let skew = still();
        let (one, two) = (open(&fresh_schema(), &skew).await, open(&fresh_schema(), &skew).await);
        let task = one.create_one(new_keyed("k", 1)).await;
        assert_eq!(two.get(task.id).await.unwrap(), None);
        assert!(matches!(two.try_create(new_keyed("k", 2)).await, Created::Created { .. }));
    });
}

#[test]
fn a_closed_store_has_written_what_waited_and_takes_nothing_more() {
    run(async {
        let (_, _, one, two) = two().await;
        let waiting: Vec<_> = (0..300)
            .map(|_| {
                let one = one.clone();
                tokio::spawn(async move { one.create(NewTask { max_open: 900, ..new_task() }, None).await })
            })
            .collect();
        tokio::task::yield_now().await;
        one.close().await;
        let mut kept = 0;
        for created in waiting {
            match created.await.unwrap() {
                Ok(Created::Created { .. }) => kept += 1,
                Err(StoreError::Fatal(_)) => {}
                other => panic!("it is written, or refused: {other:?}"),
            }
        }
        assert_eq!(two.counts().await.unwrap().total(), kept);
        assert!(matches!(one.get(fresh_id()).await, Err(StoreError::Fatal(_))));
        assert!(matches!(one.claim(claim_by("w", 1)).await, Err(StoreError::Fatal(_))));
        assert!(matches!(one.sweep(1).await, Err(StoreError::Fatal(_))));
        assert_eq!(one.watch().next().await, None);
    });
}

#[test]
fn without_prepared_statements_everything_goes_as_well() {
    run(async {
        let options = || Options::default().schema("unprepared").prepared(false).skew(still());
        let store = PostgresStore::connect(url(), options()).await.unwrap();
        let (task, token) = store.create_leased(new_keyed("k", 1), "one").await;
        store.worked(task.id, token, vec![ask("q", "Sure?"), finish("a", &json!(1)), park(0)]).await;
        after(store.alice(task.id, vec![answer("q", "yes")]).await);
        let claimed = store.claim_only("two").await;
        store.worked(task.id, claimed.token, vec![complete(&json!(1))]).await;
        assert_eq!(store.task(task.id).await.status(), Status::Completed);
        assert_eq!(store.entries(task.id).await.len(), 5);
        store.sweep_all().await;
        raw(url())
            .await
            .batch_execute(&format!("DROP SCHEMA {} CASCADE", quoted("unprepared")))
            .await
            .unwrap();
    });
}
