//! The gateway starts again on what the killed one left, and everything that was acknowledged must be true.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outlast_core::{Inspect, Status};
use outlast_sqlite::{Options, Role, SqliteStore};
use serde_json::Value;

use crate::{
    caller::{Called, Caller, Shown},
    clock,
    ledger::{Known, Ledger, State},
    load::{self, Killed, PACE, before},
    plan::Kind,
    process::Site,
    upstream::Folder,
};

/// Far more than the rest of a round takes.
const PATIENCE: Duration = Duration::from_secs(90);
/// How many calls are looked at at once.
const AT_ONCE: usize = 8;

/// Checks what the killed gateway left, and returns what there is to tell.
pub(crate) fn check(site: &Site, killed: &Killed) -> String {
    let known = Ledger::read(&load::log(site));
    let hit = states(&known);
    let folder = Folder::of(site.directory());
    let calls = folder.calls();
    let started = clock::now();
    let gateway = site.gateway();
    let started = started.elapsed();
    let verdict = Verdict {
        folder,
        calls,
        address: gateway.address().to_owned(),
        unknown: AtomicUsize::new(0),
        until: clock::now() + PATIENCE,
    };
    let again = verdict.check(&known);
    nothing_is_left(site, known.len());
    let unacknowledged = known.values().filter(|call| call.id.is_none()).count();
    let hit: Vec<_> = hit.into_iter().map(|(state, count)| format!("{state:?} {count}")).collect();
    format!(
        "{} calls, {unacknowledged} of them not acknowledged, killed {} lines after all was hit: {}; started again in \
        {started:.1?}; {again} calls were made again at upstreams, of {} the outcome is unknown",
        known.len(),
        killed.lines_after,
        hit.join(", "),
        verdict.unknown.load(Ordering::SeqCst),
    )
}

/// How many calls were in each state; fails when there is a state that none was in.
fn states(known: &BTreeMap<String, Known>) -> BTreeMap<State, u32> {
    let mut hit = BTreeMap::new();
    for state in known.values().filter_map(Known::state) {
        *hit.entry(state).or_default() += 1;
    }
    let missing: Vec<_> = State::ALL.into_iter().filter(|state| !hit.contains_key(state)).collect();
    assert!(missing.is_empty(), "the kill found no call in {missing:?}, but {hit:?}");
    hit
}

struct Verdict {
    folder: Folder,
    /// How often each call had been carried out before the gateway was started again.
    calls: BTreeMap<String, u32>,
    address: String,
    /// How many tasks ended by saying that nobody knows what became of the call.
    unknown: AtomicUsize,
    until: Instant,
}

impl Verdict {
    /// Returns how many calls were made again.
    fn check(&self, known: &BTreeMap<String, Known>) -> u32 {
        // While every gate is closed: what was acknowledged is there, as it was.
        each(known, |label, call| {
            if let Some(id) = &call.id {
                unchanged(label, call, &self.get(call, id));
            }
        });
        each(known, |label, call| {
            if call.state().is_some_and(State::is_once) {
                let end = self.see_end(label, call, call.id.as_ref().unwrap());
                assert!(is_unknown(&end.0), "{label} was under way and may not be repeated: {end:?}");
            }
            if matches!(call.state(), Some(State::Cancelling | State::CancellingOnce)) {
                let end = self.see_end(label, call, call.id.as_ref().unwrap());
                assert_eq!(end.status(), "cancelled", "{label} of {:?}: {end:?}", call.plan);
            }
        });

        // From now on nothing holds anything up.
        self.folder.open_all();
        each(known, |label, call| match (call.plan.is_held(), &call.id) {
            (false, _) => self.end_with_key(label, call),
            (true, Some(id)) => {
                let end = self.see_end(label, call, id);
                self.right_end(label, call, &end.0);
            }
            (true, None) => {}
        });
        each(known, |label, call| {
            if call.plan.is_held() {
                self.end_of_held(label, call);
            }
        });
        self.right_calls(known)
    }

