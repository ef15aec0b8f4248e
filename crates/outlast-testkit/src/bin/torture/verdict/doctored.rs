//! Whether the verdict can fail: an honest history, which it must pass, and doctored ones, each of which it must refuse
//! for what was done to it.

mod replicas;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{History, Kill};
use crate::{
    ledger::{Event, Known, Shown},
    plan::{self, Cancel, End, Op, Plan, Program, Tool},
    side::{Line, What},
    snapshot::{Kept, Place, Snapshot},
};

/// What is wrong with the verdict.
pub(crate) fn failures() -> Vec<String> {
    let honest = honest().violations();
    let mut failures: Vec<_> =
        honest.into_iter().map(|what| format!("an honest history was refused: {what}")).collect();
    let honest = replicas::honest().violations();
    failures
        .extend(honest.into_iter().map(|what| format!("an honest history of replicas was refused: {what}")));
    let of_one = DOCTORED.iter().map(|doctored| (self::honest(), doctored));
    let of_many = replicas::DOCTORED.iter().map(|doctored| (replicas::honest(), doctored));
    for (mut history, (what, says, doctor)) in of_one.chain(of_many) {
        doctor(&mut history);
        let found = history.violations();
        if !found.iter().any(|found| found.contains(says)) {
            failures.push(format!("{what} was not found, but only {found:?}"));
        }
    }
    failures
}

pub(crate) fn count() -> usize {
    DOCTORED.len() + replicas::DOCTORED.len()
}

/// What was done to a history, words of the violation that must be found, and how it is done.
type Doctored = (&'static str, &'static str, fn(&mut History));

/// Works through every kind of operation, and is killed in the middle.
const A: &str = "0-0";
/// Is cancelled while it asks.
const C: &str = "0-1";
/// Must not run twice, and was at work at the kill.
const O: &str = "0-2";
/// Ends with an error.
const E: &str = "0-3";

