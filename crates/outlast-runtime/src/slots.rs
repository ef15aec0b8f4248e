//! News of the slots in which tasks run.

use tokio::sync::Notify;

/// Tells whoever waits for a slot, or for the last task to end.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Something may be ready, or a slot may be free: wakes the one worker.
    work: Notify,
    /// A task ended, or began or stopped to wait: seen by any number of waiters, in the order in which they came.
    changes: Notify,
}

impl Slots {
    /// A slot may be free.
    pub(crate) fn changed(&self) {
        self.work.notify_one();
        self.changes.notify_waiters();
    }

    /// Work that waited goes on: no slot is free for that.
    pub(crate) fn taken(&self) {
        self.changes.notify_waiters();
    }

    /// Something may be ready.
    pub(crate) fn work_may_be_ready(&self) {
        self.work.notify_one();
    }

    /// Waits for either.
    pub(crate) async fn work(&self) {
        self.work.notified().await;
    }

    /// Waits until `enough` is true; it is asked again after each change.
    pub(crate) async fn until(&self, enough: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changes.notified());
            changed.as_mut().enable();
            if enough() {
                return;
            }
            changed.await;
        }
    }
}
