//! What is done with the tasks of a round before the kill: two hundred plans in an order that the seed decides, and
//! after them plans that end, for as long as it takes.

use outlast_testkit::Seed;
use serde::{Deserialize, Serialize};

/// How one task is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) name: PlanName,
    pub(crate) tool: &'static str,
    pub(crate) steps: &'static [Step],
    /// How many of the two hundred.
    count: usize,
}

/// What the client does with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Polls until the task asks under this key.
    SeeAsked(&'static str),
    /// Answers this key.
    Answer(&'static str),
    /// Polls until the task says that it is at work, behind its gate.
    SeeAtWork,
    /// Lets the work through its gate.
    Open,
    Cancel,
    /// Polls until the task is final.
    SeeEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum PlanName {
    Ends,
    EndsWithToolError,
    EndsWithError,
    Panics,
    Works,
    WorksOnce,
    StaysAtWork,
    StaysAtWorkOnce,
    StaysAsking,
    IsAnswered,
    IsAnsweredAndStaysAtWork,
    IsHalfAnswered,
    StaysInFirstRound,
    StaysInSecondRound,
    GoesThroughRounds,
    GoesThroughRoundsAndStaysAtWork,
    IsCancelledWhileAsking,
    IsCancelledAtOnce,
    IsCancelledAndStaysAtWork,
    IsCancelledAndCleansUp,
    IsCancelledAtWorkOnce,
}

impl PlanName {
    pub(crate) fn plan(self) -> Plan {
        *PLANS.iter().find(|plan| plan.name == self).unwrap()
    }
}

/// How many tasks stay at work behind their gates until after the kill, by the table below.
pub(crate) const STAY_AT_WORK: usize = 24;

const PLANS: [Plan; 21] = {
    use PlanName as P;
    use Step::{Answer, Cancel, Open, SeeAsked, SeeAtWork, SeeEnd};
    [
        plan(26, P::Ends, "quick", &[SeeEnd]),
        plan(8, P::EndsWithToolError, "tool_error", &[SeeEnd]),
        plan(8, P::EndsWithError, "fails", &[SeeEnd]),
        plan(4, P::Panics, "panics", &[SeeEnd]),
        plan(36, P::Works, "works", &[SeeAtWork, Open, SeeEnd]),
        plan(14, P::WorksOnce, "works_once", &[SeeAtWork, Open, SeeEnd]),
        plan(5, P::StaysAtWork, "works", &[SeeAtWork]),
        plan(5, P::StaysAtWorkOnce, "works_once", &[SeeAtWork]),
        plan(16, P::StaysAsking, "asks", &[SeeAsked("who")]),
        plan(14, P::IsAnswered, "asks", &[SeeAsked("who"), Answer("who"), SeeEnd]),
        plan(3, P::IsAnsweredAndStaysAtWork, "asks_then_works", &[SeeAsked("who"), Answer("who"), SeeAtWork]),
        plan(8, P::IsHalfAnswered, "asks_two", &[SeeAsked("first"), Answer("second")]),
        plan(10, P::StaysInFirstRound, "rounds", &[SeeAsked("a")]),
        plan(10, P::StaysInSecondRound, "rounds", &[SeeAsked("a"), Answer("a"), SeeAsked("b")]),
        plan(
            8,
            P::GoesThroughRounds,
            "rounds",
            &[SeeAsked("a"), Answer("a"), SeeAsked("b"), Answer("b"), SeeEnd],
        ),
        plan(
            3,
            P::GoesThroughRoundsAndStaysAtWork,
            "rounds_then_work",
            &[SeeAsked("a"), Answer("a"), SeeAsked("b"), Answer("b"), SeeAtWork],
        ),
        plan(8, P::IsCancelledWhileAsking, "asks", &[SeeAsked("who"), Cancel, SeeEnd]),
        plan(6, P::IsCancelledAtOnce, "cleans", &[Cancel, Open, SeeEnd]),
        plan(3, P::IsCancelledAndStaysAtWork, "works", &[SeeAtWork, Cancel]),
        plan(3, P::IsCancelledAndCleansUp, "cleans", &[SeeAtWork, Cancel]),
        plan(2, P::IsCancelledAtWorkOnce, "works_once", &[SeeAtWork, Cancel]),
    ]
};

const fn plan(count: usize, name: PlanName, tool: &'static str, steps: &'static [Step]) -> Plan {
    Plan { name, tool, steps, count }
}

/// The plans of a round, without end.
pub(crate) fn of_seed(seed: &mut Seed) -> impl Iterator<Item = Plan> + use<> {
    let mut deck: Vec<Plan> = PLANS.iter().flat_map(|plan| std::iter::repeat_n(*plan, plan.count)).collect();
    assert_eq!(deck.len(), 200);
    seed.shuffle(&mut deck);
    let that_end: Vec<Plan> =
        deck.iter().filter(|plan| plan.steps.ends_with(&[Step::SeeEnd])).copied().collect();
    let further = that_end.into_iter().cycle();
    deck.into_iter().chain(further)
}
