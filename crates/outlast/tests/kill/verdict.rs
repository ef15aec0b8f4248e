//! The server starts again on what the killed one left, and everything that was acknowledged must be true.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt, stream};
use outlast::{Recovery, Store};
use outlast_core::{Inspect, Run, Status, Task};
use outlast_sqlite::{Options, Role, SqliteStore};
use tokio::{task::yield_now, time::timeout};

use crate::{
    caller::{Caller, Shown},
    ledger::{Known, Ledger, State},
    load::{self, Killed, before},
    process::{self, Server},
    tools::{Folder, recovery},
};

/// Far more than the rest of a round takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many requests are under way at once.
const AT_ONCE: usize = 16;

/// Checks what the killed server left in `directory`, and returns what there is to tell.
pub(crate) async fn check(directory: &Path, killed: Killed) -> String {
    let known = Ledger::read(&load::log(directory));
    let at_kill = AtKill::read(directory).await;
    let hit = states(&known, &at_kill).await;
    let folder = Folder::of(directory);
    let runs = folder.runs();
    let server = Server::start(directory);
    let verdict = Verdict { folder, runs, server: &server, at_kill: &at_kill };
    verdict.check(&known).await;
    nothing_is_left(directory, known.len()).await;
    let hit: Vec<_> = hit.into_iter().map(|(state, count)| format!("{state:?} {count}")).collect();
    format!(
        "{} tasks, killed {} lines after all was hit: {}",
        known.len(),
        killed.lines_after,
        hit.join(", ")
    )
}

/// How many tasks were in each state; fails when there is a state that none was in.
async fn states(known: &BTreeMap<String, Known>, at_kill: &AtKill) -> BTreeMap<State, u32> {
    let mut hit = BTreeMap::new();
    for task in known.values() {
        let queued = match &task.id {
            Some(id) => at_kill.get(id).await.is_some_and(|task| is_queued(&task)),
            None => false,
        };
        if let Some(state) = if queued { Some(State::Queued) } else { task.state() } {
            *hit.entry(state).or_default() += 1;
        }
    }
    let missing: Vec<_> =
        State::KNOWABLE.into_iter().chain([State::Queued]).filter(|state| !hit.contains_key(state)).collect();
    assert!(missing.is_empty(), "the kill found no task in {missing:?}, but {hit:?}");
    hit
}

fn is_queued(task: &Task) -> bool {
    task.live().is_some_and(|live| matches!(live.run, Run::Queued { .. }))
}

/// The killed server's file as it was then: a copy, so that looking at it changes nothing for the next server.
struct AtKill(SqliteStore);

impl AtKill {
    async fn read(directory: &Path) -> Self {
        let copy = directory.join("at-kill.db");
        for part in ["", "-wal"] {
            let of = |file: &Path| PathBuf::from(format!("{}{part}", file.display()));
            std::fs::copy(of(&process::database(directory)), of(&copy)).unwrap();
        }
        Self(front(&copy))
    }

    async fn get(&self, id: &str) -> Option<Task> {
        self.0.get(id.parse().unwrap()).await.unwrap()
    }
}

fn front(file: &Path) -> SqliteStore {
    SqliteStore::open_with(file, Options::default().role(Role::Front)).unwrap()
}

struct Verdict<'a> {
    folder: Folder,
    /// How often each tool had run before the server was started again.
    runs: BTreeMap<String, u32>,
    server: &'a Server,
    at_kill: &'a AtKill,
}

impl Verdict<'_> {
    async fn check(&self, known: &BTreeMap<String, Known>) {
        let owners: BTreeSet<u64> = known.values().map(|task| task.owner).collect();
        let callers: BTreeMap<u64, Caller> =
            owners.into_iter().map(|owner| (owner, Caller::new(&self.server.url, owner))).collect();

        // While every gate is closed: what was acknowledged is there, as it was.
        each(known, async |label, task| {
            if let Some(id) = &task.id {
                let shown = callers[&task.owner].get(id).await.unwrap();
                unchanged(label, task, &shown);
            }
        })
        .await;
        each(known, async |label, task| {
            if task.state() == Some(State::AtWorkOnce) {
                let end = self.see_end(&callers[&task.owner], label, task).await;
                assert!(is_unknown_outcome(&end), "{label} was at work that must not be done twice: {end:?}");
            }
        })
        .await;

        // From now on nothing holds anything up.
        self.folder.open_all();
        each(known, async |label, task| {
            let caller = &callers[&task.owner];
            // A repeated creation makes no second task, and tells which one it was if nobody knew.
            let id = caller.create(label, task.plan.tool).await.unwrap();
            assert!(task.id.as_ref().is_none_or(|first| *first == id), "{label} was created twice");
            let task = Known { id: Some(id.clone()), ..task.clone() };
            let end = self.see_end(caller, label, &task).await;
            self.right_end(label, &task, &end).await;
            let again = caller.get(&id).await.unwrap();
            assert_eq!(again, end, "{label} changed after its end");
        })
        .await;
        self.right_runs(known);
    }

    /// Answers whatever the task asks, and polls until it is final.
    async fn see_end(&self, caller: &Caller, label: &str, task: &Known) -> Shown {
        let id = task.id.as_ref().unwrap();
        loop {
            let shown = caller.get(id).await.unwrap();
            if shown.is_final() {
                return shown;
            }
            for key in shown.asks() {
                assert!(!task.answered.contains(&key), "{label} asks '{key}' again, which was answered");
                caller.answer(id, &key, &after(label, &key)).await.unwrap();
            }
            yield_now().await;
        }
    }

    /// Whether a task ended as its tool and its story say.
    async fn right_end(&self, label: &str, task: &Known, end: &Shown) {
        let at_kill = self.at_kill.get(task.id.as_ref().unwrap()).await;
        let was_leased = at_kill.is_some_and(|task| task.lease().is_some());
        if was_leased && recovery(task.plan.tool) == Recovery::Fail {
            assert!(is_unknown_outcome(end), "{label} ran when its server died: {end:?}");
            return;
        }
        let tool = task.plan.tool;
        let right = if end.status() == "cancelled" {
            // These are cancelled when they are at work already, and hear nothing of it.
            task.sent_cancel && tool != "works"
        } else {
            // Work that hears of a cancel ends by it, unless its gate was opened before.
            let hears = tool == "asks" || (tool == "cleans" && !task.opened);
            !(task.cancelled && hears) && is_own_end(label, task, end)
        };
        assert!(right, "{label} of {:?} ended wrongly: {end:?}", task.plan);
    }

    /// What was over is not done again, what must not be done twice is not, and what was at work is.
    fn right_runs(&self, known: &BTreeMap<String, Known>) {
        let runs = self.folder.runs();
        for (label, task) in known {
            let [before, runs] = [&self.runs, &runs].map(|runs| runs.get(label).copied().unwrap_or(0));
            match task.state() {
                Some(State::Completed | State::Failed | State::Cancelled) => {
                    assert_eq!(runs, before, "{label} was over and ran again");
                }
                Some(State::AtWork | State::Asking | State::Answered) => {
                    assert!(runs > before, "{label} was at work and did not run again");
                }
                _ => {}
            }
            // Each of its rounds is a run.
            let at_most = if task.plan.tool == "rounds" { 3 } else { 1 };
            if recovery(task.plan.tool) == Recovery::Fail {
                assert!(runs <= at_most, "{label} must not be done twice and ran {runs} times");
            }
        }
    }
}

