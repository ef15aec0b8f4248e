//! What a server says of a task, read from the wire with care.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rmcp::model::{ElicitRequest, ErrorData, JsonObject, ServerRequest, TaskStatus};
use serde_json::Value;

/// The longest id of a task that is read; a longer one is an invalid response.
const MAX_ID: usize = 4096;

/// A task, as its server described it at one moment (S10).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Task {
    /// The id that the server gave it. Treat it as a secret: for some servers it is the only protection.
    pub id: String,
    /// What the server says of its progress, for people to read.
    pub message: Option<String>,
    /// When the server says that it created the task.
    pub created_at: DateTime<Utc>,
    /// When the server says that the task changed last.
    pub updated_at: DateTime<Utc>,
    /// How long after `created_at` the server keeps the task, in milliseconds; none when it sets no limit, or one beyond
    /// what can be counted.
    pub ttl_ms: Option<u64>,
    /// How often the server wants to be asked, in milliseconds.
    pub poll_interval_ms: Option<u64>,
    /// The state, with what belongs to it.
    pub detail: Detail,
}

/// The state of a [`Task`], with what belongs to it (S10, S12).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Detail {
    /// The work goes on.
    Working,
    /// The work waits for answers, by the keys of the questions.
    InputRequired(BTreeMap<String, Question>),
    /// The work ended with the result of the call, which may itself report an error of the tool (S13).
    Completed(JsonObject),
    /// The call ended with a JSON-RPC error (S13).
    Failed(ErrorData),
    /// The task was cancelled.
    Cancelled,
}

impl Task {
    /// The status as the protocol names it.
    #[must_use]
    pub fn status(&self) -> TaskStatus {
        match self.detail {
            Detail::Working => TaskStatus::Working,
            Detail::InputRequired(_) => TaskStatus::InputRequired,
            Detail::Completed(_) => TaskStatus::Completed,
            Detail::Failed(_) => TaskStatus::Failed,
            Detail::Cancelled => TaskStatus::Cancelled,
        }
    }

    /// Whether nothing about the task changes any more (S12).
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.status().is_terminal()
    }

    /// Whether the work goes on and waits for nobody.
    #[must_use]
    pub fn is_working(&self) -> bool {
        matches!(self.detail, Detail::Working)
    }

    /// Whether the work waits for an answer.
    #[must_use]
    pub fn needs_input(&self) -> bool {
        matches!(self.detail, Detail::InputRequired(_))
    }

    /// Whether the call has its result.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self.detail, Detail::Completed(_))
    }

    /// Whether the call ended with a JSON-RPC error.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        matches!(self.detail, Detail::Failed(_))
    }

    /// Whether the task was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.detail, Detail::Cancelled)
    }

    /// The questions that wait for an answer, by key.
    pub fn questions(&self) -> impl Iterator<Item = (&str, &Question)> {
        let questions = match &self.detail {
            Detail::InputRequired(questions) => Some(questions),
            _ => None,
        };
        questions.into_iter().flatten().map(|(key, question)| (key.as_str(), question))
    }
}

/// A question of a task: a request as a server could also send it by itself (S19).
#[derive(Debug, Clone, PartialEq)]
pub struct Question(Value);

impl Question {
    /// The request as it came over the wire.
    #[must_use]
    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// The method of the request, such as `elicitation/create`.
    #[must_use]
    pub fn method(&self) -> &str {
        self.0.get("method").and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn new(value: Value) -> Self {
        Self(value)
    }

    /// The request for a handler; none where it is of no kind that a task may ask (S19), or malformed.
    pub(crate) fn request(&self) -> Option<ServerRequest> {
        match self.method() {
            "elicitation/create" => {
                serde_json::from_value::<ElicitRequest>(self.0.clone()).ok().map(ServerRequest::ElicitRequest)
            }
            "sampling/createMessage" =>
            {
                #[allow(deprecated, reason = "still a kind of question (S19)")]
                serde_json::from_value::<rmcp::model::CreateMessageRequest>(self.0.clone())
                    .ok()
                    .map(ServerRequest::CreateMessageRequest)
            }
            "roots/list" => {
                // Its parameters are optional, and some servers send them empty.
                let method =
                    Value::Object([("method".to_owned(), "roots/list".into())].into_iter().collect());
                #[allow(deprecated, reason = "still a kind of question (S19)")]
                serde_json::from_value::<rmcp::model::ListRootsRequest>(method)
                    .ok()
                    .map(ServerRequest::ListRootsRequest)
            }
            _ => None,
        }
    }
}

/// Why an answer of a server is no valid one. The text names the field and quotes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) String);

fn invalid<T>(what: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid(what.into()))
}

