//! What is due on tasks that nobody holds is done in small portions, and nothing is forgotten too early.

use std::time::Duration;

use outlast_core::{Applied, Event, Renewal, Spec, Status, Store, Swept, TaskState};
use serde_json::json;

use crate::{Harness, story::*};

/// Whether `next_due` lies at `expected` from now; a clock that a database owns goes on by itself meanwhile.
fn due_in(swept: Swept, expected: Duration) -> bool {
    swept.next_due.is_some_and(|due| due.abs_diff(expected) < Duration::from_secs(2))
}

pub async fn where_nothing_is_due_nothing_is_done(on: &dyn Harness) {
    let store = on.open().await;
    assert_eq!(store.sweep(10).await.unwrap(), Swept { done: 0, next_due: None });
    let task = store.create_one(new_with(Spec { ttl: None, ..rerun() })).await;
    assert_eq!(store.sweep(10).await.unwrap(), Swept { done: 0, next_due: None });
    assert_eq!(store.task(task.id).await, task);
}

pub async fn a_sweep_does_no_more_than_it_is_asked_to(on: &dyn Harness) {
    let store = on.open().await;
    for _ in 0..25 {
        store.create_one(new_with(Spec { deadline: Some(MINUTE), ..rerun() })).await;
    }
    on.advance(MINUTE).await;
    for (done, failed, more) in [(10, 10, true), (10, 20, true), (5, 25, false)] {
        let swept = store.sweep(10).await.unwrap();
        assert_eq!(swept.done, done);
        assert_eq!(swept.next_due == Some(Duration::ZERO), more);
        assert_eq!(store.counts().await.unwrap().of(Status::Failed), failed);
    }
    assert_eq!(store.sweep(10).await.unwrap().done, 0);
}

pub async fn the_next_thing_that_is_due_is_known(on: &dyn Harness) {
    let store = on.open().await;
    store.create_one(new_with(Spec { ttl: Some(DAY * 10), ..rerun() })).await;
    assert!(due_in(store.sweep(10).await.unwrap(), DAY * 5), "half of the ttl");
    store.create_one(new_with(Spec { deadline: Some(DAY), ..rerun() })).await;
    assert!(
        due_in(store.sweep(10).await.unwrap(), DAY / 2),
        "half of the usual ttl comes before the deadline"
    );
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![park(0)]).await;
    store.alice(task.id, vec![Event::Cancel]).await;
    assert!(due_in(store.sweep(10).await.unwrap(), task.spec.cancel_grace));

    on.advance(task.spec.cancel_grace).await;
    let swept = store.sweep(10).await.unwrap();
    assert_eq!(swept.done, 1);
    assert!(due_in(swept, DAY / 2 - task.spec.cancel_grace));
}

pub async fn c19_the_authors_deadline_ends_work_that_waits_for_an_answer(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_with(Spec { deadline: Some(HOUR), ttl: Some(DAY), ..rerun() });
    let (task, token) = store.create_leased(new, "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?"), park(1)]).await;
    on.advance(HOUR - MINUTE).await;
    store.sweep_all().await;
    assert_eq!(store.task(task.id).await.status(), Status::InputRequired);
    on.advance(MINUTE).await;
    assert_eq!(store.sweep_all().await, 1);

    let failed = store.task(task.id).await;
    let TaskState::Failed { error } = &failed.state else { panic!("it failed, not {:?}", failed.state) };
    assert!(error.message.contains("longer than its tool allows"), "{}", error.message);
    assert_eq!(store.alice(task.id, vec![answer("q", "too late")]).await, Applied::Absorbed(failed));
    assert_eq!(store.claim_up_to("two", 10).await, []);
    on.advance(DAY).await;
    store.sweep_all().await;
    assert_eq!(store.get(task.id).await.unwrap(), None);
}

pub async fn a_deadline_of_work_that_a_worker_holds_is_the_workers_to_judge(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) =
        store.create_leased(new_with(Spec { deadline: Some(LEASE * 2), ..rerun() }), "one").await;
    on.advance(LEASE * 2 - MOMENT).await;
    store.renew_one("one", task.id, token).await;
    on.advance(MOMENT * 2).await;
    assert_eq!(store.sweep_all().await, 0);
    let ended = store.worked(task.id, token, vec![Event::PassDeadline]).await;
    assert_eq!(ended.status(), Status::Failed);

    // Of a worker that went away without a word, the store judges.
    let (left, _) = store.create_leased(new_with(Spec { deadline: Some(LEASE / 2), ..rerun() }), "one").await;
    on.advance(LEASE / 2).await;
    assert_eq!(store.sweep_all().await, 0);
    on.advance(LEASE / 2).await;
    assert_eq!(store.sweep_all().await, 1);
    assert_eq!(store.task(left.id).await.status(), Status::Failed);
}

pub async fn cancelled_work_that_nobody_takes_up_ends_after_its_grace(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![park(0)]).await;
    store.alice(task.id, vec![Event::Cancel]).await;
    on.advance(task.spec.cancel_grace - MOMENT).await;
    assert_eq!(store.sweep_all().await, 0);
    on.advance(MOMENT).await;
    assert_eq!(store.sweep_all().await, 1);
    assert_eq!(store.task(task.id).await.status(), Status::Cancelled);
}

pub async fn cancelled_work_in_a_workers_hands_is_left_to_it(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.alice(task.id, vec![Event::Cancel]).await;
    for _ in 0..10 {
        on.advance(LEASE / 2).await;
        let kept = store.renew_one("one", task.id, token).await;
        assert_eq!(kept, Renewal::Kept { inbox_seq: 1, cancel: true });
        assert_eq!(store.sweep_all().await, 0);
    }
    let done = store.worked(task.id, token, vec![complete(&json!("all the same"))]).await;
    assert_eq!(done.status(), Status::Completed);
}

