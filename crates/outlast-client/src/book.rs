//! The book of one task's questions: which key has been presented, answered, delivered. It is what keeps a person from
//! being asked twice, and an answer from being lost (S18, S20). Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// More keys than any task asks; a server that asks more is not followed.
const MAX_KEYS: usize = 10_000;

/// One showing of a question, so that the late answer of an abandoned one is told from that of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prompt(u64);

/// Answers by the keys of their questions.
pub(crate) type Answers = BTreeMap<String, Value>;

/// A task asked more rounds of questions, or more keys, than are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

#[derive(Debug, Clone, PartialEq)]
enum Key {
    /// A handler has the question. One that the server has stopped asking is on its way to be closed, and holds its key
    /// until it is gone.
    Open { prompt: Prompt, round: u64, is_withdrawn: bool },
    /// The answer is there and not yet acknowledged. It is sent when it is written down.
    Answered { answer: Value, is_written: bool },
    /// The server has the answer. The key is never presented again (S18).
    Delivered,
}

#[derive(Debug, Clone, Default)]
struct Round {
    open: usize,
    answered: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Book {
    keys: BTreeMap<String, Key>,
    rounds: BTreeMap<u64, Round>,
    next_prompt: u64,
    next_round: u64,
    /// Rounds that count: those in which something was answered, or is still open.
    used: u32,
}

impl Book {
    /// The book of a task that another process followed: what was answered, and what of it was acknowledged.
    pub(crate) fn resumed(answered: Answers, delivered: BTreeSet<String>) -> Self {
        let delivered = delivered.into_iter().map(|key| (key, Key::Delivered));
        let answered =
            answered.into_iter().map(|(key, answer)| (key, Key::Answered { answer, is_written: true }));
        Self { keys: delivered.chain(answered).collect(), ..Self::default() }
    }

    /// Adds what another process has written down of the same task since: its answers, and what of them was acknowledged. An
    /// answer that is here already stays, and a prompt that is open for such a key is no longer [awaited](Self::awaits).
    pub(crate) fn learn(&mut self, other: Self) {
        for (key, state) in other.keys {
            match self.keys.get(&key) {
                Some(Key::Delivered) => continue,
                Some(Key::Answered { .. }) if state != Key::Delivered => continue,
                Some(&Key::Open { round, .. }) => self.close(round, true),
                Some(Key::Answered { .. }) | None => {}
            }
            self.keys.insert(key, state);
        }
    }

    /// Takes the outstanding keys of a newest state, gives those to present now, and withdraws what is not asked any more.
    ///
    /// # Errors
    ///
    /// [`TooMany`] when this would be one more than `max_rounds` of questions; nothing is presented then.
    pub(crate) fn outstanding<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k str>,
        max_rounds: u32,
    ) -> Result<Vec<(String, Prompt)>, TooMany> {
        let asked: BTreeSet<&str> = keys.collect();
        self.withdraw(&asked);
        let fresh: Vec<&str> = asked.into_iter().filter(|key| !self.keys.contains_key(*key)).collect();
        if fresh.is_empty() {
            return Ok(Vec::new());
        }
        if self.used >= max_rounds || self.keys.len() + fresh.len() > MAX_KEYS {
            return Err(TooMany);
        }
        let round = self.next_round;
        self.next_round += 1;
        self.used += 1;
        self.rounds.insert(round, Round { open: fresh.len(), answered: false });
        let mut due = Vec::new();
        for key in fresh {
            let prompt = Prompt(self.next_prompt);
            self.next_prompt += 1;
            self.keys.insert(key.to_owned(), Key::Open { prompt, round, is_withdrawn: false });
            due.push((key.to_owned(), prompt));
        }
        Ok(due)
    }

    /// What the server stopped asking: an open prompt is no longer [awaited](Self::awaits), and its key may come back when it
    /// is closed. An answer stays: the state that asks for nothing may be older than the question, and a server that has the
    /// answer lets it be sent again (S20).
    fn withdraw(&mut self, asked: &BTreeSet<&str>) {
        for (key, state) in &mut self.keys {
            if let Key::Open { is_withdrawn, .. } = state
                && !asked.contains(key.as_str())
            {
                *is_withdrawn = true;
            }
        }
    }

