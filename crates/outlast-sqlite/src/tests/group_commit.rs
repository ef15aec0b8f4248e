//! What the design says about group commit, sentence by sentence.

use std::time::Duration;

use futures::{FutureExt, executor::block_on};
use outlast_core::{
    Applied, Call, Claimed, Created, Event, Hint, Illegal, Lane, LaneLimits, NewTask, Payload, Store,
    StoreError, Task, Token,
};
use outlast_testkit::story::*;
use serde_json::json;

use super::{FSYNC, Fate, Rig, answer, sent};
use crate::{Options, batch::Batch, job::Operation};

fn limited(change: impl FnOnce(&mut LaneLimits)) -> impl FnOnce(Options) -> Options {
    |mut options| {
        change(&mut options.limits);
        options
    }
}

fn task_of(created: Result<Created, StoreError>) -> Task {
    match created {
        Ok(Created::Created { task, .. }) => task,
        other => panic!("a new task is created, not {other:?}"),
    }
}

fn with_params(params: Payload) -> NewTask {
    NewTask { call: Call::new(params), ..new_task() }
}

// "decide with `apply` before writing, so that refusals need no savepoint"

#[test]
fn refusals_and_writes_share_a_batch_and_do_not_disturb_each_other() {
    let rig = Rig::new();
    let (task, token) = block_on(rig.store.create_leased(new_task(), "one"));
    let first = rig.busy(rig.store.create(new_task(), None));
    let before = rig.disk.commits();
    let refused = sent(rig.store.work(task.id, token, vec![finish("a", &json!(1)), ask("a", "Sure?")]));
    let fenced = sent(rig.store.work(task.id, Token(9), vec![complete(&json!(1))]));
    let foreign = sent(rig.store.tell(task.id, outlast_core::By::Owner(owner("bob")), vec![Event::Cancel]));
    let written = sent(rig.store.work(task.id, token, vec![finish("a", &json!(2))]));
    rig.disk.release();
    answer(first).unwrap();
    assert!(matches!(answer(refused), Applied::Illegal(Illegal::KeyKind { .. })));
    assert_eq!(answer(fenced), Applied::Fenced);
    assert_eq!(answer(foreign), Applied::NotFound);
    assert!(matches!(answer(written), Applied::Applied(_)));
    assert_eq!(rig.disk.commits() - before, 2, "the first, and one for all four");
    // Nothing of the refused call is left, not even its first event.
    let entries = block_on(rig.store.entries(task.id));
    assert_eq!(entries.len(), 1);
    assert!(entries[0].body.as_ref().unwrap().as_str().contains('2'));
}

#[test]
fn operations_of_one_batch_see_each_other() {
    let rig = Rig::new();
    let task = block_on(rig.store.create_one(new_task()));
    let first = rig.busy(rig.store.create(new_task(), None));
    let cancel = sent(rig.store.alice(task.id, vec![Event::Cancel]));
    let again = sent(rig.store.alice(task.id, vec![Event::Cancel]));
    rig.disk.release();
    answer(first).unwrap();
    assert!(matches!(answer(cancel), Applied::Applied(_)));
    assert!(matches!(answer(again), Applied::Absorbed(_)));
}

// "cap a batch (256 operations, 4 MiB)"

#[test]
fn a_batch_has_at_most_256_operations() {
    assert_eq!(Options::default().limits.batch_ops, 256);
    let rig = Rig::new();
    let first = rig.busy(rig.store.create(new_task(), None));
    let rest: Vec<_> = (0..257).map(|_| sent(rig.store.create(new_task(), None))).collect();
    rig.disk.release();
    task_of(answer(first));
    rest.into_iter().for_each(|created| drop(task_of(answer(created))));
    assert_eq!(rig.disk.commits(), 3, "the first, 256 together, and the last");
}

