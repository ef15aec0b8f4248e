//! What the tasks of a run do, and what is done with them: programs that a seed decides, whose values follow from their
//! keys alone.

use outlast_testkit::Seed;
use serde::{Deserialize, Serialize};

/// A task of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Names the task in the side file and in the store. No two tasks of a run have the same.
    pub(crate) marker: String,
    pub(crate) tool: Tool,
    pub(crate) owner: usize,
    pub(crate) program: Program,
    /// How long a question is looked at before it is answered, in milliseconds; `None` until no more kills come.
    pub(crate) think: Option<u64>,
    pub(crate) cancel: Option<Cancel>,
}

/// When the caller asks for the end of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Cancel {
    /// As soon as the task is there.
    AtOnce,
    /// This long after it was created, in milliseconds.
    After(u64),
    /// Instead of the first answer.
    WhenAsked,
}

/// The tools of the server that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tool {
    /// Runs again after a crash.
    Works,
    /// Must not run twice.
    Once,
    /// Asks in rounds, without a future that waits.
    Rounds,
    /// Begins inline and becomes a task when it takes too long. Its calls have no idempotency key.
    Later,
}

impl Tool {
    pub(crate) const ALL: [Self; 4] = [Self::Works, Self::Once, Self::Rounds, Self::Later];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Once => "once",
            Self::Rounds => "rounds",
            Self::Later => "later",
        }
    }
}

/// What a tool does, one after the other, and how it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) ops: Vec<Op>,
    /// The steps that are taken when the work hears that it was cancelled.
    pub(crate) cleanup: Vec<Op>,
    pub(crate) end: End,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// A step that takes so long, with an effect outside, and fails so often before it ends well.
    Step {
        key: String,
        millis: u64,
        fails: u32,
    },
    /// A step that ends with an error of its own that is final.
    Fails {
        key: String,
        millis: u64,
    },
    /// Asks all of these at once.
    Ask {
        keys: Vec<String>,
    },
    AskUntil {
        key: String,
        millis: u64,
    },
    Sleep {
        key: String,
        millis: u64,
    },
    Race {
        key: String,
        first: Vec<Self>,
        second: Vec<Self>,
    },
    /// All rows at once, each in a scope of its own.
    Join {
        scope: String,
        rows: Vec<Vec<Self>>,
    },
    /// Asks by ending the round ([`Tool::Rounds`] alone).
    Round {
        key: String,
    },
    /// Leaves a child behind that tries to write once the attempt is over.
    Leak {
        key: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// With what it was told, and so many bytes of padding.
    Value {
        pad: usize,
    },
    ToolError,
    Error,
    Panic,
}

/// What the step of this key returns, always, but for who says so: the low half is free for a [`signed`] value.
pub(crate) fn value(marker: &str, key: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in marker.bytes().chain([0]).chain(key.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Seed(hash).number() & !SIGNATURE
}

const SIGNATURE: u64 = 0xffff_ffff;

/// Whose word a value is: the process and the attempt that ran its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Signature {
    pub(crate) process: u64,
    pub(crate) attempt: u64,
}

impl Signature {
    pub(crate) fn of(signed: u64) -> Self {
        Self { process: (signed >> 24) & 0xff, attempt: signed & 0xff_ffff }
    }

    pub(crate) fn bits(self) -> u64 {
        (self.process & 0xff) << 24 | self.attempt & 0xff_ffff
    }
}

/// What the step of this key returns when this attempt ran it.
pub(crate) fn signed(marker: &str, key: &str, by: Signature) -> u64 {
    value(marker, key) | by.bits()
}

/// The value alone, whoever it was that returned it.
pub(crate) fn unsigned(signed: u64) -> u64 {
    signed & !SIGNATURE
}

/// The text of a question, by which it is known again.
pub(crate) fn question(marker: &str, key: &str) -> String {
    format!("{marker}: {key}?")
}

/// The key that the work knows a question by; a later attempt may have had to ask it again under another one.
pub(crate) fn own_key(shown: &str) -> &str {
    let again = shown.strip_prefix("outlast:").and_then(|rest| rest.split_once(':'));
    again.map_or(shown, |(_, own)| own)
}

/// The prefix of the keys of one row.
pub(crate) fn row(path: &str, scope: &str, row: usize) -> String {
    format!("{path}{scope}[{row}]/")
}

/// The text of padding that a result carries, so that it is several pages long.
pub(crate) fn padding(marker: &str, bytes: usize) -> String {
    marker.chars().cycle().take(bytes).collect()
}

/// The callers among whom the tasks are shared out.
pub(crate) const OWNERS: usize = 3;

