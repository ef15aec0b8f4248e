//! What a connection has shown of its server that the SDK does not keep.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::child::LastWords;

/// What was seen on one connection. The transport fills it, whoever uses the connection reads it.
#[derive(Debug, Default)]
pub(crate) struct Observed(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    introduction: Option<Value>,
    session: Option<String>,
    end: Option<String>,
    last_words: Option<Arc<LastWords>>,
}

impl Observed {
    /// The `capabilities` of the server as it sent them: the SDK drops the `tasks` of the 2025-11-25 generation.
    pub(crate) fn capabilities(&self) -> Option<Value> {
        self.introduced("capabilities")
    }

    /// The `serverInfo` of the server as it sent it, wherever its generation puts it.
    #[cfg(test)]
    pub(crate) fn server_info(&self) -> Option<Value> {
        let moved = || self.introduced("_meta")?.get("io.modelcontextprotocol/serverInfo").cloned();
        self.introduced("serverInfo").or_else(moved)
    }

    /// The `Mcp-Session-Id` of the connection, if the server gave one.
    pub(crate) fn session(&self) -> Option<String> {
        self.seen().session.clone()
    }

    /// How the connection ended, for a person to read: the exit status of a child process and its last words.
    pub(crate) fn end(&self) -> Option<String> {
        self.seen().end.clone()
    }

    /// What there is to say of a connection that never came about: how its process ended, or that with which the SDK gave up
    /// and what the process had said until then.
    pub(crate) async fn failed(&self, why: String) -> String {
        let words = match &*self.seen() {
            Seen { end: Some(end), .. } => return end.clone(),
            Seen { last_words, .. } => last_words.clone(),
        };
        match words {
            Some(words) => words.after(why).await,
            None => why,
        }
    }

    /// The result of `server/discover` or `initialize`.
    pub(super) fn introduction(&self, result: Value) {
        self.seen().introduction = Some(result);
    }

    pub(super) fn joined(&self, session: &str) {
        self.seen().session = Some(session.to_owned());
    }

    pub(super) fn speaks(&self, last_words: Arc<LastWords>) {
        self.seen().last_words = Some(last_words);
    }

    pub(super) fn ended(&self, how: String) {
        self.seen().end.get_or_insert(how);
    }

    fn introduced(&self, field: &str) -> Option<Value> {
        self.seen().introduction.as_ref()?.get(field).cloned()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Each change is one assignment, so nothing is half done after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
