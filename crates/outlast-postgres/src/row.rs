//! A task as a row, and back.

use std::{collections::BTreeMap, mem};

use outlast_core::{
    Call, Entry, EntryKind, InputKey, Payload, Question, QuestionKind, StepKey, Task, TaskError, TaskId,
    TaskState, Timestamp,
};
use serde::{Deserialize, Serialize, de::IntoDeserializer};
use tokio_postgres::{Row as SqlRow, types::FromSql};

use crate::error::Failure;

/// A task with the number that its rows go by.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) number: i64,
    pub(crate) task: Task,
}

/// What the column `value` holds: the task without its large parts.
#[derive(Serialize, Deserialize)]
struct Value {
    task: Task,
    /// The outstanding questions; what they ask is in the journal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    asked: BTreeMap<InputKey, QuestionKind>,
}

/// The columns of [`read`] behind a row's number, of a table `t`. What the outstanding questions ask comes with them, in
/// the same snapshot.
macro_rules! task_columns {
    () => {
        "t.value, t.body, q.keys, q.bodies"
    };
}
pub(crate) use task_columns;

/// Joins what [`task_columns!`] needs.
macro_rules! join_questions {
    () => {
        " LEFT JOIN LATERAL (SELECT array_agg(j.key) AS keys, array_agg(j.body) AS bodies FROM $S.journal j
           WHERE t.asked IS NOT NULL AND j.number = t.number AND j.opens
           AND j.key = ANY (string_to_array(t.asked, E'\\n'))) q ON true "
    };
}
pub(crate) use join_questions;

/// A statement that finds tasks, ended by what is put behind it.
macro_rules! select_task {
    ($rest:literal) => {
        concat!(
            "SELECT t.number, ",
            crate::row::task_columns!(),
            " FROM $S.tasks t",
            crate::row::join_questions!(),
            $rest
        )
    };
}
pub(crate) use select_task;

/// The task of a row of [`select_task!`].
pub(crate) fn read(row: &SqlRow) -> Result<Row, Failure> {
    read_at(row, 0)
}

/// The same where the number stands in this column.
pub(crate) fn read_at(row: &SqlRow, column: usize) -> Result<Row, Failure> {
    let number = get(row, column)?;
    let columns = || {
        let keys: Option<Vec<&str>> = get(row, column + 3)?;
        let bodies: Option<Vec<Option<&str>>> = get(row, column + 4)?;
        let asked = keys.unwrap_or_default().into_iter().zip(bodies.unwrap_or_default()).collect();
        decode(get(row, column + 1)?, get(row, column + 2)?, &asked)
    };
    let task = columns().map_err(|failure: Failure| failure.of_task(number))?;
    Ok(Row { number, task })
}

/// A task from its columns, and from what its questions' entries in the journal hold.
pub(crate) fn decode(
    value: &str,
    body: Option<&str>,
    asked_bodies: &BTreeMap<&str, Option<&str>>,
) -> Result<Task, Failure> {
    let Value { mut task, asked } = serde_json::from_str(value)?;
    match (&mut task.state, body) {
        (TaskState::Live(live), _) => {
            for (key, kind) in asked {
                let request = asked_bodies.get(key.as_str()).copied().flatten();
                let request = request.ok_or_else(|| Failure::Value("a question has no entry".into()))?;
                live.questions.insert(key, question(kind, request)?);
            }
        }
        (TaskState::Completed { result }, Some(body)) => *result = Payload::from_json(body)?,
        (TaskState::Failed { error }, Some(body)) => *error = serde_json::from_str(body)?,
        (TaskState::Completed { .. } | TaskState::Failed { .. }, None) => {
            return Err(Failure::Value("it ended and its end is missing".into()));
        }
        (TaskState::Cancelled, _) => {}
    }
    Ok(task)
}

