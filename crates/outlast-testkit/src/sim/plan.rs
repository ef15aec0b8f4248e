//! What a seed decides before its run begins: who works, on what, and how badly it goes.

use std::{sync::Arc, time::Duration};

use outlast_core::{Asks, Limits, Owner, Recovery, Spec};

use super::{
    program::{Generator, Program},
    rng::Rng,
};

/// The plan of a run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) processes: usize,
    /// Whether one process has the store to itself.
    pub(super) exclusive: bool,
    pub(super) lease: Duration,
    pub(super) poll_every: Duration,
    pub(super) park_after: Duration,
    pub(super) max_running: usize,
    pub(super) max_loaded: usize,
    pub(super) per_owner: u32,
    pub(super) max_open: u32,
    /// How many hints a process keeps before it sees a gap.
    pub(super) hint_room: usize,
    pub(super) tasks: Vec<TaskPlan>,
    pub(super) faults: Faults,
    /// How often a process is left off in the middle of its work, per thousand.
    pub(super) left_off: u64,
    /// How often a call takes no time at all, per thousand.
    pub(super) instant: u64,
    /// How long a process may be left alone while nothing happens, in milliseconds.
    pub(super) idle: u64,
    /// When faults stop.
    pub(super) calm_at: u64,
    /// How long clients keep their answers back then, to see what waits for nobody.
    pub(super) silence: u64,
    pub(super) disasters: Vec<(u64, Disaster)>,
}

/// A call that a client makes.
#[derive(Debug)]
pub(super) struct TaskPlan {
    pub(super) at: u64,
    pub(super) owner: Owner,
    pub(super) program: Arc<Program>,
    pub(super) spec: Spec,
    /// Whether its client sends an idempotency key.
    pub(super) keyed: bool,
    /// Whether it begins inline, and how long it may go on so.
    pub(super) inline: Option<u64>,
    /// When its client asks for its end.
    pub(super) cancel_at: Option<u64>,
}

/// How often what goes wrong with a store call, per thousand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) before: u64,
    pub(super) lost: u64,
    pub(super) after: u64,
    pub(super) late_effect: u64,
    pub(super) late_answer: u64,
    pub(super) never: u64,
    pub(super) slow: u64,
    pub(super) hint_lost: u64,
    pub(super) hint_twice: u64,
    pub(super) hint_late: u64,
    pub(super) hint_gap: u64,
    /// How often a process that starts dies at one of its first store calls.
    pub(super) trap: u64,
    /// How often a process dies in the middle of a turn, in ten thousand.
    pub(super) death: u64,
    /// Whether a power cut may come, so that answers wait for what is durable.
    pub(super) power: bool,
}

/// Something that befalls more than one call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disaster {
    Crash(usize),
    Drain(usize),
    Stall(usize, u64),
    /// All processes and the store lose what is not synced.
    PowerCut,
    /// The store alone does.
    StoreCrash,
    Outage(u64),
    /// The wall clock of the store is set, by this many milliseconds.
    SetStoreClock(i64),
    SetProcessClock(usize, i64),
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        // Some runs see nothing go wrong, and show what must be so then.
        let sound = rng.chance(100);
        let processes = rng.pick(&[1, 2, 2, 3]);
        let calm_at = if sound { 0 } else { rng.between(3_000, 15_000) };
        let owners = rng.between(1, 2);
        let tasks = (0..rng.between(1, 4)).map(|_| TaskPlan::of(rng, owners)).collect();
        let faults = if sound { Faults::default() } else { Faults::of(rng) };
        let disasters = if sound { Vec::new() } else { disasters(rng, processes, calm_at, faults.power) };
        Self {
            processes,
            exclusive: processes == 1 && rng.chance(500),
            lease: Duration::from_millis(rng.pick(&[1_500, 3_000, 9_000])),
            poll_every: Duration::from_millis(rng.pick(&[500, 1_000, 4_000])),
            park_after: Duration::from_millis(rng.pick(&[0, 300, 1_200, 2_000, 30_000])),
            max_running: rng.pick(&[1, 2, 8]),
            max_loaded: rng.pick(&[1, 3, 100]),
            per_owner: rng.pick(&[1, 2, 32]),
            max_open: rng.pick(&[1, 3, 100, 100]),
            hint_room: rng.pick(&[1, 4, 64]),
            tasks,
            faults,
            left_off: rng.pick(&[0, 100, 400]),
            instant: rng.pick(&[0, 500, 900]),
            idle: rng.pick(&[20, 100, 300]),
            calm_at,
            silence: if rng.chance(200) { 75_000 } else { 0 },
            disasters,
        }
    }
}

impl TaskPlan {
    fn of(rng: &mut Rng, owners: u64) -> Self {
        let program = Arc::new(Generator::new(rng).program());
        let second = |n| Duration::from_secs(n);
        let spec = Spec {
            recovery: if rng.chance(750) { Recovery::Rerun } else { Recovery::Fail },
            ttl: rng.pick(&[None, Some(second(4)), Some(second(30)), Some(second(86_400))]),
            min_retention: rng.pick(&[second(1), second(60)]),
            deadline: if rng.chance(120) { Some(second(rng.between(2, 30))) } else { None },
            max_attempts: rng.pick(&[1, 2, 5, 5]),
            cancel_grace: rng.pick(&[second(1), second(30)]),
            asks: if rng.chance(970) { Asks::all() } else { Asks::none() },
            limits: Limits::default(),
            ..Spec::new(TOOL)
        };
        Self {
            at: rng.below(4_000),
            owner: Owner::new(["ann", "bob"][rng.below(owners) as usize]),
            program,
            spec,
            keyed: rng.chance(500),
            inline: rng.chance(200).then(|| rng.pick(&[0, 50, 1_000])),
            cancel_at: rng.chance(250).then(|| rng.below(12_000)),
        }
    }
}

/// The tool that every task is of.
pub(super) const TOOL: &str = "program";

impl Faults {
    /// Each kind is left out of most runs, so that each meets each other, and none hides another.
    fn of(rng: &mut Rng) -> Self {
        let mut rate = |most: u64| if rng.chance(300) { rng.between(1, most) } else { 0 };
        Self {
            before: rate(150),
            lost: rate(100),
            after: rate(150),
            late_effect: rate(40),
            late_answer: rate(40),
            never: rate(20),
            slow: rate(300),
            hint_lost: rate(900),
            hint_twice: rate(300),
            hint_late: rate(500),
            hint_gap: rate(100),
            trap: rate(800),
            death: rate(40),
            power: rate(3) > 0,
        }
    }
}

fn disasters(rng: &mut Rng, processes: usize, until: u64, power: bool) -> Vec<(u64, Disaster)> {
    let mut all = Vec::new();
    for _ in 0..rng.below(6) {
        let process = rng.below(processes as u64) as usize;
        let disaster = match rng.between(3, 18) {
            3 => Disaster::Drain(process),
            4..=6 => Disaster::Stall(process, rng.between(50, 12_000)),
            7 => Disaster::Outage(rng.between(10, 8_000)),
            8 => Disaster::SetStoreClock(rng.between(0, 7_200_000) as i64 - 3_600_000),
            9 => Disaster::SetProcessClock(process, rng.between(0, 7_200_000) as i64 - 3_600_000),
            10 | 11 if power => Disaster::PowerCut,
            12..=15 if power => Disaster::StoreCrash,
            _ => Disaster::Crash(process),
        };
        all.push((rng.below(until), disaster));
    }
    all
}
