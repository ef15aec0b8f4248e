//! What becomes of work whose worker went away without a word.

use std::sync::Arc;

use outlast_core::{Applied, ClaimRequest, EntryKind, Event, Spec, Status, Store, Task, TaskState};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn work_that_may_run_again_does_and_finds_its_steps(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![finish("a", &json!("kept")), ask("q", "Sure?")]).await;
    on.advance(LEASE - MOMENT).await;
    assert_eq!(store.claim_up_to("two", 10).await, [], "a lease that runs is not taken");
    on.advance(MOMENT).await;
    let claimed = store.claim_only("two").await;

    assert_eq!(claimed.token, token.next());
    assert_eq!(claimed.task.status(), Status::InputRequired, "the question is still outstanding");
    assert_eq!(claimed.task.lost.len(), 1);
    let entries = store.entries(task.id).await;
    let kinds: Vec<_> = entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::Step, EntryKind::Asked, EntryKind::LeaseLost, EntryKind::Claimed]);
    store.alice(task.id, vec![answer("q", "yes")]).await;
    store.worked(task.id, claimed.token, vec![complete(&json!(1))]).await;
}

pub async fn work_that_must_not_run_twice_ends_and_says_that_its_outcome_is_unknown(on: &dyn Harness) {
    let store = on.open().await;
    let (task, _) = store.create_leased(new_with(run_once()), "one").await;
    on.advance(LEASE).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);

    let failed = store.task(task.id).await;
    let TaskState::Failed { error } = &failed.state else { panic!("it failed, not {:?}", failed.state) };
    assert_eq!(error.code, -32_603);
    assert!(error.message.contains("stopped while this work ran") && error.message.contains("unknown"));
    assert_eq!(failed.status_message.as_ref(), Some(&error.message));
}

pub async fn work_that_must_not_run_twice_waits_safely_while_nobody_runs_it(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(run_once())).await;
    on.advance(DAY / 3).await;
    store.sweep_all().await;
    assert_eq!(store.task(task.id).await.status(), Status::Working);
    assert_eq!(store.claim_only("one").await.token.0, 1);
}

/// Lets every attempt end by a lost lease until the task is over or was started `most` times. A suspect runs alone.
async fn crash_on_and_on(
    on: &dyn Harness,
    store: &dyn Store,
    id: outlast_core::TaskId,
    most: u32,
) -> (Task, u32) {
    let mut started = 0;
    while started < most {
        for claimed in store.claim_up_to("doomed", 10).await {
            started += 1;
            if claimed.task.is_suspect() {
                store.worked(id, claimed.token, vec![Event::RunAlone]).await;
            }
        }
        if store.task(id).await.is_final() {
            break;
        }
        // Long enough for the lease and for the longest backoff.
        on.advance(LEASE + MINUTE * 2).await;
    }
    (store.task(id).await, started)
}

pub async fn work_that_crashes_its_worker_every_time_is_given_up(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(Spec { max_attempts: 3, ..rerun() })).await;
    let (task, started) = crash_on_and_on(on, &*store, task.id, 10).await;
    assert_eq!(started, 3);
    let TaskState::Failed { error } = &task.state else { panic!("it was given up, not {:?}", task.state) };
    assert!(error.message.contains("3 times in a row"), "{}", error.message);
    assert!(error.message.contains("`outlast tasks retry`"), "{}", error.message);
    assert_eq!(task.lost.len(), 3);
    for lost in &task.lost {
        assert!(error.message.contains(&lost.to_string()), "{lost} in {}", error.message);
    }
    assert_eq!(task.status_message.as_ref(), Some(&error.message));
}

/// Every worker goes away without a word; what they ran is ready again afterwards, if it ever will be.
pub(super) async fn crash(on: &dyn Harness, store: &dyn Store) {
    on.advance(LEASE).await;
    // A claim ends the leases, also by somebody who can run nothing.
    let nothing = ClaimRequest { serves: Arc::new([]), ..claim_by("nobody", 1) };
    assert_eq!(store.claim(nothing).await.unwrap(), []);
    on.advance(MINUTE * 2).await;
}

pub async fn a_crash_in_company_never_ends_a_suspect(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(Spec { max_attempts: 3, ..rerun() })).await;
    for number in 1..=8 {
        let claimed = store.claim_only("doomed").await;
        assert_eq!(claimed.task.is_suspect(), number > 2);
        crash(on, &*store).await;
    }
    let claimed = store.claim_only("one").await;
    assert_eq!(claimed.task.lost.len(), 2, "what else ran may have been to blame");
    let entries = store.entries(task.id).await;
    let lost = entries.iter().filter(|entry| entry.kind == EntryKind::LeaseLost).count();
    assert_eq!(lost, 8, "and each crash is in the history");

    // Alone, it is convicted.
    let alone = store.worked(task.id, claimed.token, vec![Event::RunAlone]).await;
    assert!(alone.lease().unwrap().alone);
    on.advance(LEASE).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    assert_eq!(store.task(task.id).await.status(), Status::Failed);
}

pub async fn work_that_is_allowed_one_attempt_gets_another_one_alone(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(Spec { max_attempts: 1, ..rerun() })).await;
    assert!(!store.claim_only("doomed").await.task.is_suspect());
    on.advance(LEASE).await;
    let claimed = store.claim_only("one").await;
    assert!(claimed.task.is_suspect());
    store.worked(task.id, claimed.token, vec![Event::RunAlone]).await;
    on.advance(LEASE).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    assert_eq!(store.task(task.id).await.status(), Status::Failed);
}

