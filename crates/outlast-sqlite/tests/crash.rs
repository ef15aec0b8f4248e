//! A process that is killed in mid-write loses nothing that it acknowledged.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, path::Path, process::Command, sync::Arc};

use outlast_core::{Status, Store};
use outlast_sqlite::SqliteStore;
use outlast_testkit::{
    crash::{self, Effect},
    run,
};

const CHILD: &str = "OUTLAST_CRASH_CHILD";

fn open(directory: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(directory.join("tasks.db")).expect("the file opens after every kill"))
}

/// The process that is killed. Without the variable it is a test that does nothing.
#[test]
fn crash_child() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    run(async { crash::child_main(open(Path::new(&directory))).await });
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut acks = Vec::new();
    let mut tasks = BTreeMap::new();
    for _ in 0..10 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "crash_child", "--nocapture"]).env(CHILD, directory.path());
        acks.extend(crash::run_and_kill(child, crash::seed()));
        // Each round opens what the last one left, log and all, and closes it in good order or not at all.
        run(async { tasks = crash::check(&acks, &*open(directory.path())).await.tasks });
        audit(&directory.path().join("tasks.db"));
    }
    for status in Status::ALL {
        assert!(tasks.contains_key(&status), "no task is {}: {tasks:?}", status.as_str());
    }
    assert!(acks.iter().any(|ack| matches!(ack.what, Effect::Claimed(_))));
}

/// Looks into the file itself, for what no answer of the store would show.
fn audit(path: &Path) {
    let file = rusqlite::Connection::open(path).unwrap();
    let check: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    for (what, wrong) in [
        ("owners whose numbers are not those of their tasks",
         "SELECT count(*) FROM owners o WHERE
          (working, input_required, completed, failed, cancelled, leased) IS NOT
          (SELECT sum(status = 0), sum(status = 1), sum(status = 2), sum(status = 3), sum(status = 4), sum(leased)
           FROM tasks WHERE owner = o.owner)"),
        ("owners whose ready tasks would be overlooked",
         "SELECT count(*) FROM owners o WHERE coalesce(ready_from, 1e99) >
          (SELECT min(ready_at) FROM tasks WHERE owner = o.owner AND leased = 0)"),
        ("tasks without a call", "SELECT count(*) FROM tasks WHERE number NOT IN (SELECT number FROM calls)"),
        ("calls without a task", "SELECT count(*) FROM calls WHERE number NOT IN (SELECT number FROM tasks)"),
        ("ends without a task", "SELECT count(*) FROM bodies WHERE number NOT IN (SELECT number FROM tasks)"),
        ("tasks that ended without their end",
         "SELECT count(*) FROM tasks WHERE status IN (2, 3) AND number NOT IN (SELECT number FROM bodies)"),
        ("journals without a task", "SELECT count(*) FROM journal WHERE number NOT IN (SELECT number FROM tasks)"),
        ("tasks of nobody", "SELECT count(*) FROM tasks WHERE owner NOT IN (SELECT owner FROM owners)"),
        ("keys that forget their task", "SELECT count(*) FROM keys WHERE until IS NULL AND id NOT IN (SELECT id FROM tasks)"),
    ] {
        let count: i64 = file.query_row(wrong, [], |row| row.get(0)).unwrap();
        assert_eq!(count, 0, "{what}");
    }
}
