//! Moves a task filter out of the SDK's way: the one work-around for its `SubscriptionFilter` without `taskIds`.

use serde_json::Value;

/// The method.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// Where the filter lies after [`move_aside`].
pub(crate) const FILTER: &str = "x-notifications";

/// The message with its filter out of the SDK's way; `None` when it may stay as it is, because it is no listen request, or
/// one without task ids.
pub(crate) fn move_aside(message: &[u8]) -> Option<Vec<u8>> {
    // Nearly every message ends here, unparsed.
    if !contains(message, LISTEN.as_bytes()) || !contains(message, b"taskIds") {
        return None;
    }
    let mut message: Value = serde_json::from_slice(message).ok()?;
    if message["method"] != LISTEN {
        return None;
    }
    let params = message.get_mut("params")?.as_object_mut()?;
    params.get("notifications")?.get("taskIds")?;
    let filter = params.remove("notifications")?;
    params.insert(FILTER.to_owned(), filter);
    serde_json::to_vec(&message).ok()
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn moved(message: &Value) -> Option<Value> {
        move_aside(message.to_string().as_bytes()).map(|moved| serde_json::from_slice(&moved).unwrap())
    }

    #[test]
    fn a_filter_with_task_ids_is_moved_and_nothing_else() {
        let listen = |notifications: Value| {
            json!({"jsonrpc": "2.0", "id": "a", "method": LISTEN,
            "params": {"_meta": {"x": 1}, "notifications": notifications}})
        };
        let filter = json!({"taskIds": ["one"], "toolsListChanged": true});
        let aside = moved(&listen(filter.clone())).unwrap();
        assert_eq!(aside["params"], json!({"_meta": {"x": 1}, "x-notifications": filter}));
        assert_eq!((&aside["id"], &aside["method"]), (&json!("a"), &json!(LISTEN)));
        // Whatever they are: what they must be is judged later.
        assert!(moved(&listen(json!({"taskIds": "x"}))).is_some());

        assert_eq!(moved(&listen(json!({"toolsListChanged": true}))), None);
        assert_eq!(
            moved(&json!({"method": "tools/call", "params": {"note": "subscriptions/listen taskIds"}})),
            None
        );
        assert_eq!(move_aside(b"{\"method\": \"subscriptions/listen\", \"taskIds\""), None);
        assert_eq!(moved(&json!({"method": LISTEN, "params": ["taskIds"]})), None);
    }
}
