//! SQLite stores for the suite, each in a file of its own, all on one clock that is moved by hand.

// The lint spares test functions alone.
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outlast_core::{Clock, ManualClock, Store, Timestamp};
use outlast_sqlite::{Options, SqliteStore};
use outlast_testkit::Harness;
use tempfile::TempDir;

pub(crate) struct SqliteHarness {
    clock: ManualClock,
    directory: TempDir,
    opened: AtomicUsize,
    /// The file of each open store, by its address.
    files: Mutex<HashMap<usize, PathBuf>>,
}

impl SqliteHarness {
    pub(crate) fn new() -> Self {
        Self {
            clock: ManualClock::new(Timestamp::from_millis(1_767_225_600_000)),
            directory: tempfile::tempdir().unwrap(),
            opened: AtomicUsize::new(0),
            files: Mutex::default(),
        }
    }

    fn open_at(&self, path: PathBuf) -> Arc<dyn Store> {
        let options = Options::default().clock(self.clock.clone());
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open_with(&path, options).unwrap());
        self.files.lock().unwrap().insert(address(&store), path);
        store
    }
}

fn address(store: &Arc<dyn Store>) -> usize {
    Arc::as_ptr(store).cast::<()>() as usize
}

#[async_trait]
impl Harness for SqliteHarness {
    async fn open(&self) -> Arc<dyn Store> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        self.open_at(self.directory.path().join(format!("{number}.db")))
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn set_back(&self, by: Duration) {
        self.clock.set_wall(self.clock.now() - by);
    }

    async fn set_forward(&self, by: Duration) {
        self.clock.set_wall(self.clock.now() + by);
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let path = self.files.lock().unwrap().remove(&address(&store)).unwrap();
        // The last handle: the store is closed when this returns.
        drop(store);
        self.open_at(path)
    }
}
