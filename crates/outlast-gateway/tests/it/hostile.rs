//! Upstreams that answer with tasks, die, hang, lie and flood: each has an outcome that is defined.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outlast::{Config, MemoryStore, SystemClock, TaskServer};
use outlast_client::{CallErrorKind, Started, TaskClient};
use outlast_gateway::{Gateway, GatewayOptions, ToolPolicy, Upstream, When};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest,
        ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData, Implementation,
    },
    service::{PeerRequestOptions, RequestContext, ServiceExt},
};
use serde_json::{Value, json};

use crate::{
    scripted::{Asked, Reply, Scripted, question, said, task, tool},
    support::{gateway, serve, streams, text},
};

const LONG: Duration = Duration::from_secs(60);

/// Says this name to whoever asks, and what was asked.
#[derive(Clone, Default)]
struct Says(&'static str, Arc<std::sync::Mutex<Vec<String>>>);

impl Says {
    fn asked(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }
}

impl ClientHandler for Says {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let message = json!(request)["message"].as_str().unwrap_or_default().to_owned();
        self.1.lock().unwrap().push(message);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "name": self.0 })))
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("test", "1"))
    }
}

/// Can be asked nothing.
struct Mute;

impl ClientHandler for Mute {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("test", "1"))
    }
}

async fn in_front(scripted: &Scripted) -> TaskServer<Gateway> {
    gateway(scripted.upstream(), When::Now, LONG).await
}

async fn call(server: &TaskServer<Gateway>, name: &'static str) -> Result<String, ErrorData> {
    let client = TaskClient::new(streams("gateway", server.clone()), Says::default());
    let result = client.call_tool(CallToolRequestParams::new(name)).await;
    result.map(|result| text(&result)).map_err(|error| match error.kind() {
        CallErrorKind::Failed(error) => error.clone(),
        other => panic!("{other}"),
    })
}

fn done(id: &str) -> Reply {
    task(id, "completed", json!({ "result": { "content": [{ "type": "text", "text": "in the end" }] } }))
}

fn with_task(asked: &Asked) -> Reply {
    match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => task("theirs", "working", json!({ "resultType": "task" })),
        ("tasks/get", 0) => task("theirs", "working", json!({ "statusMessage": "half of it" })),
        ("tasks/get", _) => done("theirs"),
        _ => Reply::Error(-32601, "no"),
    }
}

#[tokio::test]
async fn c47_a_task_of_an_upstream_is_polled_under_the_gateways_own_id() {
    let scripted = Scripted::new(|asked| with_task(&asked));
    let server = in_front(&scripted).await;
    let client = TaskClient::new(streams("gateway", server), Mute);

    let Started::Task(handle) = client.start_tool(CallToolRequestParams::new("tool")).await.unwrap() else {
        panic!("no task")
    };
    assert_ne!(handle.id(), "theirs");
    assert_eq!(text(&handle.wait(Some(LONG)).await.unwrap()), "in the end");
    assert_eq!(scripted.asked("tools/call").len(), 1);
    assert!(scripted.asked("tasks/get").iter().all(|get| get.params["taskId"] == "theirs"));
}