const DOCTORED: &[Doctored] = &[
    ("a lost task", "was created and is gone", |history| drop(history.end.tasks.remove(A))),
    ("a task that is not known", "was refused", |history| {
        event(history, A, Event::Refused { what: "tasks/get".to_owned(), error: "no such task".to_owned() });
    }),
    ("a second task for one key", "was created twice", |history| {
        event(history, A, Event::Created { id: "another".to_owned() });
    }),
    ("a task that is in the store twice", "there are 2 of it", |history| {
        let kept = history.end.tasks[A][0].clone();
        history.end.tasks.entry(A.to_owned()).or_default().push(kept);
    }),
    ("a task of nobody", "nobody created this task", |history| {
        let kept = history.end.tasks[A].clone();
        history.end.tasks.insert("0-9".to_owned(), kept);
    }),
    ("a lost answer", "was acknowledged and is lost", |history| drop(kept(history, A).answers.remove("ask"))),
    ("an answer that was changed in the store", "and the journal has", |history| {
        drop(kept(history, A).answers.insert("ask".to_owned(), "another".to_owned()));
    }),
    ("an answer that the work was told otherwise", "and the work was told", |history| {
        replace_end(history, A, "<the answer", "<another answer");
    }),
    ("an answered question that is asked again", "asks ask again", |history| {
        let shown = asking(A, &["ask"]);
        let answered = position(history, A, &|event| matches!(event, Event::Answered { .. }));
        insert(history, A, answered + 1, Event::Saw(shown));
    }),
    ("an answered question that is asked again under another key", "asks outlast:2:ask again", |history| {
        let mut shown = asking(A, &["ask"]);
        let question = shown.0["inputRequests"]["ask"].clone();
        shown.0["inputRequests"] = json!({"outlast:2:ask": question});
        let answered = position(history, A, &|event| matches!(event, Event::Answered { .. }));
        insert(history, A, answered + 1, Event::Saw(shown));
    }),
    ("a question that became another one", "asks something else under ask", |history| {
        let mut shown = asking(A, &["ask"]);
        shown.0["inputRequests"]["ask"]["params"]["requestedSchema"] = json!({"type": "object"});
        let first = position(history, A, &|event| matches!(event, Event::Saw(_)));
        insert(history, A, first + 1, Event::Saw(shown));
    }),
    ("a question that the store forgot", "was asked, and the journal has", |history| {
        drop(kept(history, A).asked.remove("ask"));
    }),
    ("a result that changed", "was over as", |history| {
        let mut shown = history.ledger.tasks[A].last_shown().cloned().expect("it ended");
        shown.0["statusMessage"] = "another".into();
        event(history, A, Event::Saw(shown));
    }),
    ("a result that the store changed", "and the store has", |history| {
        kept(history, A).end = Some(json!({"content": []}));
    }),
    ("an end that was taken back", "was over as", |history| event(history, A, Event::Saw(asking(A, &[])))),
    ("a question after a cancel", "after its end was asked for", |history| {
        let cancelled = position(history, C, &|event| *event == Event::Cancelled);
        insert(history, C, cancelled + 1, Event::Saw(asking(C, &["ask"])));
    }),
    ("a lost cancel", "its cancel was acknowledged and is lost", |history| {
        let kept = kept(history, C);
        (kept.cancel_requested, kept.place) = (false, Place::Queued);
    }),
    ("a cancel that was passed over", "and did not end cancelled", |history| {
        let end = json!({"status": "completed", "result": {}});
        replace_shown(history, C, "cancelled", Shown(end));
    }),
    ("a clean-up that was left out", "without its clean-up", |history| {
        history.side.retain(|line| !matches!(&line.what, What::Got { key, .. } if key == "tidy"));
    }),
    ("a cancel that nobody sent", "ended otherwise than its program", |history| {
        replace_shown(history, E, "failed", Shown(json!({"status": "cancelled"})));
    }),
    ("a step that ran again after it had returned", "ran again after it had returned", |history| {
        line(history, 2, 3, A, begin("step"));
    }),
    ("a step that ran again though it was in the journal", "was in the journal at kill 1", |history| {
        history.side.retain(
            |line| !matches!(&line.what, What::Got { key, .. } if key == "step" && line.process == 1),
        );
        let at = history.side.iter().position(|line| line.process == 2).expect("the second process");
        let mut again = history.side[at].clone();
        (again.marker, again.attempt, again.what) = (A.to_owned(), 2, begin("step"));
        history.side.insert(at + 1, again);
    }),
    ("a step that two attempts ran at once", "in attempts 1 and 9 at once", |history| {
        let at =
            history.side.iter().position(|line| matches!(line.what, What::Begin { .. })).expect("a step");
        let again = Line { attempt: 9, ..history.side[at].clone() };
        history.side.insert(at + 1, again);
    }),
    ("a step that returned another value", "returned what it did not", |history| {
        for line in &mut history.side {
            if let What::Got { key, value } = &mut line.what
                && key == "step"
            {
                *value += 1 << 40;
            }
        }
    }),
    ("a step entry that was lost", "had returned, and the journal has None", |history| {
        drop(kept(history, A).steps.remove("step"));
    }),
    ("a final error that was lost", "the step final had returned", |history| {
        drop(kept(history, A).steps.remove("final"));
    }),
    ("a step that failed more often than its program", "failed 1 times", |history| {
        line(history, 1, 1, A, What::Failed { key: "step".to_owned() });
    }),
    ("a step id that changed", "has more than one step id", |history| {
        let other = What::Begin { key: "race-step".to_owned(), step_id: "another".to_owned() };
        let at = history.side.iter().position(|line| line.what == begin("race-step")).expect("the step");
        history.side[at].what = What::Dropped { key: "race-step".to_owned() };
        let first = Line { what: begin("race-step"), ..history.side[at].clone() };
        let second = Line { what: other, ..history.side[at].clone() };
        history.side.insert(at, first);
        history.side.insert(at + 2, second);
    }),
    ("a step id that two steps share", "was used by more than one step", |history| {
        history.effects.shared.push("shared".to_owned());
    }),
    ("an effect that came about twice", "came about 2 times", |history| {
        history.effects.by_step[0].2.push("another".to_owned());
    }),
    ("an effect that never came about", "returned without its effect", |history| {
        history.effects.by_step.retain(|(_, key, _)| key != "step");
    }),
    ("a timer that fired early", "fired after", |history| {
        let set = time(history, &|what| matches!(what, What::Sleeping { .. }));
        for line in history.side.iter_mut().filter(|line| matches!(line.what, What::Slept { .. })) {
            line.at = set + 1_000_000;
        }
    }),
    ("a question that timed out though it was answered in time", "acknowledged in time", |history| {
        let asked = time(history, &|what| matches!(what, What::Asking { key } if key == "until"));
        let at = history.ledger.tasks[A].events.len();
        let name = "late".to_owned();
        insert(history, A, at - 1, Event::WillAnswer { key: "until".to_owned(), name });
        insert(history, A, at, Event::Answered { key: "until".to_owned() });
        let events = &mut history.ledger.tasks.get_mut(A).expect("it is there").events;
        events[at - 1].0 = asked + 1;
        events[at].0 = asked + 2;
    }),
    ("a question that timed out and is still asked", "taken back with TimedOut", |history| {
        still_asks(history, "until", &|what| matches!(what, What::TimedOut { .. }));
    }),
    ("a question of a race's loser that is still asked", "taken back with Won", |history| {
        let won = history.side.iter().position(|line| matches!(line.what, What::Won { .. })).expect("a race");
        let asked = What::Asking { key: "race-ask".to_owned() };
        let asking = Line { at: history.side[won].at - 1, what: asked, ..history.side[won].clone() };
        history.side.insert(won, asking);
        still_asks(history, "race-ask", &|what| matches!(what, What::Won { .. }));
    }),
    ("a race that was won by the other one later", "race first first, and then second", |history| {
        line(history, 2, 2, A, What::Won { key: "race".to_owned(), first: false });
    }),
    ("an answer that a later attempt heard otherwise", "and then was answered another", |history| {
        line(history, 2, 2, A, What::Heard { key: "ask".to_owned(), name: "another".to_owned() });
    }),
    ("work that must not run twice and did", "was begun 2 times", |history| {
        line(history, 1, 9, O, What::Attempt);
    }),
    ("work that died and does not say so", "does not say so", |history| {
        let error = json!({"code": -32603, "message": "something went wrong"});
        let end = json!({"status": "failed", "statusMessage": "something went wrong", "error": error});
        replace_shown(history, O, "failed", Shown(end));
    }),
    ("work that died and is complete", "was at work at a kill, and is completed", |history| {
        replace_shown(history, O, "failed", Shown(json!({"status": "completed", "result": {}})));
    }),
    ("an attempt after the end", "was over, and went on with", |history| {
        line(history, 2, 9, A, What::Attempt);
    }),
    ("a context that ran a step after its attempt", "kept beyond its attempt", |history| {
        line(history, 2, 9, A, What::Stale { key: "leak".to_owned() });
    }),
    ("a context that wrote after its attempt", "wrote leak", |history| {
        kept(history, A).keys.extend(["leak-timer".to_owned()]);
    }),
    ("a context that set a status after its attempt", "set the status", |history| {
        let mut shown = asking(A, &[]);
        shown.0["statusMessage"] = crate::tools::STALE.into();
        insert(history, A, 2, Event::Saw(shown));
    }),
    ("a task that never ends", "is stuck: ", |history| {
        history.ledger.tasks.get_mut(A).expect("it is there").events.pop();
    }),
    ("a task that the store never ends", "is stuck as ParkedSleeping", |history| {
        kept(history, A).place = Place::ParkedSleeping;
    }),
    ("a task that requires input and asks nothing", "asks nothing", |history| {
        let mut shown = asking(A, &[]);
        shown.0["status"] = "input_required".into();
        insert(history, A, 2, Event::Saw(shown));
    }),
    ("a journal that was written anew", "its journal was", |history| {
        kept(history, A).journal[0] = "another entry".to_owned();
    }),
    ("a result that was damaged", "its padding was damaged", |history| {
        replace_end(history, A, "0-00-00", "0-0x-00");
    }),
    ("a result that leaves something out", "does not tell", |history| {
        replace_end(history, A, ",\\\"final failed\\\"", "");
    }),
    ("an error that is none of its program's", "its program does not end with", |history| {
        let error = json!({"code": -32603, "message": "another error", "data": {"marker": E}});
        replace_shown(history, E, "failed", Shown(json!({"status": "failed", "error": error})));
    }),
];

