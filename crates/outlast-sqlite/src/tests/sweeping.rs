//! Sweeps write a few rows at a time, and let others write in between.

use futures::executor::block_on;
use outlast_core::{Spec, Store, Swept};
use outlast_testkit::story::*;
use serde_json::json;

use super::{Rig, answer, sent};
use crate::sweep::ROWS;

fn short() -> outlast_core::NewTask {
    new_with(Spec { ttl: Some(MINUTE), ..rerun() })
}

async fn finished(rig: &Rig, steps: u32) -> outlast_core::TaskId {
    let (task, token) = rig.store.create_leased(short(), "one").await;
    let events = (0..steps).map(|step| finish(&step.to_string(), &json!(1))).chain([complete(&json!(1))]);
    rig.store.worked(task.id, token, events.collect()).await;
    task.id
}

#[test]
fn a_large_sweep_is_many_small_writes_and_others_get_in_between() {
    let rig = Rig::new();
    for _ in 0..ROWS * 2 + 1 {
        block_on(finished(&rig, 0));
    }
    rig.clock.advance(HOUR);
    let before = rig.disk.commits();
    let sweep = rig.busy(rig.store.sweep(1_000));
    let created = sent(rig.store.create(new_task(), None));
    rig.disk.step();
    // The sweep has written its first rows, and would wait behind the creation with the next.
    rig.disk.release();
    answer(created).unwrap();
    let swept = answer(sweep).unwrap();
    assert_eq!(swept.done, ROWS * 2 + 1);
    assert_eq!(rig.disk.commits() - before, 4, "three of the sweep, and the creation's");
}

#[test]
fn a_long_journal_is_purged_a_part_at_a_time() {
    let rig = Rig::new();
    let id = block_on(finished(&rig, 2_500));
    rig.clock.advance(HOUR);
    let swept = block_on(rig.store.sweep(50)).unwrap();
    assert_eq!(swept, Swept { done: 1, next_due: Some(std::time::Duration::ZERO) });
    assert!(block_on(rig.store.get(id)).unwrap().is_some(), "until its last part is gone");
    block_on(rig.store.sweep_all());
    assert_eq!(block_on(rig.store.get(id)).unwrap(), None);
    let left =
        rusqlite::Connection::open(&rig.path)
            .unwrap()
            .query_row("SELECT count(*) FROM journal", [], |row| row.get::<_, i64>(0));
    assert_eq!(left, Ok(0));
}
