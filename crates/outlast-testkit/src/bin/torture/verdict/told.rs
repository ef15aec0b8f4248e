//! What the callers were told: nothing that they were told is taken back.

use std::collections::{BTreeMap, BTreeSet};

use super::Case;
use crate::{
    ledger::{Event, Shown},
    plan::{self, Op},
    tools::STALE,
};

impl Case<'_> {
    pub(super) fn told(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut id: Option<&str> = None;
        let mut end: Option<&Shown> = None;
        let mut texts = BTreeMap::new();
        let mut answered = BTreeSet::new();
        let mut cancelled = false;
        for (_, event) in &self.task.events {
            match event {
                Event::Created { id: now } => {
                    if id.replace(now).is_some_and(|first| first != now) {
                        wrong.push("was created twice for one idempotency key".to_owned());
                    }
                }
                Event::Refused { what, error } => wrong.push(format!("{what} was refused: {error}")),
                Event::Answered { key } => drop(answered.insert(plan::own_key(key))),
                Event::Cancelled => cancelled = true,
                Event::Saw(shown) => {
                    match end {
                        Some(end) if end != shown => {
                            wrong.push(format!("was over as {} and became {}", end.0, shown.0));
                        }
                        None if shown.is_final() => end = Some(shown),
                        _ => {}
                    }
                    if shown.0["statusMessage"] == STALE {
                        wrong.push("a context that was kept beyond its attempt set the status".to_owned());
                    }
                    if shown.status() == "input_required" && shown.asks().next().is_none() {
                        wrong.push("requires input and asks nothing".to_owned());
                    }
                    for (key, question) in shown.asks() {
                        // Nor under another key: the work has its answer.
                        if answered.contains(plan::own_key(key)) {
                            wrong.push(format!("asks {key} again, which was answered"));
                        }
                        if cancelled {
                            wrong.push(format!("asks {key} after its end was asked for"));
                        }
                        if *texts.entry(key).or_insert(question) != question {
                            wrong.push(format!("asks something else under {key}: {question}"));
                        }
                        if question["params"]["message"] != plan::question(self.marker, plan::own_key(key)) {
                            wrong.push(format!("asks what its program does not: {question}"));
                        }
                    }
                }
                Event::WillCreate
                | Event::EndedInline { .. }
                | Event::WillAnswer { .. }
                | Event::WillCancel
                | Event::Killed { .. }
                | Event::Unanswered => {}
            }
        }
        if let Some(key) = self.cancelled_before_answer()
            && self.task.cancel().1.is_some()
            && end.is_some_and(|end| end.status() != "cancelled")
        {
            wrong.push(format!("was cancelled while {key} had no answer, and did not end cancelled"));
        }
        wrong
    }

    /// A question that had no answer when the end of the work was asked for, and that the work cannot go on without.
    fn cancelled_before_answer(&self) -> Option<String> {
        let events = &self.task.events;
        let cancel = events.iter().position(|(_, event)| *event == Event::WillCancel)?;
        let shown = events[..cancel].iter().rev().find_map(|(_, event)| match event {
            Event::Saw(shown) => Some(shown),
            _ => None,
        })?;
        let ops = self.ops();
        let sent = self.task.sent();
        let needed = |key: &&String| {
            let plain =
                matches!(ops.get(plan::own_key(key)), Some((Op::Ask { .. } | Op::Round { .. }, false)));
            plain && !sent.contains_key(&***key)
        };
        shown.asks().map(|(key, _)| key).find(needed).cloned()
    }
}
