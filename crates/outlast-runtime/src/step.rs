//! Steps: work whose outcome is journaled before it is seen, and that is not done again once it is.

use std::{sync::Arc, time::Duration};

use metrics::histogram;
use outlast_core::{EntryKind, Event, InputKey, Outcome, Payload, StepKey, TaskError, TaskId};
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, field::Empty, info_span};

use crate::{
    clock::Stopwatch,
    lock,
    measure::STEP_SECONDS,
    run::{Lease, Run, UsedKey},
    spans,
    wait::{other_kind, used_twice},
};

/// How a try of a step failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFailure {
    /// The error.
    pub error: TaskError,
    /// Whether it is the step's final word: it is journaled, and no later attempt tries again.
    pub last: bool,
}

/// How often a step is tried, and how fast.
///
/// ```
/// use std::time::Duration;
/// use outlast_runtime::StepOptions;
/// let patient = StepOptions::new().tries(5).backoff(Duration::from_secs(1)).timeout(Duration::from_secs(60));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepOptions {
    tries: u32,
    backoff: Duration,
    max_backoff: Duration,
    timeout: Option<Duration>,
}

impl Default for StepOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StepOptions {
    /// One try, for as long as it takes.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tries: 1,
            backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(30),
            timeout: None,
        }
    }

    /// How often the step is tried before its error is returned. A restart of the process begins to count anew.
    #[must_use]
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// The pause before the second try, 200 ms by default; each further one is twice as long.
    #[must_use]
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.backoff = backoff;
        self
    }

    /// The longest pause between two tries, 30 seconds by default.
    #[must_use]
    pub fn max_backoff(mut self, max_backoff: Duration) -> Self {
        self.max_backoff = max_backoff;
        self
    }

    /// How long one try may take; then it is dropped and counts as failed.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Tries `work` as these options say, until it ends or its last word is said; also returns how often it was tried.
    /// A cancel ends the pauses, not the work; a step that begins after it is part of the clean-up, and gets all its tries.
    ///
    /// # Errors
    /// The failure of the last try.
    pub async fn try_work<T, F, Fut>(
        &self,
        mut work: F,
        cancel: &CancellationToken,
    ) -> (Result<T, StepFailure>, u32)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, StepFailure>>,
    {
        let cleans_up = cancel.is_cancelled();
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match within(self.timeout, work()).await {
                Err(failure) if !failure.last && tries < self.tries => failure,
                ended => return (ended, tries),
            };
            tracing::debug!(tries, error = %failure.error.message, "a step failed and is tried again");
            tokio::select! {
                biased;
                () = cancel.cancelled(), if !cleans_up => return (Err(failure), tries),
                () = sleep(self.pause_after(tries)) => {}
            }
        }
    }

    fn pause_after(&self, tries: u32) -> Duration {
        let doubled = 2u32.saturating_pow(tries.saturating_sub(1).min(31));
        self.backoff.saturating_mul(doubled).min(self.max_backoff)
    }
}

/// Where a step stands before its work begins.
enum Standing {
    New,
    Done(Outcome),
    Misused(String),
}

impl Run {
    /// Does `work` once: its value, or the error that it declared as its last, is journaled before this returns, and a
    /// later attempt returns it without doing the work.
    ///
    /// A try that fails otherwise is repeated as `options` say. Its error is then returned and not journaled: a later
    /// attempt tries again.
    ///
    /// # Errors
    /// The step's own error.
    pub async fn step<F, Fut>(
        &self,
        key: StepKey,
        options: &StepOptions,
        work: F,
    ) -> Result<Payload, TaskError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<Payload, StepFailure>>,
    {
        self.unless_revoked().await;
        let Some(mut used) = self.use_key(&key) else { match self.misuse(used_twice(&key)).await {} };
        match self.standing(&key).await {
            Standing::New => {}
            Standing::Done(outcome) => {
                used.keep();
                return ended(&key, outcome, self).await;
            }
            Standing::Misused(message) => match self.misuse(message).await {},
        }
        // Not for one that finished before: it does nothing.
        let span =
            info_span!(parent: &spans::inner(self.span()), "step", %key, tries = Empty, outcome = Empty);
        let doing = self.do_step(&key, options, work, &mut used, &span);
        doing.instrument(span.clone()).await
    }

    async fn do_step<F, Fut>(
        &self,
        key: &StepKey,
        options: &StepOptions,
        work: F,
        used: &mut UsedKey,
        span: &Span,
    ) -> Result<Payload, TaskError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<Payload, StepFailure>>,
    {
        // Until it is journaled.
        let _busy = self.0.activity.busy();
        let began = Stopwatch::start();
        let (result, tries) = options.try_work(work, self.cancel()).await;
        let said = match &result {
            Ok(_) => "value",
            Err(failure) if failure.last => "error",
            Err(_) => "failed",
        };
        span.record("tries", tries);
        span.record("outcome", said);
        histogram!(STEP_SECONDS, "outcome" => said).record(began.elapsed());
        let outcome = match result {
            Ok(value) => Outcome::Value(value),
            Err(failure) if failure.last => Outcome::Error(
                Payload::encode(&failure.error)
                    .unwrap_or_else(|error| Payload::from_value(&error.to_string().into())),
            ),
            Err(failure) => return Err(failure.error),
        };
        let took = began.elapsed();
        self.journal_step(key, outcome.clone(), took, tries, Vec::new()).await;
        used.keep();
        ended(key, outcome, self).await
    }

