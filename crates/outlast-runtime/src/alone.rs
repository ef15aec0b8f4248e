//! Suspects: tasks whose process died twice while they ran. They run alone, so that the next crash is theirs and no
//! neighbour's.

use std::{future::pending, sync::atomic::Ordering};

use outlast_core::{Call, Event, Task};
use tokio::time::{sleep, timeout};

use crate::{Run, Runtime, drive::deadline};

/// For how many leases a worker goes on as usual when it could not be emptied for a suspect in one, and for how many a
/// suspect runs alone at the most: one that hangs must not keep everything else from beginning.
const PATIENCE: u32 = 10;

impl Runtime {
    /// Whether nothing new begins here for now.
    pub(crate) fn is_holding(&self) -> bool {
        self.0.holding.load(Ordering::Relaxed)
    }

    fn hold(&self, holding: bool) {
        self.0.holding.store(holding, Ordering::Relaxed);
        self.0.slots.changed();
    }

    /// Runs a suspect alone until it ends, parks, gets on (then it is none any more), or has run for long enough. Suspects
    /// take turns.
    pub(crate) async fn drive_alone(&self, task: Task, call: Call, run: Run) {
        let Some(lease) = run.lease().cloned() else { return };
        let alone = tokio::select! {
            biased;
            () = run.gone().cancelled() => None,
            // It has done harm enough: nothing of it runs only to be told to stop.
            () = run.cancel().cancelled() => {
                let _ = run.write(&lease, vec![Event::ConfirmCancel]).await;
                None
            }
            // Nobody else looks after that while it is leased.
            () = deadline(&task, &lease) => {
                let _ = run.write(&lease, vec![Event::PassDeadline]).await;
                None
            }
            alone = self.alone() => Some(alone),
        };
        // Whoever holds the lease now, or ends it, judges by this whose crash it was.
        let marked = match &alone {
            Some(_) => run.write(&lease, vec![Event::RunAlone]).await.is_some(),
            None => false,
        };
        if !marked {
            return self.forget(&run, &lease, true);
        }
        run.set_in_line(false);
        run.park_soon().cancel();
        let suspect = run.clone();
        let mut drive = std::pin::pin!(self.drive(task, call, run));
        let beside = async {
            tokio::select! {
                biased;
                () = suspect.progress().cancelled() => {}
                () = sleep(self.0.config.lease * PATIENCE) => {
                    // Before others begin, whose crash would be put down to it.
                    suspect.write(&lease, vec![Event::RunBeside]).await;
                }
            }
        };
        let over = tokio::select! {
            biased;
            () = &mut drive => true,
            () = beside => false,
        };
        drop(alone);
        if !over {
            drive.await;
        }
    }

    /// The turn of one suspect, once nothing else runs here.
    async fn alone(&self) -> Alone<'_> {
        let turn = Alone { runtime: self, _turn: self.0.alone.lock().await };
        self.empty().await;
        if self.is_draining() {
            // What was in its way made room because the process stops: it begins in the next one.
            pending::<()>().await;
        }
        turn
    }

    /// Waits until nothing else runs here. Nothing new begins meanwhile; where that does not help in one lease, the others
    /// go on as usual for a while before it is tried again.
    async fn empty(&self) {
        let lease = self.0.config.lease;
        loop {
            self.hold(true);
            self.park_those_that_wait();
            let empty = self.0.slots.until(|| self.runs_nothing());
            if timeout(lease, empty).await.is_ok() {
                return;
            }
            self.hold(false);
            sleep(lease * PATIENCE).await;
        }
    }
}

/// A suspect's turn: until it is dropped nothing new begins.
struct Alone<'a> {
    runtime: &'a Runtime,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.runtime.hold(false);
    }
}
