//! Ready work goes to one worker each, to all owners in turn, and within their limits.

use std::collections::BTreeSet;

use outlast_core::{ClaimRequest, Owner, Spec, Status, ToolVersion};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn a_claimed_task_comes_with_its_call_and_its_next_token(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_task();
    store.create_one(new.clone()).await;
    let claimed = store.claim_only("one").await;

    assert_eq!((claimed.task.id, claimed.call, claimed.token.0), (new.id, new.call, 1));
    assert_eq!(claimed.task.token, claimed.token);
    assert_eq!(claimed.task.lease().unwrap().worker, worker("one"));
    assert_eq!(store.task(new.id).await, claimed.task);
    assert_eq!(store.counts().await.unwrap().leased, 1);
    assert_eq!(store.claim_up_to("two", 10).await, []);
}

pub async fn two_workers_share_a_thousand_tasks_and_none_goes_to_both(on: &dyn Harness) {
    let store = on.open().await;
    let made = at_once((0..20).map(|_| {
        let store = store.clone();
        async move {
            let mut ids = Vec::new();
            for _ in 0..50 {
                ids.push(store.create_one(new_task()).await.id);
            }
            ids
        }
    }))
    .await;
    let made: BTreeSet<_> = made.into_iter().flatten().collect();
    assert_eq!(made.len(), 1_000);

    let claims = at_once(["one", "two"].map(|name| {
        let store = store.clone();
        async move {
            let mut claimed = Vec::new();
            loop {
                let more = store.claim_up_to(name, 7).await;
                if more.is_empty() {
                    return claimed;
                }
                claimed.extend(more.into_iter().map(|claimed| claimed.task.id));
            }
        }
    }))
    .await;
    let claimed: Vec<_> = claims.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 1_000, "none twice");
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), made, "none left out");
}

pub async fn a_worker_is_handed_no_more_than_it_has_room_for(on: &dyn Harness) {
    let store = on.open().await;
    for _ in 0..5 {
        store.create_one(new_task()).await;
    }
    for (room, handed) in [(0, 0), (2, 2), (2, 2), (2, 1), (2, 0)] {
        assert_eq!(store.claim_up_to("one", room).await.len(), handed);
    }
}

pub async fn a_flooding_owner_does_not_keep_a_quiet_one_waiting(on: &dyn Harness) {
    let store = on.open().await;
    for _ in 0..100 {
        store.create_one(new_of("flooding")).await;
    }
    for _ in 0..3 {
        store.create_one(new_of("quiet")).await;
    }
    let owners = |claimed: Vec<outlast_core::Claimed>| -> Vec<Owner> {
        claimed.into_iter().map(|claimed| claimed.task.owner).collect()
    };
    // In turn within one claim ...
    let first = owners(store.claim_up_to("one", 4).await);
    assert_eq!(first.iter().filter(|name| **name == owner("quiet")).count(), 2);
    // ... and from one claim to the next.
    let mut next = owners(store.claim_up_to("one", 1).await);
    next.extend(owners(store.claim_up_to("two", 1).await));
    assert!(next.contains(&owner("quiet")));
    // Who has nothing waiting leaves its turn to the others.
    assert_eq!(store.claim_up_to("one", 50).await.len(), 50);
}

pub async fn an_owners_tasks_are_taken_in_the_order_they_became_ready(on: &dyn Harness) {
    let store = on.open().await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(store.create_one(new_task()).await.id);
        on.advance(MOMENT).await;
    }
    let taken: Vec<_> =
        store.claim_up_to("one", 5).await.into_iter().map(|claimed| claimed.task.id).collect();
    assert_eq!(taken, made);
}

pub async fn an_owner_runs_no_more_than_its_limit_over_all_workers(on: &dyn Harness) {
    let store = on.open().await;
    for _ in 0..6 {
        store.create_one(new_task()).await;
        store.create_one(new_of("bob")).await;
    }
    let limited = |name| ClaimRequest { per_owner: 2, ..claim_by(name, 10) };
    let first = store.claim(limited("one")).await.unwrap();
    assert_eq!(first.len(), 4, "two of alice's and two of bob's");
    assert_eq!(store.claim(limited("two")).await.unwrap(), []);

    // A place that is given back is taken again, by its own owner's work.
    let one = &first[0];
    store.worked(one.task.id, one.token, vec![complete(&json!(null))]).await;
    let next = store.claim(limited("two")).await.unwrap();
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].task.owner, one.task.owner);
}

