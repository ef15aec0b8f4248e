//! The API, as JSON.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    response::{IntoResponse, Response},
};
use http::{StatusCode, Uri, header};
use outlast_core::{
    Counts, Filter, InputKey, Payload, Status, StoreError, Task, TaskError, TaskId, TaskState, Timestamp,
    ToolVersion,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::form_urlencoded;

use crate::{Refusal, admin::Inner, answer::Unfit, history, operate, view, why};

type Shared = State<Arc<Inner>>;

/// How many tasks a page has where nobody says.
const PAGE: u32 = 50;
const LARGEST_PAGE: u32 = 1_000;

// --- reading

pub(crate) async fn list(State(inner): Shared, uri: Uri) -> Result<Response, Refused> {
    /// How many tasks are in memory at a time, each with a result that may be large.
    const AT_ONCE: u32 = 20;
    let asked = Asked::parse(uri.query().unwrap_or_default())?;
    let store = &*inner.store;
    let owner = match &asked.owner {
        Some(named) => Some(inner.owners.find(store, named).await?),
        None => None,
    };
    let filter = Filter { owner, status: asked.status, tool: asked.tool };
    let served = ToolVersion::served_by(&store.workers().await?);
    let (mut rows, mut next, mut now) = (Vec::new(), asked.after, None);
    let mut left = asked.max;
    loop {
        let page = store.list(filter.clone(), next, left.min(AT_ONCE)).await?;
        let at = *now.get_or_insert(page.now);
        rows.extend(page.tasks.iter().map(|task| row(&inner, task, &served, at)));
        next = page.next;
        left -= left.min(AT_ONCE);
        if next.is_none() || left == 0 {
            let now = now.map(|now| now.to_string());
            return Ok(json_of(&json!({"tasks": rows, "next": next, "now": now})));
        }
    }
}

/// What a list is asked for.
#[derive(Debug, PartialEq)]
struct Asked {
    status: Option<Status>,
    tool: Option<String>,
    owner: Option<String>,
    after: Option<String>,
    max: u32,
}

impl Asked {
    fn parse(query: &str) -> Result<Self, Refused> {
        let bad = |what: String| Refused(StatusCode::BAD_REQUEST, what);
        let mut asked = Self { status: None, tool: None, owner: None, after: None, max: PAGE };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if value.is_empty() {
                continue;
            }
            match &*name {
                "status" => {
                    let known = || Status::ALL.map(Status::as_str).join(", ");
                    let status = Status::parse(&value);
                    asked.status =
                        Some(status.ok_or_else(|| bad(format!("a status is one of {}", known())))?);
                }
                "tool" => asked.tool = Some(value.into_owned()),
                "owner" => asked.owner = Some(value.into_owned()),
                "after" if value.parse::<u64>().is_ok() => asked.after = Some(value.into_owned()),
                "after" => {
                    return Err(bad("after is what an earlier page gave as the next, a number".to_owned()));
                }
                "max" => {
                    let max = value.parse().ok().filter(|max| (1..=LARGEST_PAGE).contains(max));
                    asked.max =
                        max.ok_or_else(|| bad(format!("max is a number from 1 to {LARGEST_PAGE}")))?;
                }
                _ => return Err(bad("known are status, tool, owner, after and max".to_owned())),
            }
        }
        Ok(asked)
    }
}

/// A task in a list.
fn row(inner: &Inner, task: &Task, served: &[ToolVersion], now: Timestamp) -> Value {
    let mut row = view::summary(task, served);
    row["owner"] = inner.owners.seen(&task.owner).into();
    row["ageMs"] = view::millis(now.since(task.created_at)).into();
    row["claims"] = task.token.0.into();
    row["lost"] = task.lost.len().into();
    row["worker"] = json!(task.lease().map(|lease| lease.worker.as_str()));
    row["questions"] = task.live().map_or(0, |live| live.questions.len()).into();
    row["cancelRequested"] = task.cancel_requested().into();
    row
}

