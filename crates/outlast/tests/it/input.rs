//! Questions and answers.

use serde_json::json;

use crate::support::{TestServer, client::accept};

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_asked_answered_and_the_work_goes_on() {
    let server = TestServer::start().await;
    let id = server.client.task("asks", json!({})).await;
    let asked = server.client.until(&id, "input_required").await;
    assert_eq!(asked["inputRequests"]["who"]["method"], "elicitation/create");
    assert_eq!(asked["inputRequests"]["who"]["params"]["message"], "Who are you?");
    let ack = server.client.update(&id, json!({"who": accept("ann")})).await;
    assert_eq!(*ack.result(), json!({"resultType": "complete"}));
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "hello ann");
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_an_answer_of_another_shape_is_refused_and_consumes_nothing() {
    let server = TestServer::start().await;
    let id = server.client.task("asks_two", json!({})).await;
    let before = server.client.until(&id, "input_required").await;
    for wrong in [
        json!("yes"),
        json!(null),
        json!([]),
        json!({"action": "perhaps"}),
        json!({"action": "accept", "content": 1}),
    ] {
        let refused = server.client.update(&id, json!({"first": accept("ann"), "second": wrong})).await;
        assert_eq!(refused.code(), -32602, "{wrong}");
        let after = server.client.state(&id).await;
        assert_eq!(after["inputRequests"], before["inputRequests"], "nothing was consumed for {wrong}");
    }
    server.client.update(&id, json!({"first": accept("ann"), "second": accept("bea")})).await.result();
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_may_come_one_by_one_and_what_was_answered_is_not_asked_again() {
    let server = TestServer::start().await;
    let id = server.client.task("asks_two", json!({})).await;
    server.client.until(&id, "input_required").await;
    server.client.update(&id, json!({"second": accept("bea")})).await.result();
    let rest = server.client.state(&id).await;
    assert_eq!(rest["status"], "input_required");
    assert_eq!(rest["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), ["first"]);
    // An answered key is ignored, and so is one that was never asked (S20).
    let again = json!({"second": accept("another"), "nobody": {"any": "thing"}});
    server.client.update(&id, again).await.result();
    server.client.update(&id, json!({})).await.result();
    server.client.update(&id, json!({"first": accept("ann")})).await.result();
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "\"ann\" \"bea\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_never_used_for_a_second_question() {
    let server = TestServer::start().await;
    let id = server.client.task("asks_twice", json!({})).await;
    server.client.until(&id, "input_required").await;
    server.client.update(&id, json!({"same": accept("ann")})).await.result();
    let failed = server.client.until(&id, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().contains("'same' was used before"), "{failed:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_the_client_did_not_declare_is_an_error_inside_the_tool() {
    let server = TestServer::start().await;
    let tasks_alone = server.client.declaring(json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}));
    let id = tasks_alone.task("asks_model", json!({})).await;
    let done = tasks_alone.until(&id, "completed").await;
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().starts_with("without: "), "{done:#}");

    let id = server.client.task("asks_model", json!({})).await;
    server.client.until(&id, "input_required").await;
    let answer = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}});
    server.client.update(&id, json!({"model": answer})).await.result();
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "model said \"hi\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn asking_outside_of_a_task_is_an_error_that_the_tool_can_handle() {
    let server = TestServer::with(|builder| builder.tool("asks_model", outlast::TaskTool::optional())).await;
    let reply = server.client.undeclared().call("asks_model", json!({})).await;
    let said = reply.result()["content"][0]["text"].as_str().unwrap();
    assert!(said.starts_with("without: this call is not a task"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_before_the_task_go_to_the_caller_and_what_they_gathered_reaches_it() {
    let server = TestServer::start().await;
    let first = server.client.call("rounds", json!({})).await;
    assert_eq!(first.result()["resultType"], "input_required");
    assert!(first.result()["inputRequests"].get("a").is_some());
    let answer = |key: &str, name: &str, state: &serde_json::Value| json!({"name": "rounds", "arguments": {}, "requestState": state, "inputResponses": {key: accept(name)}});
    let second =
        server.client.request("tools/call", answer("a", "ann", &first.result()["requestState"])).await;
    assert!(second.result()["inputRequests"].get("b").is_some(), "{}", second.text);
    let third =
        server.client.request("tools/call", answer("b", "bea", &second.result()["requestState"])).await;
    assert_eq!(third.result()["resultType"], "task", "{}", third.text);
    let done = server.client.until(third.result()["taskId"].as_str().unwrap(), "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "a=ann b=bea");
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_inside_a_task_become_its_questions() {
    let server = TestServer::with(|builder| builder.tool("rounds", outlast::TaskTool::required())).await;
    let id = server.client.task("rounds", json!({})).await;
    let asked = server.client.until(&id, "input_required").await;
    assert!(asked["inputRequests"].get("a").is_some() && asked.get("requestState").is_none(), "{asked:#}");
    assert_eq!(server.server.load().await.unwrap().loaded, 0, "between rounds it holds no memory");
    server.client.update(&id, json!({"a": accept("ann")})).await.result();
    let asked = server.client.until(&id, "input_required").await;
    assert!(asked["inputRequests"].get("b").is_some(), "{asked:#}");
    server.client.update(&id, json!({"b": accept("bea")})).await.result();
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "a=ann b=bea");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_only_wants_to_be_called_later_is_called_later() {
    let server = TestServer::start().await;
    let id = server.client.task("later", json!({})).await;
    let kept = id.parse().unwrap();
    loop {
        let state = server.client.state(&id).await;
        if state["status"] == "completed" {
            assert_eq!(state["result"]["content"][0]["text"], "twice");
            break;
        }
        // Nobody is asked, so the task works on (S20b); its wake-up is a matter of the store's clock.
        assert_eq!(state["status"], "working", "{state:#}");
        // Far less than a lease, and not while a worker has it: a tool that must not run twice would end with its lease.
        if server.store.get(kept).await.unwrap().unwrap().lease().is_none() {
            server.clock.advance(std::time::Duration::from_secs(5));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_question_may_be_asked_at_the_same_time() {
    let server = TestServer::start().await;
    let id = server.client.task("asks_all", json!({})).await;
    let asked = loop {
        let state = server.client.until(&id, "input_required").await;
        if state["inputRequests"].as_object().unwrap().len() == 3 {
            break state["inputRequests"].clone();
        }
    };
    assert_eq!(asked["url"]["params"]["url"], "https://pay.example/1");
    assert_eq!(asked["model"]["method"], "sampling/createMessage");
    assert_eq!(asked["roots"]["method"], "roots/list");
    let answers = json!({
        "url": {"action": "accept"},
        "model": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}},
        "roots": {"roots": [{"uri": "file:///a"}]},
    });
    server.client.update(&id, answers).await.result();
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "true \"m\" \"file:///a\"");
}