// --- how a history is doctored

fn kept<'a>(history: &'a mut History, marker: &str) -> &'a mut Kept {
    &mut history.end.tasks.get_mut(marker).expect("the store has it")[0]
}

/// The question of this key is shown twice after something was done.
fn still_asks(history: &mut History, key: &str, done: &dyn Fn(&What) -> bool) {
    let at = time(history, done);
    let events = &mut history.ledger.tasks.get_mut(A).expect("it is there").events;
    let end = events.len() - 1;
    events.insert(end, (at + 2, Event::Saw(asking(A, &[key]))));
    events.insert(end, (at + 1, Event::Saw(asking(A, &[]))));
}

/// What happened to a task last of all.
fn event(history: &mut History, marker: &str, event: Event) {
    insert(history, marker, history.ledger.tasks[marker].events.len(), event);
}

fn insert(history: &mut History, marker: &str, at: usize, event: Event) {
    let events = &mut history.ledger.tasks.get_mut(marker).expect("it is there").events;
    let time = events[at - 1].0 + 1;
    events.insert(at, (time, event));
}

fn position(history: &History, marker: &str, is_it: &dyn Fn(&Event) -> bool) -> usize {
    let mut events = history.ledger.tasks[marker].events.iter();
    events.position(|(_, event)| is_it(event)).expect("it happened")
}

