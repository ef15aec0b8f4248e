//! What followers and operators read.

use std::{collections::BTreeSet, time::Duration};

use outlast_core::{By, ClaimRequest, Counts, Event, Filter, Head, Spec, Status, Store, Task, ToolVersion};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn heads_tell_of_many_tasks_in_order(on: &dyn Harness) {
    let store = on.open().await;
    let (done, token) = store.create_leased(new_task(), "one").await;
    let done = store.worked(done.id, token, vec![complete(&json!(1))]).await;
    let open = store.create_one(new_task()).await;
    let unknown = fresh_id();

    let heads = store.heads(vec![open.id, unknown, done.id, open.id]).await.unwrap();
    let head = |task: &Task| Some(Head { revision: task.revision, is_final: task.is_final() });
    assert_eq!(heads, [head(&open), None, head(&done), head(&open)]);
    assert_eq!(store.heads(vec![]).await.unwrap(), []);

    let many: Vec<_> = (0..2_000).map(|_| fresh_id()).chain([done.id]).collect();
    let heads = store.heads(many).await.unwrap();
    assert_eq!((heads.len(), heads[2_000]), (2_001, head(&done)));
}

pub async fn the_revision_grows_with_what_a_caller_can_see(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let silent = store.worked(task.id, token, vec![finish("a", &json!(1)), timer("t", HOUR)]).await;
    assert_eq!(silent.revision, task.revision);
    let mut last = silent.revision;
    for events in [vec![Event::SetMessage(Some("on it".into()))], vec![ask("q", "Sure?")]] {
        let changed = store.worked(task.id, token, events).await;
        assert!(changed.revision > last);
        last = changed.revision;
    }
    assert!(after(store.alice(task.id, vec![answer("q", "yes")]).await).revision > last);
}

pub async fn a_listing_is_newest_first_and_whole_over_its_pages(on: &dyn Harness) {
    let store = on.open().await;
    let mut made = Vec::new();
    for _ in 0..25 {
        made.push(store.create_one(new_task()).await.id);
    }
    made.reverse();
    for page_size in [1, 7, 25, 100] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = store.list(Filter::default(), after, page_size).await.unwrap();
            assert!(page.tasks.len() <= page_size as usize);
            listed.extend(page.tasks.iter().map(|task| task.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, made, "in pages of {page_size}");
    }
}

pub async fn a_page_is_not_disturbed_by_what_is_created_meanwhile(on: &dyn Harness) {
    let store = on.open().await;
    let mut made = Vec::new();
    for _ in 0..4 {
        made.push(store.create_one(new_task()).await.id);
    }
    let first = store.list(Filter::default(), None, 2).await.unwrap();
    store.create_one(new_task()).await;
    let second = store.list(Filter::default(), first.next, 2).await.unwrap();
    let listed: Vec<_> = first.tasks.iter().chain(&second.tasks).map(|task| task.id).rev().collect();
    assert_eq!(listed, made);
    assert_eq!(second.next, None);
}

pub async fn a_place_that_no_page_ended_at_is_no_panic(on: &dyn Harness) {
    let store = on.open().await;
    store.create_one(new_task()).await;
    for place in ["", "nonsense", "-1", "99999999999999999999999", "'; drop table tasks; --"] {
        // An error or an empty page, as the store likes.
        if let Ok(page) = store.list(Filter::default(), Some(place.into()), 10).await {
            assert!(page.tasks.len() <= 1);
        }
    }
}

