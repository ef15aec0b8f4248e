//! A store with tasks, and the router in front of it.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use outlast_admin::{Admin, AdminToken, Options};
use outlast_core::{
    Applied, By, Call, Created, Event, InputKey, LeaseRequest, ManualClock, MemoryStore, NewTask, Owner,
    Payload, Question, Recovery, Spec, Store, TaskId, Timestamp, Token, WorkerId,
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub(crate) const TOKEN: &str = "0123456789abcdef";
/// How long a worker has a task of [`Place::task`] for.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// What a hostile tool says of itself.
pub(crate) const HOSTILE: &str =
    "<img src=x onerror=alert(1)></script><script>alert(2)</script>\u{202e}\u{1b}[2J";

/// A store, its clock, and the operator's side of it.
pub(crate) struct Place {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) admin: Admin,
}

pub(crate) fn id(n: u8) -> TaskId {
    TaskId::from_bytes([n; 16])
}

pub(crate) fn payload(value: Value) -> Payload {
    Payload::from_value(&value)
}

pub(crate) fn key(text: &str) -> InputKey {
    InputKey::new(text).unwrap()
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(1_795_953_600_000));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let mut options = Options::default();
        change(&mut options);
        let admin = Admin::new(store.clone(), AdminToken::new(TOKEN).unwrap(), options);
        Self { clock, store, admin }
    }

    /// A task of `tool` that a worker has.
    pub(crate) async fn task(&self, n: u8, owner: &str, tool: &str) -> Token {
        let mut spec = Spec::new(tool);
        spec.recovery = Recovery::Rerun;
        spec.asks = outlast_core::Asks::all();
        let call = Call::new(Payload::from_json(r#"{"name":"t","arguments":{"z":1,"a":"<b>"}}"#).unwrap());
        let new = NewTask::new(id(n), Owner::new(owner), spec, call);
        let lease = LeaseRequest { worker: WorkerId::new("w1"), lease: LEASE };
        match self.store.create(new, Some(lease)).await.unwrap() {
            Created::Created { token: Some(token), .. } => token,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn does(&self, n: u8, token: Token, event: Event) {
        let applied = self.store.apply(id(n), By::Lease(token), vec![event]).await.unwrap();
        assert!(matches!(applied, Applied::Applied(_)), "{applied:?}");
    }

    /// The same, asking for a name and a size.
    pub(crate) async fn asks(&self, n: u8, owner: &str) -> Token {
        let token = self.task(n, owner, "ask").await;
        let schema = r#"{"type":"object","properties":{"size":{"type":"string","enum":["s","l"]},"name":{"type":"string"}},"required":["name"]}"#;
        let schema: Value = serde_json::from_str(schema).unwrap();
        let request = json!({"method": "elicitation/create", "params": {"message": HOSTILE, "requestedSchema": schema}});
        let question = Question::new(&request).unwrap();
        self.does(n, token, Event::Ask { key: key("who"), question }).await;
        token
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router().oneshot(request).await.unwrap()
    }

    pub(crate) fn router(&self) -> Router {
        self.admin.router()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(self.send(request("GET", path, Some(TOKEN)).body(Body::empty()).unwrap()).await).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        let body = Body::from(body.to_owned());
        Answer::of(self.send(request("POST", path, Some(TOKEN)).body(body).unwrap()).await).await
    }
}

pub(crate) fn request(method: &str, path: &str, token: Option<&str>) -> http::request::Builder {
    let request = Request::builder().method(method).uri(path).header(header::HOST, "127.0.0.1:8809");
    match token {
        Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
        None => request,
    }
}

/// An answer that has come whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        Self { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The words of a refusal of this status.
    pub(crate) fn refusal(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.json()["error"].as_str().unwrap().to_owned()
    }
}
