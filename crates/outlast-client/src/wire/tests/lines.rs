use std::io;

use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex, split,
};

use super::*;

/// The server's end of a connection.
struct Peer {
    read: Lines<BufReader<ReadHalf<DuplexStream>>>,
    write: WriteHalf<DuplexStream>,
}

impl Peer {
    /// The next request; what is no request is skipped.
    async fn next(&mut self) -> Value {
        loop {
            let line = soon(self.read.next_line()).await.unwrap().unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if message.get("id").is_some() {
                return message;
            }
        }
    }

    async fn say(&mut self, line: &str) {
        self.write.write_all(line.as_bytes()).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
    }

    async fn answer(&mut self, request: &Value, result: Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string()).await;
    }
}

/// A client and the server that it is connected to.
async fn connected() -> (Client, Peer) {
    let (server, mut peers) = server();
    let (client, peer) = tokio::join!(Client::connect(&server), async {
        let mut peer = peers.recv().await.unwrap();
        let discover = peer.next().await;
        peer.answer(&discover, discovered()).await;
        peer
    });
    (client, peer)
}

/// A server, and its end of each connection.
fn server() -> (Server, mpsc::UnboundedReceiver<Peer>) {
    let (sender, peers) = mpsc::unbounded_channel();
    let server = Server::streams("in memory", move || {
        let (ours, theirs) = duplex(1 << 16);
        let (read, write) = split(theirs);
        let _ = sender.send(Peer { read: BufReader::new(read).lines(), write });
        async move { Ok::<_, io::Error>(split(ours)) }
    });
    (server, peers)
}

#[tokio::test]
async fn an_answer_is_raw_and_so_is_the_notification_of_a_task() {
    let (mut client, mut peer) = connected().await;
    let (result, ()) = tokio::join!(client.ask("tools/call", json!({"name": "tool"})), async {
        let call = peer.next().await;
        assert_eq!((&call["method"], &call["params"]["name"]), (&json!("tools/call"), &json!("tool")));
        peer.say(
            r#"{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"t","ttlMs":60000.0}}"#,
        )
        .await;
        peer.answer(&call, lossy()).await;
    });
    assert_eq!(result.unwrap(), lossy());
    assert_eq!(client.notified().await.1, json!({"taskId": "t", "ttlMs": 60000.0}));
    assert_eq!(client.observed.capabilities(), Some(discovered()["capabilities"].clone()));
    assert_eq!(client.observed.session(), None);
    client.close().await;
}

#[tokio::test]
async fn a_server_of_the_earlier_generation_is_initialized() {
    let (server, mut peers) = server();
    let (client, mut peer) = tokio::join!(Client::connect(&server), async {
        let mut peer = peers.recv().await.unwrap();
        let discover = peer.next().await;
        let refusal =
            json!({"jsonrpc": "2.0", "id": discover["id"], "error": {"code": -32601, "message": "what?"}});
        peer.say(&refusal.to_string()).await;
        let initialize = peer.next().await;
        assert_eq!(initialize["params"]["protocolVersion"], "2025-11-25");
        peer.answer(&initialize, initialized()).await;
        peer
    });
    assert_eq!(client.observed.capabilities(), Some(initialized()["capabilities"].clone()));
    let (result, ()) = tokio::join!(client.ask("tools/call", json!({"name": "tool"})), async {
        let call = peer.next().await;
        peer.answer(&call, json!({"task": {"taskId": "t", "ttl": 1.0}})).await;
    });
    assert_eq!(result.unwrap(), json!({"task": {"taskId": "t", "ttl": 1.0}}));
}

#[tokio::test]
async fn garbage_is_skipped() {
    let (client, mut peer) = connected().await;
    let (result, ()) = tokio::join!(client.ask("tasks/get", json!({"taskId": "t"})), async {
        let get = peer.next().await;
        for garbage in
            ["Listening...", "", "\r", "{}", "[]", "{\"id\":", "7", "{\"jsonrpc\":\"2.0\",\"method\":{}}"]
        {
            peer.say(garbage).await;
        }
        peer.write.write_all(b"\xff\xfe\x00\n").await.unwrap();
        peer.answer(&get, lossy()).await;
    });
    assert_eq!(result.unwrap(), lossy());
}

#[tokio::test]
async fn a_line_that_is_too_long_fails_the_request_that_it_answers_and_the_next_one_passes() {
    let (client, mut peer) = connected().await;
    let serving = async {
        let first = peer.next().await;
        // In the order of the TypeScript SDK: its id comes last.
        let long = "x".repeat(20 << 20);
        peer.say(&format!(
            "{{\"result\":{{\"text\":\"{long}\"}},\"jsonrpc\":\"2.0\",\"id\":{}}}",
            first["id"]
        ))
        .await;
        peer.say(&format!("{{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{{\"text\":\"{long}\"}}}}"))
            .await;
        let second = peer.next().await;
        peer.answer(&second, lossy()).await;
    };
    let asking = async {
        let error = mcp_error(client.ask("tasks/get", json!({"taskId": "t"})).await);
        assert!(error["message"].as_str().unwrap().contains("is longer than the 16777216 bytes"), "{error}");
        client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap()
    };
    let (result, ()) = tokio::join!(asking, serving);
    assert_eq!(result, lossy());
}

#[tokio::test]
async fn requests_fail_at_once_when_the_server_closes_the_connection() {
    let (client, mut peer) = connected().await;
    let (result, ()) = tokio::join!(client.ask("tasks/get", json!({"taskId": "t"})), async move {
        peer.next().await;
        // An answer without an end is none.
        peer.write.write_all(b"{\"jsonrpc\":\"2.0\",").await.unwrap();
        drop(peer);
    });
    assert!(matches!(result, Err(ServiceError::TransportClosed)), "{result:?}");
    let later = client.ask("tasks/get", json!({"taskId": "t"})).await;
    assert!(matches!(later, Err(ServiceError::TransportClosed)), "{later:?}");
}

#[tokio::test]
async fn a_request_that_is_given_up_leaves_no_half_line_behind() {
    let (client, mut peer) = connected().await;
    // Longer than the connection takes at once: it is given up in its middle.
    let long = "x".repeat(1 << 20);
    {
        let given_up = client.ask("tasks/update", json!({"taskId": "t", "text": long}));
        let mut given_up = std::pin::pin!(given_up);
        assert!(futures::poll!(&mut given_up).is_pending());
        tokio::task::yield_now().await;
    }
    let (result, ()) = tokio::join!(client.ask("tasks/get", json!({"taskId": "t"})), async {
        loop {
            let request = peer.next().await;
            if request["method"] == "tasks/get" {
                return peer.answer(&request, lossy()).await;
            }
            assert_eq!(request["params"]["text"].as_str().unwrap().len(), 1 << 20);
        }
    });
    assert_eq!(result.unwrap(), lossy());
}

#[tokio::test]
async fn closing_the_connection_ends_the_input_of_the_server() {
    let (client, mut peer) = connected().await;
    client.close().await;
    assert_eq!(soon(peer.read.next_line()).await.unwrap(), None);
}

#[tokio::test]
async fn streams_that_cannot_be_had_are_an_error() {
    let server = Server::streams("away", || async { Err::<(&[u8], Vec<u8>), _>(io::Error::other("away")) });
    assert_eq!(server.connect(Arc::default()).await.err().unwrap().to_string(), "away");
}
