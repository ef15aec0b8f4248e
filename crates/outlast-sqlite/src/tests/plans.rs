//! What is asked often goes by the indexes, however many tasks there are.

use futures::executor::block_on;
use rusqlite::{Connection, params};

use super::Rig;
use crate::read::READY;

#[test]
fn what_is_ready_is_counted_by_the_indexes_alone() {
    let rig = Rig::new();
    block_on(rig.store.close());
    let connection = Connection::open(&rig.path).unwrap();
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {READY}")).unwrap();
    let lines = statement.query_map(params![0, "[]"], |row| row.get::<_, String>(3)).unwrap();
    let plan = lines.collect::<Result<Vec<_>, _>>().unwrap();
    for step in [
        "SEARCH o USING COVERING INDEX owners_by_ready (ready_from<?)",
        "SEARCH t USING COVERING INDEX tasks_by_ready (owner=? AND ready_at>? AND ready_at<?)",
        "SEARCH tasks USING COVERING INDEX tasks_by_lease (ready_at<?)",
    ] {
        assert!(plan.iter().any(|line| line == step), "no {step} in {plan:#?}");
    }
    assert!(!plan.iter().any(|line| line.starts_with("SCAN t")), "{plan:#?}");
}