#[test]
fn a_batch_has_at_most_four_mebibytes_and_at_least_one_operation() {
    assert_eq!(Options::default().limits.batch_bytes, 4 << 20);
    let rig = Rig::new();
    let params = |bytes: usize| Payload::from_value(&json!("x".repeat(bytes - 2)));
    let first = rig.busy(rig.store.create(new_task(), None));
    let rest: Vec<_> = [2 << 20, 2 << 20, 3, 5 << 20, 3]
        .map(|bytes| sent(rig.store.create(with_params(params(bytes)), None)))
        .into();
    rig.disk.release();
    task_of(answer(first));
    rest.into_iter().for_each(|created| drop(task_of(answer(created))));
    assert_eq!(rig.disk.commits(), 5, "first; 2 + 2; small; 5 alone; small");
}

// "**all** replies of a batch, refusals too, wait for its fsync; caches and hints after it"

#[test]
fn nobody_is_answered_or_told_before_the_commit() {
    let rig = Rig::new();
    let task = block_on(rig.store.create_one(new_task()));
    let mut hints = rig.store.watch();
    let first = rig.busy(rig.store.create(new_task(), None));
    let mut refused = sent(rig.store.work(task.id, Token(9), vec![]));
    let mut cancelled = sent(rig.store.alice(task.id, vec![Event::Cancel]));
    let mut claimed = sent(rig.store.claim_up_to("one", 9));
    rig.disk.step();

    // The second batch has been carried out, and is not durable.
    let first = task_of(answer(first)).id;
    assert_eq!(hints.try_next(), Some(Hint::Changed(first)));
    assert_eq!(hints.try_next(), None);
    assert!(refused.as_mut().now_or_never().is_none());
    assert!(cancelled.as_mut().now_or_never().is_none());
    assert!(claimed.as_mut().now_or_never().is_none());
    assert_eq!(block_on(rig.store.task(task.id)), task, "readers see what is durable");

    rig.disk.release();
    assert_eq!(answer(refused), Applied::Fenced);
    assert!(matches!(answer(cancelled), Applied::Applied(_)));
    assert_eq!(answer(claimed).len(), 1);
    assert_eq!(hints.try_next(), Some(Hint::Changed(task.id)));
}

#[test]
fn whose_turn_it_is_moves_on_only_with_the_commit() {
    let rig = Rig::new();
    for name in ["alice", "alice", "bob", "bob"] {
        block_on(rig.store.create_one(new_of(name)));
    }
    rig.disk.fail_commits([Fate::Lost(FSYNC.0, FSYNC.1)]);
    assert!(matches!(block_on(rig.store.claim(claim_by("one", 1))), Err(StoreError::Unknown(_))));
    let owners: Vec<_> =
        (0..2).map(|_| block_on(rig.store.claim_up_to("one", 1))[0].task.owner.clone()).collect();
    assert_eq!(owners, [owner("alice"), owner("bob")]);
}

// "SQL error: roll back, run the operations singly (check `is_autocommit()`: some errors roll back silently)"

#[test]
fn an_operation_that_fails_fails_alone() {
    // SQLite undoes the statement, the transaction, or leaves that to us.
    for how in ["ABORT", "ROLLBACK", "FAIL"] {
        let rig = Rig::new();
        rusqlite::Connection::open(&rig.path)
            .unwrap()
            .execute_batch(&format!(
                "CREATE TRIGGER poison AFTER INSERT ON calls WHEN NEW.params = '\"poison\"'
                 BEGIN SELECT RAISE({how}, 'poisoned'); END"
            ))
            .unwrap();
        let first = rig.busy(rig.store.create(new_task(), None));
        let before = sent(rig.store.create(new_task(), None));
        let poison = with_params(Payload::from_value(&json!("poison")));
        let poisoned_id = poison.id;
        let poisoned = sent(rig.store.create(poison, None));
        let after = sent(rig.store.create(new_task(), None));
        rig.disk.release();
        task_of(answer(first));
        let kept = [task_of(answer(before)), task_of(answer(after))];
        let error = answer(poisoned).unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{how}");
        assert_eq!(error.to_string(), "the store cannot take this now; nothing was changed");
        assert_eq!(block_on(rig.store.get(poisoned_id)).unwrap(), None, "{how}");
        for task in kept {
            assert_eq!(block_on(rig.store.task(task.id)), task, "{how}");
        }
    }
}

// "A caller that left: its operation still runs; a claim that cannot be delivered is released"

