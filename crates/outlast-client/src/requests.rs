//! The requests about a task, in either generation of the protocol, and what their answers mean.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rmcp::model::{
    ClientCapabilities, ElicitRequestParams, ErrorCode, ErrorData, ServerRequest, TASKS_EXTENSION_ID,
    TaskStatus,
};
use serde_json::{Value, json};

use crate::{
    book::Answers,
    connection::{Connection, Failure, is_missing_capability},
    error::CallErrorKind,
    follow::Followed,
    saved::Generation,
    task::{Detail, Invalid, Task, read_seed, read_status, read_task},
};

/// More pages than any list of tasks has.
const MAX_PAGES: usize = 100;

/// Why a request about a task brought nothing.
#[derive(Debug)]
pub(crate) enum Error {
    /// Asking again would bring the same.
    End(CallErrorKind),
    /// Asking again may help.
    Failed(Failure),
}

impl From<Invalid> for Error {
    fn from(Invalid(why): Invalid) -> Self {
        Self::End(CallErrorKind::InvalidResponse(why))
    }
}

impl Error {
    /// The end that this means for a caller that asks once.
    pub(crate) fn into_kind(self) -> CallErrorKind {
        match self {
            Self::End(end) => end,
            // Of the task it says nothing: that goes on.
            Self::Failed(Failure::Refused(error)) => CallErrorKind::Refused(error),
            Self::Failed(failure) => failure.into_kind(),
        }
    }
}

/// The connection on which a task can be asked about; what cannot work fails before any I/O.
pub(crate) async fn connection(followed: &Followed) -> Result<Arc<Connection>, Error> {
    let connection = followed.link.connection().await.map_err(|failure| of_failure(followed, failure))?;
    let origin = &followed.origin;
    if origin.session.is_some() && connection.session != origin.session {
        return Err(Error::End(CallErrorKind::SessionEnded));
    }
    if connection.generation != origin.generation {
        let why = "the server speaks another generation of the protocol than when the task was created";
        return Err(Error::End(CallErrorKind::Unsupported(why.into())));
    }
    offered(&connection).map_err(Error::End)?;
    Ok(connection)
}

/// Both sides have to know of tasks (S2, S6).
pub(crate) fn offered(connection: &Connection) -> Result<(), CallErrorKind> {
    if connection.offers_tasks() {
        Ok(())
    } else {
        Err(CallErrorKind::Unsupported(format!("the server does not offer {TASKS_EXTENSION_ID}")))
    }
}

/// The connection, once it is clear that the id is still of this task there: what is meant for it must reach no other that
/// a restarted server has given the id to (C38).
async fn sure_connection(followed: &Followed) -> Result<Arc<Connection>, Error> {
    let connection = connection(followed).await?;
    if !followed.is_sure_on(&connection) {
        followed.see(look(followed, &connection).await?);
    }
    Ok(connection)
}

fn of_failure(followed: &Followed, failure: Failure) -> Error {
    match failure {
        Failure::Unauthorized(challenge) => Error::End(CallErrorKind::Unauthorized(challenge)),
        other => {
            if matches!(other, Failure::Lost(_) | Failure::Unreached(_) | Failure::SessionEnded) {
                followed.set_unsure();
            }
            Error::Failed(other)
        }
    }
}

/// `tasks/get`; of the earlier generation also `tasks/result`, once there is one.
pub(crate) async fn get(followed: &Followed) -> Result<Task, Error> {
    let connection = connection(followed).await?;
    look(followed, &connection).await
}

async fn look(followed: &Followed, connection: &Arc<Connection>) -> Result<Task, Error> {
    let task = described(followed, connection).await?;
    if !followed.origin.is_of(&task) {
        return Err(Error::End(CallErrorKind::AnotherTask));
    }
    followed.set_sure_on(connection);
    Ok(task)
}

async fn described(followed: &Followed, connection: &Arc<Connection>) -> Result<Task, Error> {
    let value = about(followed, connection, "tasks/get", json!({})).await?;
    match followed.origin.generation {
        Generation::Extension => {
            if !matches!(value.get("resultType").map(Value::as_str), None | Some(Some("complete"))) {
                let why = "`resultType` of the answer to `tasks/get` is not \"complete\"";
                return Err(Invalid(why.into()).into());
            }
            Ok(own(followed, read_task(&value)?)?)
        }
        Generation::Experimental => {
            let mut task = own(followed, read_seed(&value)?.0)?;
            match read_status(&value)? {
                TaskStatus::Working => {}
                TaskStatus::InputRequired => task.detail = Detail::InputRequired(BTreeMap::new()),
                TaskStatus::Cancelled => task.detail = Detail::Cancelled,
                status => task.detail = legacy_detail(followed, connection, status).await?,
            }
            Ok(task)
        }
    }
}

