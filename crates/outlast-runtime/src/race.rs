//! Races whose winner is journaled, so that every later attempt takes the same branch.

use std::{future::poll_fn, task::Poll, time::Duration};

use outlast_core::{EntryKind, Outcome, Payload, StepKey};

use crate::{
    lock,
    run::Run,
    wait::{other_kind, used_twice},
};

/// Which of two things came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raced<A, B> {
    /// The first.
    First(A),
    /// The second.
    Second(B),
}

impl Run {
    /// Runs both until one is over, journals which one that was, and drops the other: its unfinished steps free their
    /// keys, and its questions are taken back. A later attempt runs the winner alone.
    pub async fn race<A: Future, B: Future>(
        &self,
        key: StepKey,
        first: A,
        second: B,
    ) -> Raced<A::Output, B::Output> {
        self.unless_revoked().await;
        let Some(mut used) = self.use_key(&key) else { match self.misuse(used_twice(&key)).await {} };
        let lease = self.become_task().await;
        if lock(&self.0.doubtful).remove(&key) {
            drop(lease.writing.write().await);
        }
        let (kind, winner) = {
            let seen = lock(&lease.seen);
            (seen.kind(&key), seen.step(&key).cloned())
        };
        match (kind, winner) {
            (Some(EntryKind::Step), Some(Outcome::Value(winner))) if winner == name(Winner::First) => {
                drop(second);
                used.keep();
                return Raced::First(first.await);
            }
            (Some(EntryKind::Step), Some(Outcome::Value(winner))) if winner == name(Winner::Second) => {
                drop(first);
                used.keep();
                return Raced::Second(second.await);
            }
            (Some(kind), _) => match self.misuse(other_kind(&key, kind, "race")).await {},
            (None, _) => {}
        }
        let began = lease.monotonic();
        let mut first = std::pin::pin!(first);
        let mut second = std::pin::pin!(second);
        let raced = race(first.as_mut(), second.as_mut()).await;
        let winner = match &raced {
            Raced::First(_) => Winner::First,
            Raced::Second(_) => Winner::Second,
        };
        // Before the loser is dropped, and with it what it asked: a crash in between would let it race again.
        let took: Duration = lease.monotonic().saturating_sub(began);
        self.journal_step(&key, Outcome::Value(name(winner)), took, 1).await;
        used.keep();
        raced
    }
}

/// Runs both until one is over. Where both are, the first wins.
pub async fn race<A: Future, B: Future>(first: A, second: B) -> Raced<A::Output, B::Output> {
    let mut first = std::pin::pin!(first);
    let mut second = std::pin::pin!(second);
    poll_fn(|context| {
        if let Poll::Ready(result) = first.as_mut().poll(context) {
            return Poll::Ready(Raced::First(result));
        }
        second.as_mut().poll(context).map(Raced::Second)
    })
    .await
}

#[derive(Clone, Copy)]
enum Winner {
    First,
    Second,
}

fn name(winner: Winner) -> Payload {
    let text = match winner {
        Winner::First => "first",
        Winner::Second => "second",
    };
    Payload::from_value(&text.into())
}
