//! What a store held at some moment: all that had been acknowledged by then.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    ledger::{Known, Ledger, Shown},
    plan::{self, Op, Tool},
    side::{Line, What},
    snapshot::{Kept, Place, Snapshot},
};

/// What was acknowledged before this time and is not in the store.
pub(crate) fn lost(ledger: &Ledger, side: &[Line], store: &Snapshot, before: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut got: BTreeMap<&str, Vec<(&str, Option<u64>)>> = BTreeMap::new();
    for line in side.iter().filter(|line| line.at < before) {
        match &line.what {
            What::Got { key, value } => got.entry(&line.marker).or_default().push((key, Some(*value))),
            What::GotError { key } => got.entry(&line.marker).or_default().push((key, None)),
            _ => {}
        }
    }
    for (marker, task) in &ledger.tasks {
        // The task as it was known then.
        let events = task.events.iter().take_while(|(at, _)| *at < before).cloned().collect();
        let known = Known { events, ..task.clone() };
        let Some(id) = known.id() else { continue };
        let kept = store.tasks.get(marker).and_then(|kept| kept.iter().find(|kept| kept.id == id));
        let got = got.get(&**marker).map_or(&[][..], |got| got);
        let lost = match kept {
            Some(kept) => of_task(marker, &known, got, kept),
            None => vec!["was created and is gone".to_owned()],
        };
        wrong.extend(lost.into_iter().map(|what| format!("{marker}: {what}")));
    }
    wrong
}

fn of_task(marker: &str, known: &Known, got: &[(&str, Option<u64>)], kept: &Kept) -> Vec<String> {
    let mut wrong = Vec::new();
    let (will_cancel, cancelled) = known.cancel();
    if cancelled.is_some() && !kept.cancel_requested && !kept.place.is_final() {
        wrong.push("its cancel was acknowledged and is lost".to_owned());
    }
    let needed = needed(known);
    for (key, (name, _)) in known.acknowledged() {
        match kept.answers.get(key) {
            Some(kept) if kept == name => {}
            Some(kept) => wrong.push(format!("{key} was answered {name}, and the journal has {kept}")),
            // Taken back before the answer came, it is acknowledged and ignored.
            None if kept.withdrawn.contains(key) || will_cancel.is_some() => {}
            None if needed.get(plan::own_key(key)) == Some(&true) => {
                wrong.push(format!("the answer {name} to {key} was acknowledged and is lost"));
            }
            None => {}
        }
    }
    for (_, shown) in known.shown() {
        for (key, question) in shown.asks() {
            if kept.asked.get(key).map(|text| Value::from(&**text)).as_ref()
                != Some(&question["params"]["message"])
            {
                wrong.push(format!("{key} was asked, and the journal has {:?} of it", kept.asked.get(key)));
            }
        }
    }
    if let Some((_, end)) = known.end()
        && !is_end(end, kept)
    {
        wrong.push(format!("was over as {}, and the store has {:?} {:?}", end.0, kept.place, kept.end));
    }
    for (key, value) in got {
        let value = value.map(Value::from);
        if kept.steps.get(*key) != Some(&value) {
            wrong.push(format!(
                "the step {key} had returned, and the journal has {:?} of it",
                kept.steps.get(*key)
            ));
        }
    }
    if let Some(key) = kept.keys.iter().find(|key| key.contains("leak")) {
        wrong.push(format!("a context that was kept beyond its attempt wrote {key} ({marker})"));
    }
    wrong
}

/// The questions of a program by their keys, and whether the work cannot go on without the answer.
fn needed(known: &Known) -> BTreeMap<String, bool> {
    let mut needed = BTreeMap::new();
    plan::walk(&known.plan.program.ops, "", false, &mut |op, path, raced| match op {
        Op::Ask { keys } => needed.extend(keys.iter().map(|key| (format!("{path}{key}"), !raced))),
        Op::Round { key } => needed.extend([(key.clone(), true)]),
        _ => {}
    });
    // A tool that must not run twice fails with its server, and its questions with it.
    if known.plan.tool == Tool::Once { BTreeMap::new() } else { needed }
}

fn is_end(end: &Shown, kept: &Kept) -> bool {
    match (end.status(), kept.place) {
        ("completed", Place::Completed) => kept.end.as_ref() == Some(&end.0["result"]),
        ("failed", Place::Failed) => {
            let kept = kept.end.clone().unwrap_or_default();
            ["code", "message", "data"].iter().all(|field| kept[field] == end.0["error"][field])
        }
        ("cancelled", Place::Cancelled) => true,
        _ => false,
    }
}
