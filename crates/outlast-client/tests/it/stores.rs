//! The stores of handles: the same tests for both, and what each has besides. Then what the client does with one.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt};
use outlast_client::{
    CallErrorKind, DirStore, HandleStore, SavedTask, SqliteStore, Started, TaskClient, TaskHandle,
};
use rmcp::model::CallToolRequestParams;
use serde_json::json;
use tokio::sync::watch;

use crate::support::{LONG, Person, Scripted, ack, asks, completed, created, error, ok, polling, task};

fn saved(server: &str, id: &str) -> SavedTask {
    let text = json!({
        "version": 1, "server": server, "taskId": id, "tool": "tool", "generation": "2026-07-28",
        "createdAt": "2026-11-29T10:00:00Z", "firstSeen": "2026-11-29T10:00:00Z",
    });
    SavedTask::from_json(&text.to_string()).unwrap()
}

fn ids(mut tasks: Vec<SavedTask>) -> Vec<String> {
    tasks.sort_by(|one, other| one.task_id.cmp(&other.task_id));
    tasks.into_iter().map(|task| task.task_id).collect()
}

/// What every store of handles does. `open` opens the same one again, as another process would.
async fn suite<S: HandleStore>(open: impl Fn() -> S) {
    let store = open();
    assert!(store.list("s").await.unwrap().is_empty());
    store.remove("s", "nothing").await.expect("what is not there is no error");

    // What was saved is there, as it was, and of its server alone.
    let mut one = saved("s", "one");
    one.answers.insert("name".into(), json!({ "content": "Ada" }));
    one.delivered.insert("age".into());
    one.output_schema = Some(json!({ "type": "object" }));
    store.save(&one).await.unwrap();
    store.save(&saved("other", "one")).await.unwrap();
    assert_eq!(store.list("s").await.unwrap(), [one.clone()]);

    // A newer one replaces it, and another process sees that.
    one.answers.clear();
    one.delivered.insert("name".into());
    store.save(&one).await.unwrap();
    assert_eq!(open().list("s").await.unwrap(), [one]);

    // Names are names, whatever they hold.
    let odd = ["../../etc/passwd", "a/b", "'; DROP TABLE handles; --", "\u{0}", "ü\n", &"x".repeat(4096)];
    for id in odd {
        store.save(&saved("odd", id)).await.unwrap();
    }
    let mut expected = odd.map(ToOwned::to_owned).to_vec();
    expected.sort();
    assert_eq!(ids(store.list("odd").await.unwrap()), expected);
    for id in odd {
        store.remove("odd", id).await.unwrap();
    }
    assert!(open().list("odd").await.unwrap().is_empty());

    // The name of a server and that of a task are two: no pair is taken for another.
    store.save(&saved("ab", "c")).await.unwrap();
    store.save(&saved("a", "bc")).await.unwrap();
    store.remove("a", "bc").await.unwrap();
    assert_eq!(ids(store.list("ab").await.unwrap()), ["c"]);

    // Several write at once, each through its own.
    let writers = (0..4).map(|writer| {
        let store = open();
        async move {
            for at in 0..10 {
                let id = format!("{writer}-{at}");
                store.save(&saved("busy", &id)).await.unwrap();
                store.save(&saved("busy", "shared")).await.unwrap();
                if at % 2 == 1 {
                    store.remove("busy", &id).await.unwrap();
                }
                assert!(store.list("busy").await.unwrap().iter().any(|task| task.task_id == "shared"));
            }
        }
    });
    futures::future::join_all(writers).await;
    assert_eq!(store.list("busy").await.unwrap().len(), 4 * 5 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_are_kept_in_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    suite(|| DirStore::open(folder.path().join("a/b")).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_are_kept_in_an_sqlite_file() {
    let folder = tempfile::tempdir().unwrap();
    suite(|| SqliteStore::open(folder.path().join("handles.db")).unwrap()).await;
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_kept_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    fn modes(folder: &Path) -> Vec<(String, u32)> {
        let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
        entries
            .map(|entry| {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                (entry.file_name().to_string_lossy().into_owned(), mode)
            })
            .collect()
    }
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("handles");
    let store = DirStore::open(&inner).unwrap();
    store.save(&saved("s", "secret-id")).await.unwrap();
    assert_eq!(modes(folder.path()), [("handles".to_owned(), 0o700)]);
    let files = modes(&inner);
    assert_eq!((files.len(), files[0].1), (1, 0o600));
    assert!(!files[0].0.contains("secret-id"), "an id may be a secret, and is in no name");

    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("handles.db")).unwrap();
    store.save(&saved("s", "secret-id")).await.unwrap();
    for (name, mode) in modes(folder.path()) {
        assert_eq!(mode, 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_damaged_file_hides_no_other_handle() {
    let folder = tempfile::tempdir().unwrap();
    let store = DirStore::open(folder.path()).unwrap();
    store.save(&saved("s", "good")).await.unwrap();
    for (name, text) in [
        ("empty.json", &b""[..]),
        ("cut.json", b"{\"version\":1,\"server\":\"s\",\"task"),
        ("bytes.json", b"\xff\xfe"),
        ("later.json", br#"{"version":99,"server":"s","taskId":"x","tool":"t","createdAt":"2026-11-29T10:00:00Z","firstSeen":"2026-11-29T10:00:00Z","generation":"2026-07-28"}"#),
        ("notes.txt", b"something else"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    std::fs::create_dir(folder.path().join("folder.json")).unwrap();

    assert_eq!(ids(store.list("s").await.unwrap()), ["good"]);
}

#[tokio::test]
async fn a_damaged_row_hides_no_other_handle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handles.db");
    let store = SqliteStore::open(&path).unwrap();
    store.save(&saved("s", "good")).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute("INSERT INTO handles VALUES ('s', 'bad', 'no JSON')", []).unwrap();

    assert_eq!(ids(store.list("s").await.unwrap()), ["good"]);
}

#[tokio::test]
async fn a_crash_between_the_writing_of_a_file_and_its_move_leaves_the_handle_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = DirStore::open(folder.path()).unwrap();
    store.save(&saved("s", "one")).await.unwrap();
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    // What such a process leaves: the whole of a newer handle, or a part of it, beside the place of it.
    let mut newer = saved("s", "one");
    newer.delivered.insert("name".into());
    let (whole, part) = (file.with_extension("aa.new"), file.with_extension("bb.new"));
    std::fs::write(&whole, newer.to_json()).unwrap();
    std::fs::write(&part, &newer.to_json()[..20]).unwrap();

    let again = DirStore::open(folder.path()).unwrap();
    assert_eq!(again.list("s").await.unwrap(), [saved("s", "one")]);
    assert!(whole.exists(), "it may be of a process that is writing now");

    // It holds what may be secret, and does not stay for ever.
    let old = std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    for left in [&whole, &part, &file] {
        std::fs::File::options().write(true).open(left).unwrap().set_times(old).unwrap();
    }
    let again = DirStore::open(folder.path()).unwrap();
    assert!(!whole.exists() && !part.exists());
    assert_eq!(again.list("s").await.unwrap(), [saved("s", "one")]);
}

#[tokio::test]
async fn a_write_that_fails_says_so_and_leaves_nothing_beside() {
    let folder = tempfile::tempdir().unwrap();
    let store = DirStore::open(folder.path()).unwrap();
    store.save(&saved("s", "one")).await.unwrap();
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    // A folder stands where the file has to go.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();

    store.save(&saved("s", "one")).await.unwrap_err();

    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(store.list("s").await.unwrap().is_empty());
}

#[test]
fn a_file_of_something_else_or_of_a_later_version_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    let later = folder.path().join("later.db");
    drop(SqliteStore::open(&later).unwrap());
    rusqlite::Connection::open(&later).unwrap().pragma_update(None, "user_version", 9).unwrap();
    let text = folder.path().join("text.db");
    std::fs::write(&text, "no database, but long enough that it might be taken for one".repeat(100)).unwrap();

    for (path, says) in [(&foreign, "something else"), (&later, "layout 9"), (&text, "not a database")] {
        let before = std::fs::read(path).unwrap();
        let error = SqliteStore::open(path).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(std::fs::read(path).unwrap(), before);
    }
}

/// A store in memory, of which a test can see and hold up the writes.
#[derive(Clone)]
struct Watched {
    kept: Arc<Mutex<Vec<SavedTask>>>,
    fails: Arc<AtomicBool>,
    held: watch::Sender<bool>,
    writes: watch::Sender<usize>,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            kept: Arc::default(),
            fails: Arc::default(),
            held: watch::channel(false).0,
            writes: watch::channel(0).0,
        }
    }
}

impl Watched {
    fn kept(&self) -> Vec<SavedTask> {
        self.kept.lock().unwrap().clone()
    }

    fn outcome(&self) -> io::Result<()> {
        match self.fails.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the disk is full")),
            false => Ok(()),
        }
    }
}

impl HandleStore for Watched {
    fn save<'a>(&'a self, task: &'a SavedTask) -> BoxFuture<'a, io::Result<()>> {
        async move {
            self.writes.send_modify(|writes| *writes += 1);
            self.held.subscribe().wait_for(|held| !held).await.unwrap();
            self.outcome()?;
            let mut kept = self.kept.lock().unwrap();
            kept.retain(|kept| kept.task_id != task.task_id);
            kept.push(task.clone());
            Ok(())
        }
        .boxed()
    }

    fn remove<'a>(&'a self, _: &'a str, id: &'a str) -> BoxFuture<'a, io::Result<()>> {
        async move {
            self.outcome()?;
            self.kept.lock().unwrap().retain(|kept| kept.task_id != id);
            Ok(())
        }
        .boxed()
    }

    fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Vec<SavedTask>>> {
        async move { self.outcome().map(|()| self.kept()) }.boxed()
    }
}

