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
    }
    for status in Status::ALL {
        assert!(tasks.contains_key(&status), "no task is {}: {tasks:?}", status.as_str());
    }
    assert!(acks.iter().any(|ack| matches!(ack.what, Effect::Claimed(_))));
}