impl Plan {
    /// The task of this number.
    pub(crate) fn new(seed: &mut Seed, marker: String, number: usize) -> Self {
        use Tool as T;
        let tool =
            seed.pick(&[T::Works, T::Works, T::Works, T::Works, T::Works, T::Once, T::Rounds, T::Later]);
        let mut keys = Keys(0);
        let ops = (0..seed.between(1, 5)).map(|_| keys.op(seed, tool, 0)).collect();
        let cleanup = (0..seed.below(3)).map(|_| keys.cleanup(seed)).collect();
        let end = match seed.below(12) {
            0 => End::ToolError,
            1 => End::Error,
            2 => End::Panic,
            3 => End::Value { pad: 20_000 },
            _ => End::Value { pad: 0 },
        };
        let cancel = match seed.below(16) {
            0 => Some(Cancel::AtOnce),
            1 => Some(Cancel::After(seed.between(1, 400))),
            2 => Some(Cancel::WhenAsked),
            _ => None,
        };
        let think = (!seed.one_in(6)).then(|| seed.below(300));
        let program = Program { ops, cleanup, end };
        Self { marker, tool, owner: number % OWNERS, program, think, cancel }
    }
}

/// Keys that occur once in their program.
struct Keys(u32);

impl Keys {
    fn key(&mut self, name: &str) -> String {
        self.0 += 1;
        format!("{name}{}", self.0)
    }

    fn step(&mut self, seed: &mut Seed) -> Op {
        let fails = if seed.one_in(6) { seed.between(1, 2) as u32 } else { 0 };
        Op::Step { key: self.key("step"), millis: seed.below(15), fails }
    }

    /// It is tried once: a cancel ends the pauses between the tries.
    fn cleanup(&mut self, seed: &mut Seed) -> Op {
        Op::Step { key: self.key("cleanup"), millis: seed.below(15), fails: 0 }
    }

    fn op(&mut self, seed: &mut Seed, tool: Tool, depth: u32) -> Op {
        match tool {
            // It must not wait for anybody: a call whose answer is lost has nobody who would answer it.
            Tool::Later => match seed.below(4) {
                0 => self.sleep(seed),
                1 if depth == 0 => self.join(seed, tool, depth),
                _ => self.step(seed),
            },
            Tool::Once => match seed.below(4) {
                0 if depth == 0 => self.join(seed, tool, depth),
                _ => self.step(seed),
            },
            Tool::Rounds => match seed.below(4) {
                0 => self.sleep(seed),
                1 | 2 => Op::Round { key: self.key("round") },
                _ => self.step(seed),
            },
            Tool::Works => match seed.below(20) {
                0 => Op::Fails { key: self.key("fails"), millis: seed.below(10) },
                1..=3 => Op::Ask { keys: vec![self.key("ask")] },
                4 => Op::Ask { keys: (0..seed.between(2, 3)).map(|_| self.key("ask")).collect() },
                5 | 6 => Op::AskUntil { key: self.key("until"), millis: seed.between(20, 600) },
                7 | 8 => self.sleep(seed),
                9 if depth == 0 => Op::Leak { key: self.key("leak") },
                10 | 11 if depth < 2 => Op::Race {
                    key: self.key("race"),
                    first: self.ops(seed, tool, depth + 1),
                    second: self.ops(seed, tool, depth + 1),
                },
                12 | 13 if depth < 2 => self.join(seed, tool, depth),
                _ => self.step(seed),
            },
        }
    }

    fn ops(&mut self, seed: &mut Seed, tool: Tool, depth: u32) -> Vec<Op> {
        (0..seed.between(1, 2)).map(|_| self.op(seed, tool, depth)).collect()
    }

    fn sleep(&mut self, seed: &mut Seed) -> Op {
        Op::Sleep { key: self.key("sleep"), millis: seed.between(5, 400) }
    }

    fn join(&mut self, seed: &mut Seed, tool: Tool, depth: u32) -> Op {
        let scope = self.key("row");
        let rows = (0..seed.between(2, 4)).map(|_| self.ops(seed, tool, depth + 1)).collect();
        Op::Join { scope, rows }
    }
}

/// Calls `see` with every operation of `ops`, the prefix of its keys, and whether it may be dropped before it ends.
pub(crate) fn walk(ops: &[Op], path: &str, raced: bool, see: &mut dyn FnMut(&Op, &str, bool)) {
    for op in ops {
        see(op, path, raced);
        match op {
            Op::Race { first, second, .. } => {
                walk(first, path, true, see);
                walk(second, path, true, see);
            }
            Op::Join { scope, rows } => {
                for (number, ops) in rows.iter().enumerate() {
                    walk(ops, &row(path, scope, number), raced, see);
                }
            }
            _ => {}
        }
    }
}
