use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, http::HeaderMap, http::Method, response::Response};
use futures::StreamExt;
use tokio::{net::TcpListener, task::JoinHandle};

use super::*;

/// A request as the server got it.
#[derive(Clone)]
struct Got {
    verb: Method,
    headers: HeaderMap,
    body: Value,
}

impl Got {
    fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The answer with this result.
    fn result(&self, result: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": self.body["id"], "result": result})
    }
}

/// A server over HTTP that does as its script says.
struct Scripted {
    address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    serving: JoinHandle<()>,
}

impl Scripted {
    async fn start(script: impl Fn(&Got) -> Response + Send + Sync + 'static) -> Scripted {
        Scripted::start_at("127.0.0.1:0".parse().unwrap(), script).await
    }

    async fn start_at(
        address: SocketAddr,
        script: impl Fn(&Got) -> Response + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let got = Arc::<Mutex<Vec<Got>>>::default();
        let (seen, script) = (got.clone(), Arc::new(script));
        let app = Router::new().fallback(move |verb: Method, headers: HeaderMap, body: Bytes| async move {
            let got = Got { verb, headers, body: serde_json::from_slice(&body).unwrap_or_default() };
            let response = script(&got);
            seen.lock().unwrap().push(got);
            response
        });
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Scripted { address, got, serving }
    }

    /// A server of the newest generation, whose script begins behind its introduction.
    async fn modern(script: impl Fn(&Got) -> Response + Send + Sync + 'static) -> Scripted {
        Scripted::start(introducing(script)).await
    }

    fn server(&self) -> Server {
        Server::http(format!("http://{}/mcp", self.address))
    }

    fn got(&self, method: &str) -> Vec<Got> {
        self.got.lock().unwrap().iter().filter(|got| got.method() == method).cloned().collect()
    }

    /// Stops, and frees the port.
    async fn stop(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }
}

fn introducing(script: impl Fn(&Got) -> Response + Send + Sync) -> impl Fn(&Got) -> Response + Send + Sync {
    move |got| match got.method() {
        "server/discover" => answer(200, &got.result(discovered())),
        _ => script(got),
    }
}

fn answer(status: u16, body: &Value) -> Response {
    typed(status, "application/json; charset=utf-8", body.to_string())
}

fn typed(status: u16, content_type: &str, body: impl Into<axum::body::Body>) -> Response {
    Response::builder().status(status).header("content-type", content_type).body(body.into()).unwrap()
}

fn bare(status: u16) -> Response {
    Response::builder().status(status).body(axum::body::Body::empty()).unwrap()
}

fn with(mut response: Response, name: &'static str, value: &str) -> Response {
    response.headers_mut().insert(name, value.parse().unwrap());
    response
}

#[tokio::test]
async fn a_json_answer_is_raw_and_the_server_is_remembered_as_it_introduced_itself() {
    let scripted = Scripted::modern(|got| answer(200, &got.result(lossy()))).await;
    let client = Client::connect(&scripted.server()).await;

    assert_eq!(client.ask("tools/call", json!({"name": "tool"})).await.unwrap(), lossy());
    assert_eq!(client.observed.capabilities(), Some(discovered()["capabilities"].clone()));
    let info = client.observed.server_info().unwrap();
    assert_eq!((&info["name"], &info["unknown"]), (&json!("modern"), &json!(1.0)));
    assert_eq!((client.observed.session(), client.observed.end()), (None, None));
    client.close().await;
}

#[tokio::test]
async fn an_event_stream_is_raw_event_by_event() {
    let scripted = Scripted::modern(|got| {
        let notification = json!({
            "jsonrpc": "2.0", "method": "notifications/tasks",
            "params": {"taskId": "t", "ttlMs": 60000.0, "_meta": {"io.modelcontextprotocol/subscriptionId": "s"}},
        });
        let events = format!(
            ": hello\n\ndata: no JSON\n\nevent: ping\ndata: {{}}\n\ndata: {notification}\n\ndata: {}\n\n",
            got.result(lossy())
        );
        typed(200, "Text/Event-Stream", events)
    })
    .await;
    let mut client = Client::connect(&scripted.server()).await;

    assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), lossy());
    let (method, params) = client.notified().await;
    assert_eq!((method.as_str(), &params["ttlMs"]), ("notifications/tasks", &json!(60000.0)));
    assert_eq!(params["_meta"], json!({"io.modelcontextprotocol/subscriptionId": "s"}));
    client.close().await;
}