    /// A handler answered. False, and nothing is kept, when its prompt has been abandoned or withdrawn meanwhile.
    pub(crate) fn answer(&mut self, key: &str, prompt: Prompt, answer: Value) -> bool {
        match self.keys.get(key) {
            Some(&Key::Open { prompt: open, round, is_withdrawn: false }) if open == prompt => {
                self.keys.insert(key.to_owned(), Key::Answered { answer, is_written: false });
                self.close(round, true);
                true
            }
            _ => false,
        }
    }

    /// An answer that came from elsewhere than a prompt. A prompt that is open for the key is no longer
    /// [awaited](Self::awaits); an answer that is there already stays: the first one counts.
    pub(crate) fn answer_unasked(&mut self, key: &str, answer: Value) {
        match self.keys.get(key) {
            Some(Key::Answered { .. } | Key::Delivered) => return,
            Some(&Key::Open { round, .. }) => self.close(round, true),
            None => {}
        }
        self.keys.insert(key.to_owned(), Key::Answered { answer, is_written: false });
    }

    /// Whether the answer of a prompt is still wanted.
    pub(crate) fn awaits(&self, key: &str, prompt: Prompt) -> bool {
        matches!(
            self.keys.get(key),
            Some(&Key::Open { prompt: open, is_withdrawn: false, .. }) if open == prompt
        )
    }

    /// These answers would survive the end of the process, as far as anything does here.
    pub(crate) fn written(&mut self, answers: &Answers) {
        for (key, value) in answers {
            if let Some(Key::Answered { answer, is_written }) = self.keys.get_mut(key)
                && answer == value
            {
                *is_written = true;
            }
        }
    }

    /// A handler failed, or its prompt was closed: the key may be presented again. A round in which nothing was answered does
    /// not count.
    pub(crate) fn abandon(&mut self, key: &str, prompt: Prompt) {
        if let Some(&Key::Open { prompt: open, round, .. }) = self.keys.get(key)
            && open == prompt
        {
            self.keys.remove(key);
            self.close(round, false);
        }
    }

    fn close(&mut self, id: u64, answered: bool) {
        let Some(round) = self.rounds.get_mut(&id) else { return };
        round.open -= 1;
        round.answered |= answered;
        if round.open == 0 {
            if !round.answered {
                self.used -= 1;
            }
            self.rounds.remove(&id);
        }
    }

    /// The answers that no acknowledgement has come for.
    pub(crate) fn undelivered(&self) -> Answers {
        self.keys
            .iter()
            .filter_map(|(key, state)| match state {
                Key::Answered { answer, .. } => Some((key.clone(), answer.clone())),
                _ => None,
            })
            .collect()
    }

    /// Those of the undelivered answers that are written down, and so may be sent.
    pub(crate) fn ready(&self) -> Answers {
        self.keys
            .iter()
            .filter_map(|(key, state)| match state {
                Key::Answered { answer, is_written: true } => Some((key.clone(), answer.clone())),
                _ => None,
            })
            .collect()
    }

    /// The keys whose answer the server has.
    pub(crate) fn delivered(&self) -> BTreeSet<String> {
        self.keys.iter().filter(|(_, state)| **state == Key::Delivered).map(|(key, _)| key.clone()).collect()
    }

    /// The server acknowledged what was `sent`.
    pub(crate) fn acknowledged(&mut self, sent: &Answers) {
        for (key, value) in sent {
            if matches!(self.keys.get(key), Some(Key::Answered { answer, .. }) if answer == value) {
                self.keys.insert(key.clone(), Key::Delivered);
            }
        }
    }

