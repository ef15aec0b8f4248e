//! Tasks move between a database and another store, in both directions.

// The lint spares test functions alone.
#![allow(clippy::unwrap_used)]

mod harness;

use std::time::Duration;

use harness::{fresh_schema, open, still};
use outlast_core::{ManualClock, MemoryStore, Timestamp, Transfer};
use outlast_postgres::Skew;
use outlast_testkit::{run, transfer};

struct Stores {
    skew: Skew,
    clock: ManualClock,
    memory: MemoryStore,
}

impl Stores {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(1_767_225_600_000));
        Self { skew: still(), memory: MemoryStore::new(clock.clone()), clock }
    }

    async fn schema(&self) -> Box<dyn Transfer> {
        Box::new(open(&fresh_schema(), &self.skew).await)
    }

    fn memory(&self) -> Box<dyn Transfer> {
        Box::new(self.memory.clone())
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.skew.advance(by);
    }
}

/// Runs a behaviour for each way between two kinds of stores.
async fn each_way(behaviour: impl AsyncFn(&Stores, &dyn Transfer, &dyn Transfer)) {
    for way in ["memory to schema", "schema to memory", "schema to schema"] {
        println!("{way}");
        let on = Stores::new();
        let (from, to) = match way {
            "memory to schema" => (on.memory(), on.schema().await),
            "schema to memory" => (on.schema().await, on.memory()),
            _ => (on.schema().await, on.schema().await),
        };
        behaviour(&on, &*from, &*to).await;
    }
}

#[test]
fn tasks_move_as_they_are() {
    run(each_way(async |_, from, to| transfer::tasks_move_as_they_are(from, to).await));
}

#[test]
fn a_second_move_changes_nothing() {
    run(each_way(async |_, from, to| transfer::a_second_move_changes_nothing(from, to).await));
}

#[test]
fn spent_keys_move() {
    run(each_way(async |on, from, to| {
        transfer::spent_keys_move(from, to, async |by| on.advance(by).await).await;
    }));
}

#[test]
fn a_lease_that_was_held_runs_out() {
    run(each_way(async |on, from, to| {
        transfer::a_lease_that_was_held_runs_out(from, to, async |by| on.advance(by).await).await;
    }));
}
