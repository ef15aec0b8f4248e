//! What every event does in every state, as a table.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, time::Duration};

use outlast_core::*;
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);

/// Each cell names the state that the task is in afterwards; `.` is a change of nothing, `-` is illegal.
///
/// A state is where the work is, with `?` while it asks and `!` while its end is asked for. An event in brackets is a
/// variant of the event before the bracket.
const TABLE: &str = "
event                | new       | again  | again?  | again!    | leased    | leased?   | leased!   | parked  | parked? | parked!   | completed | failed | cancelled
answer               | .         | .      | again   | .         | .         | leased    | .         | .       | parked  | .         | .         | .      | .
answer (wrong shape) | .         | .      | -       | .         | .         | -         | .         | .       | -       | .         | .         | .      | .
cancel               | cancelled | again! | again!  | .         | leased!   | leased!   | .         | parked! | parked! | .         | .         | .      | .
ask                  | -         | -      | -       | -         | leased?   | leased?   | -         | -       | -       | -         | .         | .      | .
withdraw             | -         | -      | -       | -         | .         | leased    | .         | -       | -       | -         | .         | .      | .
finish step          | -         | -      | -       | -         | leased    | leased?   | leased!   | -       | -       | -         | .         | .      | .
set timer            | -         | -      | -       | -         | leased    | leased?   | leased!   | -       | -       | -         | .         | .      | .
fire timer           | -         | -      | -       | -         | leased    | leased?   | leased!   | -       | -       | -         | .         | .      | .
fire timer (unset)   | -         | -      | -       | -         | .         | .         | .         | -       | -       | -         | .         | .      | .
set message          | -         | -      | -       | -         | leased    | leased?   | leased!   | -       | -       | -         | .         | .      | .
set message (same)   | -         | -      | -       | -         | .         | .         | .         | -       | -       | -         | .         | .      | .
extend ttl           | -         | -      | -       | -         | leased    | leased?   | leased!   | -       | -       | -         | .         | .      | .
extend ttl (shorter) | -         | -      | -       | -         | .         | .         | .         | -       | -       | -         | .         | .      | .
run alone            | -         | -      | -       | -         | leased    | leased?   | leased!   | -       | -       | -         | .         | .      | .
run beside           | -         | -      | -       | -         | .         | .         | .         | -       | -       | -         | .         | .      | .
complete             | -         | -      | -       | -         | completed | completed | completed | -       | -       | -         | .         | .      | .
fail                 | -         | -      | -       | -         | failed    | failed    | failed    | -       | -       | -         | .         | .      | .
confirm cancel       | -         | -      | -       | -         | -         | -         | cancelled | -       | -       | -         | .         | .      | .
park                 | -         | -      | -       | -         | parked    | parked?   | parked!   | -       | -       | -         | .         | .      | .
release              | -         | -      | -       | -         | again     | again?    | again!    | -       | -       | -         | .         | .      | .
claim                | leased    | leased | leased? | leased!   | -         | -         | -         | leased  | leased? | leased!   | -         | -      | -
renew                | -         | -      | -       | -         | leased    | leased?   | leased!   | -       | -       | -         | -         | -      | -
lose lease           | -         | -      | -       | -         | again     | again?    | again!    | -       | -       | -         | -         | -      | -
pass deadline        | failed    | failed | failed  | failed    | failed    | failed    | failed    | failed  | failed  | failed    | .         | .      | .
refresh ttl          | new       | again  | again?  | again!    | leased    | leased?   | leased!   | parked  | parked? | parked!   | -         | -      | -
abandon cancelled    | -         | -      | -       | cancelled | -         | -         | cancelled | -       | -       | cancelled | -         | -      | -
";

fn at(minutes: i64) -> Timestamp {
    Timestamp::from_millis(minutes * 60_000)
}

fn key(text: &str) -> StepKey {
    StepKey::new(text).unwrap()
}

fn input(text: &str) -> InputKey {
    InputKey::new(text).unwrap()
}

fn question() -> Question {
    Question::new(&json!({"method": "elicitation/create", "params": {"message": "Sure?"}})).unwrap()
}

fn payload(value: &serde_json::Value) -> Payload {
    Payload::from_value(value)
}

fn change(task: &Task, event: &Event, minutes: i64) -> Task {
    let change = task.apply(event, None, at(minutes)).unwrap();
    change.task().unwrap_or_else(|| panic!("{} changes the task", event.name())).clone()
}

