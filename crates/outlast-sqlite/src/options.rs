//! How a store is opened.

use std::{fmt, sync::Arc, time::Duration};

use outlast_core::{Clock, LaneLimits};

use crate::{
    SystemClock,
    disk::{Disk, RealDisk},
};

/// What a process does with the file. One runtime serves a file; any number of fronts use it beside that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Runs the tasks. Opening fails while another process is the file's runtime.
    #[default]
    Runtime,
    /// Creates, reads, answers and cancels, and leaves the running to the file's runtime: a claim hands out nothing,
    /// a sweep does nothing, and a task that is to be leased at its creation is created without a lease.
    Front,
    /// The runtime if the file has none, else a front, which becomes the runtime at the first claim that finds the
    /// lock free.
    Auto,
}

/// How a store is opened.
///
/// ```
/// use outlast_sqlite::{Options, Role};
/// let options = Options::default().role(Role::Front);
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) role: Role,
    pub(crate) readers: usize,
    pub(crate) busy_timeout: Duration,
    pub(crate) poll: Duration,
    pub(crate) limits: LaneLimits,
    /// Pages in the log from which on it is written back.
    pub(crate) wal_pages: usize,
    pub(crate) disk: Arc<dyn Disk>,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            clock: Arc::new(SystemClock),
            role: Role::default(),
            readers: cores.clamp(2, 8),
            busy_timeout: Duration::from_secs(5),
            poll: Duration::from_millis(50),
            limits: LaneLimits::default(),
            wal_pages: 2_000,
            disk: Arc::new(RealDisk),
        }
    }
}

impl Options {
    /// The clock that the store reads; the machine's unless a test gives another.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// What this process does with the file.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// How many reads may go on at once; at least one.
    #[must_use]
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// How long a write waits for a write of another process before it is refused as
    /// [`Unavailable`](outlast_core::StoreError::Unavailable).
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How often an idle store that is watched looks for changes by other processes.
    #[must_use]
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = interval.max(Duration::from_millis(1));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("role", &self.role)
            .field("readers", &self.readers)
            .field("busy_timeout", &self.busy_timeout)
            .field("poll", &self.poll)
            .finish_non_exhaustive()
    }
}