/// Puts `shown` in the place of what was seen in this status.
fn replace_shown(history: &mut History, marker: &str, status: &str, shown: Shown) {
    for (_, event) in &mut history.ledger.tasks.get_mut(marker).expect("it is there").events {
        if let Event::Saw(seen) = event
            && seen.status() == status
        {
            *seen = shown.clone();
        }
    }
}

/// Changes the end of a task, as it was told and as it is kept.
fn replace_end(history: &mut History, marker: &str, from: &str, to: &str) {
    let change = |value: &Value| -> Value {
        let (before, text) = (value.to_string(), value.to_string().replacen(from, to, 1));
        assert_ne!(before, text, "there is something to change");
        serde_json::from_str(&text).expect("still JSON")
    };
    let end = history.ledger.tasks[marker].last_shown().expect("it ended");
    let shown = Shown(change(&end.0));
    replace_shown(history, marker, "completed", shown);
    let kept = kept(history, marker);
    kept.end = kept.end.as_ref().map(change);
}

/// A line at the very end of the side file.
fn line(history: &mut History, process: u64, attempt: u64, marker: &str, what: What) {
    let at = history.side.last().map_or(0, |line| line.at) + MILLI * 1_000;
    history.side.push(Line { at, process, attempt, marker: marker.to_owned(), what });
}

fn time(history: &History, is_it: &dyn Fn(&What) -> bool) -> u64 {
    history.side.iter().find(|line| is_it(&line.what)).expect("it was done").at
}

// --- the honest history

const MILLI: u64 = 1_000_000;

fn begin(key: &str) -> What {
    What::Begin { key: key.to_owned(), step_id: format!("id of {key}") }
}

fn got(marker: &str, key: &str) -> What {
    What::Got { key: key.to_owned(), value: plan::value(marker, key) }
}

fn asking(marker: &str, keys: &[&str]) -> Shown {
    let question = |key: &&str| {
        let params = json!({"message": plan::question(marker, key)});
        ((*key).to_owned(), json!({"method": "elicitation/create", "params": params}))
    };
    let questions: BTreeMap<String, Value> = keys.iter().map(question).collect();
    if questions.is_empty() {
        return Shown(json!({"status": "working"}));
    }
    Shown(json!({"status": "input_required", "inputRequests": questions}))
}

fn step(key: &str) -> Op {
    Op::Step { key: key.to_owned(), millis: 1, fails: 0 }
}

fn ask(key: &str) -> Op {
    Op::Ask { keys: vec![key.to_owned()] }
}

fn plan(marker: &str, tool: Tool, ops: Vec<Op>, end: End) -> Known {
    let program = Program { ops, cleanup: vec![step("tidy")], end };
    let cancel = (marker == C).then_some(Cancel::WhenAsked);
    Known::new(Plan { marker: marker.to_owned(), tool, owner: 0, program, think: Some(0), cancel })
}

/// The number that the workers of a process have in their names.
fn pid(process: u64) -> u32 {
    u32::try_from(10 + process).expect("there are few")
}

/// Writes a history as it goes on.
#[derive(Default)]
struct Scribe {
    history: History,
    now: u64,
    process: u64,
}

impl Scribe {
    fn told(&mut self, marker: &str, event: Event) {
        self.now += MILLI;
        self.history.ledger.tasks.get_mut(marker).expect("it is there").events.push((self.now, event));
    }

