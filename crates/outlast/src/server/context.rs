//! What a tool can say, ask and hear while it runs.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use outlast_core::{InputKey, Question, QuestionKind, TaskId, Wake};
use rmcp::{
    ErrorData, Peer, RoleServer,
    handler::server::{common::FromContextPart, tool::ToolCallContext},
    model::{ElicitationSchema, ErrorCode, InputRequest, ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::gate;
use outlast_runtime::{AskRefused, Run, random_id};

/// A tool's view of the task that it runs in: an extractor for `#[tool]` functions.
///
/// In a synchronous call it works too: progress goes to the caller as notifications, and asking returns
/// [`AskError::NotATask`], so that the tool can do without.
///
/// ```
/// use outlast::{Elicited, TaskContext};
/// use rmcp::{ErrorData, schemars};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Confirm { confirm: bool }
///
/// async fn delete_everything(ctx: TaskContext) -> Result<String, ErrorData> {
///     match ctx.elicit::<Confirm>("sure", "Delete everything?").await? {
///         Elicited::Accept(Confirm { confirm: true }) => {}
///         _ => return Ok("nothing was deleted".to_owned()),
///     }
///     ctx.status("deleting");
///     // ...
///     Ok("all gone".to_owned())
/// }
/// ```
///
/// # Work that outlasts its process
///
/// In a task, what a tool awaits here is kept in the task's journal: the outcome of a [step](TaskContext::step), the answer
/// to a question, the end of a [sleep](TaskContext::sleep), the winner of a [race](TaskContext::race). A tool of
/// [`Recovery::Rerun`](crate::Recovery::Rerun) whose process dies, or that waits for long and is unloaded, runs again
/// from its start, and gets all of that from the journal without doing, asking or waiting again. So:
///
/// - Each has a key of its own, the same on every run; [`TaskContext::scope`] gives the turns of a loop theirs.
/// - What has an effect, takes long or differs from run to run (the time, randomness) belongs into a step.
/// - What a step does may happen twice where the process died before its end was kept; [`TaskContext::step_id`] lets an
///   outside system tell.
/// - A step or sleep whose key is used twice or names something of another kind, or whose kept value is no longer of its
///   type, ends the task as `failed`, and the error names the key.
///
/// ```
/// use std::time::Duration;
/// use outlast::{StepError, TaskContext};
/// # async fn fetch(url: &str) -> Result<String, std::io::Error> { Ok(url.to_owned()) }
///
/// async fn digest(ctx: TaskContext, urls: Vec<String>) -> Result<String, StepError> {
///     let mut pages = Vec::new();
///     for (i, url) in urls.iter().enumerate() {
///         let page: String = ctx.scope("page", i).step("fetch", || async { Ok(fetch(url).await?) }).await?;
///         pages.push(page);
///     }
///     ctx.sleep("let it rest", Duration::from_secs(3_600)).await?;
///     Ok(pages.join("\n"))
/// }
/// ```
#[derive(Clone)]
pub struct TaskContext {
    pub(super) kind: Kind,
    /// What keys begin with here.
    pub(super) scope: Arc<str>,
}

#[derive(Clone)]
pub(super) enum Kind {
    Task(Run),
    Sync(Arc<Synchronous>),
}

/// A call that is no task and will be none.
pub(super) struct Synchronous {
    /// As if it were one, for the names of its steps.
    pub(super) id: TaskId,
    pub(super) ct: CancellationToken,
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
}

/// The caller asked for the end of the work. With `?` in a tool, the task ends as `cancelled`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task was cancelled")]
pub struct Cancelled;

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext").field("is_task", &self.is_task()).finish()
    }
}

/// How a person dealt with a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elicited<T> {
    /// They filled it in.
    Accept(T),
    /// They said no.
    Decline,
    /// They closed it without an answer.
    Cancel,
}

impl TaskContext {
    pub(crate) fn of_run(run: Run) -> Self {
        Self { kind: Kind::Task(run), scope: "".into() }
    }

