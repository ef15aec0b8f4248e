//! What the work of an attempt does: whether it runs, or only waits for a person or a time.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use crate::slots::Slots;

/// Counts of what the work does at the moment.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Questions and timers that it waits for.
    waiting: AtomicUsize,
    /// Steps that run, and writes on their way.
    busy: AtomicUsize,
    /// How often it moved (its future was polled, something of it began, a wait of it was over), and news of that.
    moves: AtomicU64,
    moved: Notify,
    /// Polls of its futures that have not returned.
    polling: AtomicUsize,
    /// Futures of it that are being polled to their end.
    attended: AtomicUsize,
    /// A count changed.
    changed: Notify,
    /// Told when the work begins or stops waiting, because waiting work holds no slot.
    slots: OnceLock<Arc<Slots>>,
}

/// A part of the work's activity, until it is dropped.
pub(crate) struct Active<'a> {
    activity: &'a Activity,
    count: &'a AtomicUsize,
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.activity.tell();
    }
}

/// A poll of a future of the work.
pub(crate) struct Poll<'a>(&'a Activity);

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        // What it did is a move too, for whoever looked while it was polled.
        self.0.moved();
        self.0.polling.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

impl Activity {
    /// From now on `slots` are told.
    pub(crate) fn attach(&self, slots: Arc<Slots>) {
        let _ = self.slots.set(slots);
    }

    /// The work waits for a person or a time.
    pub(crate) fn wait(&self) -> Active<'_> {
        self.begin(&self.waiting)
    }

    /// The work does something beside its waiting.
    pub(crate) fn busy(&self) -> Active<'_> {
        let busy = self.begin(&self.busy);
        // It may be over before anybody looks.
        self.moved();
        busy
    }

    /// A future of the work is being polled.
    pub(crate) fn attend(&self) -> Active<'_> {
        self.begin(&self.attended)
    }

    /// A future of the work is polled, until this is dropped.
    pub(crate) fn poll(&self) -> Poll<'_> {
        self.polling.fetch_add(1, Ordering::SeqCst);
        self.moved();
        Poll(self)
    }

    /// The work got on.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
        self.moved.notify_waiters();
    }

    /// How often the work moved.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Whether it waits and does nothing that is known of beside that.
    pub(crate) fn only_waits(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 && self.busy.load(Ordering::SeqCst) == 0
    }

    /// Whether it only waits, and no thread is in the middle of it.
    fn stands_still(&self) -> bool {
        self.only_waits() && self.polling.load(Ordering::SeqCst) == 0
    }

    /// Resolves once the work has only waited, and did not move once, for `patience`. Gives what [`Activity::moves`] was
    /// then: as long as that is the same, the work has not gone on.
    pub(crate) async fn only_waited(&self, patience: Duration) -> u64 {
        loop {
            self.until(Self::stands_still).await;
            let moves = self.moves();
            tokio::select! {
                biased;
                () = self.until(|activity| !activity.only_waits()) => {}
                () = self.moved.notified() => {}
                () = sleep(patience) => if self.stands_still() && self.moves() == moves { return moves },
            }
        }
    }

    /// Resolves once no future of the work is left.
    pub(crate) async fn unattended(&self) {
        self.until(|activity| activity.attended.load(Ordering::SeqCst) == 0).await;
    }

    async fn until(&self, enough: impl Fn(&Self) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if enough(self) {
                return;
            }
            changed.await;
        }
    }

    fn begin<'a>(&'a self, count: &'a AtomicUsize) -> Active<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        self.tell();
        Active { activity: self, count }
    }

    fn tell(&self) {
        self.changed.notify_waiters();
        if let Some(slots) = self.slots.get() {
            // Work that goes on frees no slot, and the worker need not look for other work because of it.
            if self.only_waits() { slots.changed() } else { slots.taken() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_moves_or_is_busy_beside_its_waiting_does_not_only_wait() {
        let activity = Activity::default();
        let patience = Duration::from_secs(30);
        let waited = async |activity: &Activity| {
            tokio::time::timeout(Duration::from_secs(40), activity.only_waited(patience)).await.is_ok()
        };
        assert!(!waited(&activity).await, "it runs");
        let waiting = activity.wait();
        assert!(waited(&activity).await);
        let busy = activity.busy();
        assert!(!waited(&activity).await, "a step runs");
        drop(busy);
        let moves = async {
            loop {
                sleep(Duration::from_secs(7)).await;
                activity.moved();
            }
        };
        tokio::select! {
            waited = waited(&activity) => assert!(!waited, "it does something of its own"),
            () = moves => {}
        }
        drop(waiting);
        assert!(!activity.only_waits());
    }
}