pub async fn work_that_waits_for_a_person_takes_no_place(on: &dyn Harness) {
    let store = on.open().await;
    store.create_one(new_task()).await;
    store.create_one(new_task()).await;
    let limited = || ClaimRequest { per_owner: 1, ..claim_by("one", 10) };
    let first = store.claim(limited()).await.unwrap().remove(0);
    assert_eq!(store.claim(limited()).await.unwrap(), []);

    store.worked(first.task.id, first.token, vec![ask("q", "Sure?")]).await;
    assert_eq!(store.claim(limited()).await.unwrap().len(), 1);
}

pub async fn a_worker_is_handed_only_what_it_serves(on: &dyn Harness) {
    let store = on.open().await;
    let of =
        |tool: &str, version: &str| new_with(Spec { tool: tool.into(), version: version.into(), ..rerun() });
    let mut ids = Vec::new();
    for (tool, version) in [("a", "1"), ("a", "2"), ("a", ""), ("b", "1")] {
        ids.push(store.create_one(of(tool, version)).await.id);
    }
    let serving = |serves: &[(&str, &str)]| ClaimRequest {
        serves: serves.iter().map(|(tool, version)| ToolVersion::new(*tool, *version)).collect(),
        ..claim_by("one", 10)
    };
    assert_eq!(store.claim(serving(&[])).await.unwrap(), []);
    assert_eq!(store.claim(serving(&[("b", "2"), ("c", "1")])).await.unwrap(), []);
    let claimed = store.claim(serving(&[("a", "2")])).await.unwrap();
    assert_eq!(claimed.iter().map(|claimed| claimed.task.id).collect::<Vec<_>>(), [ids[1]]);
    let claimed = store.claim(serving(&[("a", ""), ("b", "1"), ("a", "2")])).await.unwrap();
    let claimed: BTreeSet<_> = claimed.iter().map(|claimed| claimed.task.id).collect();
    assert_eq!(claimed, [ids[2], ids[3]].into());
}

pub async fn an_expired_lease_does_not_block_its_owner_at_the_limit(on: &dyn Harness) {
    let store = on.open().await;
    let (dead, _) = store.create_leased(new_task(), "dead").await;
    // Ready for longer than the dead worker's lease is over, and behind it in the owner's one place.
    store.create_one(new_task()).await;
    on.advance(LEASE).await;
    let limited = || ClaimRequest { per_owner: 1, ..claim_by("one", 10) };
    for _ in 0..2 {
        let claimed = store.claim(limited()).await.unwrap();
        assert_eq!(claimed.len(), 1, "one of the two runs");
        let claimed = &claimed[0];
        store.worked(claimed.task.id, claimed.token, vec![complete(&json!(null))]).await;
    }
    assert_eq!(store.task(dead.id).await.status(), Status::Completed);
}

pub async fn an_expired_lease_of_a_version_that_nobody_serves_any_more_ends(on: &dyn Harness) {
    let store = on.open().await;
    let old = |spec: Spec| new_with(Spec { version: "old".into(), ..spec });
    let (once, _) = store.create_leased(old(run_once()), "dead").await;
    let (again, _) = store.create_leased(old(rerun()), "dead").await;
    store.create_one(new_task()).await;
    on.advance(LEASE).await;

    // The dead leases hold none of the owner's places, and who must not run twice learns of its end.
    let limited = ClaimRequest { per_owner: 1, ..claim_by("one", 10) };
    assert_eq!(store.claim(limited).await.unwrap().len(), 1);
    assert_eq!(store.task(once.id).await.status(), Status::Failed);
    let waiting = store.task(again.id).await;
    assert_eq!((waiting.status(), waiting.lease()), (Status::Working, None));
}

pub async fn what_is_over_is_never_claimed(on: &dyn Harness) {
    let store = on.open().await;
    for end in [complete(&json!(1)), fail("no")] {
        let (task, token) = store.create_leased(new_task(), "one").await;
        store.worked(task.id, token, vec![end]).await;
    }
    let task = store.create_one(new_task()).await;
    store.alice(task.id, vec![outlast_core::Event::Cancel]).await;
    on.advance(LEASE * 2).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
}