    /// What the journal says of a step, once all that may still be on its way there has arrived.
    async fn standing(&self, key: &StepKey) -> Standing {
        let Some(lease) = self.lease() else { return Standing::New };
        if lock(&self.0.doubtful).remove(key) {
            lease.writing.settled().await;
        }
        let mut seen = lock(&lease.seen);
        match seen.kind(key) {
            None => Standing::New,
            Some(EntryKind::Step) => match seen.take_step(key) {
                Some(outcome) => Standing::Done(outcome),
                None => Standing::Misused(format!(
                    "the value of the step '{key}' cannot be read from the history of the task"
                )),
            },
            Some(kind) => Standing::Misused(other_kind(key, kind, "step")),
        }
    }

    /// Journals how a step ended, and takes the questions back that nobody wants after it. Goes on by itself when it is
    /// dropped: the work is done, and must not be done again.
    pub(crate) async fn journal_step(
        &self,
        key: &StepKey,
        outcome: Outcome,
        took: Duration,
        tries: u32,
        unwanted: Vec<InputKey>,
    ) {
        let event = Event::FinishStep { key: key.clone(), outcome: outcome.clone(), took, tries };
        // What the call finishes before it is a task is kept, and written as soon as it is one.
        let Err((event, lease)) = self.keep_early(event) else { return };
        let doubt = Doubt { run: self, key, sure: false };
        let _busy = self.0.activity.busy();
        if !unwanted.is_empty() {
            // What they are asked by may be on its way still: taken back before, they would stay.
            lease.writing.settled().await;
        }
        let (run, step) = (self.clone(), key.clone());
        let writing = lease.writing.begin();
        let written = tokio::spawn(async move {
            let _writing = writing;
            let unwanted = unwanted.into_iter().map(|key| Event::Withdraw { key });
            let events = std::iter::once(event).chain(unwanted).collect();
            run.write_step(&lease, step, outcome, events).await;
        });
        // It cannot panic, and is aborted only with the process.
        let _ = written.await;
        if self.is_revoked() {
            std::future::pending::<()>().await;
        }
        doubt.resolve();
        if let Some(lease) = self.lease() {
            // It goes to the work, and need not stay in memory.
            lock(&lease.seen).take_step(key);
        }
    }

    async fn write_step(&self, lease: &Arc<Lease>, key: StepKey, outcome: Outcome, events: Vec<Event>) {
        let _busy = self.0.activity.busy();
        let written = tokio::select! {
            biased;
            () = self.gone().cancelled() => return,
            written = self.write(lease, events) => written,
        };
        match written {
            Some(Ok(_)) => lock(&lease.seen).put_step(key, outcome),
            Some(Err(illegal)) => {
                self.misuse_now(format!("the step '{key}' ended and could not be kept: {illegal}"));
            }
            None => self.gone().cancel(),
        }
    }
}

/// A step whose work is done; dropped before it is resolved, the journal has to be asked whether it is kept.
struct Doubt<'a> {
    run: &'a Run,
    key: &'a StepKey,
    sure: bool,
}

impl Doubt<'_> {
    fn resolve(mut self) {
        self.sure = true;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.sure {
            lock(&self.run.0.doubtful).insert(self.key.clone());
        }
    }
}

async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, StepFailure>>,
) -> Result<T, StepFailure> {
    let Some(limit) = limit else { return work.await };
    timeout(limit, work).await.unwrap_or_else(|_| {
        let error = TaskError::internal(format!("the step took longer than {limit:?} and was ended"));
        Err(StepFailure { error, last: false })
    })
}

async fn ended(key: &StepKey, outcome: Outcome, run: &Run) -> Result<Payload, TaskError> {
    match outcome {
        Outcome::Value(value) => Ok(value),
        Outcome::Error(error) => match error.decode() {
            Ok(error) => Err(error),
            Err(_) => {
                let message =
                    format!("the error of the step '{key}' cannot be read from the history of the task");
                match run.misuse(message).await {}
            }
        },
    }
}

/// A name for a step that outside systems can tell a repeat by, of the task and the key.
///
/// It is a digest, so that an outside system that is given it learns nothing
/// that opens the task.
#[must_use]
pub fn step_id(task: TaskId, key: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(b"outlast step\0");
    digest.update(task.as_bytes());
    digest.update(key);
    digest.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let options = StepOptions::new().backoff(Duration::from_secs(1)).max_backoff(Duration::from_secs(10));
        let pauses: Vec<_> = (1..=6).map(|tries| options.pause_after(tries).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(options.pause_after(u32::MAX), Duration::from_secs(10));
    }

    #[test]
    fn step_ids_differ_by_task_and_by_key_and_do_not_tell_the_task() {
        let task = |byte| TaskId::from_bytes([byte; 16]);
        let id = step_id(task(1), "a");
        assert_eq!(id, step_id(task(1), "a"));
        assert_ne!(id, step_id(task(1), "b"));
        assert_ne!(id, step_id(task(2), "a"));
        assert_eq!(id.len(), 32);
        assert!(!id.contains("0101"));
    }
}
