//! Generated tools: what they do, and what must come out of them.
//!
//! A program is a small tree. What each part of it returns is known from its key alone, or is a fact that the run
//! decides once (which answer was first, who won a race); so its result can be worked out without any runtime.

use std::collections::BTreeMap;

use super::rng::{Rng, digest, mix};

/// What a tool does.
#[derive(Debug, Clone)]
pub(super) enum Op {
    /// A journaled step.
    Step(Step),
    /// Questions that are asked together.
    Ask(Vec<String>),
    /// A question that is waited for until a time.
    AskUntil { key: String, after: u64 },
    /// A durable sleep, in milliseconds, or until an instant that is so far away.
    Sleep { key: String, millis: u64, until: bool },
    /// Branches that go on side by side.
    Join(Vec<Vec<Op>>),
    /// Two branches, of which the first to end counts.
    Race { key: String, first: Vec<Op>, second: Vec<Op> },
    /// A status message.
    Say(String),
    /// Work that is not journaled, in milliseconds.
    Work(u64),
    /// Keeps the task for longer, in milliseconds.
    Extend(u64),
}

/// A journaled step.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) key: String,
    /// How often it fails before it ends.
    pub(super) fails: u32,
    /// How often it is tried.
    pub(super) tries: u32,
    /// Whether it ends with a final error instead of a value.
    pub(super) last_error: bool,
    /// How long each try takes.
    pub(super) takes: u64,
}

impl Step {
    /// Whether it runs out of tries.
    pub(super) fn gives_up(&self) -> bool {
        self.fails >= self.tries
    }
}

/// What a program does once its caller has asked for its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnCancel {
    /// It ends.
    Exit,
    /// It cleans up in one more step, and ends.
    CleanUp,
    /// It fails with an error of its own.
    Error,
    /// It returns a result of its own.
    Result,
}

/// A tool.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) body: Body,
    pub(super) on_cancel: OnCancel,
    /// Whether it ends with an error rather than a result.
    pub(super) fails: bool,
    /// The key that it uses a second time at its end, which no code of a tool is told of.
    pub(super) misuses: Option<String>,
}

/// The form of a tool.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// One that asks where it stands.
    Straight(Vec<Op>),
    /// A multi-round-trip tool: what each round asks, under keys of its own. A round that asks nothing comes back
    /// later.
    Rounds(Vec<Vec<String>>),
}

/// What a run decided about a key, once and for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    /// The answer that counts.
    Answer(u64),
    /// No answer came in time.
    TimedOut,
    /// Who won a race.
    Winner(u8),
    /// Which execution of a step counts.
    Execution(u64),
}

/// How a program ends when nobody cancels it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Value(u64),
    Error(u64),
}

impl Program {
    /// How it must end by these facts; `None` where a fact is missing.
    pub(super) fn evaluate(&self, facts: &BTreeMap<String, Fact>) -> Option<End> {
        let value = match &self.body {
            Body::Straight(ops) => match evaluate(ops, facts)? {
                Ok(value) => value,
                Err(error) => return Some(End::Error(error)),
            },
            Body::Rounds(rounds) => rounds.iter().enumerate().try_fold(START, |value, (number, asked)| {
                asked.iter().try_fold(value, |value, key| match facts.get(&round_key(number, key)) {
                    Some(Fact::Answer(answer)) => Some(mix(value, *answer)),
                    _ => None,
                })
            })?,
        };
        Some(if self.fails { End::Error(value) } else { End::Value(value) })
    }
}

/// The name of the fact about a question of a round.
pub(super) fn round_key(round: usize, own: &str) -> String {
    format!("{round}:{own}")
}

/// Where the value of every sequence begins.
pub(super) const START: u64 = 1;

/// What a step's value is, apart from which execution of it counts.
pub(super) fn step_value(key: &str) -> u64 {
    mix(digest(key), 1)
}

/// What a step's final error, or the error by which it gave up, is.
pub(super) fn step_error(key: &str) -> u64 {
    mix(digest(key), 2)
}

/// What a sleep adds to the value.
pub(super) fn slept(key: &str) -> u64 {
    mix(digest(key), 3)
}

/// What a question that nobody answered in time adds to the value.
pub(super) fn timed_out(key: &str) -> u64 {
    mix(digest(key), 4)
}

type Value = Result<u64, u64>;