fn asking() -> Scripted {
    let answered = AtomicBool::new(false);
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" if answered.load(Ordering::SeqCst) => completed("t1", "done"),
        "tasks/get" => asks("t1", &["who"]),
        "tasks/update" => {
            answered.store(true, Ordering::SeqCst);
            ack()
        }
        _ => error(-32601, "no"),
    })
}

fn client(server: outlast_client::Server, person: &Person, store: impl HandleStore) -> TaskClient {
    TaskClient::builder(server).options(polling()).handler(person.clone()).store(store).build()
}

async fn start(client: &TaskClient) -> TaskHandle {
    match client.start_tool(CallToolRequestParams::new("tool")).await.unwrap() {
        Started::Task(handle) => handle,
        other => panic!("no task: {other:?}"),
    }
}

#[tokio::test]
async fn a_handle_is_kept_before_the_caller_has_it_and_until_its_end_is_told() {
    let scripted = asking();
    let running = scripted.http().await;
    let store = Watched::default();
    let client = client(running.server(), &Person::prompt(), store.clone());
    let handle = start(&client).await;
    assert_eq!(store.kept(), [handle.save()]);

    handle.wait(LONG).await.unwrap();

    assert!(store.kept().is_empty());
    // Taken up once more, in a process that knows its end, it is told and not kept.
    client.resume(handle.save()).await.unwrap().wait(LONG).await.unwrap();
    assert!(store.kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_written_down_before_it_is_sent() {
    let scripted = asking();
    let store = Watched::default();
    let person = Person::prompt();
    let handle = start(&client(scripted.streams(), &person, store.clone())).await;
    store.held.send_replace(true);
    let wait = tokio::spawn(async move { handle.wait(LONG).await });
    store.writes.subscribe().wait_for(|writes| *writes == 2).await.unwrap();

    // The task is polled on meanwhile.
    let polls = scripted.asked("tasks/get").len();
    scripted.until_asked("tasks/get", polls + 5).await;
    assert!(scripted.asked("tasks/update").is_empty());
    assert!(store.kept()[0].answers.is_empty());
    store.held.send_replace(false);

    scripted.until_asked("tasks/update", 1).await;
    assert!(store.kept()[0].answers.contains_key("who") || store.kept()[0].delivered.contains("who"));
    wait.await.unwrap().unwrap();
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_written_down_to_its_end_though_its_wait_has_ended() {
    let scripted = asking();
    let store = Watched::default();
    let handle = start(&client(scripted.streams(), &Person::prompt(), store.clone())).await;
    store.held.send_replace(true);
    let wait = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    store.writes.subscribe().wait_for(|writes| *writes == 2).await.unwrap();
    wait.abort();
    let _ = wait.await;
    // The caller has given up, and another process goes on from what is kept.
    store.held.send_replace(false);
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert!(store.kept()[0].answers.contains_key("who"));
    drop(handle);
    let person = Person::prompt();
    let second = client(scripted.streams(), &person, store.clone());
    for task in second.resume_all().await.unwrap() {
        task.wait(LONG).await.unwrap();
    }
    assert!(person.asked().is_empty() && store.kept().is_empty());
}

#[tokio::test]
async fn a_store_that_fails_loses_no_task_and_no_answer_of_this_process() {
    let scripted = asking();
    let running = scripted.http().await;
    let store = Watched::default();
    store.fails.store(true, Ordering::SeqCst);
    let person = Person::prompt();
    let client = client(running.server(), &person, store.clone());

    // The call became a task; the error says what of it was not kept, and holds it.
    let error = client.start_tool(CallToolRequestParams::new("tool")).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Store(why) if why.contains("the disk is full")), "{error}");
    assert!(error.is_retryable());

    error.into_handle().unwrap().wait(LONG).await.unwrap();
    assert_eq!(person.asked(), ["who"]);

    let error = client.resume_all().await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Store(_)), "{error}");
}