    /// The context of a request, for handlers written without the `#[tool]` macro.
    #[must_use]
    pub fn from_request(context: &RequestContext<RoleServer>) -> Self {
        if let Some(known) = context.extensions.get::<Self>() {
            return known.clone();
        }
        let synchronous = Synchronous {
            id: random_id(),
            ct: context.ct.clone(),
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
        };
        Self { kind: Kind::Sync(Arc::new(synchronous)), scope: "".into() }
    }

    /// Whether the call is a task, or becomes one when it has to; only then can its caller be asked.
    #[must_use]
    pub fn is_task(&self) -> bool {
        matches!(self.kind, Kind::Task(_))
    }

    /// Says what the work is doing: the task's `statusMessage`. At most four writes a second reach the store; the newest
    /// always does. A longer text than the task's limit (4 KiB) is cut. In a synchronous call it does nothing.
    pub fn status(&self, message: impl Into<String>) {
        if let Kind::Task(run) = &self.kind {
            run.status(message.into());
        }
    }

    /// Says how far the work is. In a task it becomes the status message; in a synchronous call whose caller gave a
    /// progress token, a progress notification.
    pub async fn progress(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        match &self.kind {
            Kind::Task(run) => run.status(progress_text(done, total, message)),
            Kind::Sync(call) => {
                let Some(token) = &call.token else { return };
                let mut progress = ProgressNotificationParam::new(token.clone(), done);
                progress.total = total;
                progress.message = message.map(str::to_owned);
                // A caller who left needs no progress.
                let _ = call.peer.notify_progress(progress).await;
            }
        }
    }

    /// Asks a person to fill in a form that `T` describes, a flat struct of simple fields.
    ///
    /// `key` names the question in this task and is never used for another one (S18).
    ///
    /// # Errors
    /// [`AskError`]; with `?` in a tool, a cancel that came while it waited ends the task as `cancelled`.
    pub async fn elicit<T>(&self, key: &str, message: &str) -> Result<Elicited<T>, AskError>
    where
        T: JsonSchema + DeserializeOwned,
    {
        let answer = self.ask_one(key, form::<T>(key, message)?).await?;
        filled_in(key, &answer)
    }

    /// Asks a person to open a web page, for what must not pass through the client (a password, a payment).
    ///
    /// # Errors
    /// [`AskError`], as for [`TaskContext::elicit`].
    pub async fn elicit_url(&self, key: &str, message: &str, url: &str) -> Result<Elicited<()>, AskError> {
        let params = json!({"mode": "url", "message": message, "url": url});
        let answer = self.ask_one(key, json!({"method": "elicitation/create", "params": params})).await?;
        elicited(&answer, |_| Ok(()))
    }

    /// Asks the client's model. `params` are those of `sampling/createMessage`; the answer is its result.
    ///
    /// # Errors
    /// [`AskError`], as for [`TaskContext::elicit`].
    pub async fn sample(&self, key: &str, params: impl serde::Serialize) -> Result<Value, AskError> {
        self.ask_one(key, json!({"method": "sampling/createMessage", "params": params})).await
    }

