//! The oracle: whether what the callers were told, what the tools did and what the store kept fit together.
//!
//! It knows the programs of the tasks, and nothing of how a store or a runtime works; above all it does not use
//! `Task::apply`. It is pure: it is given a history, and says what is wrong with it, in words.

pub(crate) mod doctored;
mod done;
mod ended;
mod fenced;
mod kept;
mod taken;
mod told;

use std::collections::BTreeMap;

use self::fenced::Record;
pub(crate) use self::{
    kept::lost,
    taken::{BEAT, Takeover},
};
use crate::{
    ledger::{Known, Ledger},
    plan::{self, Op},
    side::{Effects, Line, What},
    snapshot::{Kept, Snapshot},
};

/// All that is known of one store, from its first task to its last.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) ledger: Ledger,
    pub(crate) side: Vec<Line>,
    pub(crate) kills: Vec<Kill>,
    pub(crate) effects: Effects,
    /// When each process was dead, where several worked at once.
    pub(crate) replicas: Option<BTreeMap<u64, u64>>,
    /// What the store held when every task was to be over.
    pub(crate) end: Snapshot,
}

/// What a kill left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kill {
    /// How many lines the side file had.
    pub(crate) lines: usize,
    pub(crate) left: Snapshot,
    /// What others had to take over, where there were others.
    pub(crate) takeover: Option<Takeover>,
}

impl History {
    /// Everything that is wrong with it.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        self.each_case(|case| {
            let found = [case.told(), case.done(), case.fenced(), case.ended()].concat();
            wrong.extend(found.into_iter().map(|what| format!("{}: {what}", case.marker)));
        });
        wrong.extend(self.effects_once());
        wrong.extend(self.journals_only_grow());
        let takeovers = self.kills.iter().filter_map(|kill| kill.takeover.as_ref());
        wrong.extend(takeovers.flat_map(|takeover| takeover.late(&self.end)));
        wrong.extend(lost(&self.ledger, &self.side, &self.end, u64::MAX));
        wrong.extend(self.nothing_is_left());
        wrong
    }

    /// How many steps ended in vain: in an attempt whose lease was over, so that their values must have been refused.
    pub(crate) fn in_vain(&self) -> usize {
        let mut count = 0;
        self.each_case(|case| {
            let ends = case.lines.iter().filter(|(_, line)| matches!(line.what, What::End { .. }));
            count += ends.filter(|(_, line)| case.is_stale(line)).count();
        });
        count
    }

    fn each_case(&self, mut see: impl FnMut(&Case<'_>)) {
        let mut by_marker: BTreeMap<&str, Vec<(usize, &Line)>> = BTreeMap::new();
        for (number, line) in self.side.iter().enumerate() {
            by_marker.entry(&line.marker).or_default().push((number, line));
        }
        let workers = self.workers();
        for (marker, task) in &self.ledger.tasks {
            let lines = by_marker.get(&**marker).map_or(&[][..], |lines| lines);
            let kept = self.end.tasks.get(marker).and_then(|kept| kept.first());
            let journal = kept.map(|kept| fenced::records(kept, &workers)).unwrap_or_default();
            see(&Case { marker, task, lines, journal, history: self });
        }
    }

    /// The processes by the numbers that their workers have in their names.
    fn workers(&self) -> BTreeMap<u32, u64> {
        let began = self.side.iter().filter_map(|line| match line.what {
            What::Process { pid } => Some((pid, line.process)),
            _ => None,
        });
        began.collect()
    }

    /// Every effect came about once, under a step id of its own.
    fn effects_once(&self) -> Vec<String> {
        let mut wrong: Vec<_> = self
            .effects
            .shared
            .iter()
            .map(|id| format!("the step id {id} was used by more than one step"))
            .collect();
        for (marker, key, ids) in self.effects.by_step.iter().filter(|(_, _, ids)| ids.len() > 1) {
            wrong.push(format!("{marker}: the effect of {key} came about {} times, as {ids:?}", ids.len()));
        }
        wrong
    }

    fn journals_only_grow(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut before: BTreeMap<&str, &Kept> = BTreeMap::new();
        for left in self.kills.iter().map(|kill| &kill.left).chain([&self.end]) {
            for (marker, kept) in left.tasks.iter().filter_map(|(marker, kept)| Some((marker, kept.first()?)))
            {
                let Some(earlier) = before.insert(marker, kept) else { continue };
                let (was, is) = (&earlier.journal, &kept.journal);
                if !is.starts_with(was) {
                    wrong.push(format!("{marker}: its journal was {was:#?} and is {is:#?}"));
                } else if earlier.place.is_final() && was.len() != is.len() {
                    wrong.push(format!(
                        "{marker}: was over, and its journal went on with {:#?}",
                        &is[was.len()..]
                    ));
                }
            }
        }
        wrong
    }

    /// No task is in the store but those of the callers, each once, and none is unfinished.
    fn nothing_is_left(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (marker, kept) in &self.end.tasks {
            if !self.ledger.tasks.contains_key(marker) {
                wrong.push(format!("{marker}: nobody created this task"));
            }
            if kept.len() > 1 {
                wrong.push(format!("{marker}: there are {} of it", kept.len()));
            }
            for task in kept.iter().filter(|task| !task.place.is_final()) {
                wrong.push(format!("{marker}: is stuck as {:?}", task.place));
            }
        }
        wrong
    }
}

/// One task, and what is known of it.
struct Case<'a> {
    marker: &'a str,
    task: &'a Known,
    /// Its lines of the side file, and their numbers in it.
    lines: &'a [(usize, &'a Line)],
    /// Its journal as it was at the end.
    journal: Vec<Record>,
    history: &'a History,
}

impl Case<'_> {
    /// The operation that each key belongs to, and whether it may be dropped before it ends.
    fn ops(&self) -> BTreeMap<String, (Op, bool)> {
        let mut ops = BTreeMap::new();
        let program = &self.task.plan.program;
        for all in [&program.ops, &program.cleanup] {
            plan::walk(all, "", false, &mut |op, path, raced| {
                for key in keys(op) {
                    ops.insert(format!("{path}{key}"), (op.clone(), raced));
                }
            });
        }
        ops
    }

    /// Whether its step entries are owed: those of a call that was not yet known to be a task may be lost with it.
    fn is_owed(&self) -> bool {
        self.task.plan.tool != plan::Tool::Later || self.task.id().is_some()
    }
}

fn keys(op: &Op) -> Vec<String> {
    match op {
        Op::Ask { keys } => keys.clone(),
        Op::Join { scope, .. } => vec![scope.clone()],
        Op::Step { key, .. }
        | Op::Fails { key, .. }
        | Op::AskUntil { key, .. }
        | Op::Sleep { key, .. }
        | Op::Race { key, .. }
        | Op::Round { key }
        | Op::Leak { key } => vec![key.clone()],
    }
}