/// A process that ends and one that goes on, over each kind of store.
async fn resumes<S: HandleStore>(open: impl Fn() -> S) {
    let polls = AtomicUsize::new(0);
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created(["t1", "t2", "t3"][asked.nth]),
        "tasks/get" => {
            let id = asked.params["taskId"].as_str().unwrap().to_owned();
            match polls.fetch_add(1, Ordering::SeqCst) {
                0 => ok(task(&id, "working", json!({}))),
                _ if id == "t2" => error(-32602, "Task not found"),
                _ => completed(&id, &id),
            }
        }
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let first = client(running.server(), &Person::prompt(), open());
    for _ in 0..3 {
        start(&first).await;
    }
    drop(first);

    let second = client(running.server(), &Person::prompt(), open());
    let mut tasks = second.resume_all().await.unwrap();
    tasks.sort_by_key(|task| task.id().to_owned());
    let ends: Vec<_> = futures::future::join_all(tasks.iter().map(|task| task.wait(LONG))).await;

    assert!(ends[0].is_ok() && ends[2].is_ok(), "{ends:?}");
    assert_eq!(ends[1].as_ref().unwrap_err().kind(), &CallErrorKind::Gone);
    assert!(second.resume_all().await.unwrap().is_empty(), "what has ended, or is gone, is kept no longer");
    let elsewhere = client(outlast_client::Server::http("http://127.0.0.1:1/mcp"), &Person::prompt(), open());
    assert!(elsewhere.resume_all().await.unwrap().is_empty());
}

#[tokio::test]
async fn another_process_takes_up_what_was_kept_in_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    resumes(|| DirStore::open(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn another_process_takes_up_what_was_kept_in_an_sqlite_file() {
    let folder = tempfile::tempdir().unwrap();
    resumes(|| SqliteStore::open(folder.path().join("handles.db")).unwrap()).await;
}