pub async fn a_lease_is_alone_once_it_is_told_and_until_it_ends(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    assert!(!task.lease().unwrap().alone);
    let alone = store.worked(task.id, token, vec![Event::RunAlone]).await;
    assert_eq!(alone.revision, task.revision, "nothing that a caller can see");
    assert_eq!(store.work(task.id, token, vec![Event::RunAlone]).await, Applied::Absorbed(alone));
    on.advance(LEASE / 2).await;
    store.renew_one("one", task.id, token).await;
    assert!(store.task(task.id).await.lease().unwrap().alone);
    let beside = store.worked(task.id, token, vec![Event::RunBeside]).await;
    assert!(!beside.lease().unwrap().alone);
    assert_eq!(store.work(task.id, token, vec![Event::RunBeside]).await, Applied::Absorbed(beside));
    store.worked(task.id, token, vec![Event::RunAlone]).await;

    store.worked(task.id, token, vec![Event::Release { began: true }]).await;
    let claimed = store.claim_only("two").await;
    assert!(!claimed.task.lease().unwrap().alone);
    assert_eq!(store.work(task.id, token, vec![Event::RunAlone]).await, Applied::Fenced);
}

pub async fn a_suspect_that_gets_on_is_none_any_more(on: &dyn Harness) {
    let store = on.open().await;
    // Even one that is given a single attempt.
    let task = store.create_one(new_with(Spec { max_attempts: 1, ..rerun() })).await;
    for number in 0..4 {
        store.claim_only("doomed").await;
        crash(on, &*store).await;
        let claimed = store.claim_only("one").await;
        assert!(claimed.task.is_suspect());
        store.worked(task.id, claimed.token, vec![Event::RunAlone]).await;
        let got_on = store.worked(task.id, claimed.token, vec![finish(&number.to_string(), &json!(1))]).await;
        assert!(!got_on.is_suspect() && !got_on.lease().unwrap().alone, "others may run beside it again");
        crash(on, &*store).await;
        let claimed = store.claim_only("one").await;
        assert_eq!(claimed.task.lost.len(), 1);
        store.worked(task.id, claimed.token, vec![finish(&format!("{number} more"), &json!(1))]).await;
        store.worked(task.id, claimed.token, vec![Event::Release { began: true }]).await;
    }
}

pub async fn progress_resets_the_count_of_lost_attempts(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(Spec { max_attempts: 2, ..rerun() })).await;
    for attempt in 0..6 {
        let claimed = store.claim_only("doomed").await;
        store.worked(task.id, claimed.token, vec![finish(&format!("step {attempt}"), &json!(1))]).await;
        on.advance(LEASE + MINUTE * 2).await;
    }
    let claimed = store.claim_only("one").await;
    assert_eq!(claimed.task.lost.len(), 1);

    // What others do is no progress of the work.
    store.worked(task.id, claimed.token, vec![ask("q", "Sure?")]).await;
    on.advance(LEASE).await;
    let claimed = store.claim_only("doomed").await;
    store.worked(task.id, claimed.token, vec![Event::RunAlone]).await;
    store.alice(task.id, vec![answer("q", "yes")]).await;
    on.advance(LEASE).await;
    assert_eq!(store.claim_up_to("one", 10).await, []);
    assert_eq!(store.task(task.id).await.status(), Status::Failed);
}

pub async fn after_the_second_loss_in_a_row_the_work_waits_before_it_starts_again(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_task()).await;
    store.claim_only("doomed").await;
    on.advance(LEASE).await;
    store.claim_only("doomed").await;
    on.advance(LEASE).await;
    assert_eq!(store.claim_up_to("one", 10).await, []);
    let waits_until = store.task(task.id).await.ready_at().unwrap();
    let now = store.list(outlast_core::Filter::default(), None, 1).await.unwrap().now;
    assert!(waits_until > now);
    on.advance(waits_until.since(now)).await;
    assert_eq!(store.claim_only("one").await.task.lost.len(), 2);
}

pub async fn a_cancel_does_not_wait_for_the_backoff(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(Spec { cancel_grace: DAY, ..rerun() })).await;
    for _ in 0..2 {
        store.claim_only("doomed").await;
        on.advance(LEASE).await;
    }
    assert_eq!(store.claim_up_to("one", 10).await, []);
    store.alice(task.id, vec![Event::Cancel]).await;
    let claimed = store.claim_only("one").await;
    assert!(claimed.task.cancel_requested());
}

pub async fn work_given_back_is_taken_up_again_at_once_and_counts_as_no_loss(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_with(Spec { max_attempts: 1, ..rerun() })).await;
    for _ in 0..5 {
        let claimed = store.claim_only("one").await;
        store.worked(task.id, claimed.token, vec![Event::Release { began: true }]).await;
    }
    assert_eq!(store.claim_only("two").await.task.lost, []);
}

pub async fn work_that_must_not_run_twice_is_given_back_only_unbegun(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_with(run_once()), "one").await;
    store.worked(task.id, token, vec![Event::Release { began: false }]).await;
    let claimed = store.claim_only("two").await;
    let ended = store.worked(task.id, claimed.token, vec![Event::Release { began: true }]).await;
    assert_eq!(ended.status(), Status::Failed);
    assert!(ended.status_message.unwrap().contains("outcome is unknown"));
}

pub async fn a_cancel_outlives_the_worker_that_had_to_hear_it(on: &dyn Harness) {
    let store = on.open().await;
    let (task, _) = store.create_leased(new_task(), "one").await;
    store.alice(task.id, vec![Event::Cancel]).await;
    on.advance(LEASE).await;
    let claimed = store.claim_only("two").await;
    assert!(claimed.task.cancel_requested());
    let ended = store.worked(task.id, claimed.token, vec![Event::ConfirmCancel]).await;
    assert_eq!(ended.status(), Status::Cancelled);
}