#[tokio::test]
async fn c47_so_is_one_of_the_earlier_generation() {
    let scripted = Scripted::legacy(|asked| {
        let of_old = |status: &str| {
            json!({
                "taskId": "theirs", "status": status, "ttl": null, "pollInterval": 50,
                "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
            })
        };
        match (asked.method.as_str(), asked.nth) {
            ("tools/call", _) => Reply::Result(json!({ "task": of_old("working") })),
            ("tasks/get", 0) => Reply::Result(of_old("working")),
            ("tasks/get", _) => Reply::Result(of_old("completed")),
            ("tasks/result", _) => said("of old"),
            _ => Reply::Error(-32601, "no"),
        }
    });
    let server = in_front(&scripted).await;

    assert_eq!(call(&server, "tool").await.unwrap(), "of old");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn c48_a_caller_without_tasks_gets_the_result_of_an_upstreams_task() {
    let scripted = Scripted::new(|asked| with_task(&asked));
    let server = in_front(&scripted).await;
    let client = Mute.serve(serve(server)).await.unwrap();

    let result = client.peer().call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(text(&result), "in the end");
}

#[tokio::test]
async fn c48_a_caller_who_gives_up_finds_the_same_work_by_the_same_call() {
    let done = Arc::new(AtomicBool::new(false));
    let is_done = done.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tasks/get" if !is_done.load(Ordering::SeqCst) => task("theirs", "working", json!({})),
        _ => with_task(&asked),
    });
    let server = in_front(&scripted).await;
    let client = Mute.serve(serve(server)).await.unwrap();
    let request = CallToolRequest::new(CallToolRequestParams::new("tool"));
    let request = ClientRequest::CallToolRequest(request);
    let calling = client.peer().send_cancellable_request(request, PeerRequestOptions::no_options());
    let calling = calling.await.unwrap();
    scripted.until_asked("tasks/get", 1).await;

    calling.cancel(None).await.unwrap();
    scripted.until_asked("tasks/get", 3).await;
    done.store(true, Ordering::SeqCst);
    let result = client.peer().call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(text(&result), "in the end");
    assert_eq!(scripted.asked("tools/call").len(), 1, "nothing is called twice");
    assert_eq!(scripted.asked("tasks/cancel").len(), 0);
}

#[tokio::test]
async fn c49_the_declaration_reaches_an_upstream_that_knows_it() {
    let scripted = Scripted::new(|_| said("at once"));
    let server = in_front(&scripted).await;

    call(&server, "tool").await.unwrap();

    let meta = &scripted.asked("tools/call")[0].params["_meta"];
    let declared = &meta["io.modelcontextprotocol/clientCapabilities"];
    assert!(declared["extensions"]["io.modelcontextprotocol/tasks"].is_object(), "{meta}");
    assert!(declared["elicitation"].is_object() && declared["sampling"].is_null(), "as the caller: {meta}");
}

#[tokio::test]
async fn c51_an_upstream_that_dies_in_mid_call_fails_it_and_the_next_call_reaches_it_again() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => Reply::Drop,
        ("tools/call", _) => said("alive"),
        _ => Reply::Error(-32601, "no"),
    });
    let server = in_front(&scripted).await;

    let error = call(&server, "tool").await.unwrap_err();
    assert!(error.message.contains("whether the call was carried out is unknown"), "{error:?}");
    assert_eq!(call(&server, "tool").await.unwrap(), "alive");
    assert_eq!(scripted.connections(), 2);
    assert_eq!(scripted.asked("tools/call").len(), 2, "what failed is not called again");
}

#[tokio::test]
async fn an_upstream_that_hangs_is_cut_off_at_the_deadline_and_told() {
    let scripted = Scripted::new(|_| Reply::Hang);
    let mut policy = ToolPolicy::default();
    policy.deadline = Some(Duration::from_millis(300));
    let server = gateway(scripted.upstream().tool("tool", policy), When::Now, LONG).await;

    let error = call(&server, "tool").await.unwrap_err();

    assert!(error.message.contains("took longer than its tool allows"), "{error:?}");
    scripted.until_asked("notifications/cancelled", 1).await;
}

#[tokio::test]
async fn garbage_between_the_messages_of_an_upstream_is_passed_over() {
    let scripted = Scripted::new(|asked| {
        let wire = asked.wire.clone();
        Reply::Later(Box::pin(async move {
            for line in ["starting up...", "{\"jsonrpc\": \"2.0\", ", "[1,2]", "\u{1b}[31mred\u{1b}[0m", ""] {
                wire.say_raw(line);
            }
            said("after all")
        }))
    });
    let server = in_front(&scripted).await;

    assert_eq!(call(&server, "tool").await.unwrap(), "after all");
}

#[tokio::test]
async fn a_line_of_30_mb_fails_its_call_and_no_other() {
    let scripted = Scripted::new(|asked| match asked.nth {
        0 => {
            let text = "x".repeat(30 << 20);
            let result = json!({ "content": [{ "type": "text", "text": text }] });
            let line = json!({ "jsonrpc": "2.0", "id": asked.id, "result": result });
            Reply::Raw(format!("{line}\n").into_bytes())
        }
        _ => said("small"),
    });
    let server = in_front(&scripted).await;

    let error = call(&server, "tool").await.unwrap_err();
    assert!(error.message.contains("bytes") || error.message.contains("long"), "{error:?}");
    assert_eq!(call(&server, "tool").await.unwrap(), "small");
    assert_eq!(scripted.connections(), 1);
}

