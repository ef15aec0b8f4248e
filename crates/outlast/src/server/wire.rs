//! Tasks as they are written on the wire (S8 to S14), and the errors that callers see.

use chrono::{DateTime, SecondsFormat, Utc};
use outlast_core::{Payload, Status, StoreError, Task, TaskError, TaskState, Timestamp};
use rmcp::{
    ErrorData,
    model::{
        CreateTaskResult, DetailedTask, ErrorCode, GetTaskResult, InputRequests, JsonObject,
        Task as WireTask, TaskPayload, TaskStatus,
    },
};
use serde_json::{Value, json};

/// The answer to a call that became a task (S9).
pub(crate) fn created(task: &Task, now: Timestamp) -> CreateTaskResult {
    CreateTaskResult::new(flat(task, now))
}

/// The answer to `tasks/get` (S10).
pub(crate) fn detailed(task: &Task, now: Timestamp) -> Result<GetTaskResult, ErrorData> {
    let payload = match &task.state {
        TaskState::Live(live) if live.questions.is_empty() => TaskPayload::Working,
        TaskState::Live(live) => {
            let questions: Result<InputRequests, _> = live
                .questions
                .iter()
                .map(|(key, question)| Ok((key.to_string(), question.request().decode()?)))
                .collect();
            let input_requests = questions.map_err(|error: serde_json::Error| {
                tracing::error!(task = ?task.id, %error, "a stored question is no wire request");
                ErrorData::internal_error("a question of this task cannot be shown", None)
            })?;
            TaskPayload::InputRequired { input_requests }
        }
        TaskState::Completed { result } => TaskPayload::Completed { result: object(result) },
        TaskState::Failed { error } => TaskPayload::Failed { error: error_object(error) },
        TaskState::Cancelled => TaskPayload::Cancelled,
    };
    Ok(GetTaskResult::new(DetailedTask::new(flat(task, now), payload)))
}

fn flat(task: &Task, now: Timestamp) -> WireTask {
    let status = match task.status() {
        Status::Working => TaskStatus::Working,
        Status::InputRequired => TaskStatus::InputRequired,
        Status::Completed => TaskStatus::Completed,
        Status::Failed => TaskStatus::Failed,
        Status::Cancelled => TaskStatus::Cancelled,
    };
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut wire =
        WireTask::new(task.id.to_string(), status, instant(task.created_at), instant(task.updated_at))
            .with_poll_interval_ms(millis(task.poll_interval(now)));
    wire.status_message = task.status_message.clone();
    wire.ttl_ms = task.ttl.map(millis);
    wire
}

/// An instant as ISO 8601 in UTC, to the millisecond (S11).
pub(crate) fn instant(at: Timestamp) -> String {
    DateTime::<Utc>::from_timestamp_millis(at.as_millis())
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn object(payload: &Payload) -> JsonObject {
    match payload.to_value() {
        Value::Object(object) => object,
        // A result is an object by the protocol; nothing else is ever stored as one.
        _ => JsonObject::new(),
    }
}

fn error_object(error: &TaskError) -> JsonObject {
    let mut object = JsonObject::new();
    object.insert("code".to_owned(), error.code.into());
    object.insert("message".to_owned(), error.message.clone().into());
    if let Some(data) = &error.data {
        object.insert("data".to_owned(), data.to_value());
    }
    object
}

/// An error of the SDK as the task keeps it.
pub(crate) fn task_error(error: &ErrorData) -> TaskError {
    TaskError {
        code: error.code.0.into(),
        message: error.message.clone().into_owned(),
        data: error.data.as_ref().map(Payload::from_value),
    }
}

/// A stored error as the SDK answers with it.
pub(crate) fn error_data(error: &TaskError) -> ErrorData {
    let code = i32::try_from(error.code).unwrap_or(ErrorCode::INTERNAL_ERROR.0);
    ErrorData::new(ErrorCode(code), error.message.clone(), error.data.as_ref().map(Payload::to_value))
}

/// Unknown, foreign, expired and malformed ids are answered with the same bytes (S25).
pub(crate) fn no_such_task() -> ErrorData {
    ErrorData::invalid_params("there is no such task", None)
}

/// The store failed. What it said goes to the log, never to the caller.
pub(crate) fn store_failed(error: &StoreError) -> ErrorData {
    use std::error::Error;
    tracing::error!(%error, source = error.source().map(tracing::field::display), "the task store failed");
    let message = match error {
        StoreError::Damaged(_) => {
            "this task cannot be read; whoever runs the server has to look at its store"
        }
        _ if error.is_retryable() => {
            "the task store did not answer; nothing that was acknowledged is lost; try again"
        }
        _ => "the task store has failed; nothing that was acknowledged is lost",
    };
    ErrorData::internal_error(message, None)
}

/// A limit was reached that time will lift.
pub(crate) fn slow_down(message: &'static str, retry_after: std::time::Duration) -> ErrorData {
    let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX).max(1);
    ErrorData::new(ErrorCode(-32000), message, Some(json!({"retryAfterMs": millis})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_the_store_says_what_to_do_and_nothing_of_its_reason() {
        let reason = "SELECT from /data/tasks.db";
        for (error, says) in [
            (StoreError::unavailable(reason), "try again"),
            (StoreError::unknown(reason), "try again"),
            (StoreError::fatal(reason), "the task store has failed"),
            (StoreError::damaged(reason), "this task cannot be read"),
        ] {
            let told = store_failed(&error);
            assert_eq!(told.code, ErrorCode::INTERNAL_ERROR);
            assert!(told.message.contains(says) && !told.message.contains("SELECT"), "{}", told.message);
        }
    }

    #[test]
    fn an_instant_is_written_in_utc_to_the_millisecond() {
        assert_eq!(instant(Timestamp::from_millis(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(instant(Timestamp::from_millis(1_785_283_200_123)), "2026-07-29T00:00:00.123Z");
    }
}
