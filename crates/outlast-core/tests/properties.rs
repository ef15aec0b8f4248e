//! What holds of every task, whatever happens to it in whatever order.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    time::Duration,
};

use outlast_core::*;
use proptest::{collection::vec, option, prelude::*};
use serde_json::json;

/// A task with its journal, as a store keeps it.
#[derive(Debug, Clone)]
struct Kept {
    task: Task,
    journal: Vec<Entry>,
    known: HashMap<StepKey, Known>,
}

impl Kept {
    fn new(spec: Spec, now: Timestamp) -> Self {
        let id = TaskId::from_bytes([1; 16]);
        let new = NewTask::new(id, owner(), spec, Call::new(Payload::null()));
        Self { task: Task::create(&new, now), journal: Vec::new(), known: HashMap::new() }
    }

    fn decide(&self, by: &By, events: &[Event], now: Timestamp) -> Verdict {
        let known = |key: &StepKey| Ok::<_, Infallible>(self.known.get(key).cloned());
        let Ok(verdict) = self.task.decide(by, events, now, known);
        verdict
    }

    fn tell(&mut self, by: &By, events: &[Event], now: Timestamp) -> Verdict {
        let verdict = self.decide(by, events, now);
        if let Verdict::Write(decision) = &verdict {
            for entry in &decision.entries {
                if let Some(key) = entry.key.clone().filter(|_| entry.kind.opens_key()) {
                    let before = self.known.insert(key, Known { kind: entry.kind, body: entry.body.clone() });
                    assert_eq!(before, None, "a key is opened once");
                }
                self.journal.push(entry.clone());
            }
            self.task = decision.task.clone();
        }
        verdict
    }
}

fn owner() -> Owner {
    Owner::new("alice")
}

// --- what may happen

fn key() -> impl Strategy<Value = StepKey> {
    prop_oneof![
        4 => (0..5_u8).prop_map(|number| StepKey::new(format!("key {number}")).unwrap()),
        1 => "[^\\p{C}]{1,40}".prop_map(|text| StepKey::new(text).unwrap()),
    ]
}

fn input() -> impl Strategy<Value = InputKey> {
    key().prop_map(|key| InputKey::new(key.as_str()).unwrap())
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![
        Just(Payload::null()),
        Just(Payload::from_value(&json!({"action": "accept", "content": {"ok": true}}))),
        Just(Payload::from_value(&json!({"roots": []}))),
        any::<String>().prop_map(|text| Payload::from_value(&json!(text))),
        (0..400_usize).prop_map(|size| Payload::from_value(&json!("x".repeat(size)))),
        // White space, deep nesting and numbers that a parser would round.
        Just(Payload::from_json(" \n [1 , 2]\t").unwrap()),
        Just(Payload::from_json("[".repeat(500) + &"]".repeat(500)).unwrap()),
        Just(Payload::from_json("1e999").unwrap()),
    ]
}

fn question() -> impl Strategy<Value = Question> {
    prop_oneof![
        any::<String>().prop_map(|text| json!({"method": "elicitation/create", "params": {"message": text}})),
        Just(json!({"method": "elicitation/create", "params": {"mode": "url"}})),
        Just(json!({"method": "sampling/createMessage"})),
        Just(json!({"method": "roots/list"})),
    ]
    .prop_map(|request| Question::new(&request).unwrap())
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![payload().prop_map(Outcome::Value), payload().prop_map(Outcome::Error)]
}

/// Mostly the durations of everyday, and sometimes any at all.
fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        8 => (0..200_000_u64).prop_map(Duration::from_millis),
        1 => any::<Duration>(),
        1 => Just(Duration::MAX),
    ]
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    prop_oneof![4 => 0..1_000_000_i64, 1 => any::<i64>(), 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
        .prop_map(Timestamp::from_millis)
}