#[test]
fn the_operation_of_a_caller_that_left_still_runs() {
    let rig = Rig::new();
    let first = rig.busy(rig.store.create(new_task(), None));
    let new = new_task();
    let id = new.id;
    drop(sent(rig.store.create(new, None)));
    rig.disk.release();
    answer(first).unwrap();
    block_on(rig.store.create_one(new_task()));
    assert!(block_on(rig.store.get(id)).unwrap().is_some());
}

#[test]
fn a_claim_whose_caller_left_is_released() {
    // Gone before the answer is sent, or after that and before it is read.
    for answered in [false, true] {
        let rig = Rig::new();
        let task = block_on(rig.store.create_one(new_with(run_once())));
        let first = rig.busy(rig.store.create(new_of("bob"), None));
        let claim = sent(rig.store.claim_up_to("one", 9));
        if answered {
            rig.disk.release();
            block_on(rig.store.create_one(new_of("carol")));
            drop(claim);
        } else {
            drop(claim);
            rig.disk.release();
        }
        answer(first).unwrap();
        // Two commits later at the latest: the claim's own, and that of its release.
        block_on(rig.store.create_one(new_of("dave")));
        block_on(rig.store.create_one(new_of("dave")));
        let free = block_on(rig.store.task(task.id));
        assert_eq!((free.token, free.lease()), (Token(1), None), "it was claimed, and given back unbegun");
        assert!(block_on(rig.store.claim_up_to("two", 9)).iter().any(|claimed| claimed.task.id == task.id));
    }
}

#[test]
fn the_lease_of_a_creation_whose_caller_left_is_released() {
    let rig = Rig::new();
    let first = rig.busy(rig.store.create(new_task(), None));
    let new = new_with(run_once());
    let id = new.id;
    drop(sent(rig.store.create(new, Some(lease_for("one")))));
    rig.disk.release();
    answer(first).unwrap();
    block_on(rig.store.create_one(new_task()));
    block_on(rig.store.create_one(new_task()));
    assert_eq!(block_on(rig.store.task(id)).lease(), None);
}

#[test]
fn a_claim_whose_commit_is_unknown_is_released() {
    for fate in [Fate::Kept(FSYNC.0, FSYNC.1), Fate::Lost(FSYNC.0, FSYNC.1)] {
        let rig = Rig::new();
        let task = block_on(rig.store.create_one(new_with(run_once())));
        rig.disk.fail_commits([fate]);
        assert!(matches!(block_on(rig.store.claim(claim_by("one", 9))), Err(StoreError::Unknown(_))));
        let again = block_on(rig.store.claim_only("two"));
        assert_eq!(again.task.id, task.id);
        // The release of the first, wherever it comes, does not touch the lease of the second.
        block_on(rig.store.worked(task.id, again.token, vec![complete(&json!(1))]));
    }
}

// "`catch_unwind` per batch"

#[test]
fn an_operation_that_panics_is_refused_and_the_others_are_carried_out() {
    let rig = Rig::new();
    let first = rig.busy(rig.store.create(new_task(), None));
    let before = sent(rig.store.create(new_task(), None));
    let (tell, told) = futures::channel::oneshot::channel();
    let panics = |_: &mut Batch<'_>| -> Result<(), _> { panic!("a bug, for a test") };
    let job = Operation::new(0, panics, move |outcome, _| drop(tell.send(outcome)));
    rig.store.shared().queue.push(Lane::New, Box::new(job)).unwrap();
    let after = sent(rig.store.create(new_task(), None));
    rig.disk.release();
    for created in [first, before, after] {
        let task = task_of(answer(created));
        assert_eq!(block_on(rig.store.task(task.id)), task);
    }
    assert!(matches!(block_on(told).unwrap(), Err(StoreError::Unavailable(_))));
}

// "Bounded queue: renew and apply go ahead of create; full = a retryable error"

