//! What an attempt reads from the journal of its task, and what it writes there under its lease.

use std::{future::pending, sync::Arc};

use outlast_core::{Applied, By, Event, Illegal, Task};
use tokio::time::sleep;

use crate::{
    backoff::Backoff,
    lock,
    run::{Lease, Run},
};

impl Run {
    /// Reads what is new in the journal.
    pub(crate) async fn refresh(&self, lease: &Lease) {
        const PAGE: u64 = 1 << 20;
        // Work that was unloaded here would never come to what it is about to wait for.
        let _busy = self.0.activity.busy();
        let mut backoff = Backoff::default();
        loop {
            let after = lock(&lease.seen).seq;
            match lease.store.journal(lease.id, after, PAGE).await {
                Ok(page) => {
                    if let Some(entry) = page.entries.last() {
                        lease.heard_of(entry.at);
                    }
                    let mut seen = lock(&lease.seen);
                    let heard = seen.answers();
                    page.entries.into_iter().for_each(|entry| seen.take_in(entry));
                    if seen.cancel {
                        self.cancel().cancel();
                    }
                    let news = seen.answers() > heard;
                    drop(seen);
                    if news {
                        // What was read here is no news to a renewal any more, and its hint may be lost.
                        self.notify();
                    }
                    if !page.more {
                        return;
                    }
                }
                Err(error) if error.is_retryable() => sleep(backoff.next()).await,
                Err(_) => match self.let_go().await {},
            }
        }
    }

    /// The last journal entry that this attempt has seen.
    pub(crate) fn seen_seq(lease: &Lease) -> u64 {
        lock(&lease.seen).seq
    }

    /// Writes events under the lease, for as long as that takes. Does not return when the lease is lost or the attempt
    /// unloaded: it is dropped then.
    pub(crate) async fn commit(&self, lease: &Arc<Lease>, events: Vec<Event>) -> Result<Task, Illegal> {
        if self.unload().is_cancelled() {
            return pending().await;
        }
        // From before the lock until the work hears of it: it does not only wait meanwhile.
        let _busy = self.0.activity.busy();
        let writing = lease.writing.begin();
        let (run, held) = (self.clone(), lease.clone());
        // It goes on when the work drops this, and the runtime knows that it does.
        let written = tokio::spawn(async move {
            let _writing = writing;
            let _busy = run.0.activity.busy();
            tokio::select! {
                biased;
                () = run.gone().cancelled() => None,
                written = run.write(&held, events) => written,
            }
        });
        tokio::select! {
            biased;
            () = self.unload().cancelled() => pending().await,
            written = written => match written {
                Ok(Some(written)) => written,
                // It cannot panic, and is aborted only with the process.
                Ok(None) | Err(_) => match self.let_go().await {},
            },
        }
    }

    /// Writes events under the lease, for as long as that takes; `None` when the lease is lost, or the store.
    pub(crate) async fn write(&self, lease: &Lease, events: Vec<Event>) -> Option<Result<Task, Illegal>> {
        let progress = events.iter().any(is_progress);
        // What finished before the call was a task goes first. Writing it twice changes nothing.
        let early = lock(&lease.early).clone();
        let written_early = early.len();
        let events: Vec<_> = early.into_iter().chain(events).collect();
        let mut backoff = Backoff::default();
        loop {
            match lease.store.apply(lease.id, By::Lease(lease.token), events.clone()).await {
                // Others have ended it, and nothing of this was kept: the work must not take it for durable.
                Ok(Applied::Absorbed(task)) if task.is_final() && !events.iter().any(is_end) => return None,
                Ok(Applied::Applied(task) | Applied::Absorbed(task)) => {
                    let mut early = lock(&lease.early);
                    let done = written_early.min(early.len());
                    early.drain(..done);
                    if progress || done > 0 {
                        self.progress().cancel();
                    }
                    return Some(Ok(task));
                }
                Ok(Applied::Illegal(illegal)) => return Some(Err(illegal)),
                Ok(Applied::Fenced | Applied::NotFound) => return None,
                Err(error) if error.is_retryable() => {
                    tracing::warn!(task = ?lease.id, %error, "the store failed; trying again");
                    sleep(backoff.next()).await;
                }
                Err(error) => {
                    tracing::error!(task = ?lease.id, %error, "the store failed for good");
                    return None;
                }
            }
        }
    }

    /// Writes what finished before the call was a task, before its caller is told that it is one.
    pub(crate) async fn write_early(&self, lease: &Lease) {
        if lock(&lease.early).is_empty() {
            return;
        }
        if let Some(Err(illegal)) = self.write(lease, Vec::new()).await {
            lock(&lease.early).clear();
            self.misuse_now(illegal.to_string());
        }
    }
}

/// Whether an event is a sign that work gets on.
fn is_progress(event: &Event) -> bool {
    matches!(event, Event::Ask { .. } | Event::FinishStep { .. } | Event::SetTimer { .. })
}

/// Whether an event is the end of an attempt, which may have been kept when it is sent again.
fn is_end(event: &Event) -> bool {
    matches!(
        event,
        Event::Complete(_)
            | Event::Fail(_)
            | Event::ConfirmCancel
            | Event::PassDeadline
            | Event::Release { .. }
    )
}
