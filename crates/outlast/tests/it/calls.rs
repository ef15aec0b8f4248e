//! Which calls become tasks, and what their callers are answered.

use std::time::Duration;

use outlast::{Decision, Start, TaskServer, TaskTool};
use serde_json::{Value, json};

use crate::support::{Client, TestServer, handler::Handler, server::config};

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_becomes_a_task_whose_result_is_that_of_the_tool() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    assert_eq!(server.client.state(&id).await["status"], "working");
    server.gates.open("g");
    let done = server.client.until(&id, "completed").await;
    assert_eq!(text(&done["result"]), "through");
    assert!(done["result"].get("_meta").is_none(), "S14: nothing is added to the result");
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_the_extension_named_as_a_bare_meta_key_makes_no_task() {
    let server = TestServer::start().await;
    server.gates.open("g");
    let params = json!({
        "name": "gated", "arguments": {"gate": "g"}, "_meta": {"io.modelcontextprotocol/tasks": {}},
    });
    let reply = server.client.undeclared().request("tools/call", params).await;
    assert_eq!(reply.result()["resultType"], "complete");
    assert_eq!(text(reply.result()), "through");
}

#[tokio::test(flavor = "multi_thread")]
async fn c04_a_legacy_task_hint_on_a_synchronous_tool_is_ignored() {
    let server = TestServer::start().await;
    let params = json!({"name": "quick", "arguments": {}, "task": {"ttl": 60_000}});
    let reply = server.client.request("tools/call", params).await;
    assert_eq!(reply.result()["resultType"], "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn c08_a_tool_error_completes_its_task() {
    let server = TestServer::start().await;
    let id = server.client.task("is_error", json!({})).await;
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["isError"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_rpc_error_fails_its_task_and_is_kept_whole() {
    let server = TestServer::start().await;
    let id = server.client.task("fails", json!({})).await;
    let failed = server.client.until(&id, "failed").await;
    assert_eq!(
        failed["error"],
        json!({"code": -32602, "message": "it cannot be done", "data": {"why": "no"}})
    );
    assert_eq!(failed["statusMessage"], "it cannot be done");
}

#[tokio::test(flavor = "multi_thread")]
async fn c11_the_configured_ttl_and_poll_interval_are_on_the_wire() {
    let server = TestServer::with(|builder| {
        let tool = TaskTool::optional().ttl(Duration::from_secs(7_200)).poll_interval(Duration::from_secs(2));
        builder.tool("gated", tool)
    })
    .await;
    let reply = server.client.call("gated", json!({})).await;
    assert_eq!(reply.result()["ttlMs"], 7_200_000);
    assert_eq!(reply.result()["pollIntervalMs"], 2_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn c12_the_work_goes_on_after_its_request_is_over() {
    let server = TestServer::start().await;
    let id = {
        // A connection of its own, closed when this client goes.
        let client = Client::new(server.client.url.clone());
        client.task("gated", json!({"gate": "g"})).await
    };
    server.gates.reached("g", 1).await;
    server.gates.open("g");
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_caller_who_leaves_before_the_task_gets_it_back_by_its_key_and_never_a_second_one() {
    let server = TestServer::with(|builder| {
        builder.tool("once", TaskTool::optional().start(Start::After(Duration::from_secs(600))))
    })
    .await;
    let params = json!({
        "name": "once", "arguments": {"gate": "g"}, "_meta": {"outlast/idempotencyKey": "k1"},
    });
    // It leaves while the call is still answered inline: the connection is cut with the request on it.
    let leaving = Client::new(server.client.url.clone());
    let request = params.clone();
    let call = tokio::spawn(async move { leaving.request("tools/call", request).await });
    server.gates.reached("g", 1).await;
    call.abort();
    let _ = call.await;

    server.gates.open("g");
    let again = server.client.request("tools/call", params).await;
    assert_eq!(text(again.result()), "through", "the repeat is answered by the one task");
    assert_eq!(server.gates.count("g"), 1, "the tool ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_caller_without_a_key_who_leaves_before_the_task_ends_its_call() {
    let server = TestServer::with(|builder| {
        builder.tool("once", TaskTool::optional().start(Start::After(Duration::from_secs(600))))
    })
    .await;
    let leaving = Client::new(server.client.url.clone());
    let call = tokio::spawn(async move { leaving.call("once", json!({"gate": "g"})).await });
    server.gates.reached("g", 1).await;
    call.abort();
    let _ = call.await;
    assert_eq!(server.server.load().await.unwrap().retained.total(), 0, "no task was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_used_for_another_request_is_refused() {
    let server = TestServer::start().await;
    let call = |gate: &str| json!({"name": "gated", "arguments": {"gate": gate}, "_meta": {"outlast/idempotencyKey": "k1"}});
    let first = server.client.request("tools/call", call("a")).await;
    let again = server.client.request("tools/call", call("a")).await;
    assert_eq!(first.result()["taskId"], again.result()["taskId"]);
    assert_eq!(server.client.request("tools/call", call("b")).await.code(), -32602);
    let other = server.client.with_token("bob@acme").request("tools/call", call("b")).await;
    assert_eq!(other.result()["resultType"], "task", "another owner's keys are its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn c15_a_panic_ends_a_task_and_answers_a_synchronous_call() {
    let server = TestServer::start().await;
    let id = server.client.task("panics", json!({})).await;
    assert_eq!(server.client.until(&id, "failed").await["error"]["code"], -32603);
    let reply = server.client.undeclared().call("panics", json!({})).await;
    assert_eq!(reply.code(), -32603);
}

#[tokio::test(flavor = "multi_thread")]
async fn c16_a_tool_that_must_be_a_task_refuses_the_undeclared_before_anything_runs() {
    let server = TestServer::with(|builder| builder.tool("gated", TaskTool::required())).await;
    let reply = server.client.undeclared().call("gated", json!({"gate": "g"})).await;
    assert_eq!(reply.code(), -32021);
    let required = &reply.error()["data"]["requiredCapabilities"]["extensions"];
    assert_eq!(required["io.modelcontextprotocol/tasks"], json!({}));
    assert_eq!(server.gates.count("g"), 0, "no tool code ran");
    assert_eq!(server.server.load().await.unwrap().retained.total(), 0, "no task was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quick_call_is_answered_inline_and_a_slow_one_becomes_a_task() {
    let server = TestServer::with(|builder| {
        builder
            .tool("quick", TaskTool::new().start(Start::After(Duration::from_secs(600))))
            .tool("gated", TaskTool::new().start(Start::After(Duration::ZERO)))
    })
    .await;
    let quick = server.client.call("quick", json!({})).await;
    assert_eq!((quick.result()["resultType"].as_str(), text(quick.result())), (Some("complete"), "quick"));
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    server.gates.open("g");
    server.client.until(&id, "completed").await;
    assert_eq!(server.gates.count("g"), 1, "the work that began inline went on as the task");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_asks_becomes_a_task_however_patient_it_is() {
    let server = TestServer::with(|builder| {
        builder.tool("asks", TaskTool::new().start(Start::After(Duration::from_secs(600))))
    })
    .await;
    let id = server.client.task("asks", json!({})).await;
    server.client.until(&id, "input_required").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_author_may_decide_for_each_call() {
    let server = TestServer::with(|builder| {
        builder.tool(
            "gated",
            TaskTool::new().decide(|request, _context| {
                let long = request.arguments.as_ref().is_some_and(|arguments| arguments.contains_key("long"));
                if long { Decision::Task(Start::Now) } else { Decision::Sync }
            }),
        )
    })
    .await;
    server.gates.open("g");
    let short = server.client.call("gated", json!({"gate": "g"})).await;
    assert_eq!(short.result()["resultType"], "complete");
    server.client.task("gated", json!({"gate": "g", "long": true})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_quota_a_call_is_told_when_to_come_back() {
    let mut config = config();
    config.max_open_per_owner = 2;
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let first = server.client.task("gated", json!({"gate": "g"})).await;
    server.client.task("gated", json!({"gate": "h"})).await;
    let refused = server.client.call("gated", json!({})).await;
    assert_eq!(refused.code(), -32000);
    assert!(refused.error()["data"]["retryAfterMs"].as_u64().unwrap() > 0);
    server.gates.open("g");
    server.client.until(&first, "completed").await;
    server.client.task("gated", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_past_their_limit_are_refused() {
    let mut config = config();
    config.argument_bytes = 1_000;
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    assert_eq!(server.client.call("gated", json!({"pad": "x".repeat(1_000)})).await.code(), -32602);
    assert_eq!(server.server.load().await.unwrap().retained.total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_past_its_limit_fails_its_task_and_says_so() {
    let mut config = config();
    config.task.result_bytes = 1_000;
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let id = server.client.task("big", json!({"bytes": 2_000})).await;
    let failed = server.client.until(&id, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().contains("exceeds the limit of 1000"), "{failed:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_tasks_than_slots_wait_their_turn_and_all_run() {
    let mut config = config();
    config.max_running = 2;
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(server.client.task("gated", json!({"gate": "g"})).await);
    }
    server.gates.reached("g", 2).await;
    assert_eq!(server.server.load().await.unwrap().running, 2);
    server.gates.open("g");
    for id in ids {
        server.client.until(&id, "completed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_owner_takes_no_more_than_its_slots_and_leaves_the_rest_to_others() {
    let mut config = config();
    config.max_running_per_owner = 2;
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let (alice, bob) = (server.client.with_token("alice@acme"), server.client.with_token("bob@acme"));
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(alice.task("gated", json!({"gate": "a"})).await);
    }
    bob.task("gated", json!({"gate": "b"})).await;
    server.gates.reached("a", 2).await;
    server.gates.reached("b", 1).await;
    assert_eq!((server.gates.count("a"), server.server.load().await.unwrap().running), (2, 3));
    server.gates.open("a");
    for id in ids {
        alice.until(&id, "completed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_status_message_is_kept_with_the_result() {
    let server = TestServer::start().await;
    let id = server.client.task("talks", json!({"gate": "g"})).await;
    server.gates.open("g");
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["statusMessage"], "step 99");
}

#[tokio::test(flavor = "multi_thread")]
async fn c54_a_declaration_at_initialize_does_not_count_for_a_call_without_one() {
    let server = TestServer::start().await;
    server.gates.open("g");
    let session = server.client.initialize_session(crate::support::everything()).await;
    let reply = session.legacy("tools/call", json!({"name": "gated", "arguments": {"gate": "g"}})).await;
    assert_eq!(text(reply.result()), "through");
    assert!(reply.result().get("taskId").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_the_handler_does_not_list_is_an_error_at_the_start() {
    let store = outlast::MemoryStore::new(outlast::SystemClock);
    let builder = TaskServer::builder(Handler::default()).store(store).tool("qiuck", TaskTool::optional());
    let error = builder.build().await.unwrap_err().to_string();
    assert!(error.contains("'qiuck'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c22_a_ttl_of_zero_is_refused_at_the_start() {
    let store = outlast::MemoryStore::new(outlast::SystemClock);
    let tool = TaskTool::optional().ttl(Duration::ZERO);
    let builder = TaskServer::builder(Handler::default()).store(store).tool("gated", tool);
    let error = builder.build().await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("the ttl must be"), "{source}");
}

#[tokio::test(flavor = "multi_thread")]
async fn begun_work_for_which_there_is_no_room_as_a_task_ends_inline() {
    let mut config = config();
    config.max_open_per_owner = 1;
    let server = TestServer::with(move |builder| {
        let soon = TaskTool::new().start(Start::After(Duration::ZERO));
        builder.config(config.clone()).tool("deaf", soon.clone()).tool("asks", soon)
    })
    .await;
    server.client.task("gated", json!({"gate": "never"})).await;
    let client = server.client.clone();
    let call = tokio::spawn(async move { client.call("deaf", json!({"gate": "g"})).await });
    server.gates.reached("g", 1).await;
    server.gates.open("g");
    assert_eq!(text(call.await.unwrap().result()), "through");
    assert_eq!(server.client.call("asks", json!({})).await.code(), -32000, "what must ask must be a task");
}