    /// The server refused what was `sent`: those keys, and only those whose value it was, may be presented again.
    pub(crate) fn rejected(&mut self, sent: &Answers) {
        for (key, value) in sent {
            if matches!(self.keys.get(key), Some(Key::Answered { answer, .. }) if answer == value) {
                self.keys.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn due(book: &mut Book, keys: &[&str]) -> Vec<(String, Prompt)> {
        book.outstanding(keys.iter().copied(), 16).unwrap()
    }

    #[test]
    fn c36_a_key_is_presented_once_over_ten_polls() {
        let mut book = Book::default();
        let prompts: usize = (0..10).map(|_| due(&mut book, &["name"]).len()).sum();
        assert_eq!(prompts, 1);
    }

    #[test]
    fn the_late_answer_of_an_abandoned_prompt_is_dropped() {
        let mut book = Book::default();
        let (key, first) = due(&mut book, &["name"]).remove(0);
        book.abandon(&key, first);
        let (_, second) = due(&mut book, &["name"]).remove(0);
        assert!(!book.answer(&key, first, json!("late")));
        assert!(book.answer(&key, second, json!("in time")));
        assert_eq!(book.undelivered()["name"], json!("in time"));
    }

    #[test]
    fn rounds_are_capped_and_a_round_in_which_nothing_was_answered_does_not_count() {
        let mut book = Book::default();
        for _ in 0..5 {
            let round = book.outstanding(["a", "b"].into_iter(), 2).unwrap();
            round.into_iter().for_each(|(key, prompt)| book.abandon(&key, prompt));
        }
        for key in ["c", "d"] {
            let round = book.outstanding([key].into_iter(), 2).unwrap();
            assert!(book.answer(key, round[0].1, json!(1)));
        }
        assert_eq!(book.outstanding(["e"].into_iter(), 2), Err(TooMany));
        assert!(book.rounds.is_empty(), "nothing is presented by the round that is refused");
    }

    #[test]
    fn a_rejection_frees_only_the_keys_whose_value_it_was() {
        let mut book =
            Book::resumed([("a".into(), json!(1)), ("b".into(), json!(2))].into(), BTreeSet::new());
        book.rejected(&[("a".into(), json!(1)), ("b".into(), json!("an older value"))].into());
        assert_eq!(due(&mut book, &["a", "b"]).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), ["a"]);
        assert_eq!(book.undelivered(), [("b".to_owned(), json!(2))].into());
    }

    #[test]
    fn what_the_server_stopped_asking_is_not_awaited_and_its_key_is_held_until_its_prompt_has_gone() {
        let mut book = Book::default();
        let (key, prompt) = due(&mut book, &["name"]).remove(0);
        assert!(book.awaits(&key, prompt));
        assert_eq!(due(&mut book, &[]), []);
        assert!(!book.awaits(&key, prompt));
        assert!(!book.answer(&key, prompt, json!("late")));
        assert_eq!(due(&mut book, &["name"]), [], "the first prompt is still there");
        book.abandon(&key, prompt);
        assert_eq!(due(&mut book, &["name"]).len(), 1);
    }

    #[test]
    fn an_answer_outlives_a_state_that_does_not_ask_for_it() {
        let mut book = Book::resumed([("a".into(), json!(1))].into(), BTreeSet::new());
        assert_eq!(due(&mut book, &[]), []);
        assert_eq!(book.ready(), [("a".to_owned(), json!(1))].into());
        assert_eq!(due(&mut book, &["a"]), []);
    }

    #[test]
    fn what_another_process_has_written_down_is_learnt_and_takes_nothing_away() {
        let mut book = Book::resumed([("b".into(), json!("here"))].into(), ["c".to_owned()].into());
        let (key, prompt) = due(&mut book, &["a", "b", "c"]).remove(0);
        let there: Answers = [("a", 1), ("b", 2), ("c", 3)].map(|(key, n)| (key.into(), json!(n))).into();

        book.learn(Book::resumed(there, ["d".to_owned()].into()));

        assert!(!book.awaits(&key, prompt) && !book.answer(&key, prompt, json!("late")));
        assert_eq!(book.ready(), [("a".to_owned(), json!(1)), ("b".to_owned(), json!("here"))].into());
        assert_eq!(book.delivered(), ["c".to_owned(), "d".to_owned()].into());
        assert!(book.rounds.is_empty());
        book.learn(Book::resumed(Answers::new(), ["b".to_owned()].into()));
        assert_eq!(book.ready().len(), 1);
    }

    #[test]
    fn an_answer_is_sent_only_when_it_is_written_down() {
        let mut book = Book::default();
        let (key, prompt) = due(&mut book, &["name"]).remove(0);
        book.answer(&key, prompt, json!("Ada"));
        assert!(book.ready().is_empty());
        book.written(&[(key.clone(), json!("of another answer"))].into());
        assert!(book.ready().is_empty());
        book.written(&book.undelivered());
        assert_eq!(book.ready(), [(key, json!("Ada"))].into());
    }

    #[derive(Debug, Clone)]
    enum Move {
        Poll(BTreeSet<u8>),
        Answer(usize),
        Abandon(usize),
        Send { arrives: bool, acknowledged: bool },
        Reject,
        Restart,
    }

    fn moves() -> impl Strategy<Value = Move> {
        prop_oneof![
            4 => proptest::collection::btree_set(0..6_u8, 0..5).prop_map(Move::Poll),
            3 => any::<usize>().prop_map(Move::Answer),
            1 => any::<usize>().prop_map(Move::Abandon),
            3 => any::<(bool, bool)>().prop_map(|(arrives, acknowledged)| Move::Send { arrives, acknowledged }),
            1 => Just(Move::Reject),
            1 => Just(Move::Restart),
        ]
    }

    proptest! {
        /// Against a server that takes the first answer of a key and stops asking it: whatever the order of polls, answers,
        /// lost messages and restarts, no key is open twice, and no key that was answered is presented before a rejection.
        #[test]
        fn no_key_is_asked_twice_and_no_answer_lost(moves in proptest::collection::vec(moves(), 1..80)) {
            let mut book = Book::default();
            let mut server: BTreeMap<String, Value> = BTreeMap::new();
            let mut open: Vec<(String, Prompt)> = Vec::new();
            let mut answered: BTreeMap<String, Value> = BTreeMap::new();
            let mut counter = 0;
            for step in moves {
                match step {
                    Move::Poll(keys) => {
                        let asked: Vec<String> =
                            keys.iter().map(|key| format!("k{key}")).filter(|key| !server.contains_key(key)).collect();
                        let due = book.outstanding(asked.iter().map(String::as_str), u32::MAX).unwrap();
                        open.retain(|(key, prompt)| {
                            let stays = book.awaits(key, *prompt);
                            if !stays {
                                book.abandon(key, *prompt);
                            }
                            stays
                        });
                        for (key, prompt) in due {
                            prop_assert!(!open.iter().any(|(held, _)| *held == key), "{key} open twice");
                            prop_assert!(!answered.contains_key(&key), "{key} asked again");
                            prop_assert!(asked.contains(&key));
                            open.push((key, prompt));
                        }
                    }
                    Move::Answer(n) if !open.is_empty() => {
                        let (key, prompt) = open.swap_remove(n % open.len());
                        counter += 1;
                        prop_assert!(book.answer(&key, prompt, json!(counter)));
                        answered.insert(key, json!(counter));
                    }
                    Move::Abandon(n) if !open.is_empty() => {
                        let (key, prompt) = open.swap_remove(n % open.len());
                        book.abandon(&key, prompt);
                    }
                    Move::Send { arrives, acknowledged } => {
                        let sent = book.undelivered();
                        for (key, value) in &sent {
                            prop_assert_eq!(answered.get(key), Some(value), "only what was answered is sent");
                        }
                        if arrives {
                            for (key, value) in &sent {
                                server.entry(key.clone()).or_insert_with(|| value.clone());
                            }
                            if acknowledged {
                                book.acknowledged(&sent);
                            }
                        }
                    }
                    Move::Reject => {
                        let sent = book.undelivered();
                        book.rejected(&sent);
                        answered.retain(|key, _| !sent.contains_key(key) || server.contains_key(key));
                    }
                    Move::Restart => {
                        book = Book::resumed(book.undelivered(), book.delivered());
                        open.clear();
                    }
                    Move::Answer(_) | Move::Abandon(_) => {}
                }
                for (key, value) in &answered {
                    let kept = book.undelivered().get(key) == Some(value)
                        || book.delivered().contains(key)
                        || server.contains_key(key);
                    prop_assert!(kept, "the answer to {key} was lost");
                }
            }
        }
    }
}
