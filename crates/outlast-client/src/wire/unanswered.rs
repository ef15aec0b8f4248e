//! What a server has asked on one connection and has no answer to yet. Pure.
//!
//! Each of its requests is held in memory until its answer is on its way, however long a person takes, or a server that does
//! not read what it is sent. So there is a limit, past which what it asks is not heard.

use std::collections::HashMap;

/// How many requests may be unanswered.
pub(crate) const MAX_REQUESTS: usize = 1024;
/// How long they may be together, in bytes, as they came.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    /// The lengths of those that nobody has answered, by their ids. Nothing keeps a server from giving one id to several.
    waiting: HashMap<String, Vec<usize>>,
    requests: usize,
    bytes: usize,
}

impl Unanswered {
    /// A request came. False where it is one too many, and is not counted.
    pub(crate) fn came(&mut self, id: String, length: usize) -> bool {
        if self.requests >= MAX_REQUESTS || self.bytes + length > MAX_BYTES {
            return false;
        }
        self.waiting.entry(id).or_default().push(length);
        self.requests += 1;
        self.bytes += length;
        true
    }

    /// A request has an answer, which counts in its place until [`Unanswered::done`]. None where there is no such request.
    pub(crate) fn answered(&mut self, id: &str) -> Option<usize> {
        let lengths = self.waiting.get_mut(id)?;
        let length = lengths.pop();
        if lengths.is_empty() {
            self.waiting.remove(id);
        }
        length
    }

    /// The answer to a request of this length is on its way.
    pub(crate) fn done(&mut self, length: usize) {
        self.requests -= 1;
        self.bytes -= length;
    }

    /// The server does not wait for the answer any more. One that is there already is still to be sent.
    pub(crate) fn withdrawn(&mut self, id: &str) {
        if let Some(length) = self.answered(id) {
            self.done(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_until_its_answer_is_on_its_way() {
        let mut unanswered = Unanswered::default();
        for n in 0..MAX_REQUESTS {
            // Whatever their ids.
            assert!(unanswered.came((n % 2).to_string(), 1));
        }
        assert!(!unanswered.came("x".into(), 1));
        let length = unanswered.answered("0").unwrap();
        assert!(!unanswered.came("x".into(), 1), "its answer is not sent");
        unanswered.done(length);
        assert!(unanswered.came("x".into(), 1));
        assert!(!unanswered.came("y".into(), 1));
        unanswered.withdrawn("x");
        unanswered.withdrawn("x");
        assert!(unanswered.came("y".into(), 1));
        assert_eq!(unanswered.answered("x"), None);
    }

    #[test]
    fn so_does_its_length() {
        let mut unanswered = Unanswered::default();
        assert!(unanswered.came("a".into(), MAX_BYTES));
        assert!(!unanswered.came("b".into(), 1));
        let length = unanswered.answered("a").unwrap();
        unanswered.done(length);
        assert!(unanswered.came("b".into(), 1));
        assert_eq!((unanswered.requests, unanswered.bytes), (1, 1));
    }
}
