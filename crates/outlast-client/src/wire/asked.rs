//! The requests under way, and what becomes of a message on its way to the SDK.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rmcp::model::{
    CancelledNotification, ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, RequestId,
    ServerJsonRpcMessage,
};
use serde_json::{Value, json};

use super::{
    aside::{put_notification_aside, put_result_aside},
    observed::Observed,
    unanswered::Unanswered,
};

const LISTEN: &str = "subscriptions/listen";
const CANCELLED: &str = "notifications/cancelled";

/// The code of an answer that the transport makes up because the server's own cannot be had.
const NO_ANSWER: ErrorCode = ErrorCode::INTERNAL_ERROR;

/// How the answer of a request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The server introduces itself: kept raw, and left to the SDK.
    Introduction,
    /// A custom request: put aside.
    Custom,
    /// A custom request, too; the server ends it with a cancellation.
    Listen,
}

/// The requests of one connection whose answers are not left to the SDK alone.
#[derive(Debug)]
pub(crate) struct Asked {
    under_way: Mutex<HashMap<String, Kind>>,
    /// What the server asks in turn.
    unanswered: Mutex<Unanswered>,
    observed: Arc<Observed>,
    /// How many notifications were put aside.
    put_aside: AtomicU64,
    /// How many requests of the server were not heard.
    skipped: AtomicU64,
}

impl Asked {
    pub(crate) fn new(observed: Arc<Observed>) -> Arc<Asked> {
        Arc::new(Asked {
            under_way: Mutex::default(),
            unanswered: Mutex::default(),
            observed,
            put_aside: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        })
    }

