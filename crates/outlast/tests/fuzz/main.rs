//! No request to `tasks/*` or `tools/call`, however malformed, panics the server, hangs, or is answered with anything
//! but JSON-RPC or one of the SDK's plain refusals, which [`answer`] lists.
//!
//! The requests are the same in every run. `OUTLAST_FUZZ_SEED` makes others, `OUTLAST_FUZZ_CASES` more.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod answer;
mod json;
mod request;

#[allow(dead_code, unused_imports)]
#[path = "../it/support/mod.rs"]
mod support;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    error::Error,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use serde_json::json;
use tokio::{runtime::Runtime, time::timeout};

use crate::{
    answer::{Answer, Kind},
    request::{Sent, World},
    support::{Client, TestServer},
};

const CASES: u32 = 4_000;

/// Far more than any answer takes.
const PATIENCE: Duration = Duration::from_secs(10);

static PANICS: AtomicU32 = AtomicU32::new(0);

#[test]
fn a9_no_request_however_malformed_panics_hangs_or_is_answered_with_anything_but_json_rpc_or_a_plain_refusal()
{
    count_panics();
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(TestServer::start());
    let (world, over) = runtime.block_on(world(&server));
    // A connection for each request: after a refusal that left a body unread, the server closes it.
    let http = Http::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();

    let kinds = RefCell::new(BTreeMap::new());
    let told = runner().run(&world.requests(), |sent| {
        let kind = runtime.block_on(answered(&http, &world.client.url, &sent))?;
        *kinds.borrow_mut().entry(kind).or_default() += 1;
        Ok(())
    });
    match told {
        Ok(()) => {}
        Err(TestError::Fail(why, sent)) => panic!("{why}\nwas the answer to\n{sent:?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
    all_kinds(&kinds.into_inner());
    runtime.block_on(serves_on(&server, &over));
}

/// Counts the panics of all threads, caught ones too.
fn count_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        usual(info);
    }));
}

fn runner() -> TestRunner {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number("OUTLAST_FUZZ_SEED").unwrap_or(9).to_le_bytes());
    let config = Config {
        cases: number("OUTLAST_FUZZ_CASES").map_or(CASES, |cases| cases as u32),
        max_shrink_iters: 500,
        max_shrink_time: 60_000,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Tasks in several states, one of which is over, with what that one is.
async fn world(server: &TestServer) -> (World, (String, serde_json::Value)) {
    let client = &server.client;
    let over = client.task("is_error", json!({})).await;
    let end = client.until(&over, "completed").await;
    let mut tasks = vec![over.clone()];
    for tool in ["asks", "asks_two", "asks_model", "gated"] {
        tasks.push(client.task(tool, json!({})).await);
    }
    let session = session(client).await;
    let tools = vec!["quick", "is_error", "fails", "asks", "asks_two", "asks_model", "rounds", "later"];
    (World { client: client.clone(), tasks, tools, session }, (over, end))
}

/// Opens a session as clients of 2025-11-25 do.
async fn session(client: &Client) -> String {
    let headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    let mut headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": client.capabilities,
        "clientInfo": {"name": "fuzz", "version": "0"},
    });
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
    let opened = client.send(Method::POST, &headers, initialize).await;
    let id = opened.headers["mcp-session-id"].to_str().unwrap().to_owned();
    headers.push(("mcp-session-id".to_owned(), id.clone()));
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    client.send(Method::POST, &headers, initialized).await;
    id
}

async fn answered(
    http: &Http<HttpConnector, Full<Bytes>>,
    url: &str,
    sent: &Sent,
) -> Result<Kind, TestCaseError> {
    let mut request = Request::post(url);
    for (name, value) in &sent.headers {
        request = request.header(name, &value[..]);
    }
    let request = request.body(Full::from(sent.body.clone())).unwrap();
    let answer = timeout(PATIENCE, async {
        let (head, body) = http.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes().to_vec();
        Ok::<_, Box<dyn Error>>(Answer { status: head.status, headers: head.headers, body })
    });
    let answer = answer.await.map_err(|_| TestCaseError::fail("no answer came"))?;
    let answer = answer.map_err(|error| TestCaseError::fail(format!("no answer: {error:?}")))?;
    if PANICS.swap(0, Ordering::SeqCst) > 0 {
        return Err(TestCaseError::fail("something panicked"));
    }
    answer.kind(&sent.body).map_err(TestCaseError::fail)
}

/// Shows what was answered, and fails when the requests did not get far enough to show anything.
fn all_kinds(kinds: &BTreeMap<Kind, u32>) {
    for (kind, count) in kinds {
        println!("{count:>5} {kind:?}");
    }
    let codes = [-32601, -32602, -32020, -32021].map(Kind::Error);
    for kind in codes.into_iter().chain([Kind::Result, Kind::Accepted]) {
        assert!(kinds.contains_key(&kind), "none of the requests led to {kind:?}");
    }
}

/// The server is as it was.
async fn serves_on(server: &TestServer, (over, end): &(String, serde_json::Value)) {
    assert_eq!(server.client.state(over).await, *end);
    // Another caller: this one may have used up its quota.
    let client = server.client.with_token("new");
    assert_eq!(client.call("quick", json!({})).await.result()["content"][0]["text"], "quick");
    let id = client.task("asks", json!({})).await;
    client.until(&id, "input_required").await;
    client.update(&id, json!({"who": support::client::accept("ann")})).await.result();
    let done = client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "hello ann");
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "something panicked after all was answered");
}