fn error() -> impl Strategy<Value = TaskError> {
    (any::<i64>(), any::<String>(), option::of(payload())).prop_map(|(code, message, data)| TaskError {
        code,
        message,
        data,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let wake = prop_oneof![duration().prop_map(Wake::After), timestamp().prop_map(Wake::At)];
    let from_worker = prop_oneof![
        3 => (input(), question()).prop_map(|(key, question)| Event::Ask { key, question }),
        1 => input().prop_map(|key| Event::Withdraw { key }),
        2 => (key(), outcome(), duration(), any::<u32>())
            .prop_map(|(key, outcome, took, tries)| Event::FinishStep { key, outcome, took, tries }),
        1 => Just(Event::RunAlone),
        1 => Just(Event::RunBeside),
        2 => (key(), wake).prop_map(|(key, wake)| Event::SetTimer { key, wake }),
        1 => key().prop_map(|key| Event::FireTimer { key }),
        1 => option::of(any::<String>()).prop_map(Event::SetMessage),
        1 => duration().prop_map(Event::ExtendTtl),
        2 => (0..40_u64, option::of(duration())).prop_map(|(seen_seq, wake)| Event::Park { seen_seq, wake }),
        1 => any::<bool>().prop_map(|began| Event::Release { began }),
    ];
    let end = prop_oneof![
        payload().prop_map(Event::Complete),
        error().prop_map(Event::Fail),
        Just(Event::ConfirmCancel),
        Just(Event::PassDeadline),
    ];
    let from_caller = prop_oneof![
        4 => (input(), payload()).prop_map(|(key, answer)| Event::Answer { key, answer }),
        1 => Just(Event::Cancel),
    ];
    let from_store = prop_oneof![
        8 => duration().prop_map(|lease| Event::Claim { worker: WorkerId::new("one"), lease }),
        2 => duration().prop_map(|lease| Event::Renew { lease }),
        2 => Just(Event::LoseLease),
        2 => Just(Event::RefreshTtl),
        1 => Just(Event::AbandonCancelled),
    ];
    prop_oneof![12 => from_worker, 1 => end, 5 => from_caller, 8 => from_store]
}

fn limits() -> impl Strategy<Value = Limits> {
    let small = Limits {
        value_bytes: 300,
        result_bytes: 200,
        message_bytes: 10,
        questions: 3,
        entries: 20,
        journal_bytes: 2_000,
    };
    let nothing = Limits {
        value_bytes: 0,
        result_bytes: 0,
        message_bytes: 0,
        questions: 0,
        entries: 0,
        journal_bytes: 0,
    };
    prop_oneof![4 => Just(Limits::default()), 2 => Just(small), 1 => Just(nothing)]
}

/// Terms that a person may configure: whatever passes the check.
fn spec() -> impl Strategy<Value = Spec> {
    let recovery = prop_oneof![3 => Just(Recovery::Rerun), 1 => Just(Recovery::Fail)];
    let whole = || (1..500_000_u64).prop_map(Duration::from_millis);
    let asks = prop_oneof![
        4 => Just(Asks::all()),
        1 => Just(Asks::none()),
        1 => Just(Asks::none().with(QuestionKind::ElicitForm)),
    ];
    let lengths = (option::of(whole()), whole(), option::of(whole()), option::of(whole()), whole());
    (recovery, asks, limits(), lengths, 1..4_u32).prop_map(
        |(recovery, asks, limits, (ttl, min_retention, deadline, poll, cancel_grace), max_attempts)| {
            let spec = Spec {
                recovery,
                asks,
                limits,
                ttl,
                min_retention,
                deadline,
                poll,
                cancel_grace,
                max_attempts,
                ..Spec::new("tool")
            };
            spec.check().unwrap();
            spec
        },
    )
}

/// A call of a store: events on the right authority, and how much time went by before.
fn told() -> impl Strategy<Value = (Vec<Event>, Duration)> {
    let passed = prop_oneof![(0..5_u64), (0..100_000_u64)].prop_map(Duration::from_millis);
    (vec(event(), 1..4), passed)
}

/// Who may say the first of these events, so that most calls are taken.
fn sender(events: &[Event], token: Token) -> By {
    [By::Owner(owner()), By::Lease(token), By::Store]
        .into_iter()
        .find(|by| events[0].allowed_to(by))
        .expect("every event has a sender")
}

/// What a caller can see of a task.
fn visible(task: &Task) -> impl PartialEq + std::fmt::Debug + use<> {
    let questions = task.live().map(|live| live.questions.clone());
    let end = task.is_final().then(|| task.state.clone());
    (task.status(), task.status_message.clone(), task.ttl, questions, end)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Straight to `apply`, on no authority, with any journal and any time.
    #[test]
    fn apply_is_total(
        spec in spec(),
        created in timestamp(),
        events in vec((event(), timestamp(), option::of((0..3_usize, option::of(payload())))), 0..40),
    ) {
        let mut task = Kept::new(spec, created).task;
        for (event, now, known) in events {
            let kinds = [EntryKind::Asked, EntryKind::Step, EntryKind::TimerSet];
            let known = known.map(|(kind, body)| Known { kind: kinds[kind], body });
            if let Ok(Change::To { task: next, .. }) = task.apply(&event, known.as_ref(), now) {
                task = *next;
            }
            // Everything that is asked about a task has an answer too.
            let _ = now.to_string();
            let _ = (task.ready_at(), task.next_deadline(), task.sweep(now), task.expires_at());
            let _ = (task.poll_interval(now), task.hard_deadline(), task.holds_slot());
        }
    }

    #[test]
    fn what_holds_of_every_task_holds_after_every_call(spec in spec(), calls in vec(told(), 1..40)) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let before = kept.clone();
            let by = sender(&events, kept.task.token);
            let verdict = kept.tell(&by, &events, now);
            let (task, was) = (&kept.task, &before.task);
            prop_assert!(!matches!(verdict, Verdict::NotFound));

            // A final state never changes (S12).
            if was.is_final() {
                prop_assert_eq!(task, was);
            }
            // The status is derived right (S18).
            let outstanding = task.live().is_some_and(|live| !live.questions.is_empty());
            prop_assert_eq!(task.status() == Status::InputRequired, outstanding);
            prop_assert_eq!(task.live().is_none(), task.is_final());
            // Nothing that orders runs back.
            prop_assert!(task.revision >= was.revision && task.seq >= was.seq && task.token >= was.token);
            prop_assert!(task.inbox_seq >= was.inbox_seq && task.inbox_seq <= task.seq);
            prop_assert!(task.updated_at >= was.updated_at && task.updated_at <= now);
            // What a caller can see changes with the revision alone.
            if visible(task) != visible(was) {
                prop_assert!(task.revision > was.revision && task.updated_at == now);
            }
            prop_assert!(task.ttl >= was.ttl, "what a caller was promised is kept");
            prop_assert_eq!(task.ttl.is_some(), task.spec.ttl.is_some());
            // The journal is whole.
            let numbers: Vec<_> = kept.journal.iter().map(|entry| entry.seq).collect();
            prop_assert_eq!(numbers, (1..=task.seq).collect::<Vec<_>>());
            prop_assert_eq!(task.journal_bytes, kept.journal.iter().map(Entry::size).sum::<u64>());
            let by_work = kept.journal.iter().filter(|entry| entry.kind.is_of_work()).count() as u64;
            prop_assert_eq!(task.entries, by_work);
            // What the work opens is limited; what closes it, or is done to the task, is not refused.
            let opened = kept.journal.iter().filter(|entry| entry.kind.opens_key()).count() as u64;
            prop_assert!(opened <= task.spec.limits.entries);
            // Each end of an attempt is in the history, unless it ended the task.
            let ends = [EntryKind::LeaseLost, EntryKind::Parked, EntryKind::Released];
            let count = |kinds: &[EntryKind]| {
                kept.journal.iter().filter(|entry| kinds.contains(&entry.kind)).count() as u64
            };
            prop_assert_eq!(count(&[EntryKind::Claimed]), task.token.0);
            prop_assert!(count(&ends) <= task.token.0);
            if task.live().is_some() {
                prop_assert_eq!(count(&ends) + u64::from(task.lease().is_some()), task.token.0);
            }
        }
    }

    #[test]
    fn a_question_is_asked_once_and_outstanding_until_it_is_answered_or_taken_back(
        spec in spec(),
        calls in vec(told(), 1..60),
    ) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let by = sender(&events, kept.task.token);
            kept.tell(&by, &events, now);
        }
        // The journal alone says what is outstanding.
        let mut opened: BTreeMap<&StepKey, EntryKind> = BTreeMap::new();
        let mut outstanding = BTreeSet::new();
        let mut timers = BTreeSet::new();
        for entry in &kept.journal {
            let key = entry.key.as_ref();
            if let Some(key) = key.filter(|_| entry.kind.opens_key()) {
                prop_assert_eq!(opened.insert(key, entry.kind), None, "a key is never used again (S18)");
            }
            match entry.kind {
                EntryKind::Asked => drop(outstanding.insert(key.unwrap().as_str())),
                EntryKind::Answered | EntryKind::Withdrawn => {
                    prop_assert!(outstanding.remove(key.unwrap().as_str()), "only what is outstanding");
                }
                EntryKind::CancelRequested => outstanding.clear(),
                EntryKind::TimerSet => drop(timers.insert(key.unwrap().as_str())),
                EntryKind::TimerFired => prop_assert!(timers.remove(key.unwrap().as_str())),
                _ => {}
            }
        }
        if let Some(live) = kept.task.live() {
            prop_assert_eq!(live.questions.keys().map(InputKey::as_str).collect::<BTreeSet<_>>(), outstanding);
            prop_assert_eq!(live.timers.keys().map(StepKey::as_str).collect::<BTreeSet<_>>(), timers);
        }
    }

    #[test]
    fn when_a_task_is_ready_and_due_follows_from_where_its_work_is(
        spec in spec(),
        calls in vec(told(), 1..40),
    ) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let by = sender(&events, kept.task.token);
            kept.tell(&by, &events, now);
            let task = &kept.task;

            match task.live().map(|live| (&live.run, live)) {
                None => prop_assert_eq!(task.ready_at(), None),
                Some((Run::Queued { not_before }, _)) => prop_assert_eq!(task.ready_at(), Some(*not_before)),
                Some((Run::Leased(lease), _)) => prop_assert_eq!(task.ready_at(), Some(lease.until)),
                Some((Run::Parked { seen_seq, .. }, _)) if task.inbox_seq > *seen_seq => {
                    prop_assert!(task.ready_at().is_some_and(|at| at <= now), "no wake-up is lost");
                }
                Some((Run::Parked { seen_seq, wake }, live)) => {
                    prop_assert!(*seen_seq <= task.seq);
                    prop_assert_eq!(task.ready_at(), live.timers.values().chain(wake).min().copied());
                }
            }
            prop_assert_eq!(task.holds_slot(), task.lease().is_some() && task.status() == Status::Working);

            // A store that looks at `next_deadline` alone misses nothing, and finds something each time.
            let due = task.next_deadline().is_some_and(|at| at <= now);
            prop_assert_eq!(task.sweep(now).is_some(), due);
            match task.sweep(now).map(Sweep::event) {
                Some(Some(event)) => {
                    let change = task.apply(&event, None, now).unwrap();
                    let swept = change.task().expect("what is due has an effect");
                    prop_assert!(swept.next_deadline() > Some(now) || swept.next_deadline().is_none());
                }
                // Purged: over, and its time is over.
                Some(None) => prop_assert!(task.is_final() && task.expires_at().unwrap() <= now),
                None => {}
            }
        }
    }

    /// Losses in company make a suspect and never end it; alone, the last attempt ends it.
    #[test]
    fn a_suspect_is_ended_by_a_loss_alone_and_by_no_other(spec in spec(), calls in vec(told(), 1..60)) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let lease = kept.task.lease().cloned();
            if let Some(lease) = lease.filter(|_| kept.task.spec.recovery == Recovery::Rerun) {
                let Ok(Change::To { task: lost, entry }) = kept.task.apply(&Event::LoseLease, None, now) else {
                    panic!("a lease can be lost")
                };
                prop_assert_eq!(entry.map(|entry| entry.kind), Some(EntryKind::LeaseLost));
                let counts = lease.alone || !kept.task.is_suspect();
                prop_assert_eq!(lost.lost.len(), kept.task.lost.len() + usize::from(counts));
                let most = u64::from(lost.spec.max_attempts);
                prop_assert_eq!(lost.is_final(), lease.alone && lost.lost.len() as u64 >= most);
                if lost.is_final() {
                    let message = lost.status_message.unwrap();
                    prop_assert!(message.len() as u64 <= lost.spec.limits.message_bytes);
                } else {
                    prop_assert!(lost.ready_at().is_some_and(|at| at >= now));
                }
            }
            let by = sender(&events, kept.task.token);
            kept.tell(&by, &events, now);
        }
    }

    /// A new task that takes over a journal is as one that did all of it itself.
    #[test]
    fn failed_work_starts_again_with_what_was_done_and_nothing_else(
        first in spec(),
        second in spec(),
        calls in vec(told(), 1..60),
        later in duration(),
    ) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(first, now);
        for (events, passed) in calls {
            now = now + passed;
            let by = sender(&events, kept.task.token);
            kept.tell(&by, &events, now);
        }
        let taken = TakenUp::of(&kept.task, kept.journal.clone());
        prop_assert_eq!(taken.is_some(), kept.task.status() == Status::Failed);
        // Whatever a journal holds can be taken over.
        let taken = TakenUp { origin: kept.task.id, journal: kept.journal.clone() };
        let new = |taken| NewTask {
            takes_up: Some(taken),
            ..NewTask::new(TaskId::from_bytes([2; 16]), owner(), second.clone(), Call::new(Payload::null()))
        };
        let again = new(taken);
        let (task, journal) = (Task::create(&again, now + later), again.journal());

        prop_assert!(journal.iter().map(|entry| entry.seq).eq(1..=task.seq));
        prop_assert_eq!(task.journal_bytes, journal.iter().map(Entry::size).sum::<u64>());
        prop_assert_eq!(task.entries, journal.iter().filter(|entry| entry.kind.is_of_work()).count() as u64);
        let inbox = journal.iter().rev().find(|entry| entry.kind == EntryKind::Answered);
        prop_assert_eq!(task.inbox_seq, inbox.map_or(0, |entry| entry.seq));
        prop_assert_eq!(task.origin, Some(kept.task.id));
        prop_assert_eq!(task.cancel_requested(), false);

        // It is a part of the old journal, in its order.
        let mut old = kept.journal.iter();
        for entry in &journal {
            let is_there = old.any(|old| Entry { seq: entry.seq, ..old.clone() } == *entry);
            prop_assert!(is_there);
        }
        let value = |entry: &&Entry| matches!(
            entry.finished(),
            Some(Finished { outcome: Outcome::Value(_), .. })
        );
        prop_assert_eq!(
            journal.iter().filter(|entry| entry.kind == EntryKind::Step).count(),
            kept.journal.iter().filter(value).count(),
        );
        let live = task.live().unwrap();
        let closed = |key: &str, kind: &[EntryKind]| kept.journal.iter().any(|entry| {
            kind.contains(&entry.kind) && entry.key.as_ref().is_some_and(|closed| closed.as_str() == key)
        });
        for entry in &kept.journal {
            let Some(key) = entry.key.as_ref().map(StepKey::as_str) else { continue };
            match entry.kind {
                EntryKind::Asked => {
                    let request = entry.body.clone().unwrap();
                    let open = !closed(key, &[EntryKind::Answered, EntryKind::Withdrawn]);
                    let kind = QuestionKind::of(&request.to_value()).unwrap();
                    let asked = live.questions.get(&InputKey::new(key).unwrap());
                    prop_assert_eq!(asked.is_some(), open && second.asks.allows(kind));
                    prop_assert!(asked.is_none_or(|asked| *asked.request() == request));
                }
                EntryKind::TimerSet => {
                    let due = live.timers.get(&StepKey::new(key).unwrap());
                    prop_assert_eq!(due.is_some(), !closed(key, &[EntryKind::TimerFired]));
                }
                _ => {}
            }
        }
        // Once more is the same again.
        prop_assert_eq!(new(TakenUp { origin: kept.task.id, journal: journal.clone() }).journal(), journal);
    }

    #[test]
    fn an_instant_is_written_so_that_texts_of_these_centuries_sort_as_their_instants(
        mut millis in vec(-62_135_596_800_000..253_402_300_800_000_i64, 2),
    ) {
        millis.sort_unstable();
        let texts: Vec<_> = millis.iter().map(|at| Timestamp::from_millis(*at).to_string()).collect();
        prop_assert!(texts[0] <= texts[1], "{texts:?}");
        prop_assert!(texts.iter().all(|text| text.len() == "2026-11-29T16:10:43.120Z".len()));
    }

    #[test]
    fn a_finished_task_is_readable_for_its_least_time(
        spec in spec(),
        calls in vec(told(), 1..40),
    ) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let by = sender(&events, kept.task.token);
            kept.tell(&by, &events, now);
        }
        let task = &kept.task;
        if let Some(expires) = task.expires_at() {
            let least = task.spec.ttl.unwrap().max(task.spec.min_retention);
            prop_assert!(expires >= task.updated_at + least);
        }
        prop_assert!(task.is_final() || task.expires_at().is_none(), "unfinished work never expires");
    }

    /// The promise behind `StoreError::Unknown`: an identical retry is safe.
    #[test]
    fn the_same_call_again_journals_nothing_and_is_not_refused(
        spec in spec(),
        calls in vec(told(), 1..40),
        later in duration(),
    ) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let by = sender(&events, kept.task.token);
            let written = kept.tell(&by, &events, now);
            if !matches!(written, Verdict::Write(_)) || by == By::Store || closes_before_it_opens(&events) {
                continue;
            }
            match kept.decide(&by, &events, now + later) {
                Verdict::Absorbed => {}
                // Texts and times that are set twice in a call are set twice again.
                Verdict::Write(again) => prop_assert_eq!(again.entries, vec![]),
                other => prop_assert!(false, "refused when repeated: {:?} gives {:?}", events, other),
            }
        }
    }

    #[test]
    fn several_events_are_all_kept_or_none(spec in spec(), calls in vec(told(), 1..30)) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let by = sender(&events, kept.task.token);
            let mut singly = kept.clone();
            let mut refused = false;
            for event in &events {
                let verdict = singly.tell(&by, std::slice::from_ref(event), now);
                refused |= matches!(verdict, Verdict::Illegal(_) | Verdict::Fenced);
            }
            let before = kept.clone();
            match kept.tell(&by, &events, now) {
                Verdict::Write(_) | Verdict::Absorbed if !refused => {
                    prop_assert_eq!(&kept.task, &singly.task);
                    prop_assert_eq!(&kept.journal, &singly.journal);
                }
                Verdict::Illegal(_) | Verdict::Fenced => prop_assert_eq!(&kept.task, &before.task),
                _ => {}
            }
        }
    }

    #[test]
    fn a_task_and_its_journal_are_the_same_after_a_trip_through_json(
        spec in spec(),
        calls in vec(told(), 1..30),
    ) {
        let mut now = Timestamp::from_millis(0);
        let mut kept = Kept::new(spec, now);
        for (events, passed) in calls {
            now = now + passed;
            let by = sender(&events, kept.task.token);
            kept.tell(&by, &events, now);
            let text = serde_json::to_string(&kept.task).unwrap();
            let back: Task = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&back, &kept.task);
        }
        let text = serde_json::to_string(&kept.journal).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<Entry>>(&text).unwrap(), kept.journal);
    }

    #[test]
    fn a_call_is_the_same_after_a_trip_through_json(params in payload(), context in option::of(payload())) {
        let call = Call { params, context };
        let text = serde_json::to_string(&call).unwrap();
        prop_assert_eq!(serde_json::from_str::<Call>(&text).unwrap(), call);
    }
}

/// Whether a call takes back or fires what it opens only afterwards: repeated, it would find it open.
fn closes_before_it_opens(events: &[Event]) -> bool {
    let mut closed = BTreeSet::new();
    events.iter().any(|event| match event {
        Event::Withdraw { key } => {
            closed.insert(key.as_str().to_owned());
            false
        }
        Event::FireTimer { key } => {
            closed.insert(key.as_str().to_owned());
            false
        }
        event => event.key().is_some_and(|key| closed.contains(key.as_str())),
    })
}
