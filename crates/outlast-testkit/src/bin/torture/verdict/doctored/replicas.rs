//! A history of two replicas on one store, and doctored ones: one replica is stopped past its lease, and goes on when the
//! other one has taken its work over.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    Doctored, History, Kill, MILLI, Scribe, begin, kept, kept_as, pid, plan as known, replace_end,
    replace_shown, snapshot, step,
};
use crate::{
    ledger::{Event, Shown},
    plan::{self, End, Signature, Tool},
    side::What,
    snapshot::{Held, Kept, Place},
    verdict::Takeover,
};

/// Is taken over, and ends at the other replica.
const T: &str = "0-0";
/// Must not run twice, and is lost.
const U: &str = "0-1";

const FIRST: Signature = Signature { process: 1, attempt: 1 };
const OTHER: Signature = Signature { process: 2, attempt: 1 };

pub(super) const DOCTORED: &[Doctored] = &[
    ("work that was taken over late", "was taken over 30 ms after its lease", |history| {
        let takeover = takeover(history);
        takeover.beats = vec![takeover.until[T]; 41];
    }),
    ("lost work that nobody was told of in time", "0-1: was taken over", |history| {
        let takeover = takeover(history);
        takeover.beats = vec![takeover.until[U]; 41];
    }),
    (
        "a step that was written under an old lease",
        "the step two was written by attempt 1 of process 1 after",
        |history| {
            replace_journal(history, T, &OTHER.bits_of("two"), &FIRST.bits_of("two"));
        },
    ),
    (
        "a step of a replica that has no lease",
        "the step two was written by attempt 1 of process 3 after",
        |history| {
            replace_journal(
                history,
                T,
                &OTHER.bits_of("two"),
                &Signature { process: 3, ..OTHER }.bits_of("two"),
            );
        },
    ),
    (
        "two attempts that wrote under one lease",
        "the end was written by attempt 9 of process 2 beside",
        |history| {
            let other = Signature { attempt: 9, ..OTHER };
            replace_end(history, T, &OTHER.bits().to_string(), &other.bits().to_string());
        },
    ),
    (
        "an end that was written under an old lease",
        "the end was written by attempt 1 of process 1 after",
        |history| {
            replace_end(history, T, &OTHER.bits().to_string(), &FIRST.bits().to_string());
        },
    ),
    (
        "a step that ran beside the other replica's, by a lease that was never over",
        "ran again after",
        |history| {
            kept(history, T).journal.retain(|entry| !entry.contains("lease_lost") && !entry.contains("12-b"));
        },
    ),
    ("a journal that went on after the end", "was over, and its journal went on", |history| {
        history.kills[0].left.tasks.get_mut(T).expect("it is there")[0].place = Place::Completed;
    }),
    (
        "lost work that must not run twice and is complete",
        "was at work at a kill, and is completed",
        |history| {
            replace_shown(history, U, "failed", Shown(json!({"status": "completed", "result": {}})));
        },
    ),
    ("work that is said to be lost and was not", "its program does not end with", |history| {
        kept(history, U).journal.clear();
        let error = json!({"code": -32603, "message": "something went wrong"});
        replace_shown(history, U, "failed", Shown(json!({"status": "failed", "error": error})));
    }),
];

impl Signature {
    /// A value of [`T`] by this attempt, as a journal has it.
    fn bits_of(self, key: &str) -> String {
        plan::signed(T, key, self).to_string()
    }
}

fn takeover(history: &mut History) -> &mut Takeover {
    history.kills[0].takeover.as_mut().expect("it was taken over")
}

fn replace_journal(history: &mut History, marker: &str, from: &str, to: &str) {
    let journal = &mut kept(history, marker).journal;
    let before = journal.clone();
    for entry in journal.iter_mut() {
        *entry = entry.replace(from, to);
    }
    assert_ne!(before, *journal, "there is something to change");
}

/// Journals as a store keeps them, at the times of a scribe.
fn entry(scribe: &mut Scribe, kept: &mut Kept, kind: &str, key: Option<&str>, body: Value) -> i64 {
    scribe.now += MILLI;
    let (seq, at) = (kept.journal.len() + 1, scribe.now / MILLI);
    kept.journal.push(json!({"seq": seq, "at": at, "kind": kind, "key": key, "body": body}).to_string());
    at.cast_signed()
}

