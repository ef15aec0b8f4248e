//! The worker: claims what is ready, runs it, and writes how it ended.

use outlast_core::{ClaimRequest, Claimed};
use tokio::time::sleep;

use super::{Runtime, backoff::Backoff, lock, run::Run};

impl Runtime {
    /// Claims until nothing is ready or no slot is free, then waits for a hint.
    pub(super) async fn claim_loop(&self, recovered: tokio_util::sync::CancellationToken) {
        let mut backoff = Backoff::default();
        loop {
            match self.claim_ready().await {
                Ok(()) => {
                    backoff = Backoff::default();
                    recovered.cancel();
                    tokio::select! {
                        () = self.0.work.notified() => {}
                        () = sleep(self.0.config.poll_every) => {}
                        () = self.0.draining.cancelled() => return,
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "no work can be claimed");
                    tokio::select! {
                        () = sleep(backoff.next()) => {}
                        () = self.0.draining.cancelled() => return,
                    }
                }
            }
        }
    }

    async fn claim_ready(&self) -> Result<(), outlast_core::StoreError> {
        loop {
            let (loaded, running) = self.loaded();
            let room = (self.0.config.max_running.saturating_sub(running))
                .min(self.0.config.max_loaded.saturating_sub(loaded));
            if room == 0 || self.0.draining.is_cancelled() {
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
            let claimed = self.0.store.claim(request).await?;
            let count = claimed.len();
            for claimed in claimed {
                self.take_up(claimed, before);
            }
            if count < room {
                return Ok(());
            }
        }
    }

    fn take_up(&self, claimed: Claimed, leased_at: std::time::Duration) {
        let run = Run::inline(claimed.task.spec.asks);
        let lease = run.bind(&claimed.task, self.0.store.clone(), self.0.work.clone(), leased_at);
        lock(&self.0.loaded).insert(lease.id, run.clone());
        let runtime = self.clone();
        self.0.tracker.spawn(async move { runtime.drive(claimed.task, claimed.call, run).await });
    }
}
