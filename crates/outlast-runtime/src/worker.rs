//! The worker: claims what is ready, runs it, and writes how it ended.

use std::time::Duration;

use outlast_core::{By, ClaimRequest, Claimed, Event, Filter, Status, StoreError};
use tokio::time::sleep;

use crate::{Runtime, backoff::Backoff, lock, run::Run, spans};

impl Runtime {
    /// Claims until nothing is ready or no slot is free, then waits for a hint.
    pub(crate) async fn claim_loop(&self, recovered: tokio_util::sync::CancellationToken) {
        let mut backoff = Backoff::default();
        // A claim whose answer was lost may have leased tasks to this worker.
        let mut undelivered = false;
        loop {
            match self.claim_ready(&mut undelivered).await {
                Ok(()) => {
                    backoff = Backoff::default();
                    recovered.cancel();
                    tokio::select! {
                        biased;
                        () = self.0.draining.cancelled() => return,
                        () = self.0.slots.work() => {}
                        () = sleep(self.0.config.poll_every) => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "no work can be claimed");
                    tokio::select! {
                        biased;
                        () = self.0.draining.cancelled() => return,
                        () = sleep(backoff.next()) => {}
                    }
                }
            }
        }
    }

    async fn claim_ready(&self, undelivered: &mut bool) -> Result<(), StoreError> {
        if *undelivered {
            self.give_back_undelivered().await?;
            *undelivered = false;
        }
        loop {
            let (loaded, running) = self.loaded();
            let beginning = lock(&self.0.beginning).len();
            let room = (self.0.config.max_running.saturating_sub(running + beginning))
                .min(self.0.config.max_loaded.saturating_sub(loaded));
            if room == 0 || self.is_holding() || self.0.draining.is_cancelled() {
                return Ok(());
            }
            // A claim would take over this worker's own work, which is alive: the renewals come first.
            if self.has_overdue_lease() {
                return Ok(());
            }
            let max = u32::try_from(room).unwrap_or(u32::MAX);
            let before = self.0.config.clock.monotonic();
            let request = ClaimRequest {
                worker: self.0.worker.clone(),
                serves: lock(&self.0.serves).iter().cloned().collect(),
                per_owner: self.0.config.max_running_per_owner,
                lease: self.0.config.lease,
                max,
            };
            let claimed = self.0.store.claim(request).await;
            *undelivered = matches!(claimed, Err(StoreError::Unknown(_)));
            let claimed = claimed?;
            let count = claimed.len();
            for claimed in claimed {
                self.take_up(claimed, before).await;
            }
            if count < room {
                self.0.backlog.store(false, std::sync::atomic::Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    /// Gives back what a claim leased to this worker without telling it: no code of it ran, and left alone it would be
    /// taken for work that its process lost. Work that began and was dropped looks the same, and is told apart.
    async fn give_back_undelivered(&self) -> Result<(), StoreError> {
        const PAGE: u32 = 200;
        for status in [Status::Working, Status::InputRequired] {
            let mut after = None;
            loop {
                let filter = Filter { status: Some(status), ..Filter::default() };
                let page = self.0.store.list(filter, after, PAGE).await?;
                for task in page.tasks {
                    let ours = task.lease().is_some_and(|lease| lease.worker == self.0.worker);
                    // A claim is journaled. A task that was leased at its creation may be on its way to being loaded,
                    // and has no entry yet but a cancel.
                    let claimed = task.seq > 0 && !task.cancel_requested();
                    if ours && claimed && !lock(&self.0.loaded).contains_key(&task.id) {
                        let began = lock(&self.0.let_go).get(&task.id) == Some(&task.token);
                        let give_back = vec![Event::Release { began }];
                        self.0.store.apply(task.id, By::Lease(task.token), give_back).await?;
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        // All of it is given back now.
        lock(&self.0.let_go).clear();
        Ok(())
    }

    async fn take_up(&self, claimed: Claimed, leased_at: Duration) {
        let Claimed { task, call, .. } = claimed;
        let _claim = spans::claim(&task);
        let run = Run::inline(task.origin.unwrap_or(task.id), task.spec.asks);
        run.set_in_line(task.is_suspect());
        let lease = run.bind(&task, &self.0, leased_at);
        if !self.load(&lease, &run) {
            return self.turn_away(&run, &lease, false).await;
        }
        let runtime = self.clone();
        self.0.tracker.spawn(async move {
            if run.is_in_line() {
                runtime.drive_alone(task, call, run).await;
            } else {
                runtime.drive(task, call, run).await;
            }
        });
    }
}