/// An attempt takes a step; its entry is there before the step returns.
fn takes(scribe: &mut Scribe, kept: &mut Kept, by: Signature, key: &str) {
    let value = plan::signed(T, key, by);
    scribe.process = by.process;
    scribe.did(by.attempt, T, begin(key));
    scribe.did(by.attempt, T, What::End { key: key.to_owned() });
    entry(scribe, kept, "step", Some(key), json!({"value": value, "took_ms": 1, "tries": 1}));
    scribe.did(by.attempt, T, What::Got { key: key.to_owned(), value });
    kept.steps.insert(key.to_owned(), Some(value.into()));
    kept.keys.insert(key.to_owned());
    scribe.history.effects.by_step.push((T.to_owned(), key.to_owned(), vec![format!("id of {key}")]));
}

pub(super) fn honest() -> History {
    let worker = |process: u64| {
        format!("{}-{}", pid(process), ["a", "b"][usize::try_from(process).expect("small") - 1])
    };
    let mut scribe = Scribe::default();
    scribe.starts();
    scribe.starts();
    scribe.creates(known(T, Tool::Works, vec![step("one"), step("two")], End::Value { pad: 0 }));
    scribe.creates(known(U, Tool::Once, vec![step("only")], End::Value { pad: 0 }));
    let [mut works, mut once] = [T, U].map(|marker| kept_as(marker, Place::AtWork, None));
    for kept in [&mut works, &mut once] {
        kept.journal.clear();
        let at = entry(&mut scribe, kept, "claimed", None, worker(1).into());
        kept.held = Some(Held { worker: worker(1), until: at + 40 });
    }
    scribe.process = 1;
    scribe.did(1, T, What::Attempt);
    takes(&mut scribe, &mut works, FIRST, "one");
    scribe.did(2, U, What::Attempt);
    let at = (scribe.now / MILLI).cast_signed();
    let until: BTreeMap<String, i64> = [(T, &works), (U, &once)]
        .map(|(marker, kept)| (marker.to_owned(), kept.held.as_ref().expect("it is held").until))
        .into();
    let left = snapshot([(T, works.clone()), (U, once.clone())]);
    let lines = scribe.history.side.len();

    // The lease runs out, and the other one takes over.
    scribe.now = until[U].unsigned_abs() * MILLI;
    scribe.told(T, Event::Unanswered);
    let died = json!({"code": -32603, "message": "its outcome is unknown"});
    entry(&mut scribe, &mut once, "lease_lost", None, worker(1).into());
    (once.place, once.held, once.end) = (Place::Failed, None, Some(died.clone()));
    scribe.told(
        U,
        Event::Saw(Shown(json!({"status": "failed", "statusMessage": died["message"], "error": died}))),
    );
    scribe.now = (until[T] + 28).unsigned_abs() * MILLI;
    entry(&mut scribe, &mut works, "lease_lost", None, worker(1).into());
    entry(&mut scribe, &mut works, "claimed", None, worker(2).into());
    scribe.process = 2;
    scribe.did(1, T, What::Attempt);
    scribe.did(1, T, What::Got { key: "one".to_owned(), value: plan::signed(T, "one", FIRST) });
    takes(&mut scribe, &mut works, OTHER, "two");
    // The stopped one goes on: it does the same for nothing.
    scribe.process = 1;
    scribe.did(1, T, begin("two"));
    scribe.did(1, T, What::Dropped { key: "two".to_owned() });
    let told = ["one", "two"].map(|key| format!("{key}={}", plan::value(T, key)));
    let text = json!({"told": told, "pad": "", "by": OTHER.bits()}).to_string();
    let result = json!({"content": [{"type": "text", "text": text}], "isError": false});
    scribe.told(T, Event::Saw(Shown(json!({"status": "completed", "result": result}))));
    (works.place, works.held, works.end) = (Place::Completed, None, Some(result));

    let takeover = Takeover { at, worker: worker(1), until, not_before: 0, beats: vec![at, at + 60] };
    scribe.history.kills.push(Kill { lines, left, takeover: Some(takeover) });
    scribe.history.effects.by_step.sort();
    scribe.history.end = snapshot([(T, works), (U, once)]);
    scribe.history.replicas = Some(BTreeMap::new());
    scribe.history
}
