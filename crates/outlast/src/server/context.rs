//! What a tool can say, ask and hear while it runs.

use std::{collections::BTreeMap, time::Duration};

use outlast_core::{InputKey, Question, QuestionKind};
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
use outlast_runtime::{AskRefused, Run};

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
#[derive(Clone)]
pub struct TaskContext(Kind);

#[derive(Clone)]
enum Kind {
    Task(Run),
    Sync { peer: Peer<RoleServer>, token: Option<ProgressToken>, ct: CancellationToken },
}

impl std::fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        Self(Kind::Task(run))
    }

    /// The context of a request, for handlers written without the `#[tool]` macro.
    #[must_use]
    pub fn from_request(context: &RequestContext<RoleServer>) -> Self {
        if let Some(known) = context.extensions.get::<Self>() {
            return known.clone();
        }
        Self(Kind::Sync {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
            ct: context.ct.clone(),
        })
    }

    /// Whether the call is a task, or becomes one when it has to; only then can its caller be asked.
    #[must_use]
    pub fn is_task(&self) -> bool {
        matches!(self.0, Kind::Task(_))
    }

    /// Says what the work is doing: the task's `statusMessage`. At most four writes a second reach the store; the newest
    /// always does. A longer text than the task's limit (4 KiB) is cut. In a synchronous call it does nothing.
    pub fn status(&self, message: impl Into<String>) {
        if let Kind::Task(run) = &self.0 {
            run.status(message.into());
        }
    }

    /// Says how far the work is. In a task it becomes the status message; in a synchronous call whose caller gave a
    /// progress token, a progress notification.
    pub async fn progress(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        match &self.0 {
            Kind::Task(run) => run.status(progress_text(done, total, message)),
            Kind::Sync { peer, token: Some(token), .. } => {
                let mut progress = ProgressNotificationParam::new(token.clone(), done);
                progress.total = total;
                progress.message = message.map(str::to_owned);
                // A caller who left needs no progress.
                let _ = peer.notify_progress(progress).await;
            }
            Kind::Sync { token: None, .. } => {}
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
        let unfit = |reason: String| AskError::Answer(key.to_owned(), reason);
        let schema = ElicitationSchema::from_type::<T>().map_err(|error| unfit(error.to_string()))?;
        let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
        let answer = self.ask_one(key, json!({"method": "elicitation/create", "params": params})).await?;
        elicited(&answer, |content| serde_json::from_value(content).map_err(|error| unfit(error.to_string())))
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
        let Kind::Task(run) = &self.0 else { return Err(AskError::NotATask) };
        let questions: Vec<_> = requests
            .into_iter()
            .map(|(key, request)| question(key.into(), request))
            .collect::<Result<_, _>>()?;
        let answers = run.ask(questions).await?;
        Ok(answers.into_iter().map(|(key, answer)| (key.to_string(), answer.to_value())).collect())
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
        AskError::Cancelled.into()
    }

    /// Keeps the task for at least this long from now (S24). In a synchronous call it does nothing.
    pub async fn extend_ttl(&self, from_now: Duration) {
        if let Kind::Task(run) = &self.0 {
            run.extend_ttl(from_now).await;
        }
    }

    fn token(&self) -> &CancellationToken {
        match &self.0 {
            Kind::Task(run) => run.cancel(),
            Kind::Sync { ct, .. } => ct,
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
    #[error("the client did not declare that it can be asked this kind of question ({0:?})")]
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

impl From<AskError> for ErrorData {
    fn from(error: AskError) -> Self {
        let message = error.to_string();
        match error {
            AskError::Cancelled => Self::new(ErrorCode(-32000), message, Some(json!({CANCELLED: true}))),
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

/// A question of the wire request `request`, under `key`.
pub(crate) fn question(
    key: String,
    request: impl serde::Serialize,
) -> Result<(InputKey, Question), AskError> {
    let unfit = |reason| AskError::Key(key.clone(), reason);
    if key.starts_with("outlast:") {
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