fn evaluate(ops: &[Op], facts: &BTreeMap<String, Fact>) -> Option<Value> {
    let mut value = START;
    for op in ops {
        let next = match op {
            Op::Step(step) if step.gives_up() => return Some(Err(step_error(&step.key))),
            Op::Step(step) if step.last_error => step_error(&step.key),
            Op::Step(step) => step_value(&step.key),
            Op::Ask(keys) => keys.iter().try_fold(0, |value, key| match facts.get(key) {
                Some(Fact::Answer(answer)) => Some(mix(value, *answer)),
                _ => None,
            })?,
            Op::AskUntil { key, .. } => match facts.get(key)? {
                Fact::Answer(answer) => *answer,
                Fact::TimedOut => timed_out(key),
                _ => return None,
            },
            Op::Sleep { key, .. } => slept(key),
            Op::Join(branches) => {
                // Every branch is waited for; the first error in their order counts.
                let values: Option<Vec<Value>> =
                    branches.iter().map(|branch| evaluate(branch, facts)).collect();
                match joined(values?) {
                    Ok(value) => value,
                    Err(error) => return Some(Err(error)),
                }
            }
            Op::Race { key, first, second } => {
                let Some(Fact::Winner(winner)) = facts.get(key) else { return None };
                match evaluate(if *winner == 0 { first } else { second }, facts)? {
                    Ok(value) => mix(value, u64::from(*winner)),
                    Err(error) => return Some(Err(error)),
                }
            }
            Op::Say(_) | Op::Work(_) | Op::Extend(_) => continue,
        };
        value = mix(value, next);
    }
    Some(Ok(value))
}

/// The value of branches that were all waited for.
pub(super) fn joined(values: Vec<Value>) -> Value {
    values.into_iter().try_fold(0, |all, value| Ok(mix(all, value?)))
}

/// Makes programs.
pub(super) struct Generator<'a> {
    pub(super) rng: &'a mut Rng,
    keys: u32,
    /// How many more parts the program may have.
    room: u32,
}

impl<'a> Generator<'a> {
    pub(super) fn new(rng: &'a mut Rng) -> Self {
        Self { rng, keys: 0, room: 12 }
    }

    pub(super) fn program(mut self) -> Program {
        let body = if self.rng.chance(150) { self.rounds() } else { Body::Straight(self.ops(0)) };
        let on_cancel = self.rng.pick(&[
            OnCancel::Exit,
            OnCancel::CleanUp,
            OnCancel::CleanUp,
            OnCancel::Error,
            OnCancel::Result,
        ]);
        let misuses = match &body {
            Body::Straight(ops) if self.rng.chance(40) => ops.iter().find_map(|op| match op {
                Op::Step(step) if !step.gives_up() => Some(step.key.clone()),
                Op::Sleep { key, .. } | Op::Race { key, .. } => Some(key.clone()),
                _ => None,
            }),
            _ => None,
        };
        Program { body, on_cancel, fails: self.rng.chance(100), misuses }
    }

    fn rounds(&mut self) -> Body {
        let rounds = self.rng.between(1, 3);
        let asked = (0..rounds).map(|_| {
            // The same keys in each round, as such tools have it.
            ["name", "colour"].iter().take(self.rng.below(3) as usize).map(ToString::to_string).collect()
        });
        Body::Rounds(asked.collect())
    }

    fn key(&mut self, of: &str) -> String {
        self.keys += 1;
        format!("{of}{}", self.keys)
    }

    fn ops(&mut self, depth: u32) -> Vec<Op> {
        let many = self.rng.between(1, if depth == 0 { 5 } else { 2 });
        (0..many).map_while(|_| self.op(depth)).collect()
    }

    fn op(&mut self, depth: u32) -> Option<Op> {
        self.room = self.room.checked_sub(1)?;
        let nests = depth < 2 && self.room > 2;
        Some(match self.rng.below(20) {
            0..=6 => Op::Step(self.step()),
            7..=9 => Op::Ask((0..self.rng.between(1, 2)).map(|_| self.key("ask")).collect()),
            10 | 11 => Op::AskUntil { key: self.key("until"), after: self.millis() },
            12 | 13 => {
                Op::Sleep { key: self.key("sleep"), millis: self.millis(), until: self.rng.chance(250) }
            }
            14 | 15 if nests => Op::Join((0..self.rng.between(2, 3)).map(|_| self.ops(depth + 1)).collect()),
            16 | 17 if nests => {
                Op::Race { key: self.key("race"), first: self.ops(depth + 1), second: self.ops(depth + 1) }
            }
            18 => Op::Say(self.key("now at ")),
            19 if self.rng.chance(300) => Op::Extend(self.rng.between(1_000, 60_000)),
            _ => Op::Work(self.rng.between(1, 400)),
        })
    }

    fn step(&mut self) -> Step {
        let fails = if self.rng.chance(250) { self.rng.between(1, 2) as u32 } else { 0 };
        let tries = if self.rng.chance(100) { fails.max(1) } else { fails + 1 };
        Step {
            key: self.key("step"),
            fails,
            tries,
            last_error: self.rng.chance(120),
            takes: if self.rng.chance(500) { 0 } else { self.rng.between(1, 300) },
        }
    }

    /// A time that is short, middling or long against leases and parking.
    fn millis(&mut self) -> u64 {
        match self.rng.below(10) {
            0..=4 => self.rng.between(1, 500),
            5..=8 => self.rng.between(500, 6_000),
            _ => self.rng.between(6_000, 60_000),
        }
    }
}
