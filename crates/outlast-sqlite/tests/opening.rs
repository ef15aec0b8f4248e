//! What may be opened, and what a person is told about what may not.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use futures::executor::block_on;
use outlast_core::{
    Created, Entry, Inspect, ManualClock, NewTask, Outcome, Status, TakenUp, TaskId, TaskState, Timestamp,
};
use outlast_sqlite::{OpenError, Options, Role, SqliteStore};
use outlast_testkit::story::*;
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

fn fresh() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    (directory, path)
}

fn refusal(path: &Path) -> OpenError {
    SqliteStore::open(path).err().expect("it is refused")
}

/// Everything in the directory of a file, by name.
fn contents(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.clone(), fs::read(path).unwrap())
    };
    let mut all: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(read).collect();
    all.sort();
    all
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let (_directory, path) = fresh();
    fs::write(
        &path,
        "dear diary, today I wrote a text that is longer than the header of a database".repeat(9),
    )
    .unwrap();
    let before = contents(&path);
    let error = refusal(&path);
    assert!(matches!(error, OpenError::NotADatabase { .. }), "{error:?}");
    let expected = format!("{} is not an SQLite database; ", path.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(contents(&path), before);
}

#[test]
fn a_database_of_another_program_is_refused_and_left_as_it_is() {
    for marked in [false, true] {
        let (_directory, path) = fresh();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("CREATE TABLE diary (day TEXT); INSERT INTO diary VALUES ('monday')").unwrap();
        if marked {
            other.pragma_update(None, "application_id", 0x1234).unwrap();
        }
        drop(other);
        let before = contents(&path);
        assert!(matches!(refusal(&path), OpenError::Foreign { .. }));
        assert_eq!(contents(&path), before);
    }
}

/// A file as a program of schema 1 left it.
fn of_version_1(path: &Path) {
    let old = Connection::open(path).unwrap();
    old.execute_batch(include_str!("../src/schema/1.sql")).unwrap();
    old.execute_batch(include_str!("fixtures/version-1.sql")).unwrap();
    old.pragma_update(None, "user_version", 1).unwrap();
    old.pragma_update(None, "application_id", 0x4f4c_7374).unwrap();
}

#[test]
fn a_file_of_version_1_is_brought_up_to_date_and_its_tasks_go_on() {
    let (_directory, path) = fresh();
    of_version_1(&path);
    // An hour after it was last used.
    let clock = ManualClock::new(Timestamp::from_millis(1_767_225_631_000) + HOUR);
    let store = SqliteStore::open_with(&path, Options::default().clock(clock.clone())).unwrap();
    let id = |number| TaskId::from_bytes([number; 16]);
    block_on(async {
        let [done, asking, failed, lost, queued] = [1, 2, 3, 4, 5].map(id);
        let task = store.task(done).await;
        assert_eq!(task.state, TaskState::Completed { result: payload(&json!({"done": true})) });
        let steps: Vec<_> = store.entries(done).await.iter().filter_map(Entry::finished).collect();
        let outcomes = [Outcome::Value(payload(&json!({"kept": 1}))), Outcome::Error(payload(&json!("no")))];
        assert_eq!(steps.into_iter().map(|step| step.outcome).collect::<Vec<_>>(), outcomes);
        assert!(
            matches!(store.try_create(new_keyed("k", 1)).await, Created::Existing(found) if found == task)
        );

        // Its worker is gone for the second time.
        clock.advance(MINUTE);
        let claimed = store.claim_up_to("three", 9).await;
        assert_eq!(claimed.iter().map(|claimed| claimed.task.id).collect::<Vec<_>>(), [queued, lost]);
        assert_eq!((claimed[1].task.lost.len(), claimed[1].token.0), (2, 3));
        assert!(!claimed[1].task.lease().unwrap().alone);
        assert_eq!(store.workers().await.unwrap().len(), 1);

        assert_eq!(store.task(asking).await.status(), Status::InputRequired);
        after(store.alice(asking, vec![answer("r", "yes")]).await);
        let woken = store.claim_only("three").await;
        let steps = vec![finish("a", &json!("second")), finish("b", &json!(1)), complete(&json!(1))];
        assert_eq!(store.worked(asking, woken.token, steps).await.entries, 1, "counted from now on");

        let takes_up = TakenUp::of(&store.task(failed).await, store.entries(failed).await);
        let again = store.create_one(NewTask { takes_up, ..new_task() }).await;
        assert_eq!((again.origin, again.entries), (Some(failed), 1));
        store.close().await;
    });

    // Whatever its history, a file has the schema of this version.
    let (_directory, new) = fresh();
    drop(SqliteStore::open(&new).unwrap());
    let schema = |path| {
        let sql = "SELECT name, sql FROM sqlite_schema ORDER BY name";
        let connection = Connection::open(path).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.collect::<Result<Vec<(String, Option<String>)>, _>>().unwrap()
    };
    assert_eq!(schema(&path), schema(&new));
}