/// Of the earlier generation: `tasks/result`, which waits for the end and carries the questions of the task meanwhile, as
/// requests that the SDK hands to the user's handler by itself.
pub(crate) async fn legacy_result(followed: &Followed) -> Result<Task, Error> {
    let connection = connection(followed).await?;
    let detail = legacy_detail(followed, &connection, TaskStatus::InputRequired).await?;
    Ok(Task { detail, ..followed.task() })
}

/// An error is the end of the task only where the task is known to have `failed`; else it is the request that failed, and
/// `tasks/get` tells (C40).
async fn legacy_detail(
    followed: &Followed,
    connection: &Arc<Connection>,
    status: TaskStatus,
) -> Result<Detail, Error> {
    let bound = followed.link.options().call_timeout;
    match connection
        .result_of_task(&followed.origin.id, followed.handler(), bound, followed.authorization())
        .await
    {
        Ok(Value::Object(result)) => Ok(Detail::Completed(result)),
        Ok(_) => Err(Invalid("the answer to `tasks/result` is no object".into()).into()),
        Err(Failure::Refused(error)) if says_gone(&error) => Err(Error::End(CallErrorKind::Gone)),
        Err(Failure::Refused(error)) if status == TaskStatus::Failed => Ok(Detail::Failed(error)),
        Err(Failure::Refused(error)) => Err(Error::Failed(Failure::Refused(error))),
        Err(failure) => Err(meaning(followed, connection, failure)),
    }
}