#[tokio::test]
async fn a_result_of_10_mb_is_a_result() {
    let scripted = Scripted::new(|_| said(&"x".repeat(10 << 20)));
    let server = in_front(&scripted).await;

    assert_eq!(call(&server, "tool").await.unwrap().len(), 10 << 20);
}

#[tokio::test]
async fn results_that_are_none_fail_their_calls_and_no_other() {
    let scripted = Scripted::new(|asked| {
        Reply::Result(match asked.nth {
            0 => json!("text"),
            1 => json!({ "resultType": "unheard_of" }),
            2 => json!({ "content": "text" }),
            3 => json!({ "resultType": "task", "status": "working" }),
            _ => json!({ "content": [{ "type": "text", "text": "well" }] }),
        })
    });
    let server = in_front(&scripted).await;

    for n in 0..4 {
        let error = call(&server, "tool").await.unwrap_err();
        assert!(!error.message.is_empty(), "{n}");
    }
    assert_eq!(call(&server, "tool").await.unwrap(), "well");
}

#[tokio::test]
async fn an_upstream_of_no_known_version_is_unreachable_and_why_stays_in_the_log() {
    let scripted = Scripted::with(false, Value::Null, |asked| match asked.method.as_str() {
        "initialize" => Reply::Error(-32000, "the key sk-123 is not valid"),
        _ => Reply::Error(-32601, "no"),
    })
    .speaking("1999-01-01");
    let server = in_front(&scripted).await;

    let error = call(&server, "tool").await.unwrap_err();

    assert!(error.message.contains("cannot be reached"), "{error:?}");
    assert!(!format!("{error:?}").contains("sk-123"), "{error:?}");
}

