//! The work that callers were told goes on, by what they asked for. Pure.

use std::collections::{HashMap, HashSet, VecDeque};

/// What makes two calls the same.
pub(crate) type Digest = [u8; 32];

/// How many calls are remembered; of more, those that were told longest ago are forgotten. Their work goes on under its id.
const MOST: usize = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    ids: HashMap<Digest, String>,
    order: VecDeque<Digest>,
    /// Work that had ended before this process began.
    ended: HashSet<String>,
}

impl Remembered {
    pub(crate) fn get(&self, call: &Digest) -> Option<&str> {
        self.ids.get(call).map(String::as_str)
    }

    pub(crate) fn insert(&mut self, call: Digest, id: String) {
        if self.ids.insert(call, id).is_none() {
            self.order.push_back(call);
        }
        while self.ids.len() > MOST {
            let Some(oldest) = self.order.pop_front() else { return };
            self.ids.remove(&oldest);
        }
    }

    /// Remembers work that had ended before this process began, and of which it is not known whether it was told.
    pub(crate) fn insert_ended(&mut self, call: Digest, id: String) {
        self.ended.insert(id.clone());
        self.insert(call, id);
    }

    /// Whether the work had ended before this process began.
    pub(crate) fn had_ended(&self, id: &str) -> bool {
        self.ended.contains(id)
    }

    /// The result of the work is told, so the same call begins anew.
    pub(crate) fn forget(&mut self, id: &str) {
        self.ids.retain(|_, held| held != id);
        self.ended.remove(id);
        let ids = &self.ids;
        self.order.retain(|call| ids.contains_key(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(n: usize) -> Digest {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&n.to_be_bytes());
        digest
    }

    #[test]
    fn the_oldest_are_forgotten_when_there_are_too_many() {
        let mut remembered = Remembered::default();
        for n in 0..=MOST {
            remembered.insert(call(n), n.to_string());
        }
        assert_eq!(remembered.get(&call(0)), None);
        assert_eq!(remembered.get(&call(1)), Some("1"));
        assert_eq!(remembered.ids.len(), MOST);
    }

    #[test]
    fn what_is_told_is_forgotten_and_leaves_nothing() {
        let mut remembered = Remembered::default();
        remembered.insert(call(1), "a".into());
        remembered.insert(call(1), "b".into());
        remembered.insert(call(2), "c".into());
        remembered.insert_ended(call(3), "d".into());
        assert!(remembered.had_ended("d") && !remembered.had_ended("c"));
        remembered.forget("b");
        remembered.forget("d");
        assert!(!remembered.had_ended("d"));
        assert_eq!((remembered.get(&call(1)), remembered.get(&call(2))), (None, Some("c")));
        assert_eq!(remembered.order, [call(2)]);
    }
}
