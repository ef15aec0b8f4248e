//! Rows that cannot be read: whatever walks many of them passes these over, so that one keeps nobody else's work back.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::error::Failure;

/// The tasks that turned out to be unreadable since the store was opened, by the numbers of their rows.
#[derive(Debug, Default)]
pub(crate) struct Damaged(Mutex<BTreeSet<i64>>);

impl Damaged {
    /// Their numbers, for a statement that is to pass them over.
    pub(crate) fn numbers(&self) -> Vec<i64> {
        self.rows().iter().copied().collect()
    }

    /// What was read; `None` when its row is damaged, which is logged once.
    pub(crate) fn pass_over<T>(&self, read: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match read {
            Err(Failure::Damaged { number, source }) => {
                self.note(number, &source);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    pub(crate) fn note(&self, number: i64, why: &Failure) {
        if self.rows().insert(number) {
            tracing::error!(
                row = number,
                error = why as &(dyn std::error::Error + 'static),
                "a task cannot be read; it is left as it is and passed over, and all others go on; mend or remove its \
                 row in the table `tasks`, and start again"
            );
        }
    }

    fn rows(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