    fn did(&mut self, attempt: u64, marker: &str, what: What) {
        self.now += MILLI;
        let line = Line { at: self.now, process: self.process, attempt, marker: marker.to_owned(), what };
        self.history.side.push(line);
    }

    fn starts(&mut self) {
        self.process += 1;
        self.did(0, "", What::Process { pid: pid(self.process) });
    }

    fn takes_step(&mut self, attempt: u64, marker: &str, key: &str) {
        self.did(attempt, marker, begin(key));
        self.did(attempt, marker, What::End { key: key.to_owned() });
        self.did(attempt, marker, got(marker, key));
        let ids = vec![format!("id of {key}")];
        self.history.effects.by_step.push((marker.to_owned(), key.to_owned(), ids));
    }

    fn creates(&mut self, known: Known) {
        let marker = known.plan.marker.clone();
        self.history.ledger.tasks.insert(marker.clone(), known);
        self.told(&marker, Event::WillCreate);
        self.told(&marker, Event::Created { id: format!("id of {marker}") });
    }
}

fn kept_as(marker: &str, place: Place, end: Option<Value>) -> Kept {
    Kept {
        id: format!("id of {marker}"),
        place,
        held: None,
        cancel_requested: marker == C,
        end,
        asked: BTreeMap::new(),
        answers: BTreeMap::new(),
        withdrawn: BTreeSet::new(),
        steps: BTreeMap::new(),
        keys: BTreeSet::new(),
        journal: vec![format!("the first entry of {marker}")],
    }
}

fn with_steps(mut kept: Kept, marker: &str, steps: &[&str]) -> Kept {
    for key in steps {
        kept.steps.insert((*key).to_owned(), Some(plan::value(marker, key).into()));
        kept.keys.insert((*key).to_owned());
    }
    kept
}

fn with_question(mut kept: Kept, marker: &str, key: &str) -> Kept {
    kept.asked.insert(key.to_owned(), plan::question(marker, key));
    kept
}