/// Of the earlier generation: `tasks/list`, page by page.
pub(crate) async fn list(connection: &Connection, bound: Duration) -> Result<Vec<Task>, Error> {
    if !connection.lists_tasks() {
        let why =
            "the server lists no tasks; since 2026-07-28 none does, and handles have to be kept (S7, S26)";
        return Err(Error::End(CallErrorKind::Unsupported(why.into())));
    }
    let mut tasks = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params = cursor.take().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        let page = connection.request("tasks/list", params, bound, None).await.map_err(Error::Failed)?;
        let listed = page.get("tasks").and_then(Value::as_array);
        let listed =
            listed.ok_or_else(|| Invalid("`tasks` of the answer to `tasks/list` is no list".into()))?;
        for task in listed {
            tasks.push(read_seed(task)?.0);
        }
        match page.get("nextCursor").and_then(Value::as_str) {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    Ok(tasks)
}

/// `tasks/update` with answers by key (S20).
pub(crate) async fn update(followed: &Followed, answers: Answers) -> Result<(), Error> {
    let connection = sure_connection(followed).await?;
    let params = json!({ "taskId": followed.origin.id, "inputResponses": answers });
    let bound = followed.link.options().request_timeout;
    match connection.request("tasks/update", params, bound, followed.authorization()).await {
        Ok(value) => Ok(acknowledgement(&value)?),
        // Whether it is the task that is unknown or the answer that is refused is told by `tasks/get` alone.
        Err(Failure::Refused(error)) if error.code == ErrorCode::INVALID_PARAMS => {
            Err(Error::Failed(Failure::Refused(error)))
        }
        Err(failure) => Err(meaning(followed, &connection, failure)),
    }
}

/// `tasks/cancel` (S22).
pub(crate) async fn cancel(followed: &Followed) -> Result<(), Error> {
    let connection = sure_connection(followed).await?;
    if followed.task().is_final() {
        return Ok(());
    }
    let params = json!({ "taskId": followed.origin.id });
    let bound = followed.link.options().request_timeout;
    let value = match connection.request("tasks/cancel", params, bound, followed.authorization()).await {
        Ok(value) => value,
        // A server may say so of a task that has ended meanwhile, as those of the earlier generation must.
        Err(Failure::Refused(error)) if error.code == ErrorCode::INVALID_PARAMS && !says_gone(&error) => {
            let task = look(followed, &connection).await?;
            let is_final = task.is_final();
            followed.see(task);
            return if is_final { Ok(()) } else { Err(Error::Failed(Failure::Refused(error))) };
        }
        Err(failure) => return Err(meaning(followed, &connection, failure)),
    };
    match followed.origin.generation {
        Generation::Extension => Ok(acknowledgement(&value)?),
        Generation::Experimental => Ok(()),
    }
}

async fn about(
    followed: &Followed,
    connection: &Arc<Connection>,
    method: &str,
    mut params: Value,
) -> Result<Value, Error> {
    params["taskId"] = followed.origin.id.clone().into();
    let bound = followed.link.options().request_timeout;
    let answer = connection.request(method, params, bound, followed.authorization()).await;
    answer.map_err(|failure| meaning(followed, connection, failure))
}

/// What a failed request says of the task.
fn meaning(followed: &Followed, connection: &Arc<Connection>, failure: Failure) -> Error {
    match failure {
        Failure::Refused(error) if is_gone(&error, followed.origin.generation) => {
            Error::End(CallErrorKind::Gone)
        }
        Failure::Refused(error) if is_missing_capability(error.code) => {
            Error::End(CallErrorKind::Unsupported(
                "the server says that this client did not declare the extension".into(),
            ))
        }
        Failure::Refused(error) if error.code == ErrorCode::METHOD_NOT_FOUND => {
            Error::End(CallErrorKind::Unsupported("the server does not know the request".into()))
        }
        Failure::SessionEnded => {
            followed.link.drop_connection(connection);
            followed.set_unsure();
            match followed.origin.session {
                Some(_) => Error::End(CallErrorKind::SessionEnded),
                None => Error::Failed(Failure::SessionEnded),
            }
        }
        other => of_failure(followed, other),
    }
}

/// Whether an error of `tasks/get` says that the task is not there (S25). `-32603` never does: it is a failed request (C40),
/// save for servers of the earlier generation, which say it in words alone.
fn is_gone(error: &ErrorData, generation: Generation) -> bool {
    match generation {
        Generation::Extension => {
            error.code == ErrorCode::INVALID_PARAMS
                || (says_gone(error) && error.code != ErrorCode::INTERNAL_ERROR)
        }
        Generation::Experimental => error.code == ErrorCode::INVALID_PARAMS || says_gone(error),
    }
}

/// Whether an error says in words that the task is not there.
fn says_gone(error: &ErrorData) -> bool {
    let message = error.message.to_lowercase();
    message.contains("task")
        && ["not found", "unknown task", "no such task", "does not exist"]
            .iter()
            .any(|words| message.contains(words))
}

/// Whether an error of `tasks/update` is about what was sent, unless the task is gone: any but those by which a server says
/// that it has failed, or cannot now (`-32603`, and the range that is left to servers).
pub(crate) fn is_rejection(error: &ErrorData) -> bool {
    error.code != ErrorCode::INTERNAL_ERROR && !(-32099..=-32000).contains(&error.code.0)
}

/// An acknowledgement is an empty result, with or without `resultType` (S20, S22).
fn acknowledgement(value: &Value) -> Result<(), Invalid> {
    match value {
        Value::Object(fields) => match fields.get("resultType").map(Value::as_str) {
            None | Some(Some("complete")) => Ok(()),
            Some(_) => Err(Invalid("`resultType` of an acknowledgement is not \"complete\"".into())),
        },
        _ => Err(Invalid("an acknowledgement is no object".into())),
    }
}

fn own(followed: &Followed, task: Task) -> Result<Task, Invalid> {
    if task.id == followed.origin.id {
        Ok(task)
    } else {
        Err(Invalid("the answer is about another task than was asked for".into()))
    }
}

/// The refusal of a question of a kind that the client did not declare, and that a server therefore could not put by itself
/// (S20a, S30).
pub(crate) fn undeclared(declared: &ClientCapabilities, request: &ServerRequest) -> Option<ErrorData> {
    let (is_declared, kind) = match request {
        ServerRequest::ElicitRequest(request) => {
            let elicitation = declared.elicitation.as_ref();
            match &request.params {
                ElicitRequestParams::UrlElicitationParams { .. } => {
                    (elicitation.is_some_and(|elicitation| elicitation.url.is_some()), "elicitation by URL")
                }
                // A declaration that names neither form means the first of them.
                _ => (
                    elicitation
                        .is_some_and(|elicitation| elicitation.form.is_some() || elicitation.url.is_none()),
                    "elicitation",
                ),
            }
        }
        #[allow(deprecated, reason = "still a kind of question (S19)")]
        ServerRequest::CreateMessageRequest(request) => match &declared.sampling {
            Some(sampling) => (
                request.params.tools.as_ref().is_none_or(Vec::is_empty) || sampling.tools.is_some(),
                "sampling with tools",
            ),
            None => (false, "sampling"),
        },
        #[allow(deprecated, reason = "still a kind of question (S19)")]
        ServerRequest::ListRootsRequest(_) => (declared.roots.is_some(), "roots"),
        _ => (false, "this kind"),
    };
    (!is_declared).then(|| {
        ErrorData::invalid_request(
            format!("the server asks by {kind}, which this client did not declare"),
            None,
        )
    })
}
