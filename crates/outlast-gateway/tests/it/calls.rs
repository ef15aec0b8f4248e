//! What calls through a gateway come to.

use std::{sync::atomic::Ordering, time::Duration};

use outlast_client::{CallErrorKind, Started, TaskClient};
use outlast_gateway::{ToolPolicy, Upstream, When};
use rmcp::{model::CallToolRequestParams, service::ServiceExt};
use serde_json::json;

use crate::support::{Person, Plain, gateway, serve, streams, text};

const LONG: Duration = Duration::from_secs(60);

fn upstream(plain: &Plain) -> Upstream {
    Upstream::only(streams("upstream", plain.clone()))
}

#[tokio::test]
async fn a_quick_call_passes_through() {
    let server = gateway(upstream(&Plain::default()), When::After(LONG), LONG).await;
    let client = TaskClient::new(streams("gateway", server), Person);

    let mut params = CallToolRequestParams::new("quick");
    params.arguments = json!({ "a": 1 }).as_object().cloned();
    let result = client.call_tool(params).await.unwrap();

    assert_eq!(text(&result), r#"quick {"a":1}"#);
}

#[tokio::test]
async fn a_slow_call_is_a_task_whose_status_is_the_upstreams_progress() {
    let plain = Plain::default();
    let server = gateway(upstream(&plain), When::Now, LONG).await;
    let client = TaskClient::new(streams("gateway", server), Person);

    let Started::Task(task) = client.start_tool(CallToolRequestParams::new("slow")).await.unwrap() else {
        panic!("no task")
    };
    let go = plain.go.clone();
    let result = task
        .wait_with(Some(LONG), move |task| {
            if task.message.as_deref().is_some_and(|message| message.contains("half of it")) {
                go.notify_one();
            }
        })
        .await
        .unwrap();

    assert_eq!(text(&result), "slow");
    assert_eq!(plain.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_an_upstream_asks_is_a_question_of_the_task() {
    let server = gateway(upstream(&Plain::default()), When::Now, LONG).await;
    let client = TaskClient::new(streams("gateway", server), Person);

    let result = client.call_tool(CallToolRequestParams::new("asks")).await.unwrap();

    assert_eq!(text(&result), r#"{"name":"Ada"}"#);
}

#[tokio::test]
async fn a_cancel_reaches_the_upstream() {
    let plain = Plain::default();
    let server = gateway(upstream(&plain), When::Now, LONG).await;
    let client = TaskClient::new(streams("gateway", server), Person);
    let Started::Task(task) = client.start_tool(CallToolRequestParams::new("slow")).await.unwrap() else {
        panic!("no task")
    };
    while plain.calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }

    task.cancel().await.unwrap();
    let error = task.wait(Some(LONG)).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Cancelled(_)), "{error}");
    while plain.cancelled.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_caller_without_tasks_has_the_call_held_open_and_is_asked() {
    let server = gateway(upstream(&Plain::default()), When::Now, LONG).await;
    let client = Person.serve(serve(server)).await.unwrap();

    let result = client.peer().call_tool(CallToolRequestParams::new("asks")).await.unwrap();

    assert_eq!(text(&result), r#"{"name":"Ada"}"#);
    let tools = client.peer().list_all_tools().await.unwrap();
    assert!(tools.iter().any(|tool| tool.name == "task_result"));
}

#[tokio::test]
async fn past_the_hold_the_work_goes_on_and_is_asked_for() {
    let plain = Plain::default();
    let server = gateway(upstream(&plain), When::Now, Duration::from_millis(50)).await;
    let client = Person.serve(serve(server)).await.unwrap();

    let told = text(&client.peer().call_tool(CallToolRequestParams::new("slow")).await.unwrap());
    assert!(told.contains("task_result"), "{told}");
    // The same call again waits for the same work.
    let again = text(&client.peer().call_tool(CallToolRequestParams::new("slow")).await.unwrap());
    assert_eq!(again, told);
    assert_eq!(plain.calls.load(Ordering::SeqCst), 1);

    plain.go.notify_one();
    let id = told.split("id is ").nth(1).unwrap().split('.').next().unwrap().to_owned();
    let mut ask = CallToolRequestParams::new("task_result");
    ask.arguments = json!({ "task": id }).as_object().cloned();
    let mut result = client.peer().call_tool(ask.clone()).await.unwrap();
    while text(&result) != "slow" {
        result = client.peer().call_tool(ask.clone()).await.unwrap();
    }
}

#[tokio::test]
async fn the_tools_of_several_upstreams_carry_their_names() {
    let server = outlast_gateway::Gateway::serve(
        vec![
            Upstream::named("a", streams("a", Plain::default())),
            Upstream::named("b", streams("b", Plain::default())),
        ],
        outlast_gateway::GatewayOptions::default(),
        std::sync::Arc::new(outlast::MemoryStore::new(outlast::SystemClock)),
        outlast::Config::default(),
    )
    .await
    .unwrap();
    let client = TaskClient::new(streams("gateway", server), Person);

    let tools = client.peer().await.unwrap().list_all_tools().await.unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.to_string()).collect();
    assert!(names.contains(&"a__quick".to_owned()) && names.contains(&"b__slow".to_owned()), "{names:?}");
    assert!(!names.contains(&"task_result".to_owned()), "callers with tasks need none of those");

    let result = client.call_tool(CallToolRequestParams::new("b__quick")).await.unwrap();
    assert_eq!(text(&result), "quick null");
}

#[tokio::test]
async fn a_call_is_held_no_longer_than_is_said_however_late_calls_become_tasks() {
    let plain = Plain::default();
    let server = gateway(upstream(&plain), When::After(LONG), Duration::from_millis(50)).await;
    let client = Person.serve(serve(server)).await.unwrap();

    let told = client.peer().call_tool(CallToolRequestParams::new("slow"));
    let told = text(&tokio::time::timeout(LONG / 2, told).await.unwrap().unwrap());

    assert!(told.contains("task_result"), "{told}");
}

#[tokio::test]
async fn a_call_that_is_never_a_task_is_waited_for_by_every_caller() {
    let plain = Plain::default();
    let server = gateway(upstream(&plain), When::Never, Duration::ZERO).await;
    let with_tasks = TaskClient::new(streams("gateway", server.clone()), Person);
    let without = Person.serve(serve(server)).await.unwrap();

    for n in 0..2 {
        let call = async {
            match n {
                0 => match with_tasks.start_tool(CallToolRequestParams::new("slow")).await.unwrap() {
                    Started::Ready(result) => result,
                    other => panic!("no result: {other:?}"),
                },
                _ => without.peer().call_tool(CallToolRequestParams::new("slow")).await.unwrap(),
            }
        };
        let let_go = async {
            while plain.calls.load(Ordering::SeqCst) == n {
                tokio::task::yield_now().await;
            }
            plain.go.notify_one();
        };
        let (result, ()) = tokio::join!(call, let_go);
        assert_eq!(text(&result), "slow");
    }
}

#[tokio::test]
async fn a_client_is_told_for_which_tools_a_repeated_call_is_recognised() {
    let declared = async |start: When, upstream: Upstream| {
        let server = gateway(upstream, start, LONG).await;
        let client = TaskClient::new(streams("gateway", server), Person);
        let info = client.peer().await.unwrap().peer_info().unwrap();
        json!(info.capabilities.extensions)["outlast/idempotency"].clone()
    };
    let settled = |start: When| {
        let mut policy = ToolPolicy::default();
        policy.start = Some(start);
        upstream(&Plain::default()).tool("slow", policy)
    };

    assert_eq!(declared(When::After(LONG), upstream(&Plain::default())).await, json!({}));
    assert_eq!(declared(When::Never, upstream(&Plain::default())).await, json!(null));
    assert_eq!(declared(When::Never, settled(When::Now)).await, json!({ "tools": ["slow"] }));
    assert_eq!(declared(When::Now, settled(When::Never)).await, json!(null));
}
