//! How a store is opened.

use std::{fmt, time::Duration};

use outlast_core::LaneLimits;

use crate::Skew;

/// How a store is opened.
///
/// ```
/// use std::time::Duration;
/// use outlast_postgres::Options;
/// let options = Options::default().schema("tenant_a").wait(Some(Duration::from_secs(60)));
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) schema: String,
    pub(crate) direct_url: Option<String>,
    pub(crate) readers: usize,
    pub(crate) prepared: bool,
    pub(crate) lock_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) statement_timeout: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) skew: Skew,
    pub(crate) limits: LaneLimits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schema: "outlast".into(),
            direct_url: None,
            readers: 8,
            prepared: true,
            lock_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(10),
            wait: None,
            skew: Skew::default(),
            limits: LaneLimits::default(),
        }
    }
}

impl Options {
    /// The schema that the tables are in; `outlast` unless another is named. Stores in different schemas share nothing.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// A URL that leads to the server itself, where the other one leads to a pooler that shares connections by the
    /// transaction: the change feed listens on a connection of its own.
    #[must_use]
    pub fn direct_url(mut self, url: impl Into<String>) -> Self {
        self.direct_url = Some(url.into());
        self
    }

    /// How many reads may go on at once; at least one. Beside these a store has two connections that write and one
    /// that listens.
    #[must_use]
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// Whether statements are prepared once for each connection. Set it to `false` for a pooler that shares
    /// connections by the transaction and knows nothing of prepared statements, such as PgBouncer before 1.21.
    #[must_use]
    pub fn prepared(mut self, prepared: bool) -> Self {
        self.prepared = prepared;
        self
    }

    /// How long a write waits for what another replica has locked; a second unless set.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long the database lets a replica that has stopped in the middle of a write keep its locks; a second unless
    /// set.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long one statement may take before it is given up as
    /// [`Unavailable`](outlast_core::StoreError::Unavailable); ten seconds unless set.
    #[must_use]
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How often the change feed makes sure that its connection is alive; ten seconds unless set.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval.max(Duration::from_millis(10));
        self
    }

    /// How long to wait, trying again and again, for a database that does not answer when the store is opened; `None`,
    /// as it is unless set, for not at all.
    #[must_use]
    pub fn wait(mut self, wait: Option<Duration>) -> Self {
        self.wait = wait;
        self
    }

    /// What is added to the time, for tests.
    #[must_use]
    pub fn skew(mut self, skew: Skew) -> Self {
        self.skew = skew;
        self
    }
}

impl fmt::Debug for Options {
    /// Without the URL, which has a password in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("schema", &self.schema)
            .field("direct", &self.direct_url.is_some())
            .field("readers", &self.readers)
            .field("prepared", &self.prepared)
            .field("lock_timeout", &self.lock_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
