//! What a store's handles share with its writer.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use outlast_core::{Clock, HintSender, StoreClock, Timestamp};

use crate::{damaged::Damaged, queue::Queue, read::Readers};

/// What the handle and the writer share.
pub(crate) struct Shared {
    pub(crate) queue: Arc<Queue>,
    pub(crate) hints: HintSender,
    pub(crate) readers: Readers,
    pub(crate) damaged: Damaged,
    pub(crate) time: Mutex<StoreClock>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) watched: AtomicBool,
    /// Whether this process is the file's runtime.
    pub(crate) runtime: AtomicBool,
}

impl Shared {
    /// What the store's clock says.
    pub(crate) fn now(&self) -> Timestamp {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).read(&self.clock).now
    }

    /// Whether anybody ever asked to be told of changes.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }
}