/// Reads a task with what belongs to its state: the answer to `tasks/get`, or the parameters of `notifications/tasks`.
pub(crate) fn read_task(value: &Value) -> Result<Task, Invalid> {
    let mut task = read_base(value)?;
    task.detail = match read_status(value)? {
        TaskStatus::Working => Detail::Working,
        TaskStatus::InputRequired => Detail::InputRequired(read_questions(value.get("inputRequests"))?),
        TaskStatus::Completed => Detail::Completed(read_result(value.get("result"))?),
        TaskStatus::Failed => Detail::Failed(read_error(value.get("error"))?),
        TaskStatus::Cancelled => Detail::Cancelled,
        _ => return invalid("`status` is none of the five that there are"),
    };
    Ok(task)
}

/// Reads a task from a `CreateTaskResult`, which carries no more than its status (S9): whatever that is, the work counts
/// as going on until `tasks/get` tells the rest. The flag says that there is more to tell already.
pub(crate) fn read_seed(value: &Value) -> Result<(Task, bool), Invalid> {
    let task = read_base(value)?;
    Ok((task, read_status(value)? != TaskStatus::Working))
}

fn read_base(value: &Value) -> Result<Task, Invalid> {
    if !value.is_object() {
        return invalid("the task is no object");
    }
    let id = match value.get("taskId") {
        Some(Value::String(id)) if !id.is_empty() && id.len() <= MAX_ID => id.clone(),
        Some(Value::String(_)) => return invalid("`taskId` is empty or too long"),
        _ => return invalid("`taskId` is no string"),
    };
    let message = match value.get("statusMessage") {
        None | Some(Value::Null) => None,
        Some(Value::String(message)) => Some(message.clone()),
        Some(_) => return invalid("`statusMessage` is no string"),
    };
    let created_at = read_instant(value, "createdAt")?;
    let updated_at = match value.get("lastUpdatedAt") {
        None => created_at,
        Some(_) => read_instant(value, "lastUpdatedAt")?,
    };
    // Names of the generation before are read where the present ones are absent; a server mixes them up at its own risk.
    let ttl = value.get("ttlMs").or_else(|| value.get("ttl"));
    let interval = value.get("pollIntervalMs").or_else(|| value.get("pollInterval"));
    Ok(Task {
        id,
        message,
        created_at,
        updated_at,
        ttl_ms: read_millis(ttl, "ttlMs")?,
        poll_interval_ms: read_millis(interval, "pollIntervalMs")?,
        detail: Detail::Working,
    })
}

pub(crate) fn read_status(value: &Value) -> Result<TaskStatus, Invalid> {
    value
        .get("status")
        .and_then(|status| serde_json::from_value(status.clone()).ok())
        .ok_or_else(|| Invalid("`status` is none of the five that there are".into()))
}

fn read_instant(value: &Value, field: &str) -> Result<DateTime<Utc>, Invalid> {
    value
        .get(field)
        .and_then(Value::as_str)
        .and_then(|text| DateTime::parse_from_rfc3339(text).ok())
        .map(|instant| instant.with_timezone(&Utc))
        .ok_or_else(|| Invalid(format!("`{field}` is no timestamp")))
}

/// A number of milliseconds (S11). One beyond what can be counted is as good as none; a float that is whole is let pass,
/// since some languages know no other number.
fn read_millis(value: Option<&Value>, field: &str) -> Result<Option<u64>, Invalid> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => {
            if let Some(millis) = number.as_u64() {
                return Ok(Some(millis));
            }
            match number.as_f64() {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "checked just before"
                )]
                Some(millis) if millis >= 0.0 && millis.fract() == 0.0 && millis < 9.0e15 => {
                    Ok(Some(millis as u64))
                }
                Some(millis) if millis >= 9.0e15 => Ok(None),
                _ => invalid(format!("`{field}` is no whole number from 0 up")),
            }
        }
        Some(_) => invalid(format!("`{field}` is no number")),
    }
}

