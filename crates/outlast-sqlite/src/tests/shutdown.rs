//! "Shutdown: stop workers, close, drain, checkpoint, join", of which all but the first is the store's.

use std::{
    path::Path,
    sync::{Arc, Mutex, mpsc},
    task::Context,
};

use futures::{FutureExt, executor::block_on, future::BoxFuture, task::ArcWake};
use outlast_core::{Created, Inspect, Store, StoreError};
use outlast_testkit::story::*;

use super::{Rig, answer, sent};
use crate::SqliteStore;

fn beside(path: &Path, suffix: &str) -> bool {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    Path::new(&name).exists()
}

#[test]
fn closing_writes_what_waits_and_leaves_one_file() {
    let rig = Rig::new();
    let mut hints = rig.store.watch();
    let first = rig.busy(rig.store.create(new_task(), None));
    let waiting: Vec<_> = (0..10).map(|_| sent(rig.store.create(new_task(), None))).collect();
    let mut closed = rig.store.close().boxed();
    assert!(closed.as_mut().now_or_never().is_none());
    let refused = block_on(rig.store.create(new_task(), None));
    assert!(matches!(refused, Err(StoreError::Fatal(_))), "nothing new is taken");
    rig.disk.release();
    block_on(closed);
    answer(first).unwrap();
    for created in waiting {
        assert!(matches!(answer(created), Ok(Created::Created { .. })));
    }
    assert!(!beside(&rig.path, "-wal") && !beside(&rig.path, "-shm"));
    while hints.try_next().is_some() {}
    assert_eq!(block_on(hints.next()), None, "the feed has ended");
    assert!(matches!(block_on(rig.store.get(fresh_id())), Err(StoreError::Fatal(_))));
    block_on(rig.store.close());

    // The lock is free although a handle of the closed store is still there.
    let next = SqliteStore::open(&rig.path).unwrap();
    assert_eq!(block_on(next.counts()).unwrap().total(), 11);
}

#[test]
fn dropping_the_last_clone_closes_and_dropping_another_does_not() {
    let rig = Rig::new();
    let clone = rig.store.clone();
    drop(rig.store.clone());
    block_on(clone.create_one(new_task()));
    let path = rig.path.clone();
    drop(clone);
    let Rig { store, _directory, .. } = rig;
    assert!(beside(&path, "-wal"));
    drop(store);
    assert!(!beside(&path, "-wal"));
    SqliteStore::open(&path).unwrap();
}

#[test]
fn a_log_that_cannot_be_written_back_stays_beside_the_file_and_loses_nothing() {
    let rig = Rig::new();
    let task = block_on(rig.store.create_one(new_task()));
    rig.disk.state().failing_checkpoints = 1;
    block_on(rig.store.close());
    assert!(beside(&rig.path, "-wal"));
    let next = SqliteStore::open(&rig.path).unwrap();
    assert_eq!(block_on(next.task(task.id)), task);
}

/// An executor that goes on with its call on the very thread that wakes it.
struct Inline(Mutex<Option<BoxFuture<'static, ()>>>);

impl ArcWake for Inline {
    fn wake_by_ref(inline: &Arc<Self>) {
        let call = inline.0.lock().unwrap().take();
        assert!(call.is_some_and(|call| call.now_or_never().is_some()), "the answer is there");
    }
}

#[test]
fn the_last_handle_may_go_on_the_writers_own_thread() {
    let rig = Rig::new();
    let store = rig.store.clone();
    let (tell, told) = mpsc::channel();
    let call = async move {
        store.create(new_task(), None).await.unwrap();
        // The last clone: a thread that waited for its own end here would never come to it.
        drop(store);
        tell.send(()).unwrap();
    };
    rig.disk.hold();
    let inline = Arc::new(Inline(Mutex::new(None)));
    let mut call = call.boxed();
    let waker = futures::task::waker(inline.clone());
    assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    *inline.0.lock().unwrap() = Some(call);
    let Rig { store, disk, path, _directory, .. } = rig;
    drop(store);
    disk.release();
    told.recv().unwrap();
    drop(waker);
    // The lock is freed when the thread has ended.
    while SqliteStore::open(&path).is_err() {
        std::thread::yield_now();
    }
}
