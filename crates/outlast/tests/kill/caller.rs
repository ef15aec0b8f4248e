//! A client whose server may die under it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::{
    support::{Client, client::accept, schema},
    tools::AT_WORK,
};

/// The server went away before its whole answer was here.
#[derive(Debug)]
pub(crate) struct Gone;

/// One owner of tasks.
#[derive(Clone)]
pub(crate) struct Caller {
    http: Http<HttpConnector, Full<Bytes>>,
    /// Knows what a request looks like.
    form: Client,
    /// Answers that were held against the schema; one of the same bytes need not be again.
    checked: Arc<Mutex<HashSet<String>>>,
}

impl Caller {
    /// The owner of this number.
    pub(crate) fn new(url: &str, owner: u64) -> Self {
        let http = Http::builder(TokioExecutor::new()).build_http();
        let form = Client::new(url.to_owned()).with_token(&format!("owner {owner}"));
        Self { http, form, checked: Arc::default() }
    }

    /// Sends a request and returns its result, byte for byte.
    async fn request(&self, method: &str, params: Value) -> Result<Box<RawValue>, Gone> {
        #[derive(Deserialize)]
        struct Answer {
            result: Option<Box<RawValue>>,
        }
        let params = self.form.params(params);
        let mut request = Request::post(&self.form.url);
        for (name, value) in self.form.headers(method, &params) {
            request = request.header(name, value);
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let request = request.body(Full::from(body)).unwrap();
        let response = self.http.request(request).await.map_err(|_| Gone)?;
        let answer = response.into_body().collect().await.map_err(|_| Gone)?.to_bytes();
        let Ok(Answer { result: Some(result) }) = serde_json::from_slice(&answer) else {
            panic!("{method} was answered with {}", String::from_utf8_lossy(&answer));
        };
        Ok(result)
    }

    fn check(&self, definition: &str, result: &RawValue) {
        if self.checked.lock().unwrap().insert(result.get().to_owned()) {
            schema::check(definition, &serde_json::from_str(result.get()).unwrap());
        }
    }

    /// Has a task made, and returns its id. It may be sent again: the label is its idempotency key.
    pub(crate) async fn create(&self, label: &str, tool: &str) -> Result<String, Gone> {
        let params = json!({
            "name": tool,
            "arguments": {"label": label},
            "_meta": {"outlast/idempotencyKey": label},
        });
        let created = self.request("tools/call", params).await?;
        self.check("CreateTaskResult", &created);
        let created: Value = serde_json::from_str(created.get()).unwrap();
        Ok(created["taskId"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Shown, Gone> {
        let shown = self.request("tasks/get", json!({"taskId": id})).await?;
        self.check("GetTaskResult", &shown);
        let fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(shown.get()).unwrap();
        let mut fields: BTreeMap<_, _> =
            fields.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect();
        // The one field that changes with time alone.
        fields.remove("pollIntervalMs");
        Ok(Shown(fields))
    }

    pub(crate) async fn answer(&self, id: &str, key: &str, name: &str) -> Result<(), Gone> {
        let params = json!({"taskId": id, "inputResponses": {key: accept(name)}});
        self.acknowledged("tasks/update", params).await
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<(), Gone> {
        self.acknowledged("tasks/cancel", json!({"taskId": id})).await
    }

    async fn acknowledged(&self, method: &str, params: Value) -> Result<(), Gone> {
        let acknowledged = self.request(method, params).await?;
        assert_eq!(acknowledged.get(), r#"{"resultType":"complete"}"#);
        Ok(())
    }
}

/// What `tasks/get` returned: every field as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown(BTreeMap<String, String>);

impl Shown {
    fn field(&self, name: &str) -> Value {
        self.0.get(name).map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    pub(crate) fn status(&self) -> String {
        self.field("status").as_str().unwrap().to_owned()
    }

    pub(crate) fn is_final(&self) -> bool {
        matches!(&*self.status(), "completed" | "failed" | "cancelled")
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.field("statusMessage") == AT_WORK
    }

    /// What it says about itself.
    pub(crate) fn message(&self) -> String {
        self.field("statusMessage").as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn error(&self) -> Value {
        self.field("error")
    }

    pub(crate) fn result(&self) -> Value {
        self.field("result")
    }

    /// An outstanding question.
    pub(crate) fn question(&self, key: &str) -> Value {
        self.field("inputRequests")[key].clone()
    }

    /// The keys of the outstanding questions.
    pub(crate) fn asks(&self) -> Vec<String> {
        let questions = self.field("inputRequests");
        questions.as_object().map(|questions| questions.keys().cloned().collect()).unwrap_or_default()
    }
}
