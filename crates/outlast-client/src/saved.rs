//! A handle as it is written down, to be taken up by another process (S26).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything that another process needs to go on with a task: what it is, and which questions were answered.
///
/// It holds the id of the task, which may be all that protects it, and answers that the server has not yet got: keep it as
/// you would keep a password.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SavedTask {
    /// The layout of this record; 1.
    pub version: u32,
    /// The server, as its [`Server::name`](crate::Server::name) says.
    pub server: String,
    /// The id of the task.
    pub task_id: String,
    /// The tool that was called.
    pub tool: String,
    /// When the server says that it created the task. The same id with another instant is another task.
    pub created_at: DateTime<Utc>,
    /// When the client first saw the task, by its own clock.
    pub first_seen: DateTime<Utc>,
    /// The protocol's generation: `2026-07-28` or `2025-11-25`.
    pub generation: Generation,
    /// The session that the task belongs to, where the protocol has sessions. It does not outlive its connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The output schema that was in force at the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Answers that the server has not acknowledged, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<String, Value>,
    /// Keys whose answer the server has.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub delivered: BTreeSet<String>,
}

/// The generation of the protocol that a task was created under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Generation {
    /// The Tasks extension of 2026-07-28 (SEP-2663).
    #[serde(rename = "2026-07-28")]
    Extension,
    /// The experimental tasks of 2025-11-25.
    #[serde(rename = "2025-11-25")]
    Experimental,
}

impl SavedTask {
    /// The layout that this version writes.
    pub(crate) const VERSION: u32 = 1;

    /// Reads what [`SavedTask::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// When the text is no saved task, or one of a later version.
    pub fn from_json(text: &str) -> Result<Self, InvalidSaved> {
        let saved: Self = serde_json::from_str(text).map_err(|_| InvalidSaved::Shape)?;
        if saved.version > Self::VERSION {
            return Err(InvalidSaved::Later(saved.version));
        }
        if saved.task_id.is_empty() {
            return Err(InvalidSaved::Shape);
        }
        Ok(saved)
    }

    /// The record as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a record of text and JSON is JSON")
    }
}

impl fmt::Debug for SavedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the id nor the answers.
        f.debug_struct("SavedTask")
            .field("server", &self.server)
            .field("tool", &self.tool)
            .field("created_at", &self.created_at)
            .field("answers", &self.answers.len())
            .field("delivered", &self.delivered.len())
            .finish_non_exhaustive()
    }
}

/// A text that is no saved task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSaved {
    /// It is no JSON, or lacks what a saved task holds.
    #[error(
        "this is no saved task handle; it is one line of JSON with `server`, `taskId`, `tool` and `createdAt`"
    )]
    Shape,
    /// A later version wrote it.
    #[error("this task handle was saved by a later version (layout {0}); take it up with that version")]
    Later(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_task_reads_back_and_its_debug_form_keeps_the_secrets() {
        let text = r#"{"version":1,"server":"s","taskId":"secret-id","tool":"t","createdAt":"2026-11-29T10:00:00Z",
            "firstSeen":"2026-11-29T10:00:00Z","generation":"2026-07-28","answers":{"pin":{"content":"1234"}}}"#;
        let saved = SavedTask::from_json(text).unwrap();
        assert_eq!(SavedTask::from_json(&saved.to_json()).unwrap(), saved);
        let debug = format!("{saved:?}");
        assert!(!debug.contains("secret-id") && !debug.contains("1234"), "{debug}");
    }

    #[test]
    fn text_that_is_no_saved_task_is_refused() {
        for text in ["", "{}", "[]", "null", "{\"version\":1}"] {
            assert_eq!(SavedTask::from_json(text), Err(InvalidSaved::Shape), "{text}");
        }
    }
}
