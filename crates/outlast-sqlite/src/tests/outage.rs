//! A disk that fails: "Failed commit or fsync: `Unknown` to all, reopen, re-read; twice: `Fatal`; never fsync the same
//! handle again", and a disk that is full.
//!
//! That no handle is used again after its disk failed is checked by the disk itself, at every begin, commit and
//! checkpoint of every test here.

use futures::executor::block_on;
use outlast_core::{Applied, Created, Event, Hint, Inspect, Payload, Store, StoreError};
use outlast_testkit::{run, story::*};
use serde_json::json;

use super::{FSYNC, FULL, Fate, Rig, answer, sent};

const LOST: Fate = Fate::Lost(FSYNC.0, FSYNC.1);
const KEPT: Fate = Fate::Kept(FSYNC.0, FSYNC.1);

#[test]
fn after_a_failed_commit_everyone_of_the_batch_hears_that_it_is_unknown() {
    for fate in [LOST, KEPT] {
        let rig = Rig::new();
        let task = block_on(rig.store.create_one(new_task()));
        let first = rig.busy(rig.store.create(new_task(), None));
        let new = new_task();
        let created = sent(rig.store.create(new.clone(), None));
        let refused = sent(rig.store.apply(task.id, outlast_core::By::Lease(outlast_core::Token(7)), vec![]));
        rig.disk.step();
        answer(first).unwrap();
        rig.disk.fail_commits([fate]);
        rig.disk.release();
        let error = answer(created).unwrap_err();
        assert!(matches!(error, StoreError::Unknown(_)), "{fate:?}");
        assert_eq!(
            error.to_string(),
            "the store failed while it wrote; whether the change was kept is not known"
        );
        assert!(matches!(answer(refused), Err(StoreError::Unknown(_))), "{fate:?}");

        // An identical retry is safe, and tells; the store has read again what the file holds.
        let again = block_on(rig.store.try_create(new.clone()));
        let Created::Created { task, .. } = again else { panic!("{again:?}") };
        assert_eq!(block_on(rig.store.task(new.id)), task, "{fate:?}");
        assert_eq!(block_on(rig.store.counts()).unwrap().total(), 3, "{fate:?}");
    }
}

#[test]
fn a_change_that_was_kept_although_its_commit_failed_is_hinted_when_it_is_found() {
    let rig = Rig::new();
    let mut hints = rig.store.watch();
    rig.disk.fail_commits([KEPT]);
    let new = new_task();
    assert!(block_on(rig.store.create(new.clone(), None)).is_err());
    run(async { assert_eq!(soon(hints.next()).await, Some(Hint::Changed(new.id))) });
}

#[test]
fn a_disk_that_fails_twice_in_a_row_is_not_trusted_again() {
    let rig = Rig::new();
    let task = block_on(rig.store.create_one(new_task()));
    rig.disk.fail_commits([LOST, LOST]);
    assert!(matches!(block_on(rig.store.create(new_task(), None)), Err(StoreError::Unknown(_))));
    let error = block_on(rig.store.create(new_task(), None)).unwrap_err();
    assert!(matches!(error, StoreError::Fatal(_)) && !error.is_retryable());
    assert_eq!(error.to_string(), "the store has failed and takes no more work");
    assert!(matches!(block_on(rig.store.create(new_task(), None)), Err(StoreError::Fatal(_))));
    assert_eq!(block_on(rig.store.task(task.id)), task, "what was acknowledged is still read");
}

#[test]
fn what_waits_when_the_disk_is_given_up_is_answered() {
    let rig = Rig::new();
    rig.disk.fail_commits([LOST, LOST]);
    let first = rig.busy(rig.store.create(new_task(), None));
    let second = sent(rig.store.create(new_task(), None));
    rig.disk.step();
    let third = sent(rig.store.create(new_task(), None));
    rig.disk.release();
    assert!(matches!(answer(first), Err(StoreError::Unknown(_))));
    assert!(matches!(answer(second), Err(StoreError::Fatal(_))));
    assert!(matches!(answer(third), Err(StoreError::Fatal(_))));
}

#[test]
fn a_success_in_between_ends_the_row_of_failures() {
    let rig = Rig::new();
    for _ in 0..3 {
        rig.disk.fail_commits([LOST]);
        assert!(matches!(block_on(rig.store.create(new_task(), None)), Err(StoreError::Unknown(_))));
        block_on(rig.store.create_one(new_task()));
    }
}