#[tokio::test]
async fn a_flood_of_progress_does_not_keep_the_result_back() {
    let scripted = Scripted::new(|asked| {
        let token = asked.params["_meta"]["progressToken"].clone();
        for n in 0..20_000 {
            let params = json!({ "progressToken": token, "progress": n, "message": "more" });
            asked
                .wire
                .say(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
        }
        said("done")
    });
    let server = in_front(&scripted).await;

    assert_eq!(call(&server, "tool").await.unwrap(), "done");
}

#[tokio::test]
async fn ten_thousand_tools_are_listed_and_the_last_can_be_called() {
    let tools: Vec<Value> = (0..10_000).map(|n| tool(&format!("tool_{n}"), json!({}))).collect();
    let scripted = Scripted::with(false, json!(tools), |asked| said(asked.params["name"].as_str().unwrap()));
    let server = in_front(&scripted).await;
    let client = TaskClient::new(streams("gateway", server.clone()), Mute);

    assert_eq!(client.peer().await.unwrap().list_all_tools().await.unwrap().len(), 10_000);
    assert_eq!(call(&server, "tool_9999").await.unwrap(), "tool_9999");
}

#[tokio::test]
async fn tools_of_an_upstream_that_are_called_like_the_gateways_keep_their_names() {
    let names = ["task_status", "a__b", "gateway_task_result"];
    let tools: Vec<Value> = names.iter().map(|name| tool(name, json!({}))).collect();
    let scripted = Scripted::with(false, json!(tools), |asked| said(asked.params["name"].as_str().unwrap()));
    let server = in_front(&scripted).await;
    let client = Mute.serve(serve(server)).await.unwrap();

    for name in names {
        let result = client.peer().call_tool(CallToolRequestParams::new(name)).await.unwrap();
        assert_eq!(text(&result), name);
    }
    let listed = client.peer().list_all_tools().await.unwrap();
    let listed: Vec<_> = listed.iter().map(|tool| &*tool.name).collect();
    assert!(listed.contains(&"gateway_gateway_task_result"), "{listed:?}");
    assert_eq!(listed.iter().filter(|name| **name == "task_status").count(), 1, "{listed:?}");
}

#[tokio::test]
async fn upstreams_whose_names_cannot_be_told_apart_are_refused() {
    let scripted = Scripted::new(|_| said("x"));
    for names in [["a", "a"], ["a", "a__b"], ["a", "a_"]] {
        let upstreams = names.map(|name| Upstream::named(name, scripted.server())).into();
        let store = Arc::new(MemoryStore::new(SystemClock));
        let served = Gateway::serve(upstreams, GatewayOptions::default(), store, Config::default()).await;
        assert!(served.is_err(), "{names:?}");
    }
}

#[tokio::test]
async fn a_question_that_may_be_about_either_of_two_calls_of_a_person_reaches_them() {
    let scripted = Scripted::legacy(|asked| match asked.nth {
        0 => Reply::Hang,
        _ => Reply::Later(Box::pin(async move {
            let answer = asked.wire.ask("elicitation/create", question("of which of them?")).await;
            said(&answer.to_string())
        })),
    });
    let server = in_front(&scripted).await;
    let (one, other) = (Says("one", Arc::default()), Says("other", Arc::default()));
    let first = TaskClient::new(streams("gateway", server.clone()), one.clone());
    let Started::Task(_handle) = first.start_tool(CallToolRequestParams::new("plain")).await.unwrap() else {
        panic!("no task")
    };
    scripted.until_asked("tools/call", 1).await;
    let second = TaskClient::new(streams("gateway", server), other.clone());

    let result = second.call_tool(CallToolRequestParams::new("plain")).await.unwrap();

    assert!(text(&result).contains("other"), "{}", text(&result));
    assert_eq!((one.asked().len(), other.asked().len()), (0, 1));
}

#[tokio::test]
async fn a_question_of_a_kind_that_the_caller_cannot_be_asked_is_refused_to_the_upstream() {
    let scripted = Scripted::legacy(|asked| {
        Reply::Later(Box::pin(async move {
            let answer = asked.wire.ask("roots/list", json!({})).await;
            said(&answer.to_string())
        }))
    });
    let server = in_front(&scripted).await;

    let answer = call(&server, "plain").await.unwrap();

    assert!(answer.contains("did not declare"), "{answer}");
}

#[tokio::test]
async fn a_task_of_an_upstream_whose_question_cannot_be_asked_is_ended_there() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tasks/get" => {
            let asks = json!({ "why": { "method": "roots/list" } });
            task("theirs", "input_required", json!({ "inputRequests": asks }))
        }
        "tasks/cancel" => Reply::Result(json!({ "resultType": "complete" })),
        _ => with_task(&asked),
    });
    let server = in_front(&scripted).await;

    call(&server, "tool").await.unwrap_err();

    scripted.until_asked("tasks/cancel", 1).await;
}

#[tokio::test]
async fn what_an_upstream_asks_by_its_answer_is_a_question_of_the_task_under_its_own_key() {
    let scripted = Scripted::new(|asked| match asked.nth {
        0 => Reply::Result(json!({
            "resultType": "input_required", "requestState": "sealed",
            "inputRequests": { "who": { "method": "elicitation/create", "params": question("who?") } },
        })),
        _ => said(&asked.params["inputResponses"]["who"]["content"].to_string()),
    });
    let server = in_front(&scripted).await;
    let person = Says("Ada", Arc::default());
    let client = TaskClient::new(streams("gateway", server), person.clone());

    let result = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(text(&result), r#"{"name":"Ada"}"#);
    assert_eq!(person.asked(), ["who?"]);
    assert_eq!(scripted.asked("tools/call")[1].params["requestState"], "sealed");
}

#[tokio::test]
async fn a_question_after_the_cancel_is_put_to_nobody() {
    let scripted = Scripted::legacy(|_| Reply::Hang);
    let server = in_front(&scripted).await;
    let person = Says("x", Arc::default());
    let client = TaskClient::new(streams("gateway", server.clone()), person.clone());
    let Started::Task(handle) = client.start_tool(CallToolRequestParams::new("plain")).await.unwrap() else {
        panic!("no task")
    };
    scripted.until_asked("tools/call", 1).await;
    handle.cancel().await.unwrap();
    handle.wait(Some(LONG)).await.unwrap_err();
    let first = scripted.asked("tools/call").remove(0);

    let answer = first.wire.ask("elicitation/create", question("still there?")).await;

    assert!(answer["message"].as_str().is_some_and(|said| said.contains("nobody to ask")), "{answer}");
    assert!(person.asked().is_empty());
}
