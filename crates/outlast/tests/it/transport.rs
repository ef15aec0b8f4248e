//! HTTP, bad input, and the gate in front of `tasks/*`.

use http::{Method, StatusCode};
use outlast::PollLimit;
use serde_json::{Value, json};

use crate::support::{TestServer, server::config};

#[tokio::test(flavor = "multi_thread")]
async fn c02_undeclared_task_requests_are_refused_with_what_they_lack() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({})).await;
    let undeclared = server.client.undeclared();
    for taken in [id.as_str(), "unknown"] {
        for reply in [
            undeclared.get(taken).await,
            undeclared.cancel(taken).await,
            undeclared.update(taken, json!({})).await,
        ] {
            assert_eq!(reply.code(), -32021);
            let required = &reply.error()["data"]["requiredCapabilities"]["extensions"];
            assert_eq!(required["io.modelcontextprotocol/tasks"], json!({}));
        }
    }
    assert_eq!(server.client.state(&id).await["status"], "working");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extension_is_advertised_and_no_legacy_capability_is() {
    let server = TestServer::start().await;
    let discovered = server.client.request("server/discover", json!({})).await;
    let capabilities = &discovered.result()["capabilities"];
    assert_eq!(capabilities["extensions"]["io.modelcontextprotocol/tasks"], json!({}));
    assert!(capabilities.get("tasks").is_none());
    assert!(capabilities.get("tools").is_some(), "the handler's own capabilities are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn c07_removed_methods_do_not_exist() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({})).await;
    for method in ["tasks/list", "tasks/result"] {
        assert_eq!(server.client.request(method, json!({"taskId": id})).await.code(), -32601);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c17_an_id_of_any_other_form_is_an_unknown_one() {
    let server = TestServer::start().await;
    let unknown = server.client.get("00000000000000000000000000000000").await.text;
    let wrong = [
        json!({}),
        json!({"taskId": null}),
        json!({"taskId": 5}),
        json!({"taskId": ["a"]}),
        json!({"taskId": ""}),
        json!({"taskId": "x".repeat(1 << 20)}),
        json!({"taskId": "a\u{0}b\r\nc"}),
        json!({"taskId": "ÄÖÜ"}),
        json!({"taskId": "ABABABABABABABABABABABABABABABAB"}),
    ];
    for params in wrong {
        for method in ["tasks/get", "tasks/cancel"] {
            let reply = server.client.request(method, params.clone()).await;
            let shown = params.to_string().chars().take(60).collect::<String>();
            assert_eq!(reply.code(), -32602, "{method} {shown}: {}", reply.text);
            assert_eq!(reply.text, unknown, "{method} {shown}");
        }
        let mut params = params;
        params["inputResponses"] = json!({});
        assert_eq!(server.client.request("tasks/update", params).await.text, unknown);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_no_object_are_refused() {
    let server = TestServer::start().await;
    let id = server.client.task("asks", json!({})).await;
    server.client.until(&id, "input_required").await;
    for wrong in [json!(null), json!("x"), json!([1]), json!(5)] {
        assert_eq!(server.client.update(&id, wrong).await.code(), -32602);
    }
    assert_eq!(server.client.request("tasks/update", json!({"taskId": id})).await.code(), -32602);
    assert_eq!(server.client.state(&id).await["status"], "input_required");
}

#[tokio::test(flavor = "multi_thread")]
async fn c42_a_name_header_that_differs_from_the_body_is_refused() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({})).await;
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let params = server.client.params(json!({"taskId": id, "inputResponses": {}}));
        let mut headers = server.client.headers(method, &params);
        headers.iter_mut().find(|(name, _)| name == "mcp-name").unwrap().1 = "another".to_owned();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let reply = server.client.send(Method::POST, &headers, body).await;
        assert_eq!((reply.status, reply.code()), (StatusCode::BAD_REQUEST, -32020), "{}", reply.text);
    }
    assert_eq!(server.client.state(&id).await["status"], "working");
}

#[tokio::test(flavor = "multi_thread")]
async fn c55_a_client_that_sends_no_name_header_is_served() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({})).await;
    for id in [id.as_str(), "ÄÖÜ\u{1}", "=?base64?"] {
        let params = server.client.params(json!({"taskId": id}));
        let mut headers = server.client.headers("tasks/get", &params);
        headers.retain(|(name, _)| name != "mcp-name");
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}).to_string();
        let reply = server.client.send(Method::POST, &headers, body).await;
        assert_eq!(reply.status, StatusCode::OK, "{id}: {}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_past_the_limit_are_told_when_to_come_back() {
    let mut config = config();
    config.poll_limit = Some(PollLimit { burst: 3, per_second: 0.001 });
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let id = server.client.task("gated", json!({})).await;
    for _ in 0..3 {
        server.client.get(&id).await.result();
    }
    let refused = server.client.get(&id).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::TOO_MANY_REQUESTS, -32000), "{}", refused.text);
    assert!(refused.error()["data"]["retryAfterMs"].as_u64().unwrap() > 1_000);
    let seconds: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(seconds >= 1);
    let other = server.client.task("gated", json!({})).await;
    server.client.get(&other).await.result();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_and_a_foreign_host_are_refused() {
    let server = TestServer::start().await;
    let params = server.client.params(json!({}));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": params}).to_string();
    let send = async |name: &str, value: &str| {
        let mut headers = server.client.headers("server/discover", &Value::Null);
        headers.push((name.to_owned(), value.to_owned()));
        server.client.send(Method::POST, &headers, body.clone()).await.status
    };
    assert!(send("origin", "http://evil.example.com").await.is_client_error());
    assert!(send("host", "evil.example.com").await.is_client_error());
    assert_eq!(send("origin", "http://localhost:3000").await, StatusCode::OK);
    assert_eq!(send("x-other", "1").await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_past_the_limit_is_refused() {
    let server = TestServer::start().await;
    let params = server.client.params(json!({"taskId": "x".repeat(5 << 20)}));
    let mut headers = server.client.headers("tasks/get", &Value::Null);
    headers.retain(|(name, _)| name != "mcp-name");
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}).to_string();
    let reply = server.client.send(Method::POST, &headers, body).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_of_ones_own_serves_tasks_beside_other_routes() {
    let server = TestServer::start().await;
    let options = outlast::http::Options::default();
    let app = axum::Router::new()
        .route("/health", axum::routing::get(|| async { "ok" }))
        .nest_service("/tools/mcp", outlast::http::service(&server.server, &options));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/tools/mcp", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let client = crate::support::Client::new(url.clone());
    let id = client.task("gated", json!({"gate": "g"})).await;
    server.gates.open("g");
    client.until(&id, "completed").await;
    let health = crate::support::Client::new(url.replace("/tools/mcp", "/health"));
    assert_eq!(health.send(Method::GET, &[], "").await.text, "ok");
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn c02_a_declaration_at_initialize_does_not_count_for_task_requests() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    let session = server.client.initialize_session(crate::support::everything()).await;
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let reply = session.legacy(method, json!({"taskId": id, "inputResponses": {}})).await;
        assert_eq!(reply.code(), -32021, "{method}: {}", reply.text);
    }
    server.gates.open("g");
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_body_was_not_read_is_told_that_its_connection_closes() {
    let server = TestServer::start().await;
    let headers = [("content-type".to_owned(), "text/plain".to_owned())];
    let refused = server.client.send(Method::POST, &headers, "x".repeat(150_000)).await;
    assert_eq!(refused.status, StatusCode::NOT_ACCEPTABLE);
    assert_eq!(refused.headers["connection"], "close");
    let served = server.client.request("server/discover", json!({})).await;
    assert!(served.headers.get("connection").is_none(), "{served:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_parameters_cannot_be_read_is_refused_for_them() {
    let server = TestServer::start().await;
    for params in [json!({"arguments": {}}), json!({"name": 5}), json!({"name": "quick", "arguments": [1]})] {
        assert_eq!(server.client.request("tools/call", params.clone()).await.code(), -32602, "{params}");
    }
}