#[tokio::test]
async fn a_stream_that_broke_off_is_taken_up_again_and_its_answer_is_raw() {
    let scripted = Scripted::modern(|got| match got.verb {
        // The first event has only an id and a pause, which is none.
        Method::POST => {
            typed(200, "text/event-stream", format!("id: {}\nretry: 0\ndata:\n\n", got.body["id"]))
        }
        _ => {
            let id: u64 = got.header("last-event-id").unwrap().parse().unwrap();
            let response = json!({"jsonrpc": "2.0", "id": id, "result": lossy()});
            typed(200, "text/event-stream", format!("data: {response}\n\n"))
        }
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), lossy());
    client.close().await;
}

#[tokio::test]
async fn a_stream_that_ends_without_the_answer_fails_the_request() {
    let scripted = Scripted::modern(|_| typed(200, "text/event-stream", "data: no JSON\n\n")).await;
    let client = Client::connect(&scripted.server()).await;
    let lost = client.ask("tasks/get", json!({"taskId": "t"})).await;
    assert!(matches!(lost, Err(ServiceError::TransportClosed)), "{lost:?}");
    client.close().await;
}

/// Case C41, and the headers that the caller gave.
#[tokio::test]
async fn each_request_says_in_its_headers_what_it_is() {
    let scripted = Scripted::modern(|got| answer(200, &got.result(json!({})))).await;
    let server = scripted.server().bearer("token").header("X-Tenant", "blue");
    let client = Client::connect(&server).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        client.ask(method, json!({"taskId": "task-1"})).await.unwrap();
        let got = scripted.got(method).remove(0);
        assert_eq!(got.header("mcp-method"), Some(method));
        assert_eq!(got.header("mcp-name"), Some("task-1"), "{method}");
        assert_eq!(got.header("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!(got.header("authorization"), Some("Bearer token"));
        assert_eq!(got.header("x-tenant"), Some("blue"));
        assert_eq!(got.header("content-type"), Some("application/json"));
        assert_eq!(got.body["params"]["taskId"], "task-1");
        let version = &got.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        assert_eq!(version, "2026-07-28", "{}", got.body);
    }
    client.close().await;
}

#[tokio::test]
async fn a_server_of_the_earlier_generation_is_initialized_however_it_refuses_to_be_discovered() {
    let refusals: [fn(&Got) -> Response; 5] = [
        |_| bare(400),
        |_| typed(404, "text/html", "<html>not found</html>"),
        |_| {
            answer(
                400,
                &json!({"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "session"}}),
            )
        },
        |_| answer(400, &json!({"error": "no session"})),
        |got| {
            answer(
                200,
                &json!({"jsonrpc": "2.0", "id": got.body["id"], "error": {"code": -32601, "message": "what"}}),
            )
        },
    ];
    for refuse in refusals {
        let scripted = Scripted::start(move |got| match (&got.verb, got.method()) {
            (&Method::GET, _) => bare(405),
            (&Method::DELETE, _) => bare(200),
            (_, "server/discover") => refuse(got),
            (_, "initialize") => with(answer(200, &got.result(initialized())), "mcp-session-id", "session-1"),
            (_, "notifications/initialized") => bare(202),
            _ => answer(200, &got.result(lossy())),
        })
        .await;
        let client = Client::connect(&scripted.server()).await;
        assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), lossy());
        assert_eq!(client.observed.capabilities(), Some(initialized()["capabilities"].clone()));
        assert_eq!(client.observed.server_info().unwrap()["name"], "legacy");
        assert_eq!(client.observed.session().as_deref(), Some("session-1"));
        let got = scripted.got("tasks/get").remove(0);
        assert_eq!(got.header("mcp-session-id"), Some("session-1"));
        assert_eq!(got.header("mcp-protocol-version"), Some("2025-11-25"));
        client.close().await;
        let deleted = scripted.got.lock().unwrap().iter().any(|got| got.verb == Method::DELETE);
        assert!(deleted, "the session is given back");
    }
}

#[tokio::test]
async fn an_answer_on_the_stream_of_the_session_is_raw() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = Mutex::new(Some(receiver));
    let scripted = Scripted::start(move |got| match (&got.verb, got.method()) {
        (&Method::GET, _) => {
            let mut events: mpsc::UnboundedReceiver<Value> = receiver.lock().unwrap().take().unwrap();
            let events = futures::stream::poll_fn(move |context| events.poll_recv(context));
            let events = events.map(|event| Ok::<_, std::io::Error>(format!("data: {event}\n\n")));
            typed(200, "text/event-stream", axum::body::Body::from_stream(events))
        }
        (_, "server/discover") => bare(400),
        (_, "initialize") => {
            let events = format!(": hello\n\ndata: {}\n\n", got.result(initialized()));
            with(typed(200, "text/event-stream", events), "mcp-session-id", "session-1")
        }
        (_, "tasks/get") => {
            let status =
                json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": {"ttl": 1.0}});
            sender.send(status).unwrap();
            sender.send(got.result(lossy())).unwrap();
            bare(202)
        }
        _ => bare(202),
    })
    .await;
    let mut client = Client::connect(&scripted.server()).await;
    assert_eq!(client.observed.session().as_deref(), Some("session-1"));
    assert_eq!(client.observed.capabilities(), Some(initialized()["capabilities"].clone()));
    assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), lossy());
    assert_eq!(client.notified().await, ("notifications/tasks/status".to_owned(), json!({"ttl": 1.0})));
    client.close().await;
}

