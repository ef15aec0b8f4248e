//! What goes on beside the work: renewing leases, sweeping, following the change feed, giving work back.

use std::time::Duration;

use outlast_core::{Applied, By, Event, Held, Hint, Renewal, StoreError};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{Run, Runtime, ending::Ending, lock, run::Lease};

/// How many tasks one sweep may change: a small write that stalls nobody.
const SWEEP: u32 = 50;

impl Runtime {
    pub(crate) fn spawn_loops(&self) {
        // The first sweep comes after the first claim: what an earlier process left is recovered before anything is
        // judged by its age.
        let recovered = CancellationToken::new();
        let (claims, leases, hints, sweeps) = (self.clone(), self.clone(), self.clone(), self.clone());
        let tracker = &self.0.tracker;
        let gate = recovered.clone();
        tracker.spawn(async move { claims.claim_loop(gate).await });
        tracker.spawn(async move { leases.renew_loop().await });
        tracker.spawn(async move { hints.follow_hints().await });
        tracker.spawn(async move {
            tokio::select! {
                biased;
                () = recovered.cancelled() => sweeps.sweep_loop().await,
                () = sweeps.0.draining.cancelled() => {}
            }
        });
    }

    /// Renews every lease of this process in one write, and drops work whose lease is lost.
    async fn renew_loop(&self) {
        let mut ticks = interval(self.0.config.lease / 3);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = ticks.tick() => {}
                // While the process drains its leases are renewed until the last is given back.
                () = self.drained() => return,
            }
            let runs: Vec<Run> = lock(&self.0.loaded).values().cloned().collect();
            let held: Vec<Held> = runs
                .iter()
                .filter_map(|run| run.lease().map(|lease| Held { id: lease.id, token: lease.token }))
                .collect();
            if held.is_empty() {
                continue;
            }
            // Judged from before the request was sent: the store may have answered long before this process ran again.
            let sent = self.0.config.clock.monotonic();
            let (worker, lease) = (self.0.worker.clone(), self.0.config.lease);
            // A store that does not answer must not keep this worker from judging its leases.
            let renewing = self.0.store.renew(worker, held, lease);
            match timeout(lease / 3, renewing).await.unwrap_or_else(|late| Err(StoreError::unknown(late))) {
                Ok(renewals) => {
                    for (run, renewal) in runs.iter().zip(renewals) {
                        self.heed(run, renewal, sent);
                    }
                }
                Err(error) => tracing::warn!(%error, "leases could not be renewed"),
            }
            if !self.0.store.is_exclusive() {
                for run in runs.iter().filter(|run| self.is_overdue(run) && !run.has_ended()) {
                    tracing::warn!("a lease ran out before it could be renewed; its work is dropped");
                    run.gone().cancel();
                }
            }
        }
    }

    /// Whether a lease of this worker may have run out, by the worker's own clock.
    pub(crate) fn has_overdue_lease(&self) -> bool {
        lock(&self.0.loaded).values().any(|run| self.is_overdue(run))
    }

    fn is_overdue(&self, run: &Run) -> bool {
        let now = self.0.config.clock.monotonic();
        run.renewed_at().is_some_and(|at| now.saturating_sub(at) >= self.0.config.lease)
    }

    fn heed(&self, run: &Run, renewal: Renewal, sent: Duration) {
        match renewal {
            // It may just have ended here: then it is no longer loaded and nothing is lost.
            Renewal::Lost => run.gone().cancel(),
            Renewal::Kept { inbox_seq, cancel } => {
                run.renewed(sent);
                if cancel {
                    run.cancel().cancel();
                }
                if run.lease().is_some_and(|lease| inbox_seq > Run::seen_seq(lease)) {
                    run.notify();
                }
            }
        }
    }

    async fn drained(&self) {
        self.0.draining.cancelled().await;
        self.0.slots.until(|| lock(&self.0.loaded).is_empty()).await;
    }

    /// Tells loaded work of its news, and the worker of what may be ready.
    async fn follow_hints(&self) {
        let mut hints = self.0.store.watch();
        // Work that may end while the process drains hears its answers and its cancel too.
        let mut drained = std::pin::pin!(self.drained());
        loop {
            let hint = tokio::select! {
                biased;
                () = &mut drained => return,
                hint = hints.next() => hint,
            };
            match hint {
                Some(Hint::Changed(id)) => match lock(&self.0.loaded).get(&id).cloned() {
                    Some(run) => self.check_cancel(run),
                    None => self.0.slots.work_may_be_ready(),
                },
                Some(Hint::Gap) => {
                    let runs: Vec<Run> = lock(&self.0.loaded).values().cloned().collect();
                    runs.into_iter().for_each(|run| self.check_cancel(run));
                    self.0.slots.work_may_be_ready();
                }
                None => return,
            }
        }
    }

    /// Wakes the work, and looks whether its caller asked for its end.
    pub(crate) fn check_cancel(&self, run: Run) {
        run.notify();
        if run.cancel().is_cancelled() {
            return;
        }
        let store = self.0.store.clone();
        self.0.tracker.spawn(async move {
            let Some(id) = run.lease().map(|lease| lease.id) else { return };
            // A failed look is made good by the next renewal, which reports a cancel too.
            if let Ok(Some(task)) = store.get(id).await
                && task.cancel_requested()
            {
                run.cancel().cancel();
            }
        });
    }

    async fn sweep_loop(&self) {
        const AT_LEAST: Duration = Duration::from_millis(100);
        const AT_MOST: Duration = Duration::from_secs(5);
        loop {
            let pause = match self.0.store.sweep(SWEEP).await {
                Ok(swept) if swept.next_due == Some(Duration::ZERO) => Duration::from_millis(1),
                Ok(swept) => swept.next_due.unwrap_or(AT_MOST).clamp(AT_LEAST, AT_MOST),
                Err(error) => {
                    tracing::warn!(%error, "nothing could be swept");
                    AT_MOST
                }
            };
            tokio::select! {
                biased;
                () = self.0.draining.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// Gives a task back to the store, for another process or the next start of this one.
    pub(crate) async fn give_back(&self, run: &Run) {
        let began = !run.is_in_line();
        run.end_span(Ending::Released);
        run.gone().cancel();
        let Some(lease) = run.lease() else { return };
        self.release(lease, began).await;
        self.unload(lease);
    }

    /// Gives a lease back; `began` says whether any of the tool's code ran under it.
    pub(crate) async fn release(&self, lease: &Lease, began: bool) {
        // With what finished before the call was a task, where that is not written yet.
        let mut give_back = std::mem::take(&mut *lock(&lease.early));
        give_back.push(Event::Release { began });
        match self.0.store.apply(lease.id, By::Lease(lease.token), give_back).await {
            Ok(Applied::Applied(_) | Applied::Absorbed(_)) => {}
            Ok(other) => tracing::debug!(task = ?lease.id, ?other, "nothing was left to give back"),
            Err(error) => {
                tracing::warn!(task = ?lease.id, %error, "a lease was not given back and will run out");
            }
        }
    }
}
