//! What an upstream says during a call, on its way to a caller who may be slow to read it. Pure.

use std::collections::VecDeque;

/// How much may wait.
const MOST: usize = 64;
/// How long all of it may be, in bytes, except for the newest.
const LONGEST: usize = 1 << 20;

/// The newest of what was said, and whether somebody is carrying it. Of more than can wait the oldest is lost.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    waiting: VecDeque<(T, usize)>,
    length: usize,
    is_carried: bool,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), length: 0, is_carried: false }
    }
}

impl<T> Outbox<T> {
    /// Puts something in. True where nobody carries what is in it, and so the one who put it in has to.
    pub(crate) fn put(&mut self, said: T, length: usize) -> bool {
        self.waiting.push_back((said, length));
        self.length += length;
        while self.waiting.len() > MOST || (self.length > LONGEST && self.waiting.len() > 1) {
            let Some((_, length)) = self.waiting.pop_front() else { break };
            self.length -= length;
        }
        !std::mem::replace(&mut self.is_carried, true)
    }

    /// What is to be carried next; none when there is no more, and the next one who puts something in carries it.
    pub(crate) fn take(&mut self) -> Option<T> {
        let next = self.waiting.pop_front();
        self.is_carried = next.is_some();
        next.map(|(said, length)| {
            self.length -= length;
            said
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_carries_what_all_say_in_its_order() {
        let mut outbox = Outbox::default();
        assert!(outbox.put(1, 1));
        assert_eq!(outbox.take(), Some(1));
        assert!(!outbox.put(2, 1) && !outbox.put(3, 1));
        assert_eq!([outbox.take(), outbox.take(), outbox.take()], [Some(2), Some(3), None]);
        assert!(outbox.put(4, 1));
    }

    #[test]
    fn of_too_much_the_newest_is_kept() {
        let mut outbox = Outbox::default();
        for n in 0..1_000 {
            outbox.put(n, 1);
        }
        assert_eq!((outbox.waiting.len(), outbox.take()), (MOST, Some(1_000 - MOST)));
        outbox.put(1_000, LONGEST - 3);
        assert_eq!((outbox.waiting.len(), outbox.length), (4, LONGEST));
        outbox.put(1_001, LONGEST + 1);
        assert_eq!((outbox.take(), outbox.take(), outbox.length), (Some(1_001), None, 0));
    }
}
