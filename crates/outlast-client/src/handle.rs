//! A task, in the hands of the one who called for it.

use std::{fmt, sync::Arc, time::Duration};

use futures::Stream;
use rmcp::{
    ClientHandler,
    model::{CallToolResult, JsonObject},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    authorization::AuthorizationSource,
    clock,
    connection::Failure,
    error::{CallError, CallErrorKind},
    follow::{Followed, Seat, View},
    options::OnUpdate,
    requests,
    saved::SavedTask,
    schema,
    task::{Detail, Task},
};

/// A task of a server: wait for its result, look at it, answer it, cancel it, or write it down and go on in another process.
///
/// A handle is cheap to clone. Dropping it, or a wait for it, leaves the task alone: the work goes on at the server, and only
/// [`cancel`](Self::cancel) asks for its end (S22).
#[derive(Clone)]
pub struct TaskHandle {
    followed: Arc<Followed>,
}

impl TaskHandle {
    pub(crate) fn new(followed: Arc<Followed>) -> Self {
        Self { followed }
    }

    /// The id that the server gave the task.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.followed.origin.id
    }

    /// The tool that was called.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.followed.origin.tool
    }

    /// The server, as its [`Server::name`](crate::Server::name) says.
    #[must_use]
    pub fn server(&self) -> &str {
        self.followed.link.server().name()
    }

    /// The newest state that was seen, without asking. A task that has just been created counts as working.
    #[must_use]
    pub fn last(&self) -> Task {
        self.followed.task()
    }

    /// Whether the newest state that was seen is a final one.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.last().is_final()
    }

    /// Whether the task was last seen completed.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.last().is_completed()
    }

    /// Whether the task was last seen waiting for an answer.
    #[must_use]
    pub fn needs_input(&self) -> bool {
        self.last().needs_input()
    }

    /// Asks the server for the state, once. No question is presented.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or knows no such task; see [`CallErrorKind`].
    pub async fn get(&self) -> Result<Task, CallError> {
        let known = self.last();
        if known.is_final() {
            return Ok(known);
        }
        self.refuse_if_replaced()?;
        let task = requests::get(&self.followed).await.map_err(|error| self.fail(error.into_kind()))?;
        self.followed.see(task);
        Ok(self.last())
    }

    /// Waits for the result, and puts the questions of the task to the client's handler meanwhile.
    ///
    /// Several may wait for one task: each question is put once. A wait that is dropped, or whose `deadline` passes, leaves
    /// the task alone, closes the prompts that only it wanted, and keeps every answer that was given.
    ///
    /// # Errors
    ///
    /// See [`CallErrorKind`]. The error carries the handle; [`CallError::is_retryable`] says whether waiting again makes
    /// sense.
    pub async fn wait(&self, deadline: Option<Duration>) -> Result<CallToolResult, CallError> {
        self.wait_until(deadline.and_then(|deadline| clock::now().checked_add(deadline)), None).await
    }

    /// Waits as [`wait`](Self::wait) does, and tells each new state to a listener.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub async fn wait_with(
        &self,
        deadline: Option<Duration>,
        listener: impl Fn(&Task) + Send + Sync + 'static,
    ) -> Result<CallToolResult, CallError> {
        let until = deadline.and_then(|deadline| clock::now().checked_add(deadline));
        let listener: OnUpdate = Arc::new(listener);
        self.wait_until(until, Some(&listener)).await
    }

    pub(crate) async fn wait_until(
        &self,
        until: Option<Instant>,
        listener: Option<&OnUpdate>,
    ) -> Result<CallToolResult, CallError> {
        let known = self.last();
        if known.is_final() {
            return self.conclude(known, until).await;
        }
        self.refuse_if_replaced()?;
        if until.is_some_and(|until| until <= clock::now()) {
            return Err(self.fail(CallErrorKind::Deadline));
        }
        let mut seat = self.followed.sit();
        let mut told: Option<Task> = None;
        loop {
            let task = match seat.look() {
                View::Final(task) => {
                    if let Some(listener) = listener {
                        listener(&task);
                    }
                    return self.conclude(task, until).await;
                }
                View::Ended(end) => return Err(self.end(end, until).await),
                View::State(task) => task,
            };
            if let Some(listener) = listener
                && told.as_ref() != Some(&task)
            {
                listener(&task);
                told = Some(task);
            }
            tokio::select! {
                () = seat.news() => {}
                () = sleep_until(until) => return Err(self.fail(CallErrorKind::Deadline)),
            }
        }
    }

    /// The states of the task, from the newest one known to the final one, as they become known; questions are put to the
    /// client's handler meanwhile, as by [`wait`](Self::wait). Of states that follow each other faster than they are taken,
    /// only the newest comes. The stream ends after the final state, or after an error; the result of a task that is completed
    /// is then given by [`wait`](Self::wait), without asking the server again. Pin it to take from it: `Box::pin`, or
    /// `std::pin::pin!`.
    pub fn updates(&self) -> impl Stream<Item = Result<Task, CallError>> + Send + use<> {
        struct Updates {
            handle: TaskHandle,
            seat: Option<Seat>,
            told: Option<Task>,
            is_over: bool,
        }
        let updates = Updates { handle: self.clone(), seat: None, told: None, is_over: false };
        futures::stream::unfold(updates, |mut updates| async move {
            if updates.is_over {
                return None;
            }
            let followed = &updates.handle.followed;
            let seat = updates.seat.get_or_insert_with(|| followed.sit());
            loop {
                match seat.look() {
                    View::Final(task) => {
                        updates.is_over = true;
                        updates.handle.followed.forget(None).await;
                        return Some((Ok(task), updates));
                    }
                    View::Ended(end) => {
                        updates.is_over = true;
                        let error = updates.handle.end(end, None).await;
                        return Some((Err(error), updates));
                    }
                    View::State(task) if updates.told.as_ref() != Some(&task) => {
                        updates.told = Some(task.clone());
                        return Some((Ok(task), updates));
                    }
                    View::State(_) => seat.news().await,
                }
            }
        })
    }

    /// Answers a question by its key, with the result that the request of that kind has, such as
    /// `{"action": "accept", "content": {...}}`. The first answer of a key counts; a prompt that is open for it is closed.
    ///
    /// # Errors
    ///
    /// When the answer could not be delivered now. It is kept, and delivered by the next [`wait`](Self::wait), unless the
    /// server refused it.
    pub async fn answer(&self, key: &str, answer: Value) -> Result<(), CallError> {
        self.refuse_if_replaced()?;
        self.followed.answer(key, answer).await;
        let sent: std::collections::BTreeMap<_, _> =
            self.followed.ready().into_iter().filter(|(held, _)| held == key).collect();
        if sent.is_empty() {
            // The server has an answer already.
            return Ok(());
        }
        match requests::update(&self.followed, sent.clone()).await {
            Ok(()) => {
                self.followed.acknowledged(&sent).await;
                Ok(())
            }
            Err(requests::Error::Failed(Failure::Refused(error))) if requests::is_rejection(&error) => {
                // Either the answer is refused or the task is gone; a look tells.
                self.get().await?;
                self.followed.rejected(&sent).await;
                Err(self.fail(CallErrorKind::Refused(error)))
            }
            Err(error) => Err(self.fail(error.into_kind())),
        }
    }

    /// Asks the server to end the task (S22), and closes every prompt. The task decides: wait to see how it ends.
    ///
    /// # Errors
    ///
    /// When the server knows no such task or refuses; or when it could not be asked now: then it is asked again by whoever
    /// waits.
    pub async fn cancel(&self) -> Result<(), CallError> {
        if self.is_final() {
            return Ok(());
        }
        self.refuse_if_replaced()?;
        self.followed.cancel().await.map_err(|error| self.fail(error.into_kind()))
    }

    /// Puts the questions of this task to this handler from now on, and not to the client's.
    #[must_use]
    pub fn with_handler(self, handler: impl ClientHandler) -> Self {
        self.followed.set_handler(Arc::new(handler));
        self
    }

    /// Sends the requests about this task with the header that `authorization` gives for each, and not with what is set for
    /// the server.
    #[must_use]
    pub fn with_authorization(self, authorization: AuthorizationSource) -> Self {
        self.followed.set_authorization(authorization);
        self
    }

    /// Lets the task go on alone. The same as dropping the handle, said aloud.
    pub fn detach(self) {}

    /// The handle as it is written down, to be taken up by [`TaskClient::resume`](crate::TaskClient::resume).
    #[must_use]
    pub fn save(&self) -> SavedTask {
        self.followed.save()
    }

    /// The handle as JSON, for [`SavedTask::from_json`] and [`TaskClient::resume`](crate::TaskClient::resume) in another
    /// process. It holds what may protect the task: keep it as a secret.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.save().to_json()
    }

    /// Writes the handle down, where the client has a store.
    pub(crate) async fn keep(&self) -> Result<(), CallError> {
        self.followed.keep().await.map_err(|kind| self.fail(kind))
    }

    fn refuse_if_replaced(&self) -> Result<(), CallError> {
        if self.followed.is_replaced() {
            return Err(self.fail(CallErrorKind::AnotherTask));
        }
        Ok(())
    }

    fn fail(&self, kind: CallErrorKind) -> CallError {
        CallError::new(kind).with_handle(self.clone())
    }

    /// The error of an end; a task of which there is nothing more to learn is not kept. One whose time to live has passed is:
    /// by a clock that was set it may not have, and a server that has let it go says so.
    async fn end(&self, kind: CallErrorKind, until: Option<Instant>) -> CallError {
        if matches!(kind, CallErrorKind::Gone | CallErrorKind::AnotherTask | CallErrorKind::SessionEnded) {
            self.followed.forget(until).await;
        }
        self.fail(kind)
    }

    /// What a final state means for the call.
    async fn conclude(&self, task: Task, until: Option<Instant>) -> Result<CallToolResult, CallError> {
        let is_checked = self.followed.link.options().validate_output;
        let schema = self.followed.origin.output_schema.as_ref().filter(|_| is_checked);
        let outcome = match task.detail {
            Detail::Completed(result) => match read_result(result) {
                Ok(result) => match schema::misfit(schema, &result).await {
                    None => Ok(result),
                    Some(why) => Err(CallErrorKind::OutputSchema(why)),
                },
                Err(invalid) => Err(invalid),
            },
            Detail::Failed(error) => Err(CallErrorKind::Failed(error)),
            _ => Err(CallErrorKind::Cancelled(task.message)),
        };
        self.followed.forget(until).await;
        outcome.map_err(|kind| self.fail(kind))
    }
}

/// Reads the result of a tool. A result without any of the known fields is an empty one.
pub(crate) fn read_result(mut result: JsonObject) -> Result<CallToolResult, CallErrorKind> {
    if !["content", "structuredContent", "isError"].iter().any(|field| result.contains_key(*field)) {
        result.insert("content".into(), Value::Array(Vec::new()));
    }
    serde_json::from_value(Value::Object(result))
        .map_err(|_| CallErrorKind::InvalidResponse("the result of the tool has not the shape of one".into()))
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for TaskHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle")
            .field("tool", &self.tool())
            .field("status", &self.last().status())
            .finish()
    }
}
