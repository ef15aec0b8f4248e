//! What happened to a task, put together from its journal and from how it stands.
//!
//! ```
//! use outlast_admin::history;
//! use outlast_core::*;
//! let new = NewTask::new(TaskId::from_bytes([7; 16]), Owner::anonymous(), Spec::new("t"), Call::new(Payload::null()));
//! let task = Task::create(&new, Timestamp::from_millis(0));
//! let told = history::history(&task, &[]);
//! assert_eq!(history::as_text(&told, false), "1970-01-01T00:00:00.000Z  +0 ms  created");
//! ```

use std::{collections::HashMap, time::Duration};

use outlast_core::{Entry, EntryKind, Outcome, Payload, StepKey, Task, TaskId, TaskState, Timestamp};
use serde_json::{Value, json};

use crate::text;

/// Something that happened.
pub struct Happening {
    at: Timestamp,
    /// How long after the creation of the task; before it, where it was taken over from a failed one.
    offset: Offset,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offset {
    Before(Duration),
    After(Duration),
}

enum What {
    Created {
        origin: Option<TaskId>,
    },
    Begun {
        attempt: u64,
        worker: Option<String>,
    },
    Parked(Spell),
    GivenBack(Spell),
    Lost(Spell),
    Asked {
        key: String,
        request: Payload,
    },
    Answered {
        key: String,
        waited: Option<Duration>,
        answer: Payload,
    },
    TakenBack {
        key: String,
        waited: Option<Duration>,
    },
    Step {
        key: String,
        took: Duration,
        tries: u32,
        outcome: Outcome,
    },
    TimerSet {
        of: Timer,
        due: Option<Timestamp>,
        lasts: Option<Duration>,
    },
    TimerFired {
        of: Timer,
        /// Whether it limited a question that had its answer by then.
        needless: bool,
    },
    CancelRequested,
    Ended {
        how: End,
        by: Spell,
    },
    /// An entry that a newer program made, or that cannot be read.
    Other {
        kind: String,
        key: Option<String>,
    },
}

/// What an attempt was, as far as the journal says.
#[derive(Debug, Clone, Copy, Default)]
struct Spell {
    attempt: Option<u64>,
    took: Option<Duration>,
}

enum Timer {
    Own(String),
    /// The one that limits how long an answer is waited for.
    OfQuestion(String),
}

enum End {
    Completed { is_error: bool },
    Failed,
    Cancelled,
}

/// What stands before the key of a question in the key of the timer that limits it.
const LIMIT: &str = "outlast:limit:";

/// What happened to `task`, whose whole journal this is, in order.
#[must_use]
pub fn history(task: &Task, journal: &[Entry]) -> Vec<Happening> {
    let mut teller = Teller {
        task,
        attempt: 0,
        begun: None,
        asked: HashMap::new(),
        answered: Vec::new(),
        told: Vec::new(),
    };
    // What a task took over from a failed one is older than the task.
    let is_older = |entry: &Entry| task.origin.is_some() && entry.at < task.created_at;
    let (older, own) = journal.split_at(journal.iter().take_while(|entry| is_older(entry)).count());
    older.iter().for_each(|entry| teller.entry(entry));
    teller.tell(task.created_at, What::Created { origin: task.origin });
    let claims = own.iter().filter(|entry| entry.kind == EntryKind::Claimed).count() as u64;
    if task.token.0 > claims {
        teller.begin(task.created_at, first_worker(task, own));
    }
    own.iter().for_each(|entry| teller.entry(entry));
    teller.end();
    teller.told
}

/// Who had the attempt that the task was created with, which no entry begins.
fn first_worker(task: &Task, journal: &[Entry]) -> Option<String> {
    let ends = |entry: &&Entry| {
        use EntryKind as E;
        matches!(entry.kind, E::Claimed | E::LeaseLost | E::Parked | E::Released)
    };
    match journal.iter().find(ends) {
        Some(entry) if entry.kind == EntryKind::LeaseLost => worker(entry),
        Some(_) => None,
        None => task.lease().map(|lease| lease.worker.as_str().to_owned()),
    }
}

fn worker(entry: &Entry) -> Option<String> {
    entry.body.as_ref()?.decode().ok()
}

/// Goes through a journal and remembers what a later entry is told with.
struct Teller<'a> {
    task: &'a Task,
    attempt: u64,
    /// When the attempt began that is under way.
    begun: Option<Timestamp>,
    /// When each question was asked.
    asked: HashMap<&'a StepKey, Timestamp>,
    /// The questions that were answered.
    answered: Vec<&'a str>,
    told: Vec<Happening>,
}