fn snapshot(tasks: impl IntoIterator<Item = (&'static str, Kept)>) -> Snapshot {
    Snapshot { tasks: tasks.into_iter().map(|(marker, kept)| (marker.to_owned(), vec![kept])).collect() }
}

/// Four tasks and a kill, as they should be.
fn honest() -> History {
    let mut scribe = Scribe::default();
    scribe.starts();
    let rows = vec![vec![step("left")], vec![step("right")]];
    let ops = vec![
        step("step"),
        ask("ask"),
        Op::Sleep { key: "sleep".to_owned(), millis: 20 },
        Op::Race { key: "race".to_owned(), first: vec![step("race-step")], second: vec![ask("race-ask")] },
        Op::Join { scope: "row".to_owned(), rows },
        Op::AskUntil { key: "until".to_owned(), millis: 10 },
        Op::Fails { key: "final".to_owned(), millis: 0 },
    ];
    scribe.creates(plan(A, Tool::Works, ops, End::Value { pad: 12 }));
    scribe.creates(plan(C, Tool::Works, vec![ask("ask")], End::Value { pad: 0 }));
    scribe.creates(plan(O, Tool::Once, vec![step("only")], End::Value { pad: 0 }));
    scribe.creates(plan(E, Tool::Works, vec![], End::Error));

    scribe.did(1, A, What::Attempt);
    scribe.takes_step(1, A, "step");
    scribe.did(1, A, What::Asking { key: "ask".to_owned() });
    scribe.told(A, Event::Saw(asking(A, &["ask"])));
    scribe.did(2, O, What::Attempt);
    scribe.did(2, O, begin("only"));
    scribe.history.effects.by_step.push((O.to_owned(), "only".to_owned(), vec!["id of only".to_owned()]));
    let left = snapshot([
        (A, with_question(with_steps(kept_as(A, Place::Asking, None), A, &["step"]), A, "ask")),
        (O, kept_as(O, Place::AtWork, None)),
    ]);
    scribe.history.kills.push(Kill { lines: scribe.history.side.len(), left, takeover: None });
    for marker in [A, C, O, E] {
        scribe.told(marker, Event::Killed { process: 1 });
    }

    scribe.starts();
    works(&mut scribe);
    is_cancelled(&mut scribe);
    let unknown = "the server stopped while this work ran, and its outcome is unknown";
    let died = json!({"code": -32603, "message": unknown});
    scribe.told(O, Event::Saw(Shown(json!({"status": "failed", "statusMessage": unknown, "error": died}))));
    let error = json!({"code": -32603, "message": "ends with an error", "data": {"marker": E, "told": []}});
    scribe.told(E, Event::Saw(Shown(json!({"status": "failed", "error": error}))));
    scribe.history.effects.by_step.sort();

    let result = scribe.history.ledger.tasks[A].last_shown().expect("it ended").0["result"].clone();
    let steps = ["step", "race-step", "row[0]/left", "row[1]/right"];
    let mut works = with_steps(kept_as(A, Place::Completed, Some(result)), A, &steps);
    for key in ["ask", "race-ask", "until"] {
        works = with_question(works, A, key);
    }
    works.answers.insert("ask".to_owned(), "the answer".to_owned());
    works.withdrawn.extend(["race-ask".to_owned(), "until".to_owned()]);
    works.steps.insert("final".to_owned(), None);
    works.journal.push("another entry".to_owned());
    let cancelled = with_question(with_steps(kept_as(C, Place::Cancelled, None), C, &["tidy"]), C, "ask");
    scribe.history.end = snapshot([
        (A, works),
        (C, cancelled),
        (O, kept_as(O, Place::Failed, Some(died))),
        (E, kept_as(E, Place::Failed, Some(error))),
    ]);
    scribe.history
}

/// The second attempt at [`A`], to its end.
fn works(scribe: &mut Scribe) {
    let name = "the answer".to_owned();
    scribe.did(1, A, What::Attempt);
    scribe.did(1, A, got(A, "step"));
    scribe.did(1, A, What::Asking { key: "ask".to_owned() });
    scribe.told(A, Event::Saw(asking(A, &["ask"])));
    scribe.told(A, Event::WillAnswer { key: "ask".to_owned(), name: name.clone() });
    scribe.told(A, Event::Answered { key: "ask".to_owned() });
    scribe.did(1, A, What::Heard { key: "ask".to_owned(), name });
    scribe.did(1, A, What::Sleeping { key: "sleep".to_owned() });
    scribe.now += 20 * MILLI;
    scribe.did(1, A, What::Slept { key: "sleep".to_owned() });
    scribe.takes_step(1, A, "race-step");
    scribe.did(1, A, What::Won { key: "race".to_owned(), first: true });
    scribe.takes_step(1, A, "row[0]/left");
    scribe.takes_step(1, A, "row[1]/right");
    scribe.did(1, A, What::Asking { key: "until".to_owned() });
    scribe.told(A, Event::Saw(asking(A, &["until"])));
    scribe.now += 10 * MILLI;
    scribe.did(1, A, What::TimedOut { key: "until".to_owned() });
    scribe.did(1, A, begin("final"));
    scribe.did(1, A, What::End { key: "final".to_owned() });
    scribe.did(1, A, What::GotError { key: "final".to_owned() });
    scribe.history.effects.by_step.push((A.to_owned(), "final".to_owned(), vec!["id of final".to_owned()]));
    let value = |key| format!("{key}={}", plan::value(A, key));
    let told = [
        value("step"),
        "ask<the answer".to_owned(),
        "sleep slept".to_owned(),
        "race first".to_owned(),
        value("race-step"),
        value("row[0]/left"),
        value("row[1]/right"),
        "until timed out".to_owned(),
        "final failed".to_owned(),
    ];
    let text = json!({"told": told, "pad": plan::padding(A, 12)}).to_string();
    let result = json!({"content": [{"type": "text", "text": text}], "isError": false});
    scribe.told(A, Event::Saw(Shown(json!({"status": "completed", "result": result}))));
}

/// The story of [`C`].
fn is_cancelled(scribe: &mut Scribe) {
    scribe.did(2, C, What::Attempt);
    scribe.did(2, C, What::Asking { key: "ask".to_owned() });
    scribe.told(C, Event::Saw(asking(C, &["ask"])));
    scribe.told(C, Event::WillCancel);
    scribe.told(C, Event::Cancelled);
    scribe.takes_step(2, C, "tidy");
    scribe.told(C, Event::Saw(Shown(json!({"status": "cancelled"}))));
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_honest_history_is_passed_and_each_doctored_one_is_refused_for_what_was_done_to_it() {
        assert_eq!(super::failures(), Vec::<String>::new());
    }
}
