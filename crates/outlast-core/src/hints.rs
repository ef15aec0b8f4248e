//! The change feed of a store within one process.

use async_broadcast::{InactiveReceiver, Receiver, RecvError, Sender};

use crate::TaskId;

/// Something may have changed. Polling is the truth; a lost hint costs latency alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// This task changed, after its change was durable.
    Changed(TaskId),
    /// Hints were lost: any task may have changed.
    Gap,
}

/// The sending end, which a store holds. Sending never waits: the oldest hints of a slow reader are dropped, and it
/// sees a [`Hint::Gap`] instead.
#[derive(Debug, Clone)]
pub struct HintSender {
    sender: Sender<Hint>,
    /// Keeps the channel open while nobody listens.
    seed: InactiveReceiver<Hint>,
}

impl HintSender {
    /// A feed that keeps the last `capacity` hints for each reader.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let (mut sender, receiver) = async_broadcast::broadcast(capacity.max(1));
        sender.set_overflow(true);
        Self { sender, seed: receiver.deactivate() }
    }

    /// Tells every reader.
    pub fn send(&self, hint: Hint) {
        if self.sender.receiver_count() > 0 {
            // Fails only when nobody reads, or the feed is closed: then nobody needs it.
            let _ = self.sender.try_broadcast(hint);
        }
    }

    /// A reader that sees what is sent from now on.
    #[must_use]
    pub fn watch(&self) -> Hints {
        Hints(self.seed.activate_cloned())
    }

    /// Ends the feed: every reader sees what was sent, then the end.
    pub fn close(&self) {
        self.sender.close();
    }
}

/// The receiving end of a change feed.
#[derive(Debug)]
pub struct Hints(Receiver<Hint>);

impl Hints {
    /// The next hint; `None` when the store is closed.
    pub async fn next(&mut self) -> Option<Hint> {
        match self.0.recv_direct().await {
            Ok(hint) => Some(hint),
            Err(RecvError::Overflowed(_)) => Some(Hint::Gap),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next hint if one is there.
    pub fn try_next(&mut self) -> Option<Hint> {
        match self.0.try_recv() {
            Ok(hint) => Some(hint),
            Err(async_broadcast::TryRecvError::Overflowed(_)) => Some(Hint::Gap),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_falls_behind_sees_a_gap_and_then_the_newest() {
        let feed = HintSender::new(2);
        let mut reader = feed.watch();
        let id = |n| TaskId::from_bytes([n; 16]);
        (1..=5).for_each(|n| feed.send(Hint::Changed(id(n))));
        assert_eq!(reader.try_next(), Some(Hint::Gap));
        assert_eq!(reader.try_next(), Some(Hint::Changed(id(4))));
        assert_eq!(reader.try_next(), Some(Hint::Changed(id(5))));
        assert_eq!(reader.try_next(), None);
    }

    #[test]
    fn a_closed_feed_ends() {
        let feed = HintSender::new(2);
        let mut reader = feed.watch();
        feed.close();
        assert_eq!(futures::executor::block_on(reader.next()), None);
    }
}
