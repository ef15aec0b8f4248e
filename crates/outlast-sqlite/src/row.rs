//! A task as rows, and back.

use std::{collections::BTreeMap, mem};

use outlast_core::{
    Call, Entry, EntryKind, InputKey, Known, Payload, Question, QuestionKind, StepKey, Task, TaskId,
    TaskState, Timestamp,
};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use serde::{Deserialize, Serialize, de::IntoDeserializer};

use crate::error::Failure;

/// A task with the numbers that its rows go by.
pub(crate) struct Row {
    pub(crate) number: i64,
    pub(crate) owner: i64,
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

/// The columns of [`read`], to be put before a `WHERE`.
macro_rules! select_task {
    ($rest:literal) => {
        concat!(
            "SELECT t.number, t.owner, t.value, b.body, b.data FROM tasks t LEFT JOIN bodies b ON b.number = t.number ",
            $rest
        )
    };
}
pub(crate) use select_task;

/// The task of a row of [`select_task!`].
pub(crate) fn read(connection: &Connection, row: &SqlRow<'_>) -> Result<Row, Failure> {
    let number = row.get(0)?;
    decode(connection, row, number).map_err(|failure| failure.of_task(number))
}

fn decode(connection: &Connection, row: &SqlRow<'_>, number: i64) -> Result<Row, Failure> {
    let Value { mut task, asked } = serde_json::from_str(row.get_ref(2)?.as_str()?)?;
    let body = row.get_ref(3)?.as_str_or_null()?;
    match (&mut task.state, body) {
        (TaskState::Live(live), _) => {
            for (key, kind) in asked {
                let question = question(connection, number, &key, kind)?;
                live.questions.insert(key, question);
            }
        }
        (TaskState::Completed { result }, Some(body)) => *result = Payload::from_json(body)?,
        (TaskState::Failed { error }, Some(message)) => {
            error.message = message.to_owned();
            error.data = payload(row, 4)?;
        }
        _ => {}
    }
    Ok(Row { number, owner: row.get(1)?, task })
}

/// The task of this id.
pub(crate) fn load(connection: &Connection, id: TaskId) -> Result<Option<Row>, Failure> {
    let mut statement = connection.prepare_cached(select_task!("WHERE t.id = ?1"))?;
    let mut rows = statement.query([id.as_bytes()])?;
    rows.next()?.map(|row| read(connection, row)).transpose()
}

/// The task of this number, which a query has just found.
pub(crate) fn load_number(connection: &Connection, number: i64) -> Result<Row, Failure> {
    let mut statement = connection.prepare_cached(select_task!("WHERE t.number = ?1"))?;
    let mut rows = statement.query([number])?;
    read(connection, rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?)
}

/// What the columns of a task are to hold.
pub(crate) struct Written {
    pub(crate) value: String,
    /// How it ended, if it has.
    pub(crate) body: Option<Body>,
}

/// A row of `bodies`.
pub(crate) struct Body {
    pub(crate) body: String,
    pub(crate) data: Option<Payload>,
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
        TaskState::Completed { result } => {
            let result = mem::replace(result, Payload::null());
            Some(Body { body: result.as_str().to_owned(), data: None })
        }
        TaskState::Failed { error } => {
            Some(Body { body: mem::take(&mut error.message), data: error.data.take() })
        }
        TaskState::Cancelled => None,
    };
    Ok(Written { value: serde_json::to_string(&Value { task, asked })?, body })
}

/// An outstanding question, put together from its kind and its entry in the journal.
fn question(
    connection: &Connection,
    number: i64,
    key: &InputKey,
    kind: QuestionKind,
) -> Result<Question, Failure> {
    let known = known(connection, number, &key.into())?;
    let request = known.and_then(|known| known.body).unwrap_or_else(Payload::null);
    let kind = serde_json::to_string(&kind)?;
    // The request's text is kept as it was written: it is what the client was shown.
    Ok(serde_json::from_str(&format!(r#"{{"kind":{kind},"request":{}}}"#, request.as_str()))?)
}

/// What the journal says about a key.
pub(crate) fn known(connection: &Connection, number: i64, key: &StepKey) -> Result<Option<Known>, Failure> {
    let mut statement = connection
        .prepare_cached("SELECT kind, body FROM journal WHERE number = ?1 AND key = ?2 AND opens = 1")?;
    let mut rows = statement.query(params![number, key.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let known = || Ok(Known { kind: kind(row, 0)?, body: payload(row, 1)? });
    known().map(Some).map_err(|failure: Failure| failure.of_task(number))
}

/// An entry of the journal, from the columns `seq, at, kind, key, body`.
pub(crate) fn entry(row: &SqlRow<'_>) -> Result<Entry, Failure> {
    let key = row.get_ref(3)?.as_str_or_null()?;
    Ok(Entry {
        seq: row.get(0)?,
        at: Timestamp::from_millis(row.get(1)?),
        kind: kind(row, 2)?,
        key: key.map(|key| StepKey::deserialize(text(key))).transpose()?,
        body: payload(row, 4)?,
    })
}

/// Appends an entry to the journal of task `number`.
pub(crate) fn append(connection: &Connection, number: i64, entry: &Entry) -> Result<(), Failure> {
    let kind = serde_json::to_string(&entry.kind)?;
    connection
        .prepare_cached(
            "INSERT INTO journal (number, seq, at, kind, key, opens, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            number,
            entry.seq,
            entry.at.as_millis(),
            kind.trim_matches('"'),
            entry.key.as_ref().map(StepKey::as_str),
            entry.kind.opens_key(),
            entry.body.as_ref().map(Payload::as_str),
        ])?;
    Ok(())
}

/// The call of task `number`.
pub(crate) fn call(connection: &Connection, number: i64) -> Result<Option<Call>, Failure> {
    let mut statement = connection.prepare_cached("SELECT params, context FROM calls WHERE number = ?1")?;
    let mut rows = statement.query([number])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let call = || {
        let params = Payload::from_json(row.get_ref(0)?.as_str()?)?;
        Ok(Call { params, context: payload(row, 1)? })
    };
    call().map(Some).map_err(|failure: Failure| failure.of_task(number))
}

/// The number of the task of this id.
pub(crate) fn number(connection: &Connection, id: TaskId) -> Result<Option<i64>, Failure> {
    let mut statement = connection.prepare_cached("SELECT number FROM tasks WHERE id = ?1")?;
    Ok(statement.query_row([id.as_bytes()], |row| row.get(0)).optional()?)
}

fn payload(row: &SqlRow<'_>, column: usize) -> Result<Option<Payload>, Failure> {
    Ok(row.get_ref(column)?.as_str_or_null()?.map(Payload::from_json).transpose()?)
}

fn kind(row: &SqlRow<'_>, column: usize) -> Result<EntryKind, Failure> {
    Ok(EntryKind::deserialize(text(row.get_ref(column)?.as_str()?))?)
}

fn text(text: &str) -> serde::de::value::StrDeserializer<'_, serde_json::Error> {
    text.into_deserializer()
}