    /// A repeated call makes no second task, and tells which one it was if nobody knew.
    fn end_with_key(&self, label: &str, call: &Known) {
        let end = match (self.caller(call).call(label, &call.tool(), false).unwrap(), &call.id) {
            (Called::Task(id), first) => {
                assert!(first.as_ref().is_none_or(|first| *first == id), "{label} was created twice");
                self.see_end(label, call, &id)
            }
            // What is over is told at once.
            (Called::Result(_) | Called::Error(_), Some(id)) => self.see_end(label, call, id),
            (Called::Result(result), None) => {
                Shown(serde_json::json!({"status": "completed", "result": result}))
            }
            (Called::Error(error), None) => Shown(serde_json::json!({"status": "failed", "error": error})),
            (other, _) => panic!("{label} was answered with {other:?}"),
        };
        self.right_end(label, call, &end.0);
        if let Some(id) = &call.id {
            assert_eq!(self.get(call, id), end, "{label} changed after its end");
        }
    }

    /// The same call of a caller who knows nothing of tasks finds its work again, as long as that is not told.
    fn end_of_held(&self, label: &str, call: &Known) {
        if call.state() != Some(State::HeldOnce) {
            loop {
                match self.caller(call).call(label, &call.tool(), true).unwrap() {
                    Called::GoesOn(_) => assert!(clock::now() < self.until, "{label} does not end"),
                    Called::Result(result) => break assert_eq!(text(&result), format!("{label} worked")),
                    Called::Error(error) if call.plan.is_once() && is_unknown_error(&error) => break,
                    other => panic!("{label} was answered with {other:?}"),
                }
            }
        }
    }

    fn caller(&self, call: &Known) -> Caller {
        Caller::new(&self.address, call.owner)
    }

    fn get(&self, call: &Known, id: &str) -> Shown {
        loop {
            if let Some(shown) = self.caller(call).get(id).unwrap() {
                return shown;
            }
            thread::sleep(PACE);
        }
    }

    /// Answers whatever the task asks, and polls until it is final.
    fn see_end(&self, label: &str, call: &Known, id: &str) -> Shown {
        loop {
            let shown = self.get(call, id);
            if shown.is_final() {
                return shown;
            }
            for key in shown.asks() {
                assert!(!call.answered.contains(&key), "{label} asks '{key}' again, which was answered");
                self.caller(call).answer(id, &key, &after(label)).unwrap();
            }
            assert!(clock::now() < self.until, "{label} of {:?} does not end: {shown:?}", call.plan);
            thread::sleep(PACE);
        }
    }

    /// Whether a call ended as its tool and its story say.
    fn right_end(&self, label: &str, call: &Known, end: &Value) {
        if is_unknown(end) {
            self.unknown.fetch_add(1, Ordering::SeqCst);
        }
        let right = match call.state() {
            Some(state) if state.is_final() => true,
            Some(state) if state.is_once() => is_unknown(end),
            _ if call.cancelled => end["status"] == "cancelled",
            _ if call.sent_cancel && end["status"] == "cancelled" => true,
            _ if call.plan.is_once() && is_unknown(end) => true,
            _ => is_own_end(label, call, end),
        };
        assert!(right, "{label} of {:?} ended wrongly: {end:?}", call.plan);
    }