/// All of a task.
#[derive(Serialize)]
struct Detail<'a> {
    #[serde(flatten)]
    task: Value,
    now: String,
    /// What `outlast tasks show` says of it.
    told: Value,
    /// What `outlast tasks why` says of it.
    #[serde(rename = "waitsFor")]
    waits_for: Vec<Value>,
    // As they are: text that is read and written again would lose the order of its fields.
    arguments: Option<Payload>,
    questions: Vec<Asks<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Payload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a TaskError>,
    history: Vec<Value>,
}

#[derive(Serialize)]
struct Asks<'a> {
    key: &'a str,
    kind: String,
    request: &'a Payload,
}

pub(crate) async fn show(
    State(inner): Shared,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refused> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(default)]
        arguments: Option<Payload>,
    }
    let (id, values) = (named(&id)?, with_values(uri.query().unwrap_or_default())?);
    let store = &*inner.store;
    // The task first, so that none is younger than now.
    let task = operate::find(store, id).await?;
    let now = operate::now(store).await?;
    let call = store.call(id).await?;
    let history = history::history(&task, &operate::journal(store, id).await?);
    let workers = store.workers().await?;
    let served = ToolVersion::served_by(&workers);
    let causes = why::causes(store, &task, &workers, now).await?;

    let mut shown = row(&inner, &task, &served, now);
    if let (Value::Object(shown), Value::Object(detail)) = (&mut shown, view::detail(&task, &served)) {
        shown.extend(detail);
    }
    let live = task.live();
    let questions = live.map(|live| &live.questions).into_iter().flatten();
    let detail = Detail {
        task: shown,
        now: now.to_string(),
        told: json!({
            "work": live.map(|live| view::work(live, now)),
            "kept": view::retention(&task),
            "attempts": view::attempts(&task),
        }),
        waits_for: causes
            .iter()
            .map(|cause| json!({"cause": why::name(cause), "says": why::words(cause, now)}))
            .collect(),
        arguments: call.and_then(|call| call.params.decode::<Params>().ok()?.arguments),
        questions: questions
            .map(|(key, question)| Asks {
                key: key.as_str(),
                kind: question.kind().to_string(),
                request: question.request(),
            })
            .collect(),
        result: if let TaskState::Completed { result } = &task.state { Some(result) } else { None },
        error: if let TaskState::Failed { error } = &task.state { Some(error) } else { None },
        history: history
            .iter()
            .map(|happening| {
                let mut json = happening.as_json(values);
                json["after"] = happening.offset().into();
                json["words"] = happening.words(values).into();
                json
            })
            .collect(),
    };
    Ok(json_of(&detail))
}

fn with_values(query: &str) -> Result<bool, Refused> {
    form_urlencoded::parse(query.as_bytes()).try_fold(false, |values, (name, value)| {
        match (&*name, &*value) {
            ("values", "true") => Ok(true),
            ("values", "false" | "") => Ok(values),
            _ => Err(Refused(StatusCode::BAD_REQUEST, "known is values, which is true or false".to_owned())),
        }
    })
}

pub(crate) async fn counts(State(inner): Shared) -> Result<Response, Refused> {
    let counts: Counts = inner.store.counts().await?;
    let mut json = json!({
        "leased": counts.leased,
        "ready": counts.ready,
        "oldestReadyMs": counts.oldest_ready.map(view::millis),
        "total": counts.total(),
    });
    for status in Status::ALL {
        json[status.as_str()] = counts.of(status).into();
    }
    Ok(json_of(&json))
}

// --- acting

pub(crate) async fn answer(
    State(inner): Shared,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (id, body) = (named(&id)?, whole(body)?);
    let answers: BTreeMap<InputKey, Payload> = serde_json::from_slice(&body).map_err(|error| {
        Refused(StatusCode::BAD_REQUEST, format!("answers are JSON, {{KEY: RESULT}}: {error}"))
    })?;
    if answers.is_empty() {
        return Err(Refused(StatusCode::BAD_REQUEST, "there is no answer in it".to_owned()));
    }
    let keys: Vec<String> = answers.keys().map(|key| format!("'{key}'")).collect();
    let task = operate::answer(&*inner.store, id, answers.into_iter().collect()).await?;
    tracing::info!(?id, answers = keys.len(), "an operator answered");
    let (are, status) = (if keys.len() == 1 { "is" } else { "are" }, task.status().as_str());
    let said = format!("{} {are} answered; the task is {status}", keys.join(", "));
    Ok(json_of(&json!({"status": status, "said": said})))
}