/// Whether a task that was acknowledged is what it was when it was last seen.
fn unchanged(label: &str, task: &Known, shown: &Shown) {
    for key in shown.asks() {
        assert!(!task.answered.contains(&key), "{label} asks '{key}' again, which was answered");
        assert!(!task.cancelled, "{label} was cancelled and asks '{key}'");
    }
    match task.state() {
        // Byte for byte.
        Some(State::Completed | State::Failed | State::Cancelled) => {
            assert_eq!(Some(shown), task.seen.as_ref(), "{label}");
        }
        Some(State::Asking | State::InFirstRound | State::InSecondRound) => {
            assert_eq!(shown.status(), "input_required", "{label}");
            let asks: BTreeSet<String> = shown.asks().into_iter().collect();
            assert_eq!(asks, task.outstanding(), "{label}");
            for key in asks {
                assert_eq!(
                    shown.question(&key),
                    task.seen.as_ref().unwrap().question(&key),
                    "{label} '{key}'"
                );
            }
        }
        _ => {}
    }
}

/// Whether a task ended as its tool does when it is left to itself and is answered what it was answered.
fn is_own_end(label: &str, task: &Known, end: &Shown) -> bool {
    let text = end.result()["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    let result = |expected: &str| end.status() == "completed" && text == format!("{label} {expected}");
    let told = |keys: &[&str]| end.status() == "completed" && texts(label, task, keys).contains(&text);
    match task.plan.tool {
        "quick" => result("quick"),
        "tool_error" => result("wrong") && end.result()["isError"] == true,
        "fails" => end.status() == "failed" && end.error()["data"]["label"] == *label,
        "panics" => end.status() == "failed" && end.message().contains("panicked"),
        "works" | "works_once" | "cleans" => result("worked"),
        "asks" | "asks_then_works" => told(&["who"]),
        "asks_two" => told(&["first", "second"]),
        "rounds" | "rounds_then_work" => told(&["a", "b"]),
        other => unreachable!("no plan uses {other}"),
    }
}

fn is_unknown_outcome(shown: &Shown) -> bool {
    let honest = "its outcome is unknown";
    shown.status() == "failed"
        && shown.message().contains(honest)
        && shown.error()["message"].as_str().is_some_and(|message| message.contains(honest))
}

/// Every result that the answers to `keys` may lead to: an acknowledged answer counts, one that was on its way may.
fn texts(label: &str, task: &Known, keys: &[&str]) -> Vec<String> {
    let mut texts = vec![format!("{label} told")];
    for key in keys {
        let mut names = Vec::new();
        if task.sent_answers.contains(*key) {
            names.push(before(label, key));
        }
        if !task.answered.contains(*key) {
            names.push(after(label, key));
        }
        texts =
            texts.iter().flat_map(|text| names.iter().map(move |name| format!("{text} {name}"))).collect();
    }
    texts
}

/// What a task is answered after the kill.
fn after(label: &str, key: &str) -> String {
    format!("{label}-{key}-after")
}

/// Checks every task, several at once.
async fn each(known: &BTreeMap<String, Known>, check: impl AsyncFn(&str, &Known)) {
    let checked = stream::iter(known).for_each_concurrent(AT_ONCE, async |(label, task)| {
        let checked = timeout(PATIENCE, check(label, task)).await;
        assert!(checked.is_ok(), "{label} of {:?} does not come to its end", task.plan);
    });
    checked.await;
}

/// No task is in the file but those of the client, and none is unfinished.
async fn nothing_is_left(directory: &Path, tasks: usize) {
    let counts = front(&process::database(directory)).counts().await.unwrap();
    let unfinished = counts.of(Status::Working) + counts.of(Status::InputRequired);
    assert_eq!((unfinished, counts.total()), (0, tasks as u64), "{counts:?}");
}
