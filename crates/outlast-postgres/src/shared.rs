//! What the parts of a store share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outlast_core::{Hint, HintSender, Reading, StoreClock, TaskId, Timestamp};

use crate::{
    Skew,
    clock::{Seen, millis},
    damaged::Damaged,
    error::{Broken, Failure, PostgresError},
    queue::Queue,
    quota::Quotas,
    read::Readers,
    session::{Address, Session},
};

/// What the handle, the writer, the taker and the feed share.
pub(crate) struct Shared {
    pub(crate) address: Arc<Address>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) hints: HintSender,
    pub(crate) readers: Readers,
    pub(crate) damaged: Damaged,
    pub(crate) quotas: Quotas,
    pub(crate) time: Mutex<StoreClock>,
    pub(crate) skew: Skew,
    /// Begins a transaction.
    pub(crate) begin: String,
    /// The channel that changes are told on, and the name of this replica there.
    pub(crate) channel: String,
    pub(crate) replica: String,
    /// Whether the database was away, so that leases ran out without anyone's fault.
    pub(crate) outage: AtomicBool,
    pub(crate) pace: Mutex<Option<Pace>>,
}

/// How long a commit took, and when it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    took: Duration,
    /// On the monotonic clock.
    ended: Duration,
}

/// Begins a transaction: bounded in what it waits for and in how long a replica that stopped keeps its locks; durable,
/// whatever the user's settings say; and by the indexes, because a plan that was made while the tables were empty stays.
pub(crate) fn begin(lock: Duration, idle: Duration, statement: Duration) -> String {
    let (lock, idle, statement) = (millis(lock), millis(idle), millis(statement));
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT set_config('lock_timeout', '{lock}', true), \
         set_config('idle_in_transaction_session_timeout', '{idle}', true), \
         set_config('statement_timeout', '{statement}', true), set_config('enable_seqscan', 'off', true), \
         set_config('jit', 'off', true), \
         set_config('plan_cache_mode', 'force_generic_plan', true), set_config('synchronous_commit', \
         CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, \
         true)"
    )
}

/// The time of the database, in milliseconds, and what the replicas keep in common about it.
pub(crate) const CLOCK: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8,
    (SELECT value FROM $S.outlast WHERE name = 'clock'), (SELECT value FROM $S.outlast WHERE name = 'lease')";

/// What the replicas keep in common about time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks {
    /// The store's time never runs back below this.
    pub(crate) clock: Timestamp,
    /// The longest lease that any replica gave out.
    pub(crate) lease: Duration,
}

impl Shared {
    /// The time of the database as this replica goes by it, from what [`CLOCK`] answered just now.
    pub(crate) fn read_clock(&self, database: i64, marks: Marks) -> Reading {
        let seen = Seen { wall: self.skew.wall(database), monotonic: self.skew.monotonic() };
        let mut time = self.time();
        // The leases of the other replicas are as long to wait for as our own.
        time.observe_lease(marks.lease);
        if self.outage.load(Ordering::Relaxed) {
            // Nobody could renew: the leases that ran out meanwhile are left alone for one more.
            time.pause(&seen);
        }
        time.read_above(marks.clock, &seen)
    }

    pub(crate) fn time(&self) -> MutexGuard<'_, StoreClock> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells who follows in this process.
    pub(crate) fn hint(&self, changed: &[TaskId]) {
        changed.iter().for_each(|id| self.hints.send(Hint::Changed(*id)));
    }

    pub(crate) fn note_commit(&self, began: Duration) {
        let ended = self.skew.monotonic();
        let pace = Pace { took: ended.saturating_sub(began), ended };
        *self.pace.lock().unwrap_or_else(PoisonError::into_inner) = Some(pace);
    }

    /// Whether commits are so slow that a worker could lose what it is given before it can renew.
    pub(crate) fn is_too_slow(&self, lease: Duration) -> bool {
        let pace = *self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        // What a commit took says nothing about the database one lease later.
        let now = self.skew.monotonic();
        pace.is_some_and(|pace| pace.took > lease / 4 && now.saturating_sub(pace.ended) < lease)
    }
}

/// A connection that is kept from transaction to transaction, and replaced when it breaks.
#[derive(Default)]
pub(crate) struct Kept(Option<Session>);

impl Kept {
    pub(crate) fn new(session: Session) -> Self {
        Self(Some(session))
    }

    pub(crate) fn close(&mut self) {
        self.0 = None;
    }

    /// A connection on which these statements are prepared.
    pub(crate) async fn take(
        &mut self,
        shared: &Shared,
        statements: &[&'static str],
    ) -> Result<Session, Failure> {
        let session = match self.0.take() {
            Some(session) if !session.is_closed() => Ok(session),
            lost => {
                if lost.is_some() {
                    shared.outage.store(true, Ordering::Relaxed);
                }
                shared.address.connect().await
            }
        };
        let session = session.inspect_err(|_| shared.outage.store(true, Ordering::Relaxed))?;
        session.prepare(statements).await?;
        Ok(session)
    }

    /// Takes a connection back after a transaction that went so, ready for the next.
    pub(crate) async fn give_back<R>(
        &mut self,
        shared: &Shared,
        session: Session,
        result: Result<R, Broken>,
    ) -> Result<R, Broken> {
        match &result {
            Ok(_) => {
                shared.outage.store(false, Ordering::Relaxed);
                self.0 = Some(session);
            }
            Err(broken) => {
                let sql = broken.failure().sql();
                if sql.is_some_and(PostgresError::is_outage) {
                    shared.outage.store(true, Ordering::Relaxed);
                }
                let lost =
                    matches!(broken, Broken::Unknown(_)) || sql.is_some_and(PostgresError::is_connection);
                if lost || session.run("ROLLBACK").await.is_err() {
                    session.abandon();
                } else {
                    self.0 = Some(session);
                }
            }
        }
        result
    }
}