pub(crate) async fn cancel(State(inner): Shared, Path(id): Path<String>) -> Result<Response, Refused> {
    let id = named(&id)?;
    let cancelled = operate::cancel(&*inner.store, id).await?;
    tracing::info!(?id, %cancelled, "an operator cancelled");
    let outcome = match cancelled {
        operate::Cancelled::Ended => "ended",
        operate::Cancelled::Asked => "asked",
        operate::Cancelled::AskedBefore => "asked_before",
        operate::Cancelled::HadEnded(_) => "had_ended",
    };
    Ok(json_of(&json!({"outcome": outcome, "said": cancelled.to_string()})))
}

pub(crate) async fn retry(
    State(inner): Shared,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct How {
        #[serde(default)]
        tool_version: Option<String>,
    }
    let (id, body) = (named(&id)?, whole(body)?);
    let how: How = if body.is_empty() {
        How::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| {
            Refused(
                StatusCode::BAD_REQUEST,
                format!("a retry takes nothing, or {{\"toolVersion\": VERSION}}: {error}"),
            )
        })?
    };
    let retried = operate::retry(&*inner.store, id, how.tool_version).await?;
    tracing::info!(?id, again = ?retried.task.id, "an operator started a failed task again");
    let json = json!({"taskId": retried.task.id, "unserved": retried.unserved});
    Ok((StatusCode::CREATED, json_of(&json)).into_response())
}

// --- how it is said

/// A request that is refused, with words for a person.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused(pub(crate) StatusCode, pub(crate) String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, json_of(&json!({"error": self.1}))).into_response()
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let words = refusal.to_string();
        match refusal {
            Refusal::NoSuchTask(_) => Self(StatusCode::NOT_FOUND, words),
            Refusal::State(_) => Self(StatusCode::CONFLICT, words),
            Refusal::Unfit(Unfit(_)) => Self(StatusCode::UNPROCESSABLE_ENTITY, words),
            Refusal::Store(error) => error.into(),
            Refusal::Random => Self(StatusCode::INTERNAL_SERVER_ERROR, words),
        }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        // Why is for the log: it may name files and hosts.
        tracing::warn!(error = &error as &dyn std::error::Error, "the store refused an operator");
        let status = match error.is_retryable() {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

pub(crate) async fn nothing() -> Refused {
    Refused(StatusCode::NOT_FOUND, "there is nothing here; the page is at /ui".to_owned())
}

pub(crate) async fn no_such_method() -> Refused {
    Refused(StatusCode::METHOD_NOT_ALLOWED, "this is not asked for in this way".to_owned())
}

/// A task as it is named in a path. What is no id is one that nobody was given.
fn named(id: &str) -> Result<TaskId, Refused> {
    id.parse().map_err(|_| Refused(StatusCode::NOT_FOUND, "there is no task of this id".to_owned()))
}

fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Refused> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Refused(StatusCode::PAYLOAD_TOO_LARGE, "this is larger than any answer may be".to_owned())
        }
        _ => Refused(StatusCode::BAD_REQUEST, "the request did not come to its end".to_owned()),
    })
}

fn json_of<T: Serialize + ?Sized>(value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_list_is_asked_for_is_read_and_what_is_foreign_refused() {
        let all = Asked::parse("status=failed&tool=a%20b&owner=ab12cd34&after=17&max=3").unwrap();
        let expected = Asked {
            status: Some(Status::Failed),
            tool: Some("a b".to_owned()),
            owner: Some("ab12cd34".to_owned()),
            after: Some("17".to_owned()),
            max: 3,
        };
        assert_eq!(all, expected);
        let none = Asked { status: None, tool: None, owner: None, after: None, max: PAGE };
        assert_eq!(
            Asked::parse("status=&tool=&owner=&after=&max=").unwrap(),
            none,
            "an empty field asks for nothing"
        );
        for foreign in ["status=done", "after=x", "after=-1", "max=0", "max=1001", "max=a", "sort=age"] {
            assert_eq!(Asked::parse(foreign).unwrap_err().0, StatusCode::BAD_REQUEST, "{foreign}");
        }
    }
}
