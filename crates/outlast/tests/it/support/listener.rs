//! The client's end of a `subscriptions/listen` stream.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Client, schema};

/// A stream that is open.
pub(crate) struct Listener {
    body: Incoming,
    text: String,
}

impl Client {
    /// Subscribes to `filter`; the refusal where there is one.
    pub(crate) async fn listen(&self, filter: Value) -> Result<Listener, Value> {
        let params = self.params(json!({"notifications": filter}));
        let headers = self.headers("subscriptions/listen", &params);
        let message =
            json!({"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params});
        let mut request = Request::builder().method(Method::POST).uri(&self.url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let body = Full::new(Bytes::from(message.to_string()));
        let response = self.http.request(request.body(body).unwrap()).await.unwrap();
        let stream = response.headers()["content-type"] == "text/event-stream";
        let body = response.into_body();
        if stream {
            return Ok(Listener { body, text: String::new() });
        }
        Err(serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap())
    }

    /// Subscribes to these tasks, and checks that all of them are agreed to.
    pub(crate) async fn follow(&self, ids: &[&str]) -> Listener {
        let mut listener = self.listen(json!({"taskIds": ids})).await.unwrap();
        assert_eq!(listener.acknowledged().await, json!({"taskIds": ids}));
        listener
    }
}

impl Listener {
    /// The next message; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data: String = event.lines().filter_map(|line| line.strip_prefix("data:")).collect();
                let message = serde_json::from_str(data.trim());
                self.text = rest.to_owned();
                if let Ok(message) = message {
                    return Some(message);
                }
            }
            let frame = self.body.frame().await?.ok()?;
            if let Some(data) = frame.data_ref() {
                self.text.push_str(std::str::from_utf8(data).unwrap());
            }
        }
    }

    /// What the server agreed to: the first message.
    pub(crate) async fn acknowledged(&mut self) -> Value {
        let message = self.next().await.unwrap();
        assert_eq!(message["method"], "notifications/subscriptions/acknowledged", "{message}");
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "sub");
        schema::check("TaskSubscriptionAcknowledgedNotifications", &message["params"]["notifications"]);
        message["params"]["notifications"].clone()
    }

    /// The next state of a task.
    pub(crate) async fn state(&mut self) -> Value {
        let message = self.next().await.expect("the stream goes on");
        assert_eq!(message["method"], "notifications/tasks", "{message}");
        schema::check("TaskStatusNotification", &message);
        let mut state = message["params"].clone();
        let meta = state.as_object_mut().unwrap().remove("_meta").unwrap();
        assert_eq!(meta["io.modelcontextprotocol/subscriptionId"], "sub");
        state
    }

    /// The states up to one of this status.
    pub(crate) async fn until(&mut self, status: &str) -> Value {
        loop {
            let state = self.state().await;
            if state["status"] == status {
                return state;
            }
        }
    }

    /// The end of the stream, with its result (S28a).
    pub(crate) async fn ended(mut self) {
        let message = self.next().await.expect("it ends with a result");
        assert_eq!(message["id"], "sub", "{message}");
        assert_eq!(message["result"]["resultType"], "complete");
        assert_eq!(message["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "sub");
        assert_eq!(self.next().await, None);
    }
}