#[test]
fn renewals_and_events_go_ahead_of_creations() {
    let rig = Rig::with(limited(|limits| limits.batch_ops = 1));
    let (task, token) = block_on(rig.store.create_leased(new_task(), "one"));
    let first = rig.busy(rig.store.create(new_task(), None));
    let mut created = sent(rig.store.create(new_task(), None));
    let applied = sent(rig.store.work(task.id, token, vec![finish("a", &json!(1))]));
    let renewed = sent(rig.store.renew_one("one", task.id, token));
    rig.disk.step();
    task_of(answer(first));
    rig.disk.step();
    assert!(matches!(answer(applied), Applied::Applied(_)));
    rig.disk.step();
    answer(renewed);
    assert!(created.as_mut().now_or_never().is_none(), "it came first, and waits");
    rig.disk.release();
    task_of(answer(created));
}

#[test]
fn a_creation_is_late_and_never_forgotten() {
    let rig = Rig::with(limited(|limits| limits.batch_ops = 8));
    let (task, token) = block_on(rig.store.create_leased(new_task(), "one"));
    let first = rig.busy(rig.store.create(new_task(), None));
    let applied: Vec<_> = (0..32).map(|_| sent(rig.store.work(task.id, token, vec![]))).collect();
    let created = sent(rig.store.create(new_task(), None));
    rig.disk.step();
    rig.disk.step();
    // The second batch, of eight, had a place for it.
    task_of(answer(created));
    rig.disk.release();
    task_of(answer(first));
    applied.into_iter().for_each(|applied| drop(answer(applied)));
}

#[test]
fn a_full_queue_is_a_retryable_error_and_each_lane_has_its_own_room() {
    let rig = Rig::with(limited(|limits| limits.queue_ops = 2));
    let (task, token) = block_on(rig.store.create_leased(new_task(), "one"));
    let first = rig.busy(rig.store.create(new_task(), None));
    let waiting: Vec<_> = (0..2).map(|_| sent(rig.store.create(new_task(), None))).collect();
    let refused = block_on(rig.store.create(new_task(), None)).unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)) && refused.is_retryable());
    let applied = sent(rig.store.work(task.id, token, vec![finish("a", &json!(1))]));
    rig.disk.release();
    task_of(answer(first));
    waiting.into_iter().for_each(|created| drop(task_of(answer(created))));
    assert!(matches!(answer(applied), Applied::Applied(_)));
    block_on(rig.store.create_one(new_task()));
}

#[test]
fn a_queue_is_full_by_its_bytes_too() {
    let rig = Rig::with(limited(|limits| limits.queue_bytes = 100));
    let params = || with_params(Payload::from_value(&json!("x".repeat(98))));
    let first = rig.busy(rig.store.create(params(), None));
    let waiting = sent(rig.store.create(params(), None));
    assert!(matches!(block_on(rig.store.create(params(), None)), Err(StoreError::Unavailable(_))));
    rig.disk.release();
    task_of(answer(first));
    task_of(answer(waiting));
}

// "when commits take longer than a quarter lease, stop claiming"

#[test]
fn while_commits_take_longer_than_a_quarter_lease_nothing_is_claimed() {
    let rig = Rig::new();
    let created = block_on(rig.store.create_one(new_task()));
    let slow = LEASE / 4 + Duration::from_millis(1);
    rig.disk.fail_commits([Fate::Slow(slow)]);
    block_on(rig.store.create_one(new_task()));
    assert_eq!(block_on(rig.store.claim_up_to("one", 9)), []);

    // One lease later the disk is tried again; a quarter exactly is quick enough.
    rig.clock.advance(LEASE);
    rig.disk.fail_commits([Fate::Slow(LEASE / 4)]);
    let claimed: Vec<Claimed> = block_on(rig.store.claim_up_to("one", 1));
    assert_eq!(claimed[0].task.id, created.id);
    assert_eq!(block_on(rig.store.claim_up_to("one", 9)).len(), 1);
}

// "no linger timer": a lone caller's write is committed as soon as it comes, and one sync serves all that gathered.

#[test]
fn what_gathers_during_a_commit_is_one_batch() {
    let rig = Rig::new();
    let first = rig.busy(rig.store.create(new_task(), None));
    let rest: Vec<_> = (0..64).map(|_| sent(rig.store.create(new_task(), None))).collect();
    rig.disk.release();
    task_of(answer(first));
    rest.into_iter().for_each(|created| drop(task_of(answer(created))));
    assert_eq!(rig.disk.commits(), 2);
}
