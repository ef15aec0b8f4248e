//! What a tool does that outlasts its process: steps, sleeps, races.

use std::{fmt, time::Duration};

use outlast_core::{Clock, Payload, StepKey, Timestamp, Wake};
use outlast_runtime::{Raced, Run, StepFailure, StepOptions, SystemClock};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    context::{Cancelled, Kind, RESERVED, TaskContext},
    step::StepError,
};

impl TaskContext {
    /// Does `work` once. Its value, or the error that it declared as its [last](StepError::last), is in the task's journal
    /// before this returns, and a later run of the tool gets it from there.
    ///
    /// `key` names the step in this task. The value is given back as JSON kept it, from the first time on, so that every
    /// run sees the same.
    ///
    /// # Errors
    /// The step's own error. Unless it was the last, a later run tries again.
    pub async fn step<T, F, Fut>(&self, key: &str, work: F) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, StepError>>,
    {
        let mut work = Some(work);
        // Boxed, so that work of any size costs the futures around it no more than a pointer.
        self.steps(key, &StepOptions::new(), || work.take().map(|work| Box::pin(work()))).await
    }

    /// Does `work` once, as [`TaskContext::step`] does, and tries again when it fails, as `options` say.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use outlast::{StepError, StepOptions, TaskContext};
    /// # async fn upload() -> Result<u64, std::io::Error> { Ok(1) }
    /// # async fn tool(ctx: TaskContext) -> Result<u64, StepError> {
    /// let patient = StepOptions::new().tries(5).timeout(Duration::from_secs(60));
    /// ctx.step_with("upload", patient, || async { Ok(upload().await?) }).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// The step's own error. Unless it was the [last](StepError::last), a later run tries again.
    pub async fn step_with<T, F, Fut>(
        &self,
        key: &str,
        options: StepOptions,
        mut work: F,
    ) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, StepError>>,
    {
        self.steps(key, &options, || Some(Box::pin(work()))).await
    }

    async fn steps<T, F, Fut>(&self, key: &str, options: &StepOptions, mut work: F) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: FnMut() -> Option<Fut>,
        Fut: Future<Output = Result<T, StepError>>,
    {
        let mut once_more = || {
            let work = work();
            async {
                match work {
                    Some(work) => work.await.map_err(|error| error.0),
                    None => Err(StepError::new("the step cannot be tried again").0),
                }
            }
        };
        let run = match &self.kind {
            Kind::Task(run) => run,
            Kind::Sync(call) => {
                let (result, _) = options.try_work(once_more, &call.ct).await;
                return result.map_err(StepError);
            }
        };
        let key = self.step_key(run, key).await;
        let kept = || {
            let work = once_more();
            async {
                match Payload::encode(&work.await?) {
                    Ok(value) => Ok(value),
                    Err(error) => {
                        let why = format!("the value of the step '{key}' cannot be written as JSON: {error}");
                        match run.misuse(why).await {}
                    }
                }
            }
        };
        let value = run.step(key.clone(), options, kept).await;
        // Whether it was the step's last word matters to the journal alone.
        let value = value.map_err(|error| StepError(StepFailure { error, last: false }))?;
        match value.decode() {
            Ok(value) => Ok(value),
            Err(error) => {
                let why = format!(
                    "the value of the step '{key}' in the history of this task is not of the type that the tool \
                     expects: {error}; a tool that changed so needs another version, or another key"
                );
                match run.misuse(why).await {}
            }
        }
    }

    /// Waits for a time on the task's own clock: a restart does not begin the wait anew, and a long one holds no memory.
    /// `key` names it in this task.
    ///
    /// # Errors
    /// [`Cancelled`] when the caller asks for the end of the work before that.
    pub async fn sleep(&self, key: &str, time: Duration) -> Result<(), Cancelled> {
        self.wait(key, Wake::After(time)).await
    }

    /// Waits until an instant, as [`TaskContext::sleep`] does.
    ///
    /// # Errors
    /// [`Cancelled`] when the caller asks for the end of the work before that.
    pub async fn sleep_until(&self, key: &str, instant: Timestamp) -> Result<(), Cancelled> {
        self.wait(key, Wake::At(instant)).await
    }

    async fn wait(&self, key: &str, wake: Wake) -> Result<(), Cancelled> {
        match &self.kind {
            Kind::Task(run) => run.sleep(self.step_key(run, key).await, wake).await.map_err(|_| Cancelled),
            Kind::Sync(call) => {
                let time = match wake {
                    Wake::After(time) => time,
                    Wake::At(instant) => instant.since(SystemClock.now()),
                };
                tokio::select! {
                    biased;
                    () = call.ct.cancelled() => Err(Cancelled),
                    () = tokio::time::sleep(time) => Ok(()),
                }
            }
        }
    }

    /// Runs both until one is over, and drops the other. Which one won is in the task's journal before this returns, so
    /// that every later run of the tool goes the same way, without the loser. Where both are over, the first wins.
    ///
    /// The loser's unfinished steps free their keys, and its questions are taken back.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use outlast::{Raced, StepError, TaskContext};
    /// # async fn pages() -> Result<u32, std::io::Error> { Ok(1) }
    /// # async fn tool(ctx: TaskContext) -> Result<Option<u32>, StepError> {
    /// let count = ctx.step("count", || async { Ok(pages().await?) });
    /// match ctx.race("count in time", count, ctx.sleep("patience", Duration::from_secs(60))).await {
    ///     Raced::First(count) => Ok(Some(count?)),
    ///     Raced::Second(slept) => { slept?; Ok(None) }
    /// }
    /// # }
    /// ```
    pub async fn race<A: Future, B: Future>(
        &self,
        key: &str,
        first: A,
        second: B,
    ) -> Raced<A::Output, B::Output> {
        match &self.kind {
            Kind::Task(run) => run.race(self.step_key(run, key).await, first, second).await,
            Kind::Sync(_) => outlast_runtime::race(first, second).await,
        }
    }

    /// The same context with keys of its own, for the turn `index` of a loop.
    ///
    /// ```
    /// # use outlast::{StepError, TaskContext};
    /// # async fn send(to: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn tool(ctx: TaskContext, people: Vec<String>) -> Result<(), StepError> {
    /// for (i, person) in people.iter().enumerate() {
    ///     ctx.scope("person", i).step("send", || async { Ok(send(person).await?) }).await?;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn scope(&self, name: &str, index: impl fmt::Display) -> Self {
        Self { kind: self.kind.clone(), scope: format!("{}{name}[{index}]/", self.scope).into() }
    }

    /// A name for the step of this key, for outside systems that can tell a repeat by one (an idempotency key of a payment,
    /// a unique column). It is the same on every run of the task's tool, and in a task that carries on a failed one;
    /// it differs for every other step and task. It does not tell the task's id.
    #[must_use]
    pub fn step_id(&self, key: &str) -> String {
        let key = format!("{}{key}", self.scope);
        match &self.kind {
            Kind::Task(run) => run.step_id(&key),
            Kind::Sync(call) => outlast_runtime::step_id(call.id, &key),
        }
    }

    /// The key in this scope. What cannot be one ends the task.
    async fn step_key(&self, run: &Run, key: &str) -> StepKey {
        let text = format!("{}{key}", self.scope);
        let why = match StepKey::new(&*text) {
            Ok(key) if !text.starts_with(RESERVED) => return key,
            Ok(_) => "keys that begin with 'outlast:' are reserved".to_owned(),
            Err(error) => error.to_string(),
        };
        match run
            .misuse(format!("'{}' cannot be the key of a step or timer: {why}", text.escape_debug()))
            .await {}
    }
}
