//! Puts what the SDK would decode with loss where it does not look, and takes it back on the other side.
//!
//! The SDK decodes each result as the first of twenty types that fits, which drops the fields that type does not know: the
//! task fields of the 2025-11-25 generation, `resultType`, kinds of questions that came later, the difference between
//! `60000` and `60000.0`. A result that none of the types fits arrives whole.

use rmcp::model::{CustomNotification, CustomResult, ServerResult};
use serde_json::{Value, json};

/// The field of a result, or of the parameters of a notification, that was put aside.
const RAW: &str = "outlast/raw";

/// The field with the place of a notification among those that were put aside.
const PLACE: &str = "outlast/place";

/// What the method of a notification that was put aside begins with.
const PREFIX: &str = "x-outlast/";

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// Puts the result of a JSON-RPC response aside.
pub(crate) fn put_result_aside(response: &mut Value) {
    if let Some(result) = response.get_mut("result") {
        *result = json!({ RAW: result.take() });
    }
}

/// The result as the server sent it. One that was not put aside is what the SDK made of it.
pub(crate) fn raw_result(result: ServerResult) -> Value {
    match result {
        ServerResult::CustomResult(CustomResult(Value::Object(mut fields)))
            if fields.len() == 1 && fields.contains_key(RAW) =>
        {
            fields.remove(RAW).unwrap_or_default()
        }
        // Each of its types is made of JSON.
        known => serde_json::to_value(known).unwrap_or_default(),
    }
}

/// Puts a JSON-RPC notification aside, if the SDK would lose some of it: the state of a task, and the acknowledgement of
/// a subscription to tasks.
///
/// Its `_meta` goes with its parameters. The SDK would move it to the context of the handler, where it is not found: of
/// a notification the SDK empties the extensions before it looks there for the metadata.
///
/// `place` tells which came first: the SDK handles each notification in a task of its own, in any order.
pub(crate) fn put_notification_aside(notification: &mut Value, place: u64) {
    let loses = match notification.get("method").and_then(Value::as_str) {
        Some("notifications/tasks" | "notifications/tasks/status") => true,
        Some(ACKNOWLEDGED) => notification.pointer("/params/notifications/taskIds").is_some(),
        _ => false,
    };
    if loses && let Some(Value::String(method)) = notification.get_mut("method") {
        method.insert_str(0, PREFIX);
        let params = notification.get("params").cloned().unwrap_or_default();
        notification["params"] = json!({ RAW: params, PLACE: place });
    }
}

/// A notification as the server sent it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawNotification {
    /// The method.
    pub(crate) method: String,
    /// The parameters, `_meta` among them; `null` when there are none.
    pub(crate) params: Value,
    /// A later one has a higher place.
    pub(crate) place: u64,
}

/// The notification as the server sent it, if it was put aside.
pub(crate) fn raw_notification(notification: &CustomNotification) -> Option<RawNotification> {
    let method = notification.method.strip_prefix(PREFIX)?.to_owned();
    let field = |name| notification.params.as_ref().and_then(|params| params.get(name));
    let place = field(PLACE).and_then(Value::as_u64).unwrap_or_default();
    Some(RawNotification { method, params: field(RAW).cloned().unwrap_or_default(), place })
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ServerJsonRpcMessage, ServerNotification};

    use super::*;

    fn through_the_sdk(message: Value) -> ServerJsonRpcMessage {
        serde_json::from_value(message).unwrap()
    }

    fn result_through_the_sdk(mut response: Value) -> Value {
        put_result_aside(&mut response);
        let text = response.to_string();
        let ServerJsonRpcMessage::Response(response) = serde_json::from_str(&text).unwrap() else {
            panic!("no response: {text}")
        };
        raw_result(response.result)
    }

    #[test]
    fn a_result_that_was_put_aside_comes_back_as_it_was_sent() {
        for result in [
            json!({}),
            json!(null),
            json!([1, "two"]),
            json!(60000.0),
            json!({"ttlMs": 60000.0, "pollIntervalMs": 18_446_744_073_709_551_615_u64}),
            json!({"resultType": "complete"}),
            json!({"resultType": "later", "inputRequests": {"a": {"method": "roots/list2", "params": {"x": [null]}}}}),
            json!({"content": [{"type": "text", "text": "done", "unknown": 1}], "isError": false, "extra": {"deep": [{}]}}),
            json!({"task": {"taskId": "t", "status": "working", "ttl": null, "pollInterval": 5}, "_meta": {"a": 1}}),
            json!({"protocolVersion": "2025-11-25", "capabilities": {"tasks": {}}, "serverInfo": {"name": "a", "version": "1"}}),
            json!({"action": "accept", "content": {}}),
            json!({"tools": [], "nextCursor": "x"}),
            json!({ RAW: { RAW: 1 } }),
        ] {
            let back = result_through_the_sdk(json!({"jsonrpc": "2.0", "id": 7, "result": result}));
            assert_eq!(back.to_string(), result.to_string(), "to the last digit");
        }
    }

    #[test]
    fn a_result_that_was_not_put_aside_is_what_the_sdk_made_of_it() {
        let sent = json!({"tools": [], "nextCursor": "x"});
        let ServerJsonRpcMessage::Response(response) =
            through_the_sdk(json!({"jsonrpc": "2.0", "id": 7, "result": sent}))
        else {
            panic!("no response")
        };
        let raw = raw_result(response.result);
        assert_eq!((&raw["tools"], &raw["nextCursor"]), (&json!([]), &json!("x")));
    }

    #[test]
    fn an_error_has_no_result_to_put_aside() {
        let sent = json!({"jsonrpc": "2.0", "id": 7, "error": {"code": -1, "message": "no"}});
        let mut error = sent.clone();
        put_result_aside(&mut error);
        assert_eq!(error, sent);
    }

    #[test]
    fn a_notification_of_a_task_comes_back_as_it_was_sent_with_its_subscription() {
        for method in ["notifications/tasks", "notifications/tasks/status", ACKNOWLEDGED] {
            let params = json!({
                "_meta": {"io.modelcontextprotocol/subscriptionId": 42, "other": [1]},
                "taskId": "t", "status": "later", "ttlMs": 60000.0, "notifications": {"taskIds": ["t"]},
            });
            let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
            put_notification_aside(&mut message, 7);

            let ServerJsonRpcMessage::Notification(received) = through_the_sdk(message) else {
                panic!("no notification")
            };
            let ServerNotification::CustomNotification(custom) = received.notification else {
                panic!("the SDK knows it: {:?}", received.notification)
            };
            assert_eq!(
                raw_notification(&custom),
                Some(RawNotification { method: method.to_owned(), params, place: 7 })
            );
        }
    }

    #[test]
    fn a_notification_without_parameters_has_none() {
        let mut message = json!({"jsonrpc": "2.0", "method": "notifications/tasks"});
        put_notification_aside(&mut message, 7);
        let custom: CustomNotification = serde_json::from_value(message).unwrap();
        assert_eq!(raw_notification(&custom).unwrap().params, Value::Null);
    }

    #[test]
    fn other_notifications_are_left_to_the_sdk() {
        for sent in [
            json!({"jsonrpc": "2.0", "method": ACKNOWLEDGED, "params": {"notifications": {"toolsListChanged": true}}}),
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1, "progressToken": 1}}),
            json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
            json!({"jsonrpc": "2.0", "method": 5}),
            json!("text"),
        ] {
            let mut message = sent.clone();
            put_notification_aside(&mut message, 7);
            assert_eq!(message, sent);
        }
        let foreign = CustomNotification::new("notifications/other", None);
        assert_eq!(raw_notification(&foreign), None);
    }
}