pub async fn a_listing_is_filtered_by_owner_status_and_tool(on: &dyn Harness) {
    let store = on.open().await;
    let (asking, token) = store.create_leased(new_of("bob"), "one").await;
    store.worked(asking.id, token, vec![ask("q", "Sure?")]).await;
    let (done, token) = store.create_leased(new_task(), "one").await;
    store.worked(done.id, token, vec![complete(&json!(1))]).await;
    let other = store.create_one(new_with(Spec { tool: "other".into(), ..rerun() })).await;

    let bob = Filter { owner: Some(owner("bob")), ..Filter::default() };
    let alice = Filter { owner: Some(owner("alice")), ..Filter::default() };
    let input_required = Filter { status: Some(Status::InputRequired), ..Filter::default() };
    let completed = Filter { status: Some(Status::Completed), ..Filter::default() };
    let of_other = Filter { tool: Some("other".into()), ..Filter::default() };
    let nothing = Filter { tool: Some("other".into()), ..bob.clone() };
    for (filter, expected) in [
        (Filter::default(), vec![asking.id, done.id, other.id]),
        (bob, vec![asking.id]),
        (alice, vec![done.id, other.id]),
        (input_required, vec![asking.id]),
        (completed, vec![done.id]),
        (of_other, vec![other.id]),
        (nothing, vec![]),
    ] {
        // In pages of one, so that what is filtered out does not end a listing early.
        let (mut listed, mut after) = (BTreeSet::new(), None);
        loop {
            let page = store.list(filter.clone(), after, 1).await.unwrap();
            listed.extend(page.tasks.iter().map(|task| task.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, expected.into_iter().collect(), "{filter:?}");
    }
}

pub async fn what_workers_serve_is_known_as_of_their_last_claims(on: &dyn Harness) {
    let store = on.open().await;
    let served = async || ToolVersion::served_by(&store.workers().await.unwrap());
    assert_eq!(served().await, []);
    let serving = |name: &str, served: &[(&str, &str)]| ClaimRequest {
        serves: served.iter().map(|(tool, version)| ToolVersion::new(*tool, *version)).collect(),
        ..claim_by(name, 1)
    };
    let all = |served: &[(&str, &str)]| -> Vec<_> {
        served.iter().map(|(tool, version)| ToolVersion::new(*tool, *version)).collect()
    };
    // With nothing to hand out, and room for nothing.
    store.claim(serving("one", &[("b", "2"), ("a", "")])).await.unwrap();
    let two = ClaimRequest { max: 0, per_owner: 3, ..serving("two", &[("b", "1"), ("a", "")]) };
    store.claim(two).await.unwrap();
    let mut limits: Vec<_> =
        store.workers().await.unwrap().iter().map(|seen| (seen.per_owner, seen.serves.len())).collect();
    limits.sort_unstable();
    assert_eq!(limits, [(3, 2), (10_000, 2)]);
    assert_eq!(served().await, all(&[("a", ""), ("b", "1"), ("b", "2")]));
    store.claim(serving("one", &[("a", "")])).await.unwrap();
    assert_eq!(served().await, all(&[("a", ""), ("b", "1")]));
    store.claim(serving("two", &[])).await.unwrap();
    assert_eq!(served().await, all(&[("a", "")]));
}

pub async fn tasks_are_counted_by_status_and_by_who_holds_them(on: &dyn Harness) {
    let store = on.open().await;
    assert_eq!(store.counts().await.unwrap(), Counts::default());
    let (asking, token) = store.create_leased(new_task(), "one").await;
    store.worked(asking.id, token, vec![ask("q", "Sure?")]).await;
    store.create_leased(new_task(), "one").await;
    store.create_one(new_task()).await;
    for end in [complete(&json!(1)), complete(&json!(2)), fail("no")] {
        let (task, token) = store.create_leased(new_task(), "one").await;
        store.worked(task.id, token, vec![end]).await;
    }
    let task = store.create_one(new_task()).await;
    store.alice(task.id, vec![Event::Cancel]).await;

    let counts = store.counts().await.unwrap();
    let by_status = Status::ALL.map(|status| counts.of(status));
    assert_eq!((by_status, counts.leased, counts.total()), ([2, 1, 2, 1, 1], 2, 7));
}

pub async fn the_places_that_an_owner_has_taken_are_known(on: &dyn Harness) {
    let store = on.open().await;
    assert_eq!(store.running(owner("alice")).await.unwrap(), 0);
    store.create_one(new_task()).await;
    store.create_leased(new_of("bob"), "one").await;
    let (asks, token) = store.create_leased(new_task(), "one").await;
    store.worked(asks.id, token, vec![ask("q", "Sure?")]).await;
    let (done, token) = store.create_leased(new_task(), "one").await;
    assert_eq!(store.running(owner("alice")).await.unwrap(), 1, "one is queued, and one asks");
    store.alice(asks.id, vec![answer("q", "yes")]).await;
    assert_eq!(store.running(owner("alice")).await.unwrap(), 2);
    store.worked(done.id, token, vec![complete(&json!(1))]).await;
    on.advance(LEASE * 2).await;
    assert_eq!(store.running(owner("alice")).await.unwrap(), 1, "a lease holds its place until it is ended");
}

/// How many tasks are ready, and for how long the first of them is.
async fn queue(store: &dyn Store) -> (u64, Option<Duration>) {
    let counts = store.counts().await.unwrap();
    (counts.ready, counts.oldest_ready)
}

pub async fn what_no_worker_has_taken_up_is_counted_with_how_long_the_first_of_it_waits(on: &dyn Harness) {
    let store = on.open().await;
    assert_eq!(queue(&*store).await, (0, None));
    store.create_one(new_task()).await;
    assert_eq!(queue(&*store).await, (1, Some(Duration::ZERO)));
    on.advance(MINUTE).await;
    store.create_one(new_of("bob")).await;
    store.create_leased(new_of("carol"), "one").await;
    assert_eq!(queue(&*store).await, (2, Some(MINUTE)), "what a worker has does not wait");

    let first = store.claim_up_to("two", 2).await;
    assert_eq!(queue(&*store).await, (0, None));
    on.advance(MOMENT).await;
    for claimed in first {
        store.work(claimed.task.id, claimed.token, vec![Event::Release { began: true }]).await;
    }
    on.advance(MOMENT).await;
    assert_eq!(queue(&*store).await, (2, Some(MOMENT)), "it waits since it was given back");
}

pub async fn parked_work_waits_for_a_worker_only_once_it_is_due(on: &dyn Harness) {
    let store = on.open().await;
    let (sleeps, token) = store.create_leased(new_task(), "one").await;
    store.worked(sleeps.id, token, vec![timer("nap", HOUR), park(1)]).await;
    let (asks, token) = store.create_leased(new_of("bob"), "one").await;
    store.worked(asks.id, token, vec![ask("q", "Sure?"), park(1)]).await;
    on.advance(HOUR - MINUTE).await;
    assert_eq!(queue(&*store).await, (0, None));

    on.advance(MINUTE * 3).await;
    assert_eq!(queue(&*store).await, (1, Some(MINUTE * 2)), "since its timer was due");
    store.tell(asks.id, By::Operator, vec![answer("q", "yes")]).await;
    on.advance(MINUTE).await;
    assert_eq!(queue(&*store).await, (2, Some(MINUTE * 3)));
    assert_eq!(store.claim_up_to("two", 10).await.len(), 2);
    assert_eq!(queue(&*store).await, (0, None));
}

pub async fn work_that_is_over_or_of_a_worker_that_is_gone_is_counted_as_what_it_is(on: &dyn Harness) {
    let store = on.open().await;
    let (done, token) = store.create_leased(new_task(), "one").await;
    store.worked(done.id, token, vec![complete(&json!(1))]).await;
    let unstarted = store.create_one(new_task()).await;
    store.alice(unstarted.id, vec![Event::Cancel]).await;
    let (lost, token) = store.create_leased(new_task(), "one").await;
    on.advance(LEASE - MOMENT).await;
    assert_eq!(queue(&*store).await, (0, None));

    // Its lease is over, and nobody else has come yet.
    on.advance(MOMENT * 3).await;
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.leased, counts.ready, counts.oldest_ready), (1, 1, Some(MOMENT * 2)));
    store.renew_one("one", lost.id, token).await;
    assert_eq!(queue(&*store).await, (0, None), "its worker had only been late");
}