impl<'a> Teller<'a> {
    fn tell(&mut self, at: Timestamp, what: What) {
        let created = self.task.created_at;
        let offset =
            if at < created { Offset::Before(created.since(at)) } else { Offset::After(at.since(created)) };
        self.told.push(Happening { at, offset, what });
    }

    fn begin(&mut self, at: Timestamp, worker: Option<String>) {
        self.attempt += 1;
        self.begun = Some(at);
        self.tell(at, What::Begun { attempt: self.attempt, worker });
    }

    /// The attempt that is under way, which is over now.
    fn over(&mut self, at: Timestamp) -> Spell {
        let took = self.begun.take().map(|begun| at.since(begun));
        Spell { attempt: took.map(|_| self.attempt), took }
    }

    fn entry(&mut self, entry: &'a Entry) {
        let at = entry.at;
        let key = || entry.key.as_ref().map(|key| key.as_str().to_owned()).unwrap_or_default();
        let body = || entry.body.clone().unwrap_or_else(Payload::null);
        let asked = entry.key.as_ref().and_then(|key| self.asked.get(key));
        let waited = asked.map(|asked| at.since(*asked));
        let what = match entry.kind {
            EntryKind::Claimed => return self.begin(at, worker(entry)),
            EntryKind::Parked => What::Parked(self.over(at)),
            EntryKind::Released => What::GivenBack(self.over(at)),
            EntryKind::LeaseLost => What::Lost(self.over(at)),
            EntryKind::Asked => {
                self.asked.extend(entry.key.as_ref().map(|key| (key, at)));
                What::Asked { key: key(), request: body() }
            }
            EntryKind::Answered => {
                self.answered.extend(entry.key.as_ref().map(StepKey::as_str));
                What::Answered { key: key(), waited, answer: body() }
            }
            EntryKind::Withdrawn => What::TakenBack { key: key(), waited },
            EntryKind::TimerSet => {
                let due: Option<Timestamp> = entry.body.as_ref().and_then(|due| due.decode().ok());
                What::TimerSet { of: Timer::of(key()), due, lasts: due.map(|due| due.since(at)) }
            }
            EntryKind::TimerFired => {
                let of = Timer::of(key());
                let needless = of.limits() && self.answered.iter().any(|key| is_own(key, of.key()));
                What::TimerFired { of, needless }
            }
            EntryKind::CancelRequested => What::CancelRequested,
            kind => match entry.finished() {
                Some(step) => {
                    What::Step { key: key(), took: step.took, tries: step.tries, outcome: step.outcome }
                }
                None => What::Other { kind: name(kind), key: entry.key.as_ref().map(|_| key()) },
            },
        };
        self.tell(at, what);
    }

    fn end(&mut self) {
        let how = match &self.task.state {
            TaskState::Live(_) => return,
            TaskState::Completed { result } => {
                End::Completed { is_error: result.to_value()["isError"] == true }
            }
            TaskState::Failed { .. } => End::Failed,
            TaskState::Cancelled => End::Cancelled,
        };
        // Nothing changes a final task, so its last change is its end.
        let at = self.task.updated_at;
        let by = self.over(at);
        self.tell(at, What::Ended { how, by });
    }
}

/// Whether a question was asked under `key` as the tool's own one, at first or again.
fn is_own(key: &str, own: &str) -> bool {
    let again = key.strip_prefix("outlast:").and_then(|rest| rest.split_once(':'));
    key == own || again.is_some_and(|(_, of)| of == own)
}

/// The kind as it is written.
fn name(kind: EntryKind) -> String {
    json!(kind).as_str().unwrap_or_default().to_owned()
}

impl Timer {
    fn of(key: String) -> Self {
        match key.strip_prefix(LIMIT) {
            Some(question) => Self::OfQuestion(question.to_owned()),
            None => Self::Own(key),
        }
    }

    fn key(&self) -> &str {
        match self {
            Self::Own(key) | Self::OfQuestion(key) => key,
        }
    }
}

// --- for a person