#[tokio::test]
async fn a_session_that_the_server_has_forgotten_is_told_from_a_request_that_it_refuses() {
    let scripted = Scripted::start(|got| match (&got.verb, got.method()) {
        (&Method::GET, _) => bare(405),
        (_, "server/discover") => bare(400),
        (_, "initialize") => with(answer(200, &got.result(initialized())), "mcp-session-id", "session-1"),
        (_, "notifications/initialized") => bare(202),
        _ => typed(404, "text/plain", "who are you?"),
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    assert_eq!(refused(client.ask("tasks/get", json!({"taskId": "t"})).await), Refused::SessionExpired);
    assert_eq!(scripted.got("initialize").len(), 1, "what to do about it is not the transport's to decide");

    let scripted = Scripted::modern(|_| bare(404)).await;
    let client = Client::connect(&scripted.server()).await;
    assert_eq!(refused(client.ask("tasks/get", json!({"taskId": "t"})).await), Refused::Unknown);
}

#[tokio::test]
async fn a_server_that_is_busy_says_when_to_come_back() {
    let error = |data: Value| json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "slow", "data": data}});
    let own = error(json!({"retryAfterMs": 1500}));
    let none = json!({"jsonrpc": "2.0", "error": {"code": -32000, "message": "slow"}});
    let scripted = Scripted::modern(move |got| {
        let response = match got.body["params"]["way"].as_str().unwrap() {
            "plain" => typed(429, "text/plain", "slow"),
            "away" => typed(503, "text/html", "<html>"),
            "own" => answer(429, &own),
            "seconds" => answer(429, &none),
            _ => answer(500, &json!({"no": "error"})),
        };
        with(response, "retry-after", "2")
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    let ask = async |way: &str| client.ask("tasks/get", json!({"taskId": "t", "way": way})).await;

    let after = Some("2".to_owned());
    assert_eq!(refused(ask("plain").await), Refused::Status(429, after.clone()));
    assert_eq!(refused(ask("away").await), Refused::Status(503, after.clone()));
    assert_eq!(refused(ask("broken").await), Refused::Status(500, after));
    assert_eq!(mcp_error(ask("own").await)["data"], json!({"retryAfterMs": 1500}));
    assert_eq!(mcp_error(ask("seconds").await)["data"], json!({"retryAfterMs": 2000}));
    client.close().await;
}

#[tokio::test]
async fn an_error_reaches_its_request_whatever_its_status_and_its_id() {
    let scripted = Scripted::modern(|got| {
        let error = json!({"code": -32020, "message": "headers"});
        match got.body["params"]["way"].as_str().unwrap() {
            "refused" => answer(400, &json!({"jsonrpc": "2.0", "id": "server-error", "error": error})),
            _ => answer(200, &json!({"jsonrpc": "2.0", "id": null, "error": error})),
        }
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    for way in ["refused", "answered"] {
        let asked = client.ask("tasks/get", json!({"taskId": "t", "way": way})).await;
        assert_eq!(mcp_error(asked)["code"], -32020, "{way}");
    }
    client.close().await;
}

#[tokio::test]
async fn who_has_to_log_in_is_told_how() {
    let scripted = Scripted::modern(|got| match got.body["params"]["way"].as_str().unwrap() {
        "in" => with(bare(401), "www-authenticate", "Bearer resource_metadata=\"x\""),
        "more" => with(bare(403), "www-authenticate", "Bearer scope=\"a b\""),
        // No answer to the request, whatever it looks like.
        _ => answer(
            401,
            &json!({"jsonrpc": "2.0", "id": got.body["id"], "error": {"code": 1, "message": "no"}}),
        ),
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    let ask = async |way: &str| refused(client.ask("tasks/get", json!({"taskId": "t", "way": way})).await);
    assert_eq!(ask("in").await, Refused::Unauthorized(Some("Bearer resource_metadata=\"x\"".to_owned())));
    assert_eq!(ask("more").await, Refused::Unauthorized(Some("Bearer scope=\"a b\"".to_owned())));
    assert_eq!(ask("out").await, Refused::Unauthorized(None));
    client.close().await;

    let locked = Scripted::start(|_| with(bare(401), "www-authenticate", "Bearer realm=\"x\"")).await;
    let error = Client::try_connect(&locked.server()).await.err().unwrap();
    assert_eq!(error.auth_challenge(), Some("Bearer realm=\"x\""));
}

#[tokio::test]
async fn a_server_that_went_away_is_there_again_on_the_same_connection() {
    // One connection for each request, so that none of them outlives the server.
    let closing = || {
        let script = introducing(|got| answer(200, &got.result(lossy())));
        move |got: &Got| with(script(got), "connection", "close")
    };
    let scripted = Scripted::start(closing()).await;
    let client = Client::connect(&scripted.server()).await;
    assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), lossy());

    let address = scripted.address;
    scripted.stop().await;
    assert_eq!(refused(client.ask("tasks/get", json!({"taskId": "t"})).await), Refused::NotSent);

    let _scripted = Scripted::start_at(address, closing()).await;
    assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), lossy());
    client.close().await;
}

#[tokio::test]
async fn an_error_says_why_and_not_what_is_in_the_query() {
    let scripted = Scripted::modern(|_| bare(404)).await;
    let address = scripted.address;
    scripted.stop().await;
    let server = Server::http(format!("http://user:secret@{address}/mcp?key=secret"));
    let Err(ClientInitializeError::TransportError { error, .. }) = Client::try_connect(&server).await else {
        panic!("connected")
    };
    let error = WireError::of(&error).unwrap();
    assert_eq!(error.refused(), Refused::NotSent);
    let text = error.to_string();
    assert!(text.contains("refused") && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn an_answer_that_is_too_large_fails_its_request_and_no_other() {
    let scripted = Scripted::modern(|got| {
        let large = got.result(json!({"text": "x".repeat(30 << 20)})).to_string();
        match got.body["params"]["way"].as_str() {
            Some("json") => typed(200, "application/json", large),
            Some("chunks") => {
                // Its length is not known before its end.
                let chunk = futures::stream::iter([Ok::<_, std::io::Error>(large)]);
                typed(200, "application/json", axum::body::Body::from_stream(chunk))
            }
            Some("stream") => typed(200, "text/event-stream", format!("id: 1\ndata: {large}\n\n")),
            Some("refusal") => typed(418, "text/plain", large),
            _ => answer(200, &got.result(lossy())),
        }
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    let ask = async |way: &str| client.ask("tasks/get", json!({"taskId": "t", "way": way})).await;

    for way in ["json", "chunks"] {
        let error = ask(way).await.unwrap_err();
        assert!(error.to_string().contains("exceeded the maximum size"), "{way}: {error}");
    }
    let error = mcp_error(ask("stream").await);
    assert!(error["message"].as_str().unwrap().contains("is longer than"), "{error}");
    let error = ask("refusal").await.unwrap_err().to_string();
    assert!(error.contains("HTTP 418") && error.len() < 100_000, "{} bytes", error.len());
    assert_eq!(ask("small").await.unwrap(), lossy());
    client.close().await;
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_fails_its_request() {
    let scripted = Scripted::modern(|got| match got.body["params"]["way"].as_str().unwrap() {
        "html" => typed(200, "text/html", "<html>"),
        "text" => typed(200, "application/json", "hello"),
        "empty" => typed(200, "application/json", ""),
        "batch" => answer(200, &json!([got.result(json!({}))])),
        "other" => answer(200, &json!({"jsonrpc": "2.0", "id": 99, "result": {}})),
        "request" => answer(200, &json!({"jsonrpc": "2.0", "id": got.body["id"], "method": "ping"})),
        way => panic!("{way}"),
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    for way in ["html", "text", "empty", "batch", "other", "request"] {
        let asked = client.ask("tasks/get", json!({"taskId": "t", "way": way})).await;
        assert_eq!(refused(asked), Refused::Unknown, "{way}");
    }
    client.close().await;
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_place() {
    let other = Scripted::modern(|got| answer(200, &got.result(json!({})))).await;
    let elsewhere = format!("http://{}/mcp", other.address);
    let scripted = Scripted::modern(move |got| match got.body["params"]["way"].as_str() {
        Some("away") => with(bare(307), "location", &elsewhere),
        Some("here") => with(bare(308), "location", "/other"),
        _ => answer(200, &got.result(json!({}))),
    })
    .await;
    let client = Client::connect(&scripted.server().bearer("token")).await;
    let away = client.ask("tasks/get", json!({"taskId": "t", "way": "away"})).await.unwrap_err();
    assert!(away.to_string().contains("307"), "{away}");
    assert!(other.got.lock().unwrap().is_empty());
    // Within one place it is followed, but not round and round.
    let here = client.ask("tasks/get", json!({"taskId": "t", "way": "here"})).await;
    assert_eq!(refused(here), Refused::Unknown);
    assert_eq!(scripted.got("tasks/get").len(), 1 + 11);
    client.close().await;
}

#[tokio::test]
async fn a_slow_call_does_not_hold_up_the_others() {
    // More of them than the SDK would let through.
    let scripted = Scripted::modern(|got| match got.method() {
        "tools/call" => typed(
            200,
            "application/json",
            axum::body::Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>()),
        ),
        _ => answer(200, &got.result(lossy())),
    })
    .await;
    let client = Client::connect(&scripted.server()).await;
    let slow: Vec<_> = (0..64)
        .map(|_| {
            let peer = client.service.peer().clone();
            tokio::spawn(async move {
                let request = CustomRequest::new("tools/call", Some(json!({"name": "slow"})));
                peer.send_request(ClientRequest::CustomRequest(request)).await
            })
        })
        .collect();
    soon(async {
        while scripted.got("tools/call").len() < slow.len() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), lossy());
    client.close().await;
    for slow in slow {
        assert!(soon(slow).await.unwrap().is_err());
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_one_is_refused_without_its_secrets() {
    for (server, says) in [
        (Server::http("no url"), "the URL of the server"),
        (Server::http("ftp://host/"), "neither http:// nor https://"),
        (Server::http("http://host/").header("a b", "secret"), "is no name of a header"),
        (Server::http("http://host/").header("x", "secret\n"), "characters that are not allowed"),
        (Server::http("http://host/").header("Mcp-Session-Id", "secret"), "is set by the transport"),
    ] {
        let error = server.connect(Arc::default()).await.err().unwrap().to_string();
        assert!(error.contains(says) && !error.contains("secret"), "{error}");
    }
    // With TLS, whether or not the process has chosen a provider.
    assert!(Server::http("https://host/").connect(Arc::default()).await.is_ok());
}