fn read_questions(value: Option<&Value>) -> Result<BTreeMap<String, Question>, Invalid> {
    match value {
        Some(Value::Object(questions)) => {
            Ok(questions.iter().map(|(key, question)| (key.clone(), Question(question.clone()))).collect())
        }
        _ => invalid("`inputRequests` of a task that waits for input is no object"),
    }
}

fn read_result(value: Option<&Value>) -> Result<JsonObject, Invalid> {
    match value {
        Some(Value::Object(result)) => match result.get("resultType").map(Value::as_str) {
            None | Some(Some("complete")) => Ok(result.clone()),
            Some(_) => invalid("`resultType` of the result of a completed task is not \"complete\""),
        },
        _ => invalid("`result` of a completed task is no object"),
    }
}

pub(crate) fn read_error(value: Option<&Value>) -> Result<ErrorData, Invalid> {
    value
        .and_then(|error| serde_json::from_value(error.clone()).ok())
        .ok_or_else(|| Invalid("`error` of a failed task is no JSON-RPC error".into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wire(extra: &Value) -> Value {
        let mut value = json!({
            "resultType": "complete", "taskId": "t", "status": "working",
            "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z", "ttlMs": 60_000,
        });
        for (key, field) in extra.as_object().into_iter().flatten() {
            value[key] = field.clone();
        }
        value
    }

    #[test]
    fn c31_z_and_an_offset_of_zero_are_the_same_instant() {
        let z = read_task(&wire(&json!({}))).unwrap();
        let offset = read_task(&wire(&json!({"createdAt": "2026-11-29T11:00:00+01:00"}))).unwrap();
        assert_eq!(z.created_at, offset.created_at);
    }

    #[test]
    fn c39_a_ttl_of_null_or_beyond_any_clock_is_no_limit() {
        for ttl in ["null", "1e30", "100000000000000000000000", "18446744073709551616"] {
            let ttl: Value = serde_json::from_str(ttl).unwrap();
            assert_eq!(read_task(&wire(&json!({"ttlMs": ttl}))).unwrap().ttl_ms, None, "{ttl}");
        }
        assert_eq!(read_task(&wire(&json!({"ttlMs": u64::MAX}))).unwrap().ttl_ms, Some(u64::MAX));
        assert_eq!(read_task(&wire(&json!({"ttlMs": 60000.0}))).unwrap().ttl_ms, Some(60_000));
    }

    #[test]
    fn c39_fields_of_the_wrong_shape_are_an_invalid_response() {
        for (extra, names) in [
            (json!({"ttlMs": "60000"}), "ttlMs"),
            (json!({"ttlMs": -1}), "ttlMs"),
            (json!({"pollIntervalMs": 0.5}), "pollIntervalMs"),
            (json!({"pollIntervalMs": true}), "pollIntervalMs"),
            (json!({"createdAt": "yesterday"}), "createdAt"),
            (json!({"createdAt": 5}), "createdAt"),
            (json!({"lastUpdatedAt": ""}), "lastUpdatedAt"),
            (json!({"status": "paused"}), "status"),
            (json!({"status": null}), "status"),
            (json!({"taskId": 7}), "taskId"),
            (json!({"taskId": ""}), "taskId"),
            (json!({"taskId": "x".repeat(1 << 20)}), "taskId"),
            (json!({"statusMessage": {}}), "statusMessage"),
            (json!({"status": "completed"}), "result"),
            (json!({"status": "completed", "result": []}), "result"),
            (json!({"status": "completed", "result": {"resultType": "task"}}), "resultType"),
            (json!({"status": "failed"}), "error"),
            (json!({"status": "failed", "error": "no"}), "error"),
            (json!({"status": "input_required"}), "inputRequests"),
        ] {
            let Invalid(why) = read_task(&wire(&extra)).unwrap_err();
            assert!(why.contains(names), "{extra}: {why}");
        }
        assert!(read_task(&json!("x")).is_err());
    }

    #[test]
    fn an_extra_task_member_is_ignored() {
        let value = wire(&json!({"resultType": "task", "task": {"taskId": "other"}}));
        assert_eq!(read_seed(&value).unwrap().0.id, "t");
    }

    #[test]
    fn a_question_of_no_known_kind_is_kept_and_gives_no_request() {
        let value =
            wire(&json!({"status": "input_required", "inputRequests": {"k": {"method": "ping"}, "n": 5}}));
        let task = read_task(&value).unwrap();
        assert_eq!(task.questions().count(), 2);
        assert!(task.questions().all(|(_, question)| question.request().is_none()));
    }
}
