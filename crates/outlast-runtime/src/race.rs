//! Races whose winner is journaled, so that every later attempt takes the same branch.

use std::{
    cell::RefCell,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use outlast_core::{EntryKind, InputKey, Outcome, Payload, StepKey};

use crate::{
    clock::Stopwatch,
    lock,
    run::{Run, answer},
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
            lease.writing.settled().await;
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
        let began = Stopwatch::start();
        let mut first = std::pin::pin!(Branch::new(first));
        let mut second = std::pin::pin!(Branch::new(second));
        let raced = race(first.as_mut(), second.as_mut()).await;
        let (winner, mut unwanted) = match &raced {
            Raced::First(_) => (Winner::First, second.asked()),
            Raced::Second(_) => (Winner::Second, first.asked()),
        };
        unwanted.retain(|key| answer(&lease, key).is_none());
        // Before the loser is dropped, and in one write with the end of its questions: a crash in between would let it race
        // again, or leave a question that nobody wants.
        self.journal_step(&key, Outcome::Value(name(winner)), began.elapsed(), 1, unwanted).await;
        used.keep();
        raced
    }
}

thread_local! {
    /// What is asked while a branch is polled, of the innermost race last.
    static ASKED: RefCell<Vec<Vec<InputKey>>> = const { RefCell::new(Vec::new()) };
}

/// The work asks these now; a race that it is in will take them back where it loses.
pub(crate) fn asks(keys: &[InputKey]) {
    ASKED.with_borrow_mut(|races| {
        if let Some(innermost) = races.last_mut() {
            innermost.extend_from_slice(keys);
        }
    });
}

pin_project_lite::pin_project! {
    /// One of the two, and what it asked so far.
    struct Branch<F> {
        #[pin]
        work: F,
        asked: Vec<InputKey>,
    }
}

impl<F> Branch<F> {
    fn new(work: F) -> Self {
        Self { work, asked: Vec::new() }
    }

    fn asked(&self) -> Vec<InputKey> {
        self.asked.clone()
    }
}

impl<F: Future> Future for Branch<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        /// Takes what was asked, also where the work panics.
        struct Listening<'a>(&'a mut Vec<InputKey>);
        impl Drop for Listening<'_> {
            fn drop(&mut self) {
                let asked = ASKED.with_borrow_mut(Vec::pop).unwrap_or_default();
                // A race around this one takes it back too.
                asks(&asked);
                self.0.extend(asked);
            }
        }
        let this = self.project();
        ASKED.with_borrow_mut(|races| races.push(Vec::new()));
        let _listening = Listening(this.asked);
        this.work.poll(context)
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