    /// `message` goes to the server. Its answer is expected until the returned guard goes, or for ever if it is told
    /// [`UnderWay::keep`].
    pub(crate) fn sent(self: &Arc<Self>, message: &ClientJsonRpcMessage) -> UnderWay {
        let (mut key, mut answers) = (None, None);
        match message {
            ClientJsonRpcMessage::Response(response) => {
                answers = self.unanswered().answered(&key_of_id(&response.id));
            }
            ClientJsonRpcMessage::Error(error) => {
                answers = error.id.as_ref().and_then(|id| self.unanswered().answered(&key_of_id(id)));
            }
            ClientJsonRpcMessage::Request(request) => {
                let kind = match &request.request {
                    ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_) => {
                        Some(Kind::Introduction)
                    }
                    ClientRequest::CustomRequest(custom) if custom.method == LISTEN => Some(Kind::Listen),
                    ClientRequest::CustomRequest(_) => Some(Kind::Custom),
                    _ => None,
                };
                if let Some(kind) = kind {
                    let id = key_of_id(&request.id);
                    self.under_way().insert(id.clone(), kind);
                    key = Some(id);
                }
            }
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(CancelledNotification { params, .. }) =
                    &notification.notification
                    && let Some(id) = &params.request_id
                {
                    // Nobody waits for its answer any more.
                    self.under_way().remove(&key_of_id(id));
                }
            }
        }
        UnderWay { asked: self.clone(), key, answers }
    }

    /// Makes of a message what the SDK decodes without loss.
    pub(crate) fn received(&self, message: &mut Value) {
        if message.get("result").is_some()
            && let Some(message) = message.as_object_mut()
        {
            // Some servers write each field of a struct, and some leave out what always is the same.
            if message.get("error").is_some_and(Value::is_null) {
                message.remove("error");
            }
            message.entry("jsonrpc").or_insert_with(|| "2.0".into());
        }
        let has = |field: &str| message.get(field).is_some();
        match (has("method"), has("id")) {
            (true, true) => {}
            (true, false) => self.notified(message),
            (false, _) if has("error") => {
                self.take(message);
                mend_error(message);
            }
            (false, _) => match self.take(message) {
                Some(Kind::Introduction) => {
                    if let Some(result) = message.get("result") {
                        self.observed.introduction(result.clone());
                    }
                }
                Some(Kind::Custom | Kind::Listen) => put_result_aside(message),
                None => {}
            },
        }
    }

    /// Whether a message is heard: of the server's requests, only so many as can be held.
    fn is_heard(&self, message: &Value, length: usize) -> bool {
        let id = message.get("method").and(message.get("id")).and_then(key_of);
        let is_heard = id.is_none_or(|id| self.unanswered().came(id, length));
        if !is_heard {
            let skipped = self.skipped.fetch_add(1, Ordering::Relaxed) + 1;
            // Who asks without end does not fill the log, too.
            if skipped.is_power_of_two() {
                tracing::warn!(skipped, "the server asks more than is answered; such requests are skipped");
            }
        }
        is_heard
    }

    /// A message from its text; `None`, with a line in the log, when the text is no message, or is not heard.
    pub(crate) fn decode(&self, text: &[u8]) -> Option<ServerJsonRpcMessage> {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let mut message = match serde_json::from_slice(text) {
            Ok(message) => message,
            Err(error) => {
                // What it is may be a result, or what a tool prints of its arguments.
                tracing::warn!(%error, "what the server sent is not JSON; it is skipped");
                tracing::debug!(text = beginning(text), "it begins so");
                return None;
            }
        };
        self.received(&mut message);
        if !self.is_heard(&message, text.len()) {
            return None;
        }
        let asks = message.get("method").and(message.get("id")).and_then(key_of);
        serde_json::from_value(message)
            .inspect_err(|error| {
                tracing::warn!(%error, "what the server sent is no message; it is skipped");
                tracing::debug!(text = beginning(text), "it begins so");
                if let Some(id) = &asks {
                    self.unanswered().withdrawn(id);
                }
            })
            .ok()
    }

    /// What a text becomes for a reader that decodes it itself; `None` for a message that is not heard. A text that is not JSON
    /// stays as it is.
    pub(crate) fn rewrite(&self, text: String) -> Option<String> {
        match serde_json::from_str(&text) {
            Ok(mut message) => {
                self.received(&mut message);
                self.is_heard(&message, text.len()).then(|| message.to_string())
            }
            Err(_) => Some(text),
        }
    }

    fn notified(&self, message: &mut Value) {
        if message.get("method").and_then(Value::as_str) == Some(CANCELLED) {
            // How a server ends a subscription. The SDK knows only those that it has made itself.
            let ended = message.pointer("/params/requestId").cloned().unwrap_or_default();
            let Some(key) = key_of(&ended) else { return };
            self.unanswered().withdrawn(&key);
            let mut under_way = self.under_way();
            if under_way.get(&key) == Some(&Kind::Listen) {
                under_way.remove(&key);
                let reason = message.pointer("/params/reason").cloned();
                *message = failure(&ended, "the server ended the subscription", reason);
            }
        } else {
            put_notification_aside(message, self.put_aside.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }

    /// The request that `message` answers is no longer under way.
    fn take(&self, message: &Value) -> Option<Kind> {
        let key = key_of(message.get("id")?)?;
        self.under_way().remove(&key)
    }

    fn unanswered(&self) -> MutexGuard<'_, Unanswered> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, Kind>> {
        // Each change is one call, so nothing is half done after a panic.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that was sent. A request is forgotten with its answer, or with this.
#[derive(Debug)]
#[must_use]
pub(crate) struct UnderWay {
    asked: Arc<Asked>,
    key: Option<String>,
    /// The length of the request that this is the answer to.
    answers: Option<usize>,
}

impl UnderWay {
    /// The answer may come on another stream.
    pub(crate) fn keep(mut self) {
        self.key = None;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.asked.under_way().remove(&key);
        }
        if let Some(length) = self.answers {
            self.asked.unanswered().done(length);
        }
    }
}

/// The answer to the request `id` in place of one that cannot be had.
pub(crate) fn failure(id: &Value, message: &str, data: Option<Value>) -> Value {
    let mut error = json!({"code": NO_ANSWER.0, "message": message});
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

/// The answer to the request `id` in place of one of more than `max` bytes.
pub(crate) fn too_long(id: &Value, max: usize) -> Value {
    failure(id, &format!("the answer of the server is longer than the {max} bytes that are allowed"), None)
}

/// Whether `answered` is the id of an answer to `request`: some servers make a text of a number.
pub(crate) fn is_answer_to(request: &RequestId, answered: &Value) -> bool {
    key_of(answered).is_some_and(|key| key == key_of_id(request))
}

/// An error that the SDK could not decode, so that its request would wait for ever, becomes one that it can.
fn mend_error(message: &mut Value) {
    let id = message.get("id").cloned().unwrap_or_default();
    let error = message.get("error").cloned().unwrap_or_default();
    let code = error.get("code").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok());
    let text = error.get("message").and_then(Value::as_str);
    *message = match (code, text) {
        (Some(_), Some(_)) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
        _ => failure(&id, text.unwrap_or("the server failed and did not say how"), Some(error.clone())),
    };
}

fn key_of_id(id: &RequestId) -> String {
    match id {
        RequestId::Number(number) => number.to_string(),
        RequestId::String(text) => text.to_string(),
    }
}

fn key_of(id: &Value) -> Option<String> {
    match id {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// As much of a text as a log needs.
fn beginning(text: &[u8]) -> String {
    const MAX: usize = 120;
    let more = if text.len() > MAX { "..." } else { "" };
    format!("{}{more}", String::from_utf8_lossy(&text[..text.len().min(MAX)]))
}

#[cfg(test)]
mod tests {
    use rmcp::model::{
        CancelledNotificationParam, ClientResult, CustomRequest, ListToolsRequest, NumberOrString,
        ServerResult,
    };

    use super::*;
    use crate::wire::{aside::raw_result, unanswered::MAX_REQUESTS};

    fn asked() -> Arc<Asked> {
        Asked::new(Arc::default())
    }

    fn custom(method: &str, id: i64) -> ClientJsonRpcMessage {
        let request = ClientRequest::CustomRequest(CustomRequest::new(method, None));
        ClientJsonRpcMessage::request(request, NumberOrString::Number(id))
    }

    fn decode(asked: &Asked, message: &Value) -> Option<ServerJsonRpcMessage> {
        asked.decode(message.to_string().as_bytes())
    }

    fn result(asked: &Asked, message: &Value) -> ServerResult {
        match decode(asked, message) {
            Some(ServerJsonRpcMessage::Response(response)) => response.result,
            other => panic!("no response: {other:?}"),
        }
    }

    #[test]
    fn the_answer_of_a_custom_request_is_raw_and_that_of_another_is_the_sdks() {
        let asked = asked();
        let answer = json!({"tools": [], "unknown": 1.0});
        asked.sent(&custom("tools/list", 1)).keep();
        let known = ClientRequest::ListToolsRequest(ListToolsRequest::default());
        asked.sent(&ClientJsonRpcMessage::request(known, NumberOrString::Number(2))).keep();

        let raw = raw_result(result(&asked, &json!({"jsonrpc": "2.0", "id": "1", "result": answer})));
        assert_eq!(raw, answer, "although the server made a text of its id");
        let known = result(&asked, &json!({"jsonrpc": "2.0", "id": 2, "result": answer}));
        assert!(matches!(known, ServerResult::ListToolsResult(_)), "{known:?}");
        assert!(asked.under_way().is_empty());
        let careless = json!({"id": 3, "result": {}, "error": null});
        assert!(matches!(result(&asked, &careless), ServerResult::EmptyResult(_)));
    }

    #[test]
    fn a_request_is_forgotten_with_its_guard_and_with_its_cancellation() {
        let asked = asked();
        let guard = asked.sent(&custom("tasks/get", 1));
        assert_eq!(asked.under_way().len(), 1);
        drop(guard);
        assert!(asked.under_way().is_empty());

        asked.sent(&custom("tasks/get", 2)).keep();
        let params = CancelledNotificationParam::new(Some(NumberOrString::Number(2)), None);
        let cancelled = ClientNotification::CancelledNotification(CancelledNotification::new(params));
        asked.sent(&ClientJsonRpcMessage::notification(cancelled)).keep();
        assert!(asked.under_way().is_empty());
    }

    #[test]
    fn a_subscription_that_the_server_ends_is_answered() {
        let asked = asked();
        asked.sent(&custom(LISTEN, 1)).keep();
        asked.sent(&custom("tasks/get", 2)).keep();
        let cancelled =
            |id| json!({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": id, "reason": "bye"}});

        let Some(ServerJsonRpcMessage::Error(error)) = decode(&asked, &cancelled(1)) else {
            panic!("no error")
        };
        assert_eq!((error.id, error.error.data), (Some(NumberOrString::Number(1)), Some(json!("bye"))));
        for other in [1, 2, 3] {
            let passed = decode(&asked, &cancelled(other));
            assert!(matches!(passed, Some(ServerJsonRpcMessage::Notification(_))), "{passed:?}");
        }
        assert_eq!(asked.under_way().len(), 1);
    }

    #[test]
    fn an_error_that_the_sdk_cannot_decode_reaches_its_request_all_the_same() {
        for (sent, says) in [
            (json!({"code": -32000, "message": "no"}), "no"),
            (json!({"message": "no code"}), "no code"),
            (json!({"code": 99_999_999_999_i64, "message": "large"}), "large"),
            (json!("text"), "did not say how"),
            (json!(null), "did not say how"),
        ] {
            let answer = json!({"id": 5, "error": sent});
            let Some(ServerJsonRpcMessage::Error(error)) = decode(&asked(), &answer) else {
                panic!("no error: {sent}")
            };
            assert_eq!(error.id, Some(NumberOrString::Number(5)));
            assert!(error.error.message.contains(says), "{}", error.error.message);
        }
    }

    #[test]
    fn what_is_asked_without_end_is_not_heard() {
        let asked = asked();
        let ping = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
        for id in 0..MAX_REQUESTS {
            assert!(decode(&asked, &ping(id)).is_some());
        }
        assert!(decode(&asked, &ping(MAX_REQUESTS)).is_none());
        assert!(asked.rewrite(ping(MAX_REQUESTS).to_string()).is_none());
        assert!(decode(&asked, &json!({"jsonrpc": "2.0", "id": 1, "result": {}})).is_some(), "an answer is");

        let answer = |id| ClientJsonRpcMessage::response(ClientResult::empty(()), NumberOrString::Number(id));
        let unsent = asked.sent(&answer(0));
        assert!(decode(&asked, &ping(MAX_REQUESTS)).is_none(), "the server does not read its answers");
        unsent.keep();
        assert!(decode(&asked, &ping(MAX_REQUESTS)).is_some());
        let cancelled = json!({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": 1}});
        assert!(decode(&asked, &cancelled).is_some());
        assert!(asked.rewrite(ping(1).to_string()).is_some());
        assert!(decode(&asked, &ping(1)).is_none());
    }

    #[test]
    fn what_is_no_message_is_skipped() {
        for text in [
            "",
            "Listening on port 80",
            "[1,2]",
            "{}",
            "7",
            "null",
            r#"{"id":[1],"result":1}"#,
            r#"{"method":7}"#,
            "{\"id\":1,",
        ] {
            assert!(asked().decode(text.as_bytes()).is_none(), "{text}");
        }
        assert!(asked().decode(b"\xff\xfe\x00").is_none());
        assert_eq!(asked().rewrite("no JSON".to_owned()).as_deref(), Some("no JSON"));
        let marked = "\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"id\":1}";
        assert!(asked().decode(marked.as_bytes()).is_some());
    }
}