/// One line for each, with the instant, how long after the creation that was, and what it was; the values of steps and
/// the answers, which may be secrets, only where `values` asks for them.
#[must_use]
pub fn as_text(history: &[Happening], values: bool) -> String {
    let offsets: Vec<_> = history.iter().map(|happening| happening.offset.to_string()).collect();
    let width = offsets.iter().map(String::len).max().unwrap_or_default();
    let lines = history.iter().zip(&offsets).map(|(happening, offset)| {
        let (at, what) = (happening.at, happening.words(values));
        format!("{at}  {offset:>width$}  {what}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Before(time) => write!(f, "-{}", text::lapse(*time)),
            Self::After(time) => write!(f, "+{}", text::lapse(*time)),
        }
    }
}

impl Spell {
    /// `verb`, of the attempt, and how long it had lasted.
    fn told(self, verb: &str) -> String {
        match (self.attempt, self.took) {
            (Some(attempt), Some(took)) => format!("attempt {attempt} {verb} after {}", text::lapse(took)),
            _ => format!("attempt {verb}"),
        }
    }
}

fn after(waited: Option<Duration>) -> String {
    waited.map(|waited| format!(" after {}", text::lapse(waited))).unwrap_or_default()
}

impl What {
    fn as_text(&self, values: bool) -> String {
        let value = |value: &Payload| match values {
            true => format!(": {}", value.as_str()),
            false => format!(" ({} bytes)", value.len()),
        };
        match self {
            Self::Created { origin: None } => "created".to_owned(),
            Self::Created { origin: Some(origin) } => {
                format!("created with what is kept of the failed task {origin}")
            }
            Self::Begun { attempt, worker: Some(worker) } => format!("attempt {attempt} begun by {worker}"),
            Self::Begun { attempt, worker: None } => {
                format!("attempt {attempt} begun by the server that took the call")
            }
            Self::Parked(spell) => spell.told("parked"),
            Self::GivenBack(spell) => spell.told("given back"),
            Self::Lost(spell) => spell.told("lost") + ": its server stopped, or did not renew its lease",
            Self::Asked { key, request } => {
                let request = request.to_value();
                let asks = request["params"]["message"].as_str().or(request["method"].as_str());
                format!("asked '{key}': {}", asks.unwrap_or_default())
            }
            Self::Answered { key, waited, answer } => {
                format!("answered '{key}'{}{}", after(*waited), value(answer))
            }
            Self::TakenBack { key, waited } => format!("question '{key}' taken back{}", after(*waited)),
            Self::Step { key, took, tries, outcome } => {
                let (verb, body) = match outcome {
                    Outcome::Value(body) => ("done in", body),
                    Outcome::Error(body) => ("ended with an error after", body),
                };
                let tries = if *tries > 1 { format!(", {tries} tries") } else { String::new() };
                format!("step '{key}' {verb} {}{tries}{}", text::lapse(*took), value(body))
            }
            Self::TimerSet { of, due, lasts } => {
                let lasts = lasts.map(|lasts| format!(" for {}", text::lapse(lasts))).unwrap_or_default();
                let due = due.map(|due| format!(", until {due}")).unwrap_or_default();
                match of {
                    Timer::Own(key) => format!("timer '{key}' set{lasts}{due}"),
                    Timer::OfQuestion(key) => format!("time to answer '{key}' set{lasts}{due}"),
                }
            }
            Self::TimerFired { of: Timer::Own(key), .. } => format!("timer '{key}' fired"),
            Self::TimerFired { of: Timer::OfQuestion(key), needless: false } => {
                format!("time to answer '{key}' over")
            }
            Self::TimerFired { of: Timer::OfQuestion(key), needless: true } => {
                format!("time to answer '{key}' counts no longer")
            }
            Self::CancelRequested => "end asked for".to_owned(),
            Self::Ended { how, by } => {
                let how = match how {
                    End::Completed { is_error: false } => "completed",
                    End::Completed { is_error: true } => "completed with an error of the tool",
                    End::Failed => "failed",
                    End::Cancelled => "cancelled",
                };
                match (by.attempt, by.took) {
                    (Some(attempt), Some(took)) => {
                        format!("{how} by attempt {attempt} after {}", text::lapse(took))
                    }
                    _ => how.to_owned(),
                }
            }
            Self::Other { kind, key: Some(key) } => format!("'{key}': {kind}"),
            Self::Other { kind, key: None } => kind.clone(),
        }
    }
}

// --- for a program

/// The same as a JSON array of objects, each with `at`, `afterMs` and `kind`.
#[must_use]
pub fn as_json(history: &[Happening], values: bool) -> Value {
    history.iter().map(|happening| happening.as_json(values)).collect()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Happening {
    /// What it was, on one line; see [`as_text`].
    #[must_use]
    pub fn words(&self, values: bool) -> String {
        /// Long enough for a question, short enough for a screen; a value is shown on purpose, and so at greater length.
        const WIDTH: usize = 160;
        const WIDTH_OF_VALUES: usize = 2_000;
        text::one_line(&self.what.as_text(values), if values { WIDTH_OF_VALUES } else { WIDTH })
    }

    /// How long after the creation of the task it was, such as `+1.5 s`.
    #[must_use]
    pub fn offset(&self) -> String {
        self.offset.to_string()
    }

    /// The same as JSON; see [`as_json`].
    #[must_use]
    pub fn as_json(&self, values: bool) -> Value {
        let mut json = self.what.as_json(values);
        json["at"] = self.at.to_string().into();
        json["afterMs"] = match self.offset {
            Offset::Before(time) => -millis(time),
            Offset::After(time) => millis(time),
        }
        .into();
        json
    }
}

impl Spell {
    fn as_json(self, kind: &str) -> Value {
        json!({"kind": kind, "attempt": self.attempt, "tookMs": self.took.map(millis)})
    }
}

impl What {
    fn as_json(&self, values: bool) -> Value {
        let shown = |value: &Payload| values.then(|| value.to_value());
        match self {
            Self::Created { origin } => json!({"kind": "created", "from": origin}),
            Self::Begun { attempt, worker } => {
                json!({"kind": "claimed", "attempt": attempt, "worker": worker})
            }
            Self::Parked(spell) => spell.as_json("parked"),
            Self::GivenBack(spell) => spell.as_json("released"),
            Self::Lost(spell) => spell.as_json("lease_lost"),
            Self::Asked { key, request } => {
                json!({"kind": "asked", "key": key, "request": request.to_value()})
            }
            Self::Answered { key, waited, answer } => {
                let waited = waited.map(millis);
                json!({"kind": "answered", "key": key, "waitedMs": waited, "answer": shown(answer)})
            }
            Self::TakenBack { key, waited } => {
                json!({"kind": "withdrawn", "key": key, "waitedMs": waited.map(millis)})
            }
            Self::Step { key, took, tries, outcome } => {
                let (is_error, body) = match outcome {
                    Outcome::Value(body) => (false, body),
                    Outcome::Error(body) => (true, body),
                };
                let mut json = json!({"kind": "step", "key": key, "tookMs": millis(*took), "tries": tries});
                json["isError"] = is_error.into();
                json[if is_error { "error" } else { "value" }] = json!(shown(body));
                json
            }
            Self::TimerSet { of, due, .. } => {
                json!({"kind": "timer_set", "key": of.key(), "dueAt": due.map(|due| due.to_string()), "ofQuestion": of.limits()})
            }
            Self::TimerFired { of, .. } => {
                json!({"kind": "timer_fired", "key": of.key(), "ofQuestion": of.limits()})
            }
            Self::CancelRequested => json!({"kind": "cancel_requested"}),
            Self::Ended { how, by } => {
                let mut json = by.as_json(match how {
                    End::Completed { .. } => "completed",
                    End::Failed => "failed",
                    End::Cancelled => "cancelled",
                });
                if let End::Completed { is_error } = how {
                    json["isError"] = (*is_error).into();
                }
                json
            }
            Self::Other { kind, key } => json!({"kind": kind, "key": key}),
        }
    }
}

impl Timer {
    fn limits(&self) -> bool {
        matches!(self, Self::OfQuestion(_))
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        Asks, Call, Change, Event, InputKey, NewTask, Owner, Question, QuestionKind, Spec, TakenUp,
        TaskError, Wake, WorkerId,
    };

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    /// A task and its journal.
    struct Story {
        task: Task,
        journal: Vec<Entry>,
    }

    fn new(id: u8) -> NewTask {
        let mut spec = Spec::new("report");
        spec.recovery = outlast_core::Recovery::Rerun;
        spec.asks = Asks::none().with(QuestionKind::ElicitForm);
        let call = Call::new(Payload::null());
        NewTask::new(TaskId::from_bytes([id; 16]), Owner::anonymous(), spec, call)
    }

    fn at(millis: i64) -> Timestamp {
        // Noon of a day.
        Timestamp::from_millis(1_795_953_600_000 + millis)
    }

    impl Story {
        fn leased(worker: &str) -> Self {
            let task = Task::create_leased(&new(1), WorkerId::new(worker), LEASE, at(0));
            Self { task, journal: Vec::new() }
        }

        fn then(mut self, millis: i64, event: Event) -> Self {
            if let Change::To { task, entry } = self.task.apply(&event, None, at(millis)).unwrap() {
                self.task = *task;
                self.journal.extend(entry);
            }
            self
        }

        fn claimed(self, millis: i64, worker: &str) -> Self {
            self.then(millis, Event::Claim { worker: WorkerId::new(worker), lease: LEASE })
        }

        fn lines(&self, values: bool) -> Vec<String> {
            let text = as_text(&history(&self.task, &self.journal), values);
            text.lines().map(|line| line["2026-11-29T12:00:00.000Z".len()..].trim().to_owned()).collect()
        }
    }

    fn step(key: &str, outcome: Outcome, tries: u32) -> Event {
        let key = StepKey::new(key).unwrap();
        Event::FinishStep { key, outcome, took: Duration::from_millis(300), tries }
    }

    fn ask(key: &str) -> Event {
        let request = json!({"method": "elicitation/create", "params": {"message": "Which\ntitle?"}});
        Event::Ask { key: InputKey::new(key).unwrap(), question: Question::new(&request).unwrap() }
    }

    fn answer(key: &str) -> Event {
        let answer = Payload::from_value(&json!({"action": "decline"}));
        Event::Answer { key: InputKey::new(key).unwrap(), answer }
    }

    fn payload(value: Value) -> Payload {
        Payload::from_value(&value)
    }

    #[test]
    fn a_life_is_told_with_its_attempts_and_what_each_of_them_did() {
        let timer = |key| StepKey::new(key).unwrap();
        let story = Story::leased("w1")
            .then(400, step("pay", Outcome::Value(payload(json!("secret"))), 2))
            .then(400, step("ship", Outcome::Error(payload(json!("no van"))), 1))
            .then(500, ask("title"))
            .then(30_500, Event::Park { seen_seq: 3, wake: None })
            .then(7_200_000, answer("title"))
            .claimed(7_200_010, "w2")
            .then(7_230_010, Event::LoseLease)
            .claimed(7_230_020, "w3")
            .then(7_230_020, Event::Release { began: true })
            .claimed(7_231_000, "w4")
            .then(7_231_000, Event::SetTimer { key: timer("nap"), wake: Wake::After(LEASE) })
            .then(7_261_000, Event::FireTimer { key: timer("nap") })
            .then(7_261_000, ask("other"))
            .then(7_262_500, Event::Withdraw { key: InputKey::new("other").unwrap() })
            .then(7_263_000, Event::Cancel)
            .then(7_264_000, Event::ConfirmCancel);
        assert_eq!(
            story.lines(false),
            [
                "+0 ms  created",
                // Nobody wrote down who that was, and it left no entry of its end but the park.
                "+0 ms  attempt 1 begun by the server that took the call",
                "+400 ms  step 'pay' done in 300 ms, 2 tries (8 bytes)",
                "+400 ms  step 'ship' ended with an error after 300 ms (8 bytes)",
                "+500 ms  asked 'title': Which title?",
                "+30.5 s  attempt 1 parked after 30.5 s",
                "+2 h 0 min  answered 'title' after 1 h 59 min (20 bytes)",
                "+2 h 0 min  attempt 2 begun by w2",
                "+2 h 0 min  attempt 2 lost after 30.0 s: its server stopped, or did not renew its lease",
                "+2 h 0 min  attempt 3 begun by w3",
                "+2 h 0 min  attempt 3 given back after 0 ms",
                "+2 h 0 min  attempt 4 begun by w4",
                "+2 h 0 min  timer 'nap' set for 30.0 s, until 2026-11-29T14:01:01.000Z",
                "+2 h 1 min  timer 'nap' fired",
                "+2 h 1 min  asked 'other': Which title?",
                "+2 h 1 min  question 'other' taken back after 1.5 s",
                "+2 h 1 min  end asked for",
                "+2 h 1 min  cancelled by attempt 4 after 33.0 s",
            ]
        );
    }

    #[test]
    fn values_which_may_be_secrets_are_told_where_that_is_asked_for() {
        let story = Story::leased("w")
            .then(10, step("pay", Outcome::Value(payload(json!({"card": "4711"}))), 1))
            .then(20, step("ship", Outcome::Error(payload(json!("no van"))), 1))
            .then(30, ask("title"))
            .then(40, answer("title"));
        let (hidden, shown) = (story.lines(false).join("\n"), story.lines(true).join("\n"));
        let json = |values| as_json(&history(&story.task, &story.journal), values).to_string();
        for secret in ["4711", "no van", "decline"] {
            assert!(!hidden.contains(secret) && !json(false).contains(secret), "{secret} is not told");
            assert!(shown.contains(secret) && json(true).contains(secret), "{secret} is told");
        }
    }

    #[test]
    fn a_long_line_is_cut_where_no_values_are_asked_for() {
        let story = Story::leased("w").then(10, step(&"k".repeat(250), Outcome::Value(Payload::null()), 1));
        let line = story.lines(false).pop().unwrap();
        assert!(line.ends_with('…') && line.chars().count() < 180, "{line}");
        assert!(story.lines(true).pop().unwrap().ends_with(": null"));
    }

    #[test]
    fn the_first_attempt_of_a_task_that_was_created_with_it_has_its_worker_from_what_is_known() {
        let first = |story: &Story| story.lines(false)[1].clone();
        let story = Story::leased("w1");
        assert_eq!(first(&story), "+0 ms  attempt 1 begun by w1", "it has the lease still");
        let story = story.then(60_000, Event::LoseLease).claimed(60_000, "w2");
        assert_eq!(first(&story), "+0 ms  attempt 1 begun by w1", "its lease was lost");
        assert_eq!(story.lines(false)[3], "+1 min 0 s  attempt 2 begun by w2");
    }

    #[test]
    fn what_was_taken_over_from_a_failed_task_comes_before_the_creation() {
        let failed = Story::leased("w")
            .then(400, step("pay", Outcome::Value(Payload::null()), 1))
            .then(500, Event::Fail(TaskError::internal("no van")));
        assert_eq!(failed.lines(false).last().unwrap(), "+500 ms  failed by attempt 1 after 500 ms");
        let origin = failed.task.id;
        let again = NewTask { takes_up: TakenUp::of(&failed.task, failed.journal), ..new(2) };
        let story = Story { task: Task::create(&again, at(90_400)), journal: again.journal() };
        let story =
            story.claimed(90_500, "w2").then(90_900, Event::Complete(payload(json!({"isError": true}))));
        let begun = format!("+0 ms  created with what is kept of the failed task {origin}");
        assert_eq!(
            story.lines(false),
            [
                "-1 min 30 s  step 'pay' done in 300 ms (4 bytes)",
                &begun,
                "+100 ms  attempt 1 begun by w2",
                "+500 ms  completed with an error of the tool by attempt 1 after 400 ms",
            ]
        );
        let told = as_json(&history(&story.task, &story.journal), false);
        assert_eq!(told[0]["afterMs"], -90_000);
        assert_eq!(told[1]["from"], origin.to_string());
        assert_eq!((&told[3]["kind"], &told[3]["isError"]), (&json!("completed"), &json!(true)));
    }

    #[test]
    fn a_time_limit_of_a_question_is_told_as_such() {
        let key = StepKey::new("outlast:limit:title").unwrap();
        let story = Story::leased("w")
            .then(0, Event::SetTimer { key: key.clone(), wake: Wake::After(LEASE) })
            .then(30_000, Event::FireTimer { key });
        assert_eq!(
            story.lines(false)[2..],
            [
                "+0 ms  time to answer 'title' set for 30.0 s, until 2026-11-29T12:00:30.000Z",
                "+30.0 s  time to answer 'title' over",
            ]
        );
        let told = as_json(&history(&story.task, &story.journal), false);
        assert_eq!((&told[2]["key"], &told[2]["ofQuestion"]), (&json!("title"), &json!(true)));
    }

    #[test]
    fn the_time_limit_of_a_question_that_was_answered_is_not_told_as_over() {
        let key = StepKey::new("outlast:limit:title").unwrap();
        let story = Story::leased("w")
            .then(0, Event::SetTimer { key: key.clone(), wake: Wake::After(LEASE) })
            .then(0, ask("title"))
            .then(5_000, answer("title"))
            .then(5_000, Event::FireTimer { key });
        let lines = story.lines(false);
        assert_eq!(lines.last().unwrap(), "+5.0 s  time to answer 'title' counts no longer");
    }
}
