//! What is on its way to the store.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

use crate::lock;

/// The writes of an attempt that began and did not end. Nothing waits to begin one, so that work that is not polled any
/// more can hold nobody up.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    writes: Mutex<Writes>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Writes {
    next: u64,
    begun: BTreeSet<u64>,
}

/// One write, until it is dropped.
pub(crate) struct Write {
    number: u64,
    among: Arc<InFlight>,
}

impl Drop for Write {
    fn drop(&mut self) {
        lock(&self.among.writes).begun.remove(&self.number);
        self.among.ended.notify_waiters();
    }
}

impl InFlight {
    pub(crate) fn begin(self: &Arc<Self>) -> Write {
        let mut writes = lock(&self.writes);
        let number = writes.next;
        writes.next += 1;
        writes.begun.insert(number);
        Write { number, among: self.clone() }
    }

    /// Waits until every write that has begun by now has ended, and for no later one.
    pub(crate) async fn settled(&self) {
        let next = lock(&self.writes).next;
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if lock(&self.writes).begun.first().is_none_or(|first| *first >= next) {
                return;
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn who_waits_for_what_is_on_its_way_does_not_wait_for_what_comes_after() {
        let writes = Arc::new(InFlight::default());
        assert!(writes.settled().now_or_never().is_some(), "nothing is");
        let (first, second) = (writes.begin(), writes.begin());
        let mut settled = Box::pin(writes.settled());
        assert!(poll!(&mut settled).is_pending());
        let _later = writes.begin();
        drop(second);
        assert!(poll!(&mut settled).is_pending());
        drop(first);
        assert!(poll!(&mut settled).is_ready());
    }
}
