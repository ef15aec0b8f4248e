//! `subscriptions/listen` from clients that are odd, slow, gone or hostile.

use std::sync::Arc;

use axum::{Router, body::Body};
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use outlast::{MemoryStore, SystemClock, TaskServer, TaskTool};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tower::Service;

use crate::support::{Client, TestServer, client::accept, gates::Gates, handler::Handler, server::config};

/// A listen request as bytes on a connection of its own.
struct Raw {
    headers: Vec<(String, String)>,
    body: String,
}

impl Raw {
    fn listen(client: &Client, filter: Value) -> Self {
        let params = client.params(json!({"notifications": filter}));
        let headers = client.headers("subscriptions/listen", &params);
        let body = json!({"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params});
        Self { headers, body: body.to_string() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut text = "POST /mcp HTTP/1.1\r\nHost: localhost\r\n".to_owned();
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("content-length: {}\r\n\r\n{}", self.body.len(), self.body));
        text.into_bytes()
    }

    /// Sends the first `length` bytes of it.
    async fn begin(&self, client: &Client, length: usize) -> TcpStream {
        let mut stream = connect(client).await;
        stream.write_all(&self.bytes()[..length]).await.unwrap();
        stream
    }
}

/// A connection that holds little.
async fn connect(client: &Client) -> TcpStream {
    let address = client.url.strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.connect(address.parse().unwrap()).await.unwrap()
}

/// Waits until the server follows nothing for anybody.
async fn until_free(server: &TestServer) {
    while server.server.load().await.unwrap().subscriptions > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_written_in_another_way_is_the_same_request() {
    let server = TestServer::start().await;
    let client = &server.client;
    let id = client.task("gated", json!({"gate": "g"})).await;
    server.gates.open("g");
    client.until(&id, "completed").await;
    let written = |change: fn(&mut Raw)| {
        let mut raw = Raw::listen(client, json!({"taskIds": [id]}));
        change(&mut raw);
        raw
    };
    for raw in [
        written(|_| {}),
        written(|raw| raw.body = raw.body.replace("subscriptions/listen", "subscriptions\\/listen")),
        written(|raw| raw.body = raw.body.replace("taskIds", "task\\u0049ds")),
        written(|raw| raw.headers[0].1 = "Application/JSON; charset=utf-8".to_owned()),
    ] {
        let reply = client.send(Method::POST, &raw.headers, raw.body.clone()).await;
        assert!(reply.text.contains(r#""status":"completed""#), "{}: {}", raw.body, reply.text);
        assert_eq!(reply.body["result"]["resultType"], "complete", "{}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_under_the_sdks_own_settings_is_a_plain_answer() {
    let mut config = config();
    config.max_subscriptions_per_owner = 1;
    let gates = Gates::default();
    let server = TaskServer::builder(Handler { gates: gates.clone() })
        .store(MemoryStore::new(SystemClock))
        .config(config)
        .tool("gated", TaskTool::required())
        .build()
        .await
        .unwrap();
    let shared = server.clone();
    let mcp: StreamableHttpService<_, LocalSessionManager> = StreamableHttpService::new(
        move || Ok(shared.clone()),
        Arc::default(),
        StreamableHttpServerConfig::default(),
    );
    let options = outlast::http::Options::default();
    let app = Router::new().route_service("/mcp", mcp).layer(outlast::http::layer(&options));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(format!("http://{}/mcp", listener.local_addr().unwrap()));
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let id = client.task("gated", json!({"gate": "g"})).await;
    let mut open = client.follow(&[&id]).await;
    assert_eq!(open.state().await["status"], "working");
    let plain = |headers: &HeaderMap| headers["content-type"] == "application/json";
    for (filter, status, code) in [
        (json!({"taskIds": "x"}), 200, -32602),
        (json!({"taskIds": null}), 200, -32602),
        (json!({"taskIds": [id]}), 429, -32000),
    ] {
        let reply = client.request("subscriptions/listen", json!({"notifications": filter})).await;
        assert!(plain(&reply.headers), "{filter}: {}", reply.text);
        assert_eq!((reply.status.as_u16(), reply.code()), (status, code), "{}", reply.text);
    }
    gates.open("g");
    open.until("completed").await;
    open.ended().await;
    serving.abort();
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_an_older_client_has_no_subscriptions_and_leaves_none() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({})).await;
    let session = server.client.initialize_session(json!({})).await;
    let listen = |meta: Value| json!({"notifications": {"taskIds": [id]}, "_meta": meta});
    let undeclared = session.legacy("subscriptions/listen", listen(json!({}))).await;
    assert_eq!(undeclared.code(), -32021, "{}", undeclared.text);
    let declared = listen(json!({"io.modelcontextprotocol/clientCapabilities": server.client.capabilities}));
    let refused = session.legacy("subscriptions/listen", declared).await;
    assert_eq!(refused.code(), -32601, "{}", refused.text);
    assert!(refused.error()["message"].as_str().unwrap().contains("poll tasks/get"), "{}", refused.text);
    assert_eq!(server.server.load().await.unwrap().subscriptions, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_at_any_moment_leave_nothing_behind() {
    let server = TestServer::with(|builder| {
        let mut config = config();
        config.max_subscriptions_per_owner = 1_000;
        builder.config(config)
    })
    .await;
    let client = server.client.with_token("ann@acme");
    let id = client.task("gated", json!({"gate": "g"})).await;
    let raw = Raw::listen(&client, json!({"taskIds": [id, "none"], "toolsListChanged": true}));
    let whole = raw.bytes().len();
    for n in 0..300 {
        // In the middle of the request, at once after it, and after the first bytes of the answer.
        let mut stream = raw.begin(&client, whole - n % 3 / 2 * n).await;
        if n % 3 == 1 {
            assert!(stream.read(&mut [0; 64]).await.unwrap() > 0);
        }
    }
    until_free(&server).await;
    // What they were is free for others, and the task is what it was.
    let mut listener = client.follow(&[&id]).await;
    server.gates.open("g");
    listener.until("completed").await;
    listener.ended().await;
    until_free(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_subscribe_at_once_exactly_as_many_as_allowed_are_served() {
    let server = TestServer::with(|builder| {
        let mut config = config();
        config.max_subscriptions_per_owner = 7;
        builder.config(config)
    })
    .await;
    let client = server.client.with_token("ann@acme");
    let id = client.task("gated", json!({})).await;
    let attempts: Vec<_> = (0..40)
        .map(|_| {
            let (client, filter) = (client.clone(), json!({"taskIds": [id]}));
            tokio::spawn(async move { client.listen(filter).await })
        })
        .collect();
    let mut open = Vec::new();
    for attempt in attempts {
        match attempt.await.unwrap() {
            Ok(listener) => open.push(listener),
            Err(refused) => assert_eq!(refused["error"]["code"], -32000, "{refused}"),
        }
    }
    assert_eq!((open.len(), server.server.load().await.unwrap().subscriptions), (7, 7));
    drop(open);
    until_free(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_neither_sends_nor_reads_does_not_hold_up_a_stop() {
    let server = TestServer::start().await;
    let client = &server.client;
    let raw = Raw::listen(client, json!({"taskIds": []}));
    let head = raw.bytes().len() - raw.body.len();
    let half_a_head = raw.begin(client, head / 2).await;
    let half_a_body = raw.begin(client, head + 5).await;
    // Far more than the connection holds, to one that does not read.
    let mut ids = Vec::new();
    for _ in 0..10 {
        let id = client.task("big", json!({"bytes": 900_000})).await;
        client.until(&id, "completed").await;
        ids.push(id);
    }
    let unread = Raw::listen(client, json!({"taskIds": ids}));
    let unread = unread.begin(client, unread.bytes().len()).await;
    // It is being answered, and reads nothing of it.
    unread.readable().await.unwrap();
    server.stop().await;
    drop((half_a_head, half_a_body, unread));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stood_still_goes_on_with_the_newest_state() {
    let server = TestServer::start().await;
    let client = &server.client;
    let mut ids = vec![client.task("chatters", json!({"text": "x"})).await];
    let talker = ids[0].clone();
    // Far more than connection and buffers hold.
    for _ in 0..60 {
        let id = client.task("big", json!({"bytes": 300_000})).await;
        client.until(&id, "completed").await;
        ids.push(id);
    }
    let mut raw = Raw::listen(client, json!({"taskIds": ids}));
    raw.headers.push(("connection".to_owned(), "close".to_owned()));
    let mut stream = raw.begin(client, raw.bytes().len()).await;
    stream.readable().await.unwrap();
    server.gates.open("begin");
    client.until(&talker, "completed").await;

    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    let events = text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    let states: Vec<Value> = events.map(|event| serde_json::from_slice(event).unwrap()).collect();
    let of = |id: &str| -> Vec<&Value> {
        let own = states.iter().filter(|state| state["params"]["taskId"] == id);
        own.map(|state| &state["params"]["status"]).collect()
    };
    // What it was when the reader stood still, if it got so far, and what it is; nothing of the way there.
    let said = of(&talker);
    assert!(said.len() <= 2 && said.last() == Some(&&json!("completed")), "{said:?}");
    assert!(ids[1..].iter().all(|id| of(id) == [&json!("completed")]));
    assert_eq!(states.last().unwrap()["result"]["resultType"], "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_task_does_not_keep_its_caller_from_following_the_others() {
    let server = TestServer::start().await;
    let client = &server.client;
    let (sound, damaged) = (client.task("asks", json!({})).await, client.task("asks", json!({})).await);
    for id in [&sound, &damaged] {
        client.until(id, "input_required").await;
    }
    let file = rusqlite::Connection::open(TestServer::file(&server.data)).unwrap();
    let row = format!("UPDATE tasks SET value = '{{' WHERE lower(hex(id)) = '{damaged}'");
    assert_eq!(file.execute(&row, []).unwrap(), 1);
    assert_eq!(client.get(&damaged).await.code(), -32603);

    let mut listener = client.listen(json!({"taskIds": [damaged, sound]})).await.unwrap();
    assert_eq!(listener.acknowledged().await, json!({"taskIds": [sound]}));
    assert_eq!(listener.state().await["status"], "input_required");
    client.update(&sound, json!({"who": accept("ann")})).await.result();
    listener.until("completed").await;
    listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_a_client_subscribes_again_and_has_missed_nothing() {
    let server = TestServer::start().await;
    let asked = server.client.task("asks", json!({})).await;
    let mut listener = server.client.follow(&[&asked]).await;
    listener.until("input_required").await;
    let server = server.crash().await;
    while listener.next().await.is_some() {}
    let client = &server.client;
    let mut listener = client.follow(&[&asked]).await;
    assert_eq!(
        listener.until("input_required").await["inputRequests"]["who"]["method"],
        "elicitation/create"
    );
    client.update(&asked, json!({"who": accept("ann")})).await.result();
    assert_eq!(listener.until("completed").await["result"]["isError"], false);
    listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_at_another_process_sees_what_the_worker_does() {
    let server = TestServer::start().await;
    let id = server.client.task("stages", json!({})).await;
    let front = server.front(|builder| builder).await;
    let mut listener = front.client.follow(&[&id]).await;
    assert_eq!(listener.state().await["status"], "working");
    server.gates.open("begin");
    assert_eq!(
        listener.until("input_required").await["inputRequests"]["who"]["method"],
        "elicitation/create"
    );
    // The answer goes by the one process and the end is heard at the other.
    front.client.update(&id, json!({"who": accept("ann")})).await.result();
    server.gates.open("end");
    assert_eq!(listener.until("completed").await["result"]["content"][0]["text"], "hello ann");
    listener.ended().await;
}

/// What a connection has not taken yet is not piled up for it: each waits to be taken, and is as new as that.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_ahead_of_a_connection_that_takes_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    let id = client.task("chatters", json!({"text": "x"})).await;
    let raw = Raw::listen(client, json!({"taskIds": [id]}));
    let mut request = http::Request::post("/mcp").header("host", "localhost");
    for (name, value) in &raw.headers {
        request = request.header(name, value);
    }
    let request = request.body(Body::from(raw.body.clone())).unwrap();
    let mut service = outlast::http::service(&server.server, &outlast::http::Options::default());
    let mut body = service.call(request).await.unwrap().into_body();
    // All that the task says, while nobody takes anything.
    server.gates.open("begin");
    client.until(&id, "completed").await;
    let mut said = Vec::new();
    while let Some(frame) = body.frame().await {
        said.push(String::from_utf8(frame.unwrap().into_data().unwrap().into()).unwrap());
    }
    assert_eq!(said.len(), 3, "what was agreed to, the end of the task, and of the stream: {said:#?}");
    assert!(said[1].contains(r#""status":"completed""#), "{said:#?}");
    until_free(&server).await;
}