    /// What was over is not done again, what must not be done twice is not, and what was at work is. Returns how many calls
    /// were made again.
    fn right_calls(&self, known: &BTreeMap<String, Known>) -> u32 {
        let calls = self.folder.calls();
        let mut again = 0;
        for (label, call) in known {
            let [before, calls] = [&self.calls, &calls].map(|calls| calls.get(label).copied().unwrap_or(0));
            if call.plan.is_once() || call.plan.upstream == Kind::Tasks {
                assert!(calls <= 1, "{label} of {:?} was carried out {calls} times", call.plan);
            }
            match call.state() {
                Some(State::AtWork | State::AtWorkInPipe | State::Asking | State::Answered) => {
                    assert_eq!((before, calls), (1, 2), "{label} of {:?} is to be called again", call.plan);
                }
                Some(state) if state.is_final() => {
                    assert_eq!(calls, before, "{label} was over and was called again");
                }
                // A cancel may come before the call is made.
                Some(State::Cancelling | State::CancellingOnce) => {
                    assert_eq!(calls, before, "{label} was cancelled and was called again");
                }
                _ => assert!(calls <= 2, "{label} was carried out {calls} times"),
            }
            again += calls.saturating_sub(1);
        }
        again
    }
}

/// Whether a task that was acknowledged is what it was when it was last seen.
fn unchanged(label: &str, call: &Known, shown: &Shown) {
    for key in shown.asks() {
        assert!(!call.answered.contains(&key), "{label} asks '{key}' again, which was answered");
        assert!(!call.cancelled, "{label} was cancelled and asks '{key}'");
    }
    match call.state() {
        Some(state) if state.is_final() => assert_eq!(Some(shown), call.seen.as_ref(), "{label}"),
        Some(State::Asking | State::AskingAsTask) => {
            assert_eq!(shown.status(), "input_required", "{label} of {:?}: {shown:?}", call.plan);
            assert_eq!(shown.questions(), call.seen.as_ref().unwrap().questions(), "{label}");
        }
        Some(State::AtWork | State::AtWorkInPipe | State::AtWorkAsTask | State::AtWorkOnceAsTask) => {
            assert_eq!(shown.status(), "working", "{label} of {:?}: {shown:?}", call.plan);
        }
        _ => {}
    }
}

/// Whether a call ended as its tool does when it is left to itself and is answered what it was answered.
fn is_own_end(label: &str, call: &Known, end: &Value) -> bool {
    let text = text(&end["result"]);
    let result = |expected: &str| end["status"] == "completed" && text == format!("{label} {expected}");
    match call.plan.tool {
        "quick" => result("quick"),
        "tool_error" => result("wrong") && end["result"]["isError"] == true,
        "fails" => end["status"] == "failed" && end["error"]["data"]["label"] == *label,
        "works" | "works_once" | "late_once" | "cleans" => result("worked"),
        "asks" | "asks_once" | "asks_then_works" => {
            // An acknowledged answer counts, one that was on its way may.
            let is_before = result(&format!("told {}", before(label))) && !call.sent_answers.is_empty();
            let is_after = result(&format!("told {}", after(label))) && call.answered.is_empty();
            is_before || is_after
        }
        other => unreachable!("no plan uses {other}"),
    }
}

fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

/// Whether a call ended by saying that nobody knows what became of it.
fn is_unknown(end: &Value) -> bool {
    end["status"] == "failed" && is_unknown_error(&end["error"])
}

fn is_unknown_error(error: &Value) -> bool {
    let honest = "its tool may not be called twice: the outcome is unknown";
    error["message"].as_str().is_some_and(|message| message.contains(honest))
}

/// What a task is answered after the kill.
fn after(label: &str) -> String {
    format!("{label}-after")
}

/// Checks every call, several at once.
fn each(known: &BTreeMap<String, Known>, check: impl Fn(&str, &Known) + Sync) {
    let left = Mutex::new(known.iter());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap().next();
                    let Some((label, call)) = next else { return };
                    check(label, call);
                }
            });
        }
    });
}

/// No task is in the file but those of the client, and none is unfinished.
fn nothing_is_left(site: &Site, calls: usize) {
    let store = SqliteStore::open_with(site.database(), Options::default().role(Role::Front)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let counts = runtime.block_on(store.counts()).unwrap();
    let unfinished = counts.of(Status::Working) + counts.of(Status::InputRequired);
    assert_eq!((unfinished, counts.total()), (0, calls as u64), "{counts:?}");
}