fn new_task(recovery: Recovery) -> Task {
    let spec = Spec { recovery, asks: Asks::all(), ttl: Some(MINUTE * 20), ..Spec::new("tool") };
    let new = NewTask::new(TaskId::from_bytes([1; 16]), Owner::anonymous(), spec, Call::new(Payload::null()));
    Task::create(&new, at(0))
}

/// A task in the state of this column: created at 0, brought there at minute 1.
fn in_state(state: &str, recovery: Recovery) -> Task {
    let new = new_task(recovery);
    if state == "new" {
        return new;
    }
    let claim = Event::Claim { worker: WorkerId::new("one"), lease: MINUTE };
    let wake = Wake::After(MINUTE * 60);
    let mut task = change(&new, &claim, 1);
    task = change(&task, &Event::SetTimer { key: key("set"), wake }, 1);
    task = change(&task, &Event::SetMessage(Some("as before".into())), 1);
    let (run, mark) = match state.char_indices().last() {
        Some((end, '?' | '!')) => state.split_at(end),
        _ => (state, ""),
    };
    if mark == "?" {
        task = change(&task, &Event::Ask { key: input("asked"), question: question() }, 1);
    }
    if mark == "!" || run == "cancelled" {
        task = change(&task, &Event::Cancel, 1);
    }
    match run {
        "leased" => task,
        "again" => change(&task, &Event::Release { began: false }, 1),
        "parked" => change(&task, &Event::Park { seen_seq: task.seq, wake: None }, 1),
        "completed" => change(&task, &Event::Complete(Payload::null()), 1),
        "failed" => change(&task, &Event::Fail(TaskError::internal("no")), 1),
        "cancelled" => change(&task, &Event::ConfirmCancel, 1),
        other => panic!("the table has a state that the test does not know: {other}"),
    }
}

/// The event of this row.
fn event(name: &str) -> Event {
    let answer = |value| Event::Answer { key: input("asked"), answer: payload(&value) };
    match name {
        "answer" => answer(json!({"action": "decline"})),
        "answer (wrong shape)" => answer(json!("yes")),
        "cancel" => Event::Cancel,
        "ask" => Event::Ask { key: input("new"), question: question() },
        "withdraw" => Event::Withdraw { key: input("asked") },
        "finish step" => {
            let outcome = Outcome::Value(Payload::null());
            Event::FinishStep { key: key("new"), outcome, took: MINUTE, tries: 2 }
        }
        "set timer" => Event::SetTimer { key: key("new"), wake: Wake::At(at(100)) },
        "fire timer" => Event::FireTimer { key: key("set") },
        "fire timer (unset)" => Event::FireTimer { key: key("new") },
        "set message" => Event::SetMessage(None),
        "set message (same)" => Event::SetMessage(Some("as before".into())),
        "extend ttl" => Event::ExtendTtl(MINUTE * 60),
        "extend ttl (shorter)" => Event::ExtendTtl(MINUTE),
        "run alone" => Event::RunAlone,
        "run beside" => Event::RunBeside,
        "complete" => Event::Complete(Payload::null()),
        "fail" => Event::Fail(TaskError::internal("no")),
        "confirm cancel" => Event::ConfirmCancel,
        "park" => Event::Park { seen_seq: 0, wake: None },
        "release" => Event::Release { began: true },
        "claim" => Event::Claim { worker: WorkerId::new("two"), lease: MINUTE },
        "renew" => Event::Renew { lease: MINUTE },
        "lose lease" => Event::LoseLease,
        "pass deadline" => Event::PassDeadline,
        "refresh ttl" => Event::RefreshTtl,
        "abandon cancelled" => Event::AbandonCancelled,
        other => panic!("the table has an event that the test does not know: {other}"),
    }
}

/// The name of the state that a task is in. It matches whole types, so that a new state does not compile unnamed.
fn name(task: &Task) -> String {
    let Task { state, .. } = task;
    let live = match state {
        TaskState::Completed { .. } => return "completed".into(),
        TaskState::Failed { .. } => return "failed".into(),
        TaskState::Cancelled => return "cancelled".into(),
        TaskState::Live(live) => live,
    };
    let Live { run, cancel, questions, timers: _ } = live;
    let run = match run {
        Run::Queued { .. } if task.was_claimed() => "again",
        Run::Queued { .. } => "new",
        Run::Leased(_) => "leased",
        Run::Parked { .. } => "parked",
    };
    let mark = match (cancel, questions.is_empty()) {
        (Some(_), true) => "!",
        (None, false) => "?",
        (None, true) => "",
        (Some(_), false) => panic!("work whose end is asked for asks nothing"),
    };
    format!("{run}{mark}")
}