    /// Asks for the client's root folders: the `roots` of `roots/list`.
    ///
    /// # Errors
    /// [`AskError`], as for [`TaskContext::elicit`].
    pub async fn roots(&self, key: &str) -> Result<Vec<Value>, AskError> {
        let mut answer = self.ask_one(key, json!({"method": "roots/list"})).await?;
        Ok(answer["roots"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Asks several things at once and waits for all the answers, by key. A request is a wire request
    /// `{method, params}` or any SDK type that serialises to one.
    ///
    /// # Errors
    /// [`AskError`], as for [`TaskContext::elicit`].
    pub async fn ask<K, R>(
        &self,
        requests: impl IntoIterator<Item = (K, R)>,
    ) -> Result<BTreeMap<String, Value>, AskError>
    where
        K: Into<String>,
        R: serde::Serialize,
    {
        let Kind::Task(run) = &self.kind else { return Err(AskError::NotATask) };
        let questions: Vec<_> = requests
            .into_iter()
            .map(|(key, request)| question(&self.scope, &key.into(), request))
            .collect::<Result<_, _>>()?;
        let answers = run.ask(questions).await?;
        let own = |key: &InputKey| key.as_str()[self.scope.len()..].to_owned();
        Ok(answers.iter().map(|(key, answer)| (own(key), answer.to_value())).collect())
    }

    /// Asks one thing, and takes the question back when its answer does not come in time: `None`. The time is the task's:
    /// a restart does not begin it anew, and every later run of the tool goes the same way.
    ///
    /// # Errors
    /// [`AskError`], as for [`TaskContext::elicit`].
    pub async fn ask_or_timeout(
        &self,
        key: &str,
        request: impl serde::Serialize,
        within: Duration,
    ) -> Result<Option<Value>, AskError> {
        let Kind::Task(run) = &self.kind else { return Err(AskError::NotATask) };
        let (key, question) = question(&self.scope, key, request)?;
        let answer = run.ask_until(key, question, Wake::After(within)).await?;
        Ok(answer.map(|answer| answer.to_value()))
    }

    /// Asks a person to fill in a form, as [`TaskContext::elicit`] does, and takes it back when that does not happen in time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use outlast::{AskError, Elicited, TaskContext};
    /// # use rmcp::schemars;
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Approval { yes: bool }
    /// # async fn tool(ctx: TaskContext) -> Result<bool, AskError> {
    /// let answer = ctx.elicit_or_timeout::<Approval>("approve", "Go ahead?", Duration::from_secs(86_400)).await?;
    /// let approved = matches!(answer, Some(Elicited::Accept(Approval { yes: true })));
    /// # Ok(approved) }
    /// ```
    ///
    /// # Errors
    /// [`AskError`], as for [`TaskContext::elicit`].
    pub async fn elicit_or_timeout<T>(
        &self,
        key: &str,
        message: &str,
        within: Duration,
    ) -> Result<Option<Elicited<T>>, AskError>
    where
        T: JsonSchema + DeserializeOwned,
    {
        let request = form::<T>(key, message)?;
        let Some(answer) = self.ask_or_timeout(key, request, within).await? else { return Ok(None) };
        filled_in(key, &answer).map(Some)
    }

    async fn ask_one(&self, key: &str, request: Value) -> Result<Value, AskError> {
        let mut answers = self.ask([(key, request)]).await?;
        Ok(answers.remove(key).unwrap_or_default())
    }

    /// Waits until the caller asks for the end of the work (S22).
    pub async fn cancelled(&self) {
        self.token().cancelled().await;
    }

    /// Whether the caller asked for the end of the work.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token().is_cancelled()
    }

    /// What a tool returns when it stops because it was asked to: the task ends `cancelled`.
    ///
    /// Without a cancel it is an ordinary error, and the task ends `failed`.
    #[must_use]
    pub fn cancel_error(&self) -> ErrorData {
        Cancelled.into()
    }

    /// Keeps the task for at least this long from now (S24). In a synchronous call it does nothing.
    pub async fn extend_ttl(&self, from_now: Duration) {
        if let Kind::Task(run) = &self.kind {
            run.extend_ttl(from_now).await;
        }
    }

    fn token(&self) -> &CancellationToken {
        match &self.kind {
            Kind::Task(run) => run.cancel(),
            Kind::Sync(call) => &call.ct,
        }
    }
}

impl<S> FromContextPart<ToolCallContext<'_, S>> for TaskContext {
    fn from_context_part(context: &mut ToolCallContext<'_, S>) -> Result<Self, ErrorData> {
        Ok(Self::from_request(context.request_context()))
    }
}

/// Why asking was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The call runs synchronously, so nobody can be asked in the middle of it.
    #[error("this call is not a task, so its caller cannot be asked anything")]
    NotATask,
    /// The key was used before in this task (S18).
    #[error("the question key '{0}' was used before in this task; use another key for another question")]
    KeyUsed(String),
    /// The text cannot be a key, or it names a step or timer of this task.
    #[error("'{0}' cannot be a question key: {1}")]
    Key(String, &'static str),
    /// The client did not declare that it can be asked this (S20a).
    #[error("the client did not declare that it can be asked this kind of question: {0}")]
    Undeclared(QuestionKind),
    /// The caller asked for the end of the work, so no answer will come.
    #[error("the task was cancelled")]
    Cancelled,
    /// The question exceeds a limit of the task.
    #[error("the question cannot be asked: {0}")]
    Limit(String),
    /// The answer came, and is not what the question asked for.
    #[error("the answer to '{0}' does not fit the question: {1}")]
    Answer(String, String),
}

impl From<AskRefused> for AskError {
    fn from(refused: AskRefused) -> Self {
        match refused {
            AskRefused::KeyUsed(key) => Self::KeyUsed(key.to_string()),
            AskRefused::KeyKind(key) => Self::Key(key.to_string(), "it names a step or timer of this task"),
            AskRefused::Undeclared(kind) => Self::Undeclared(kind),
            AskRefused::Cancelled => Self::Cancelled,
            AskRefused::Limit(why) => Self::Limit(why),
            other => Self::Limit(other.to_string()),
        }
    }
}

/// The mark by which the runtime knows a tool's explicit exit after a cancel.
const CANCELLED: &str = "outlast/cancelled";

/// Whether a tool's error is its explicit exit after a cancel.
pub(crate) fn is_cancel_exit(error: &ErrorData) -> bool {
    error.data.as_ref().is_some_and(|data| data[CANCELLED] == true)
}

impl From<Cancelled> for ErrorData {
    fn from(cancelled: Cancelled) -> Self {
        Self::new(ErrorCode(-32000), cancelled.to_string(), Some(json!({CANCELLED: true})))
    }
}

impl From<Cancelled> for AskError {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl From<AskError> for ErrorData {
    fn from(error: AskError) -> Self {
        let message = error.to_string();
        match error {
            AskError::Cancelled => Cancelled.into(),
            AskError::Undeclared(kind) => Self::new(
                ErrorCode(-32021),
                message,
                Some(json!({"requiredCapabilities": gate::capability_of(kind)})),
            ),
            AskError::Answer(..) => Self::invalid_params(message, None),
            _ => Self::internal_error(message, None),
        }
    }
}

/// What keys of the runtime's own begin with.
pub(super) const RESERVED: &str = "outlast:";

/// The request for a form that `T` describes.
fn form<T: JsonSchema>(key: &str, message: &str) -> Result<Value, AskError> {
    let schema = ElicitationSchema::from_type::<T>()
        .map_err(|error| AskError::Answer(key.to_owned(), error.to_string()))?;
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    Ok(json!({"method": "elicitation/create", "params": params}))
}

fn filled_in<T: DeserializeOwned>(key: &str, answer: &Value) -> Result<Elicited<T>, AskError> {
    elicited(answer, |content| {
        serde_json::from_value(content).map_err(|error| AskError::Answer(key.to_owned(), error.to_string()))
    })
}

/// A question of the wire request `request`, under `key` in `scope`.
pub(crate) fn question(
    scope: &str,
    key: &str,
    request: impl serde::Serialize,
) -> Result<(InputKey, Question), AskError> {
    let key = format!("{scope}{key}");
    let unfit = |reason| AskError::Key(key.clone(), reason);
    if key.starts_with(RESERVED) {
        return Err(unfit("keys that begin with 'outlast:' are reserved"));
    }
    let input_key =
        InputKey::new(&*key).map_err(|_| unfit("a key is 1 to 256 bytes without control characters"))?;
    let request =
        serde_json::to_value(request).map_err(|_| unfit("its request cannot be written as JSON"))?;
    let unlike = || unfit("its request is no elicitation, sampling or roots request");
    let question = Question::new(&request).ok_or_else(unlike)?;
    // As `tasks/get` will have to read it.
    question.request().decode::<InputRequest>().map_err(|_| unlike())?;
    Ok((input_key, question))
}

/// Progress as one line of text.
pub(crate) fn progress_text(done: f64, total: Option<f64>, message: Option<&str>) -> String {
    let count = match total {
        Some(total) => format!("{done}/{total}"),
        None => done.to_string(),
    };
    match message {
        Some(message) => format!("{message} ({count})"),
        None => count,
    }
}

fn elicited<T>(
    answer: &Value,
    accept: impl FnOnce(Value) -> Result<T, AskError>,
) -> Result<Elicited<T>, AskError> {
    match answer["action"].as_str() {
        Some("accept") => Ok(Elicited::Accept(accept(answer["content"].clone())?)),
        Some("decline") => Ok(Elicited::Decline),
        _ => Ok(Elicited::Cancel),
    }
}