fn question(kind: QuestionKind, request: &str) -> Result<Question, Failure> {
    let kind = serde_json::to_string(&kind)?;
    // Read before it is put into another text, so that it cannot be anything but one value.
    let request = Payload::from_json(request)?;
    Ok(serde_json::from_str(&format!(r#"{{"kind":{kind},"request":{}}}"#, request.as_str()))?)
}

/// What the columns of a task are to hold.
pub(crate) struct Written {
    pub(crate) value: String,
    /// The keys of the outstanding questions. A key holds no control character, and so no end of a line.
    pub(crate) asked: Option<String>,
    /// How it ended, if it has.
    pub(crate) body: Option<String>,
}

/// Takes a task apart.
pub(crate) fn write(task: &Task) -> Result<Written, Failure> {
    let mut task = task.clone();
    let mut asked = BTreeMap::new();
    let body = match &mut task.state {
        TaskState::Live(live) => {
            let questions = mem::take(&mut live.questions);
            asked = questions.into_iter().map(|(key, question)| (key, question.kind())).collect();
            None
        }
        TaskState::Completed { result } => Some(mem::replace(result, Payload::null()).as_str().to_owned()),
        TaskState::Failed { error } => {
            let body = serde_json::to_string(error)?;
            *error = TaskError::new(error.code, "");
            Some(body)
        }
        TaskState::Cancelled => None,
    };
    let lines: Vec<_> = asked.keys().map(InputKey::as_str).collect();
    let lines = (!lines.is_empty()).then(|| lines.join("\n"));
    Ok(Written { value: serde_json::to_string(&Value { task, asked })?, asked: lines, body })
}

/// An entry of the journal, from the columns `seq, at, kind, key, body`.
pub(crate) fn entry(row: &SqlRow) -> Result<Entry, Failure> {
    let key: Option<&str> = get(row, 3)?;
    Ok(Entry {
        seq: unsigned(get(row, 0)?)?,
        at: Timestamp::from_millis(get(row, 1)?),
        kind: kind(get(row, 2)?)?,
        key: key.map(step_key).transpose()?,
        body: payload(get(row, 4)?)?,
    })
}

/// The call of a task, from the columns `params, context`.
pub(crate) fn call(row: &SqlRow, number: i64) -> Result<Call, Failure> {
    let call =
        || Ok(Call { params: Payload::from_json(get::<&str>(row, 0)?)?, context: payload(get(row, 1)?)? });
    call().map_err(|failure: Failure| failure.of_task(number))
}

pub(crate) fn get<'r, T: FromSql<'r>>(row: &'r SqlRow, column: usize) -> Result<T, Failure> {
    row.try_get(column).map_err(|error| Failure::Value(error.to_string()))
}

/// An id, from a column that holds one.
pub(crate) fn id(row: &SqlRow, column: usize) -> Result<TaskId, Failure> {
    bytes(get(row, column)?).map(TaskId::from_bytes)
}

pub(crate) fn bytes<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Failure> {
    bytes.try_into().map_err(|_| Failure::Value(format!("{} bytes instead of {N}", bytes.len())))
}

pub(crate) fn unsigned(number: i64) -> Result<u64, Failure> {
    u64::try_from(number).map_err(|_| Failure::Value("a number below zero".into()))
}

/// As a column holds it; what is too large for one is as good as for ever.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn step_key(text: &str) -> Result<StepKey, Failure> {
    StepKey::new(text).map_err(|error| Failure::Value(error.to_string()))
}

pub(crate) fn payload(text: Option<&str>) -> Result<Option<Payload>, Failure> {
    Ok(text.map(Payload::from_json).transpose()?)
}

pub(crate) fn kind(text: &str) -> Result<EntryKind, Failure> {
    let text: serde::de::value::StrDeserializer<'_, serde_json::Error> = text.into_deserializer();
    Ok(EntryKind::deserialize(text)?)
}

pub(crate) fn kind_name(kind: EntryKind) -> Result<String, Failure> {
    Ok(serde_json::to_string(&kind)?.trim_matches('"').to_owned())
}
