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
    /// Their numbers as a JSON array, for a statement that is to pass them over.
    pub(crate) fn numbers(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&*self.rows())?)
    }

    /// Whether this row was passed over before.
    pub(crate) fn has(&self, number: i64) -> bool {
        self.rows().contains(&number)
    }

    /// What was read; `None` when its row is damaged, which is logged once.
    pub(crate) fn pass_over<T>(&self, read: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match read {
            Err(Failure::Damaged { number, source }) => {
                if self.rows().insert(number) {
                    tracing::error!(
                        row = number,
                        error = &*source as &(dyn std::error::Error + 'static),
                        "a task cannot be read; it is left as it is and passed over, and all others go on; mend or \
                         remove its row in the table `tasks`, and open the store again"
                    );
                }
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    fn rows(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
