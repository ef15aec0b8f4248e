//! Whether an answer fits its question.

use outlast_core::{InputKey, Question, QuestionKind, Task};
use serde_json::Value;

use crate::{Refusal, form};

/// What was given does not fit, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

/// The question that a task asks under `key`.
///
/// # Errors
/// When it asks nothing there; what it asks instead is said.
pub fn outstanding<'a>(task: &'a Task, key: &InputKey) -> Result<&'a Question, Refusal> {
    let Some(live) = task.live() else {
        let status = task.status().as_str();
        return Err(Refusal::State(format!("the task is {status} and asks nothing any more")));
    };
    if let Some(question) = live.questions.get(key) {
        return Ok(question);
    }
    if live.questions.is_empty() {
        return Err(Refusal::State("the task asks nothing now".to_owned()));
    }
    let keys: Vec<_> = live.questions.keys().map(InputKey::as_str).collect();
    let keys = keys.join(", ");
    Err(Refusal::State(format!("the task asks nothing under '{key}'; it asks under {keys}")))
}

/// Whether `answer` is one to `question`: of its shape, and where it is a form that was filled in, with the fields that were
/// asked for.
///
/// # Errors
/// What does not fit, in words.
pub fn check(question: &Question, answer: &Value) -> Result<(), Unfit> {
    let kind = question.kind();
    if !kind.admits(answer) {
        return Err(Unfit(format!("the answer has to be {}", shape(kind))));
    }
    if kind == QuestionKind::ElicitForm && answer["action"] == "accept" {
        form::check(&question.request().to_value()["params"]["requestedSchema"], &answer["content"])?;
    }
    Ok(())
}

/// What an answer to a question of this kind looks like.
#[must_use]
pub fn shape(kind: QuestionKind) -> &'static str {
    match kind {
        QuestionKind::ElicitForm => {
            r#"{"action": "accept", "content": {FIELD: VALUE, ...}}, or another action: "decline", "cancel""#
        }
        QuestionKind::ElicitUrl => r#"{"action": "accept"}, or another action: "decline", "cancel""#,
        QuestionKind::Roots => r#"{"roots": [{"uri": "file:///..."}]}"#,
        _ => r#"{"role": "assistant", "model": NAME, "content": {"type": "text", "text": TEXT}}"#,
    }
}
