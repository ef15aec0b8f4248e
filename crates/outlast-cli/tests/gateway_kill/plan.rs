//! What is done with the calls of a round before the kill: two hundred plans in an order that the seed decides, and after
//! them plans that end, for as long as it takes.

use outlast_testkit::Seed;
use serde::{Deserialize, Serialize};

/// How one call is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) name: PlanName,
    pub(crate) upstream: Kind,
    pub(crate) tool: &'static str,
    pub(crate) steps: &'static [Step],
    /// How many of the two hundred.
    count: usize,
}

/// What stands behind the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Knows nothing of tasks, and lives on.
    Plain,
    /// Knows nothing of tasks, and dies with the gateway.
    Piped,
    /// Has tasks of its own, and lives on.
    Tasks,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Piped => "piped",
            Self::Tasks => "tasks",
        }
    }
}

/// What the client does with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Polls until the task asks.
    SeeAsked,
    /// Answers what it asks.
    Answer,
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
    EndsInPipe,
    EndsAsTask,
    FailsAsTask,
    Works,
    WorksOnce,
    WorksOnceForLong,
    WorksInPipe,
    WorksOnceInPipe,
    WorksAsTask,
    StaysAtWork,
    StaysAtWorkOnce,
    StaysAtWorkOnceForLong,
    StaysAtWorkInPipe,
    StaysAtWorkOnceInPipe,
    StaysAtWorkAsTask,
    StaysAtWorkOnceAsTask,
    StaysAsking,
    StaysAskingOnce,
    StaysAskingAsTask,
    IsAnswered,
    IsAnsweredOnce,
    IsAnsweredAsTask,
    IsAnsweredAndStaysAtWork,
    IsAnsweredAndStaysAtWorkAsTask,
    IsCancelled,
    IsCancelledOnce,
    IsCancelledAtOnce,
    IsCancelledWhileAsking,
    IsCancelledWhileAskingAsTask,
    IsCancelledAtWork,
    IsCancelledAtWorkOnce,
    IsCancelledAndCleansUpAsTask,
    IsHeld,
    IsHeldOnce,
}

impl PlanName {
    pub(crate) fn plan(self) -> Plan {
        *PLANS.iter().find(|plan| plan.name == self).unwrap()
    }
}

impl Plan {
    /// Whether its caller knows nothing of tasks.
    pub(crate) fn is_held(self) -> bool {
        matches!(self.name, PlanName::IsHeld | PlanName::IsHeldOnce)
    }

    /// Whether its call may be made once only, and nobody but the gateway knows whether it was made.
    pub(crate) fn is_once(self) -> bool {
        self.tool.ends_with("once") && self.upstream != Kind::Tasks
    }
}

const PLANS: [Plan; 37] = {
    use Kind::{Piped, Plain, Tasks};
    use PlanName as P;
    use Step::{Answer, Cancel, Open, SeeAsked, SeeAtWork, SeeEnd};
    [
        plan(14, P::Ends, Plain, "quick", &[SeeEnd]),
        plan(5, P::EndsWithToolError, Plain, "tool_error", &[SeeEnd]),
        plan(5, P::EndsWithError, Plain, "fails", &[SeeEnd]),
        plan(6, P::EndsInPipe, Piped, "quick", &[SeeEnd]),
        plan(6, P::EndsAsTask, Tasks, "quick", &[SeeEnd]),
        plan(4, P::FailsAsTask, Tasks, "fails", &[SeeEnd]),
        plan(14, P::Works, Plain, "works", &[SeeAtWork, Open, SeeEnd]),
        plan(8, P::WorksOnce, Plain, "works_once", &[SeeAtWork, Open, SeeEnd]),
        plan(3, P::WorksOnceForLong, Plain, "late_once", &[SeeAtWork, Open, SeeEnd]),
        plan(5, P::WorksInPipe, Piped, "works", &[SeeAtWork, Open, SeeEnd]),
        plan(5, P::WorksOnceInPipe, Piped, "works_once", &[SeeAtWork, Open, SeeEnd]),
        plan(14, P::WorksAsTask, Tasks, "works", &[SeeAtWork, Open, SeeEnd]),
        plan(5, P::StaysAtWork, Plain, "works", &[SeeAtWork]),
        plan(5, P::StaysAtWorkOnce, Plain, "works_once", &[SeeAtWork]),
        plan(3, P::StaysAtWorkOnceForLong, Plain, "late_once", &[SeeAtWork]),
        plan(3, P::StaysAtWorkInPipe, Piped, "works", &[SeeAtWork]),
        plan(3, P::StaysAtWorkOnceInPipe, Piped, "works_once", &[SeeAtWork]),
        plan(5, P::StaysAtWorkAsTask, Tasks, "works", &[SeeAtWork]),
        plan(3, P::StaysAtWorkOnceAsTask, Tasks, "works_once", &[SeeAtWork]),
        plan(8, P::StaysAsking, Plain, "asks", &[SeeAsked]),
        plan(5, P::StaysAskingOnce, Plain, "asks_once", &[SeeAsked]),
        plan(8, P::StaysAskingAsTask, Tasks, "asks", &[SeeAsked]),
        plan(8, P::IsAnswered, Plain, "asks", &[SeeAsked, Answer, SeeEnd]),
        plan(5, P::IsAnsweredOnce, Plain, "asks_once", &[SeeAsked, Answer, SeeEnd]),
        plan(8, P::IsAnsweredAsTask, Tasks, "asks", &[SeeAsked, Answer, SeeEnd]),
        plan(3, P::IsAnsweredAndStaysAtWork, Plain, "asks_then_works", &[SeeAsked, Answer, SeeAtWork]),
        plan(3, P::IsAnsweredAndStaysAtWorkAsTask, Tasks, "asks_then_works", &[SeeAsked, Answer, SeeAtWork]),
        plan(4, P::IsCancelled, Plain, "works", &[SeeAtWork, Cancel, SeeEnd]),
        plan(4, P::IsCancelledOnce, Plain, "works_once", &[SeeAtWork, Cancel, SeeEnd]),
        plan(4, P::IsCancelledAtOnce, Plain, "works", &[Cancel, SeeEnd]),
        plan(3, P::IsCancelledWhileAsking, Plain, "asks", &[SeeAsked, Cancel, SeeEnd]),
        plan(4, P::IsCancelledWhileAskingAsTask, Tasks, "asks", &[SeeAsked, Cancel, SeeEnd]),
        plan(4, P::IsCancelledAtWork, Plain, "works", &[SeeAtWork, Cancel]),
        plan(4, P::IsCancelledAtWorkOnce, Plain, "works_once", &[SeeAtWork, Cancel]),
        plan(3, P::IsCancelledAndCleansUpAsTask, Tasks, "cleans", &[SeeAtWork, Cancel]),
        plan(3, P::IsHeld, Tasks, "works", &[]),
        plan(3, P::IsHeldOnce, Plain, "works_once", &[]),
    ]
};

const fn plan(
    count: usize,
    name: PlanName,
    upstream: Kind,
    tool: &'static str,
    steps: &'static [Step],
) -> Plan {
    Plan { name, upstream, tool, steps, count }
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
