//! The store that fails does so when and how it is told to, and the walk over its faults leaves none out.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::poll;
use outlast_core::{Filter, Inspect as _, Store, StoreError};
use outlast_testkit::{Fault, FaultStore, Harness, MemoryHarness, run, story::*, walk_faults};

async fn failing(nth: u64, fault: Fault) -> FaultStore<dyn Store> {
    FaultStore::failing(MemoryHarness::new().open().await, nth, fault)
}

#[test]
fn a_fault_before_the_effect_leaves_none() {
    run(async {
        let store = failing(1, Fault::Before).await;
        let new = new_task();
        let failed = store.create(new.clone(), None).await;
        assert!(matches!(failed, Err(StoreError::Unavailable(_))));
        assert_eq!(store.get(new.id).await.unwrap(), None);
        store.create_one(new).await;
    });
}

#[test]
fn a_fault_after_the_effect_hides_it() {
    run(async {
        let store = failing(2, Fault::After).await;
        store.create_one(new_task()).await;
        let new = new_task();
        assert!(matches!(store.create(new.clone(), None).await, Err(StoreError::Unknown(_))));
        assert_eq!(store.task(new.id).await.id, new.id);
    });
}

#[test]
fn a_delayed_call_lets_others_pass_and_takes_effect_in_between() {
    run(async {
        let store = failing(1, Fault::Delayed(2)).await;
        let new = new_task();
        let mut creating = Box::pin(store.create(new.clone(), None));
        assert!(poll!(&mut creating).is_pending());
        assert_eq!(store.get(new.id).await.unwrap(), None);
        assert!(poll!(&mut creating).is_pending());
        assert!(poll!(&mut creating).is_pending());
        assert!(store.get(new.id).await.unwrap().is_some());
        assert!(poll!(&mut creating).is_pending());
        assert!(poll!(&mut creating).is_ready());
    });
}

#[test]
fn a_held_call_begins_when_it_is_released() {
    run(async {
        let store = failing(1, Fault::Held).await;
        let new = new_task();
        let mut creating = Box::pin(store.create(new.clone(), None));
        for _ in 0..100 {
            assert!(poll!(&mut creating).is_pending());
        }
        assert!(store.struck());
        assert_eq!(store.get(new.id).await.unwrap(), None);
        store.release();
        assert!(poll!(&mut creating).is_ready());
    });
}

#[test]
fn every_method_is_counted_and_can_fail() {
    run(async {
        for nth in 1..=11 {
            let store = failing(nth, Fault::Before).await;
            let new = new_task();
            let failed = [
                store.create(new.clone(), None).await.is_err(),
                store.apply(new.id, outlast_core::By::Operator, vec![]).await.is_err(),
                store.claim(claim_by("one", 1)).await.is_err(),
                store.renew(worker("one"), vec![], LEASE).await.is_err(),
                store.get(new.id).await.is_err(),
                store.journal(new.id, 0, 0).await.is_err(),
                store.heads(vec![]).await.is_err(),
                store.sweep(1).await.is_err(),
                store.list(Filter::default(), None, 1).await.is_err(),
                store.counts().await.is_err(),
                store.call(new.id).await.is_err(),
            ];
            let expected: Vec<_> = (1..=11).map(|number| number == nth).collect();
            assert_eq!(failed.as_slice(), expected);
            assert_eq!((store.calls(), store.struck()), (11, true));
        }
    });
}

#[test]
fn a_walk_strikes_every_call_with_every_fault() {
    run(async {
        let (failures, delays) = (AtomicU64::new(0), AtomicU64::new(0));
        let runs = walk_faults(&MemoryHarness::new(), async |store: Arc<FaultStore<dyn Store>>| {
            let mut failed = false;
            for _ in 0..4 {
                failed |= store.counts().await.is_err();
            }
            failures.fetch_add(u64::from(failed), Ordering::Relaxed);
            delays.fetch_add(u64::from(store.struck() && !failed), Ordering::Relaxed);
        })
        .await;
        // Four calls and a last run that nothing strikes, for each fault.
        assert_eq!(runs, 5 * 3);
        assert_eq!((failures.into_inner(), delays.into_inner()), (4 * 2, 4));
    });
}

#[test]
#[should_panic(expected = "the store answers")]
fn a_scenario_that_bears_no_fault_is_found_out() {
    run(async {
        walk_faults(&MemoryHarness::new(), async |store: Arc<FaultStore<dyn Store>>| {
            store.create_one(new_task()).await;
        })
        .await;
    });
}
