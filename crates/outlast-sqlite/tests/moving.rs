//! Tasks move between a file and another store, in both directions.

// The lint spares test functions alone.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use outlast_core::{ManualClock, MemoryStore, Timestamp, Transfer};
use outlast_sqlite::{Options, SqliteStore};
use outlast_testkit::transfer;
use tempfile::TempDir;

struct Stores {
    clock: ManualClock,
    folder: TempDir,
    memory: MemoryStore,
}

impl Stores {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(1_767_225_600_000));
        let memory = MemoryStore::new(clock.clone());
        Self { clock, folder: tempfile::tempdir().unwrap(), memory }
    }

    fn file(&self, name: &str) -> SqliteStore {
        let options = Options::default().clock(self.clock.clone());
        SqliteStore::open_with(self.folder.path().join(name), options).unwrap()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

/// The suite's test for each way between two kinds of stores.
macro_rules! each_way {
    ($behaviour:ident $(, $advance:ident)?) => {
        #[test]
        fn $behaviour() {
            outlast_testkit::run(async {
                let between: [(&str, fn(&Stores) -> (Box<dyn Transfer>, Box<dyn Transfer>)); 3] = [
                    ("memory to file", |on| (Box::new(on.memory.clone()), Box::new(on.file("to.db")))),
                    ("file to memory", |on| (Box::new(on.file("from.db")), Box::new(on.memory.clone()))),
                    ("file to file", |on| (Box::new(on.file("from.db")), Box::new(on.file("to.db")))),
                ];
                for (way, make) in between {
                    println!("{way}");
                    let stores = Stores::new();
                    let (from, to) = make(&stores);
                    each_way!(@ $behaviour, &*from, &*to, stores $(, $advance)?);
                }
            });
        }
    };
    (@ $behaviour:ident, $from:expr, $to:expr, $stores:ident) => {
        transfer::$behaviour($from, $to).await
    };
    (@ $behaviour:ident, $from:expr, $to:expr, $stores:ident, $advance:ident) => {
        transfer::$behaviour($from, $to, async |by| $stores.$advance(by).await).await
    };
}

each_way!(tasks_move_as_they_are);
each_way!(a_second_move_changes_nothing);
each_way!(spent_keys_move, advance);
each_way!(a_lease_that_was_held_runs_out, advance);