/// The cells of the table: state, event, outcome.
fn cells() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut rows = TABLE.trim().lines().map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let states = rows.next().unwrap();
    rows.flat_map(|row| {
        assert_eq!(row.len(), states.len(), "the row of {} is whole", row[0]);
        states
            .iter()
            .copied()
            .zip(row.clone())
            .skip(1)
            .map(|(state, cell)| (state, row[0], cell))
            .collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn every_event_does_in_every_state_what_the_table_says() {
    let mut wrong = Vec::new();
    for (state, event_name, expected) in cells() {
        let task = in_state(state, Recovery::Rerun);
        assert_eq!(name(&task), state, "the test brings a task into the state");
        let event = event(event_name);
        let outcome = match task.apply(&event, None, at(11)) {
            Ok(Change::Nothing) => ".".into(),
            Ok(Change::To { task, .. }) => name(&task),
            Err(_) => "-".into(),
        };
        if outcome != expected {
            wrong.push(format!("{event_name} of a task that is {state}: expected {expected}, got {outcome}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_has_every_event_and_every_state() {
    // The names that the source gives its events, so that a new one is missed here.
    let source = include_str!("../src/event.rs");
    let (_, names) = source.split_once("pub fn name(").unwrap();
    let named: BTreeSet<_> =
        names.split("=> \"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(named.len(), 22);
    let rows: BTreeSet<_> = cells().iter().map(|(_, event, _)| event.split(" (").next().unwrap()).collect();
    assert_eq!(rows, named);
    for (_, row, _) in cells() {
        assert_eq!(event(row).name(), row.split(" (").next().unwrap());
    }

    let states: BTreeSet<_> = cells().iter().map(|(state, ..)| *state).collect();
    // `new` can neither ask nor be marked; a final task has neither.
    let expected =
        ["new", "again", "again?", "again!", "leased", "leased?", "leased!", "parked", "parked?", "parked!"];
    let expected: BTreeSet<_> = expected.into_iter().chain(["completed", "failed", "cancelled"]).collect();
    assert_eq!(states, expected);
}

#[test]
fn a_status_is_input_required_exactly_while_something_is_asked() {
    for (state, ..) in cells() {
        let expected = match state {
            "completed" => Status::Completed,
            "failed" => Status::Failed,
            "cancelled" => Status::Cancelled,
            asking if asking.ends_with('?') => Status::InputRequired,
            _ => Status::Working,
        };
        assert_eq!(in_state(state, Recovery::Rerun).status(), expected, "{state}");
    }
}

#[test]
fn work_that_must_not_run_twice_ends_where_other_work_is_queued_again() {
    for state in ["leased", "leased?", "leased!"] {
        for end in [Event::LoseLease, Event::Release { began: true }] {
            let task = in_state(state, Recovery::Fail);
            let ended = change(&task, &end, 2);
            assert_eq!(name(&ended), "failed", "{} when {state}", end.name());
            assert!(ended.status_message.unwrap().contains("outcome is unknown"));
        }
        let queued = change(&in_state(state, Recovery::Fail), &Event::Release { began: false }, 2);
        assert!(name(&queued).starts_with("again"));
    }
}

#[test]
fn a_replayed_key_changes_nothing_in_any_state_that_takes_its_event() {
    let asked = Known { kind: EntryKind::Asked, body: Some(question().request().clone()) };
    let finished = Known { kind: EntryKind::Step, body: None };
    let set = Known { kind: EntryKind::TimerSet, body: None };
    let all = [("ask", asked), ("finish step", finished), ("set timer", set)];
    for state in ["leased", "leased?", "leased!"] {
        let task = in_state(state, Recovery::Rerun);
        for (row, _) in &all {
            for (opened_by, known) in &all {
                let outcome = task.apply(&event(row), Some(known), at(11));
                if row == opened_by {
                    assert_eq!(outcome, Ok(Change::Nothing), "{row} again when {state}");
                } else {
                    let refused = Illegal::KeyKind { key: key("new") };
                    assert_eq!(outcome, Err(refused), "{row} of a key of {opened_by}");
                }
            }
        }
    }
}

#[test]
fn the_ttl_is_refreshed_only_when_half_of_it_is_gone() {
    for state in ["new", "again", "leased?", "parked"] {
        let task = in_state(state, Recovery::Rerun);
        assert_eq!(task.apply(&Event::RefreshTtl, None, at(9)), Ok(Change::Nothing), "{state}");
        assert_eq!(change(&task, &Event::RefreshTtl, 10).ttl, Some(MINUTE * 30), "{state}");
    }
}
