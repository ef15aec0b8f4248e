//! What the tools did: no step again once it was durable, and every attempt sees what the ones before it saw.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::Case;
use crate::{
    ledger::Event,
    plan::{self, Op, Tool},
    side::{Line, What},
};

/// The store's time is in whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(2);

impl Case<'_> {
    pub(super) fn done(&self) -> Vec<String> {
        let mut wrong = self.steps();
        wrong.extend(self.branches());
        wrong.extend(self.taken_back());
        wrong.extend(self.times());
        wrong.extend(self.attempts());
        wrong
    }

    /// A step is taken until it is durable, by one attempt at a time, and never again.
    fn steps(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut got = BTreeSet::new();
        let mut under_way: BTreeMap<&str, &Line> = BTreeMap::new();
        let mut ids: BTreeMap<&str, &str> = BTreeMap::new();
        for (number, line) in self.lines {
            match &line.what {
                What::Begin { key, step_id } => {
                    if *ids.entry(key).or_insert(step_id) != step_id {
                        wrong.push(format!("the step {key} has more than one step id"));
                    }
                    // It does not know yet that others have the task, and they need not know of it.
                    if self.is_stale(line) {
                        continue;
                    }
                    if got.contains(&**key) && self.is_owed() {
                        wrong.push(format!("the step {key} ran again after it had returned"));
                    }
                    if let Some(kill) = self.journaled_at_kill_before(key, *number) {
                        wrong
                            .push(format!("the step {key} ran again, and was in the journal at kill {kill}"));
                    }
                    if let Some(other) = under_way.insert(key, line)
                        && !self.is_off(other, line)
                    {
                        wrong.push(format!(
                            "the step {key} ran in attempts {} and {} at once",
                            other.attempt, line.attempt
                        ));
                    }
                }
                What::End { key } | What::Failed { key } | What::Dropped { key } => {
                    let by = |line: &Line| (line.process, line.attempt);
                    if under_way.get(&**key).is_some_and(|begun| by(begun) == by(line)) {
                        under_way.remove(&**key);
                    }
                }
                What::Got { key, value } => {
                    got.insert(&**key);
                    if plan::unsigned(*value) != plan::value(self.marker, key) {
                        wrong.push(format!("the step {key} returned what it did not: {value}"));
                    }
                }
                What::GotError { key } => drop(got.insert(key)),
                What::Stale { key } => {
                    wrong.push(format!("the step {key} ran in a context that was kept beyond its attempt"));
                }
                _ => {}
            }
        }
        let effects = &self.history.effects.by_step;
        for key in got {
            let has_effect =
                effects.binary_search_by(|(marker, of, _)| (&**marker, &**of).cmp(&(self.marker, key)));
            if has_effect.is_err() {
                wrong.push(format!("the step {key} returned without its effect"));
            }
        }
        wrong
    }

    /// The first kill before this line whose journal held the step.
    fn journaled_at_kill_before(&self, key: &str, number: usize) -> Option<usize> {
        let kills = self.history.kills.iter().take_while(|kill| kill.lines <= number);
        kills.enumerate().find_map(|(kill, found)| {
            let kept = found.left.tasks.get(self.marker)?.first()?;
            kept.steps.contains_key(key).then_some(kill + 1)
        })
    }

    /// What was decided once is so for every later attempt: an answer, a time-out, who won.
    fn branches(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut decided: BTreeMap<&str, String> = BTreeMap::new();
        for (_, line) in self.lines {
            let (key, how) = match &line.what {
                What::Heard { key, name } => (key, format!("was answered {name}")),
                What::TimedOut { key } => (key, "timed out".to_owned()),
                What::Won { key, first } => (key, if *first { "first" } else { "second" }.to_owned()),
                _ => continue,
            };
            let before = decided.entry(key).or_insert_with(|| how.clone());
            if *before != how {
                wrong.push(format!("{key} first {before}, and then {how}"));
            }
        }
        wrong
    }

    /// Nobody is asked any more what timed out, or what the loser of a race asked. What the loser asked in an earlier
    /// attempt is left out: where the winner of this one needs to wait for nothing, the loser's questions are not known
    /// again, and are taken back when the work parks or ends.
    fn taken_back(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let ops = self.ops();
        for (_, line) in self.lines {
            let mut gone = BTreeSet::new();
            match &line.what {
                What::TimedOut { key } => drop(gone.insert(key.clone())),
                What::Won { key, first: is_first } => {
                    let Some((Op::Race { first, second, .. }, _)) = ops.get(key) else { continue };
                    let in_this_attempt = |asked: &str| {
                        let mut lines = self.lines.iter().filter(|(_, other)| {
                            (other.process, other.attempt) == (line.process, line.attempt)
                                && other.at < line.at
                        });
                        lines.any(|(_, line)| matches!(&line.what, What::Asking { key } if key == asked))
                    };
                    let path = &key[..key.rfind('/').map_or(0, |end| end + 1)];
                    plan::walk(if *is_first { second } else { first }, path, true, &mut |op, path, _| {
                        if let Op::Ask { .. } | Op::AskUntil { .. } = op {
                            let asked = super::keys(op).into_iter().map(|key| format!("{path}{key}"));
                            gone.extend(asked.filter(|key| in_this_attempt(key)));
                        }
                    });
                }
                _ => continue,
            }
            // What was told in answer to a request that was sent after it: something else had been told by then.
            for pair in self.task.events.windows(2) {
                let [(before, _), (_, Event::Saw(shown))] = pair else { continue };
                if *before > line.at
                    && let Some((key, _)) = shown.asks().find(|(key, _)| gone.contains(plan::own_key(key)))
                {
                    wrong.push(format!("asks {key}, which was taken back with {:?}", line.what));
                }
            }
        }
        wrong
    }

    /// No timer fires early.
    fn times(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let ops = self.ops();
        let mut begun: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, line) in self.lines {
            match &line.what {
                What::Sleeping { key } | What::Asking { key } => drop(begun.entry(key).or_insert(line.at)),
                What::Slept { key } | What::TimedOut { key } => {
                    let Some((Op::Sleep { millis, .. } | Op::AskUntil { millis, .. }, _)) = ops.get(key)
                    else {
                        wrong.push(format!("{key} is no timer of its program"));
                        continue;
                    };
                    let took =
                        Duration::from_nanos(line.at.saturating_sub(begun.get(&**key).copied().unwrap_or(0)));
                    if took + ROUNDED < Duration::from_millis(*millis) {
                        wrong.push(format!("the timer {key} of {millis} ms fired after {took:?}"));
                    }
                }
                _ => {}
            }
        }
        wrong
    }

    /// Whether its process died at least twice since it last got on: of such a task nothing runs only to be told to stop.
    fn is_suspect(&self) -> bool {
        let Some(kept) = self.history.end.tasks.get(self.marker).and_then(|kept| kept.first()) else {
            return false;
        };
        let entries = kept.journal.iter().rev().filter_map(|entry| serde_json::from_str::<Value>(entry).ok());
        let kinds = entries.map(|entry| entry["kind"].as_str().unwrap_or_default().to_owned());
        let since = kinds.take_while(|kind| !matches!(&**kind, "asked" | "step" | "timer_set"));
        since.filter(|kind| kind == "lease_lost").count() >= 2
    }

    /// Attempts come while the task is not over; what must not run twice is begun once; a cancelled one cleaned up.
    fn attempts(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let tool = self.task.plan.tool;
        let attempts = self.lines.iter().filter(|(_, line)| line.what == What::Attempt).count();
        if tool == Tool::Once && attempts > 1 {
            wrong.push(format!("must not run twice, and was begun {attempts} times"));
        }
        if let Some((at, end)) = self.task.end() {
            let late = |what: &What| matches!(what, What::Attempt | What::Begin { .. } | What::Got { .. });
            let is_late = |line: &Line| line.at > at && late(&line.what) && !self.is_stale(line);
            if let Some((_, line)) = self.lines.iter().find(|(_, line)| is_late(line)) {
                wrong.push(format!("was over, and went on with {:?}", line.what));
            }
            if end.status() == "cancelled" && tool == Tool::Works && attempts > 0 && !self.is_suspect() {
                for op in &self.task.plan.program.cleanup {
                    let Op::Step { key, .. } = op else { continue };
                    let cleaned = |what: &What| matches!(what, What::Got { key: got, .. } if got == key);
                    if !self.lines.iter().any(|(_, line)| cleaned(&line.what)) {
                        wrong.push(format!("ended cancelled without its clean-up {key}"));
                    }
                }
            }
        }
        let tries = |op: &Op| if let Op::Step { fails, .. } = op { *fails as usize } else { 0 };
        let mut failed: BTreeMap<(u64, u64, &str), usize> = BTreeMap::new();
        for (_, line) in self.lines {
            if let What::Failed { key } = &line.what {
                *failed.entry((line.process, line.attempt, key)).or_default() += 1;
            }
        }
        let ops = self.ops();
        for ((_, attempt, key), times) in failed {
            if ops.get(key).is_none_or(|(op, _)| times > tries(op)) {
                wrong.push(format!("the step {key} failed {times} times in attempt {attempt}"));
            }
        }
        wrong
    }
}