#[test]
fn a_file_of_a_newer_version_is_refused_naming_both_and_left_as_it_is() {
    let (_directory, path) = fresh();
    drop(SqliteStore::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    fs::remove_file(path.with_extension("db.lock")).unwrap();
    let before = contents(&path);
    let error = refusal(&path);
    assert!(matches!(error, OpenError::Newer { found: 99, known: 3, .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!(
            "{} has schema version 99 and this program knows versions up to 3; run a newer version of it, or use another file",
            path.display()
        )
    );
    assert!(contents(&path) == before, "nothing was made beside it");
    let front = SqliteStore::open_with(&path, Options::default().role(Role::Front));
    assert!(matches!(front.err(), Some(OpenError::Newer { .. })));
    assert!(contents(&path) == before);
}

/// A store with a task that a worker holds, all of it in its file, and nothing beside that.
fn in_one_file(path: &Path) -> Vec<u8> {
    let store = SqliteStore::open(path).unwrap();
    block_on(store.create_leased(new_task(), "worker"));
    drop(store);
    fs::remove_file(path.with_extension("db.lock")).unwrap();
    fs::read(path).unwrap()
}

const PAGE: usize = 4_096;

#[test]
fn a_file_that_was_cut_off_is_refused_and_left_as_it_is() {
    let (_directory, path) = fresh();
    let whole = in_one_file(&path);
    for kept in [600, whole.len() / 2, whole.len() - PAGE] {
        fs::write(&path, &whole[..kept]).unwrap();
        let before = contents(&path);
        let error = refusal(&path);
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(contents(&path) == before, "{kept} bytes of it");
    }
}

#[test]
fn a_damaged_file_that_is_refused_is_left_as_it_is() {
    let (_directory, path) = fresh();
    let whole = in_one_file(&path);
    let mut refused = Vec::new();
    for page in 0..whole.len() / PAGE {
        let mut damaged = whole.clone();
        // The header says whose file it is, and stays.
        let header = if page == 0 { 100 } else { 0 };
        damaged[page * PAGE..][..PAGE][header..].fill(0xa5);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.db");
        fs::write(&path, damaged).unwrap();
        let before = contents(&path);
        if let Err(error) = SqliteStore::open(&path) {
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            assert!(contents(&path) == before, "page {page}: {error:?}");
            refused.push(page);
        }
    }
    assert!(refused.len() > 5, "only damage in {refused:?} was found");
}

#[test]
fn a_folder_is_said_to_be_one() {
    let (directory, _) = fresh();
    let error = refusal(directory.path());
    assert!(matches!(error, OpenError::Folder { .. }), "{error:?}");
    let expected = format!("{} is a folder; give the path of a file", directory.path().display());
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_a_newer_version_left_in_its_log_is_not_written_back() {
    let (_directory, path) = fresh();
    drop(SqliteStore::open(&path).unwrap());
    // The newer program was killed: its last writes are in the log alone.
    let copy = path.with_file_name("killed.db");
    let newer = Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    newer.execute_batch("UPDATE meta SET value = 5").unwrap();
    let log = |path: &Path| path.with_extension("db-wal");
    fs::copy(log(&path), log(&copy)).unwrap();
    fs::copy(&path, &copy).unwrap();
    let before = (fs::read(&copy).unwrap(), fs::read(log(&copy)).unwrap());
    assert!(matches!(refusal(&copy), OpenError::Newer { .. }));
    assert_eq!((fs::read(&copy).unwrap(), fs::read(log(&copy)).unwrap()), before);
}

#[test]
fn a_place_where_no_file_can_be_is_named() {
    let (_directory, path) = fresh();
    for nowhere in [path.join("deeper.db"), path.parent().unwrap().join("no/such/directory.db")] {
        fs::write(&path, "").unwrap();
        let error = refusal(&nowhere);
        assert!(error.to_string().contains(&nowhere.display().to_string()), "{error}");
    }
}

#[test]
fn an_empty_file_and_an_odd_name_are_no_obstacle() {
    let (_directory, path) = fresh();
    fs::write(&path, "").unwrap();
    for path in [path.clone(), path.with_file_name("file:x?mode=memory"), path.with_file_name("zoë 'n\" b")]
    {
        let store = SqliteStore::open(&path).unwrap();
        block_on(store.create_one(new_task()));
        drop(store);
        assert_eq!(block_on(SqliteStore::open(&path).unwrap().counts()).unwrap().total(), 1);
    }
}

#[test]
fn many_processes_may_create_the_file_at_once() {
    let (_directory, path) = fresh();
    std::thread::scope(|scope| {
        for role in [Role::Auto, Role::Front, Role::Front, Role::Auto, Role::Front, Role::Front, Role::Auto] {
            let path = &path;
            scope.spawn(move || {
                let store = SqliteStore::open_with(path, Options::default().role(role)).unwrap();
                block_on(store.create_one(new_task()));
            });
        }
    });
    assert_eq!(block_on(SqliteStore::open(&path).unwrap().counts()).unwrap().total(), 7);
}

// --- one runtime per file

#[test]
fn a_second_runtime_is_refused_and_told_who_is_the_first() {
    let (_directory, path) = fresh();
    let first = SqliteStore::open(&path).unwrap();
    let error = refusal(&path);
    let OpenError::Held { holder, .. } = &error else { panic!("{error:?}") };
    assert_eq!(holder.process, Some(std::process::id()));
    assert!(holder.since.is_some());
    let expected = format!("the runtime lock of {} is held by this process since 2", path.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    drop(first);
    SqliteStore::open(&path).unwrap();
}

#[cfg(unix)]
#[test]
fn the_lock_is_the_files_by_whatever_link_it_is_reached() {
    let (_directory, path) = fresh();
    let link = path.with_file_name("link.db");
    let _first = SqliteStore::open(&path).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(refusal(&link), OpenError::Held { .. }));
}

const CHILD: &str = "OUTLAST_RUNTIME_CHILD";

/// Another process, which is the runtime of a file, runs a task, and is killed. Without the variable it does nothing.
#[test]
fn runtime_child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = SqliteStore::open(path).unwrap();
    let (task, _) = block_on(store.create_leased(new_task(), "child"));
    println!("\nrunning task {}", task.id);
    std::thread::park();
}

#[test]
fn the_lock_names_another_process_and_frees_and_voids_its_leases_when_that_is_killed() {
    use std::io::BufRead;
    let (_directory, path) = fresh();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "runtime_child", "--nocapture"])
        .env(CHILD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let running =
        |line: std::io::Result<String>| Some(line.ok()?.strip_prefix("running task ")?.parse().unwrap());
    let id = out.lines().find_map(running).expect("the child runs a task");

    let error = refusal(&path);
    let expected = format!("is held by process {} since ", child.id());
    assert!(error.to_string().contains(&expected), "{error}");
    let front = SqliteStore::open_with(&path, Options::default().role(Role::Front)).unwrap();
    assert!(block_on(front.task(id)).lease().is_some());

    child.kill().unwrap();
    child.wait().unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let task = block_on(store.task(id));
    assert_eq!((task.lease(), task.lost.len()), (None, 1), "its lease ended before anything else happened");
    assert_eq!(block_on(store.claim_only("next")).task.id, id);
}