#[test]
fn when_one_of_single_writes_is_unknown_the_rest_is_refused() {
    let rig = Rig::new();
    rusqlite::Connection::open(&rig.path)
        .unwrap()
        .execute_batch(
            "CREATE TRIGGER poison BEFORE INSERT ON calls WHEN NEW.params = '\"poison\"'
             BEGIN SELECT RAISE(ABORT, 'poisoned'); END",
        )
        .unwrap();
    let first = rig.busy(rig.store.create(new_task(), None));
    let before = sent(rig.store.create(new_task(), None));
    let mut poison = new_task();
    poison.call.params = Payload::from_value(&json!("poison"));
    let poisoned = sent(rig.store.create(poison, None));
    let behind = sent(rig.store.create(new_task(), None));
    rig.disk.step();
    answer(first).unwrap();
    // They are tried singly by now, and the first of them is at its commit.
    rig.disk.fail_commits([KEPT]);
    rig.disk.release();
    assert!(matches!(answer(before), Err(StoreError::Unknown(_))));
    assert!(matches!(answer(poisoned), Err(StoreError::Unavailable(_))));
    assert!(matches!(answer(behind), Err(StoreError::Unavailable(_))));
    block_on(rig.store.create_one(new_task()));
}

#[test]
fn a_checkpoint_that_fails_loses_nothing_and_twice_is_fatal() {
    let rig = Rig::with(|mut options| {
        options.wal_pages = 1;
        options
    });
    // Each checkpoint follows the answers of its batch.
    rig.disk.state().failing_checkpoints = 1;
    let task = block_on(rig.store.create_one(new_task()));
    rig.disk.until_checkpoints(1);
    let other = block_on(rig.store.create_one(new_task()));
    assert_eq!(block_on(rig.store.task(task.id)), task);

    rig.disk.until_checkpoints(2);
    rig.disk.state().failing_checkpoints = 2;
    block_on(rig.store.create_one(new_task()));
    block_on(rig.store.create_one(new_task()));
    rig.disk.until_checkpoints(4);
    // The second failure may be on its way still.
    let fatal = |answer: &Result<_, _>| matches!(answer, Err(StoreError::Fatal(_)));
    while !fatal(&block_on(rig.store.create(new_task(), None))) {}
    assert_eq!(block_on(rig.store.task(other.id)), other);
}

// --- a full disk

#[test]
fn a_full_disk_refuses_with_a_retryable_error_for_as_long_as_it_is_full() {
    let rig = Rig::new();
    let task = block_on(rig.store.create_one(new_task()));
    let new = new_task();
    let index = (FSYNC.0, rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
    rig.disk
        .fail_commits([FULL, FULL, FULL, index, index].map(|(code, extended)| Fate::Lost(code, extended)));
    for _ in 0..5 {
        let error = block_on(rig.store.create(new.clone(), None)).unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    // Somebody made room.
    block_on(rig.store.create_one(new));
    assert_eq!(block_on(rig.store.task(task.id)), task);
}

#[test]
fn what_does_not_fit_is_refused_and_what_fits_is_kept() {
    let rig = Rig::new();
    let mut kept = vec![block_on(rig.store.create_one(new_task()))];
    let pages: u32 = rusqlite::Connection::open(&rig.path)
        .unwrap()
        .query_row("PRAGMA page_count", [], |row| row.get(0))
        .unwrap();
    rig.disk.state().max_pages = Some(pages + 40);
    let first = rig.busy(rig.store.create(new_task(), None));
    let small = sent(rig.store.create(new_task(), None));
    let mut large = new_task();
    large.call.params = Payload::from_value(&json!("x".repeat(1 << 20)));
    let refused = sent(rig.store.create(large.clone(), None));
    rig.disk.release();
    for created in [first, small] {
        let Ok(Created::Created { task, .. }) = answer(created) else { panic!("it fits") };
        kept.push(task);
    }
    assert!(matches!(answer(refused), Err(StoreError::Unavailable(_))));
    rig.disk.state().max_pages = Some(pages + 4_000);
    kept.push(block_on(rig.store.create_one(large)));
    for task in kept {
        assert_eq!(block_on(rig.store.task(task.id)), task);
    }
}

#[test]
fn after_an_outage_expired_leases_are_left_alone_for_one_lease() {
    let rig = Rig::new();
    let (task, token) = block_on(rig.store.create_leased(new_task(), "one"));
    rig.disk.fail_commits([Fate::Lost(FULL.0, FULL.1)]);
    assert!(block_on(rig.store.create(new_task(), None)).is_err());
    rig.clock.advance(LEASE * 2);
    // The worker could not renew, and is not to blame.
    assert_eq!(block_on(rig.store.claim_up_to("two", 9)), []);
    block_on(rig.store.create_one(new_of("bob")));
    assert_eq!(block_on(rig.store.claim_up_to("two", 9)).len(), 1, "unleased work goes on");
    assert!(matches!(
        block_on(rig.store.work(task.id, token, vec![Event::SetMessage(None)])),
        Applied::Absorbed(_)
    ));
    rig.clock.advance(LEASE);
    let taken = block_on(rig.store.claim_up_to("three", 9));
    assert!(taken.iter().any(|taken| taken.task.id == task.id));
}