pub async fn c23_the_ttl_of_waiting_work_is_extended_and_the_work_is_not_killed(on: &dyn Harness) {
    let store = on.open().await;
    let hourly = || Spec { ttl: Some(HOUR), ..rerun() };
    let queued = store.create_one(new_with(hourly())).await;
    let (parked, token) = store.create_leased(new_with(hourly()), "one").await;
    store.worked(parked.id, token, vec![park(0)]).await;
    for _ in 0..50 {
        on.advance(HOUR / 2).await;
        assert_eq!(store.sweep_all().await, 2);
    }
    for id in [queued.id, parked.id] {
        let task = store.task(id).await;
        assert_eq!(task.status(), Status::Working);
        assert!(task.ttl.unwrap() > DAY && task.updated_at > queued.updated_at);
    }
}

pub async fn c23_work_is_not_killed_when_the_sweeper_comes_too_late(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(Spec { ttl: Some(HOUR), ..rerun() })).await;
    on.advance(DAY).await;
    assert_eq!(store.sweep_all().await, 1);
    let task = store.task(task.id).await;
    assert_eq!(
        (task.status(), task.ttl),
        (Status::Working, Some(task.updated_at.since(task.created_at) + HOUR))
    );
}

/// Completes a task on these terms when it is an age old, and sees how long it stays readable from then on.
async fn stays_readable(on: &dyn Harness, store: &dyn Store, spec: Spec, age: Duration, least: Duration) {
    let task = store.create_one(new_with(spec)).await;
    on.advance(age).await;
    store.sweep_all().await;
    let token = store.claim_only("one").await.token;
    let done = store.worked(task.id, token, vec![complete(&json!(1))]).await;
    on.advance(least - MINUTE).await;
    store.sweep_all().await;
    assert_eq!(store.get(task.id).await.unwrap(), Some(done), "readable for all of its time");
    on.advance(MINUTE).await;
    assert_eq!(store.sweep_all().await, 1);
    assert_eq!(store.get(task.id).await.unwrap(), None, "and not for longer");
}

pub async fn a_finished_task_stays_readable_for_one_ttl_from_its_end(on: &dyn Harness) {
    let store = on.open().await;
    let spec = || Spec { ttl: Some(HOUR), ..rerun() };
    stays_readable(on, &*store, spec(), Duration::ZERO, HOUR).await;
    stays_readable(on, &*store, spec(), HOUR / 4, HOUR).await;
    stays_readable(on, &*store, spec(), HOUR * 10, HOUR).await;
}

pub async fn a_finished_task_stays_readable_for_its_least_time_in_any_case(on: &dyn Harness) {
    let store = on.open().await;
    let spec = Spec { ttl: Some(Duration::from_secs(1)), min_retention: HOUR, ..rerun() };
    stays_readable(on, &*store, spec, MINUTE, HOUR).await;
}

pub async fn a_finished_task_without_a_ttl_is_kept_for_ever(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_with(Spec { ttl: None, ..rerun() }), "one").await;
    let done = store.worked(task.id, token, vec![complete(&json!(1))]).await;
    on.advance(DAY * 365 * 100).await;
    assert_eq!(store.sweep_all().await, 0);
    assert_eq!(store.task(task.id).await, done);
}

pub async fn a_ttl_that_the_work_extended_is_kept(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_with(Spec { ttl: Some(HOUR), ..rerun() }), "one").await;
    let extended = store.worked(task.id, token, vec![Event::ExtendTtl(DAY)]).await;
    assert!(extended.ttl.unwrap() >= DAY);
    let shorter = store.work(task.id, token, vec![Event::ExtendTtl(MINUTE)]).await;
    assert_eq!(shorter, Applied::Absorbed(extended));
    store.worked(task.id, token, vec![complete(&json!(1))]).await;
    on.advance(DAY - MINUTE).await;
    assert_eq!(store.sweep_all().await, 0);
    on.advance(MINUTE).await;
    assert_eq!(store.sweep_all().await, 1);
}

pub async fn a_purged_task_leaves_nothing_behind(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_with(Spec { ttl: Some(HOUR), ..rerun() }), "one").await;
    store.worked(task.id, token, vec![finish("a", &json!(1)), complete(&json!("result"))]).await;
    let kept = store.create_one(new_task()).await;
    on.advance(HOUR).await;
    assert_eq!(store.sweep_all().await, 1);

    assert_eq!(store.get(task.id).await.unwrap(), None);
    assert_eq!(store.entries(task.id).await, []);
    assert_eq!(store.call(task.id).await.unwrap(), None);
    assert_eq!(store.counts().await.unwrap().total(), 1);
    assert_eq!(store.task(kept.id).await, kept);
}

pub async fn c20_a_result_written_after_the_task_was_deleted_is_dropped_quietly(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_with(Spec { ttl: Some(HOUR), deadline: Some(LEASE), ..rerun() });
    let (task, token) = store.create_leased(new, "slow").await;
    // The worker is stopped for hours: its task is failed by its deadline, and deleted.
    on.advance(LEASE).await;
    assert_eq!(store.sweep_all().await, 1);
    on.advance(HOUR).await;
    assert_eq!(store.sweep_all().await, 1);

    let written = store.work(task.id, token, vec![finish("a", &json!(1)), complete(&json!("late"))]).await;
    assert_eq!(written, Applied::NotFound);
    assert_eq!(store.renew_one("slow", task.id, token).await, Renewal::Lost);
    assert_eq!(store.get(task.id).await.unwrap(), None);
    assert_eq!(store.counts().await.unwrap().total(), 0);
}
