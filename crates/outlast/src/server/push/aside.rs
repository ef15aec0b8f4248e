//! Moves a task filter out of the SDK's way: the one work-around for its `SubscriptionFilter` without `taskIds`.

use std::borrow::Cow;

use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

/// The method.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// Where the filter lies after [`move_aside`].
pub(crate) const FILTER: &str = "x-notifications";

/// As much of a message as it takes to see whether it is to be changed; the rest is skipped.
#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(rename = "params")]
    _params: ProbeParams,
}

#[derive(Deserialize)]
struct ProbeParams {
    #[serde(rename = "notifications")]
    _notifications: ProbeFilter,
}

#[derive(Deserialize)]
struct ProbeFilter {
    /// Whatever they are: what they must be is judged later.
    #[serde(rename = "taskIds")]
    _task_ids: IgnoredAny,
}

/// A listen request with its filter out of the SDK's way.
pub(crate) struct Moved {
    pub(crate) message: Vec<u8>,
    pub(crate) id: Value,
}

/// The message with its filter out of the SDK's way; `None` when it may stay as it is, because it is no listen request, or
/// one without task ids.
pub(crate) fn move_aside(message: &[u8]) -> Option<Moved> {
    // Nearly every message ends here, unparsed. In one with a backslash the name may be written with escapes, as some
    // libraries write every slash.
    if !contains(message, LISTEN.as_bytes()) && !message.contains(&b'\\') {
        return None;
    }
    let probe: Probe<'_> = serde_json::from_slice(message).ok()?;
    if probe.method != LISTEN {
        return None;
    }
    let mut message: Value = serde_json::from_slice(message).ok()?;
    let params = message.get_mut("params")?.as_object_mut()?;
    params.get("notifications")?.get("taskIds")?;
    let filter = params.remove("notifications")?;
    params.insert(FILTER.to_owned(), filter);
    Some(Moved { id: message["id"].clone(), message: serde_json::to_vec(&message).ok()? })
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn moved(message: &Value) -> Option<Value> {
        move_aside(message.to_string().as_bytes())
            .map(|moved| serde_json::from_slice(&moved.message).unwrap())
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
        for wrong in [json!("x"), json!(null), json!({"a": [1.5]})] {
            assert!(moved(&listen(json!({"taskIds": wrong}))).is_some());
        }

        assert_eq!(moved(&listen(json!({"toolsListChanged": true}))), None);
        assert_eq!(
            moved(&json!({"method": "tools/call", "params": {"note": "subscriptions/listen taskIds"}})),
            None
        );
        assert!(move_aside(b"{\"method\": \"subscriptions/listen\", \"taskIds\"").is_none());
        assert_eq!(moved(&json!({"method": LISTEN, "params": ["taskIds"]})), None);
        assert_eq!(moved(&listen(json!(["taskIds"]))), None);
        assert_eq!(moved(&json!([listen(filter)])), None);
    }

    #[test]
    fn names_that_are_written_with_escapes_are_the_same_names() {
        let filter = r#""params":{"notifications":{"task\u0049ds":["one"]}}}"#;
        for method in [r"subscriptions\/listen", r"\u0073ubscriptions/listen"] {
            let aside = move_aside(format!(r#"{{"method":"{method}",{filter}"#).as_bytes()).unwrap();
            let aside: Value = serde_json::from_slice(&aside.message).unwrap();
            assert_eq!(aside["params"], json!({"x-notifications": {"taskIds": ["one"]}}));
        }
        assert!(move_aside(format!(r#"{{"method":"tools\/call",{filter}"#).as_bytes()).is_none());
    }
}
