//! What is not about tasks passes through as it is, in both generations of the protocol on both sides.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{io, time::Duration};

use outlast_client::Server;
use outlast_gateway::{GatewayOptions, Upstream, When};
use rmcp::{
    model::{
        ArgumentInfo, CallToolRequestParams, CompleteRequestParams, ErrorCode, GetPromptRequestParams,
        PaginatedRequestParams, ReadResourceRequestParams, Reference, RequestMetaObject,
    },
    service::{Peer, ServiceError},
};
use serde_json::{Value, json};

use crate::{
    rich::{Caller, NEW, OLD, Rich, in_front_of},
    scripted::{Reply, Scripted},
};

const LONG: Duration = Duration::from_secs(60);

/// A way to a server that is not there.
fn nowhere() -> Server {
    Server::streams("nowhere", || async {
        Err::<(tokio::io::Empty, tokio::io::Sink), _>(io::Error::other("away"))
    })
}

fn calls_at_once() -> GatewayOptions {
    let mut options = GatewayOptions::default();
    options.start = When::After(LONG);
    options
}

/// The names on each page of a list, page by page.
macro_rules! pages {
    ($peer:expr, $list:ident, $items:ident, $name:expr) => {{
        let mut pages: Vec<Vec<String>> = Vec::new();
        let mut cursor = None;
        loop {
            let request = PaginatedRequestParams::default().with_cursor(cursor);
            let page = $peer.$list(Some(request)).await.unwrap();
            pages.push(page.$items.iter().map($name).collect());
            cursor = page.next_cursor;
            if cursor.is_none() {
                break pages;
            }
        }
    }};
}

fn names(named: &[&[&str]]) -> Vec<Vec<String>> {
    named.iter().map(|page| page.iter().map(|name| (*name).to_owned()).collect()).collect()
}

fn text(value: impl serde::Serialize, at: &str) -> String {
    let value = serde_json::to_value(value).unwrap();
    value.pointer(at).and_then(Value::as_str).unwrap_or_else(|| panic!("no {at} in {value}")).to_owned()
}

#[tokio::test]
async fn the_pages_of_several_upstreams_come_one_after_the_other_and_one_that_is_away_has_none() {
    for (theirs, ours) in [(OLD, OLD), (OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let upstreams = vec![
            Upstream::named("gone", nowhere()),
            Upstream::named("a", Rich::new("a", theirs).server()),
            Upstream::named("lost", nowhere()),
            Upstream::named("b", Rich::new("b", theirs).server()),
        ];
        let caller = Caller::new(&in_front_of(upstreams, calls_at_once()).await, ours).await;

        let own: &[&str] = &["b__progresses", "task_status", "task_result", "task_answer", "task_cancel"];
        assert_eq!(
            pages!(caller.peer, list_tools, tools, |tool| tool.name.to_string()),
            names(&[&["a__meta", "a__logs"], &["a__progresses"], &["b__meta", "b__logs"], own])
        );
        assert_eq!(
            pages!(caller.peer, list_prompts, prompts, |prompt| prompt.name.clone()),
            names(&[&["a__p0", "a__p1"], &["a__p2"], &["b__p0", "b__p1"], &["b__p2"]])
        );
        assert_eq!(
            pages!(caller.peer, list_resources, resources, |resource| resource.uri.clone()),
            names(&[&["a://0", "a://1"], &["a://2"], &["b://0", "b://1"], &["b://2"]])
        );
        assert_eq!(
            pages!(caller.peer, list_resource_templates, resource_templates, |template| template
                .uri_template
                .clone()),
            names(&[
                &["a://0/{id}", "a://1/{id}"],
                &["a://2/{id}"],
                &["b://0/{id}", "b://1/{id}"],
                &["b://2/{id}"]
            ])
        );
    }
}

#[tokio::test]
async fn a_cursor_that_the_gateway_did_not_give_is_refused() {
    let upstreams = ["a", "b"].map(|name| Upstream::named(name, Rich::new(name, OLD).server()));
    let caller = Caller::new(&in_front_of(upstreams.into(), calls_at_once()).await, OLD).await;

    for stranger in ["", "rest:2", "1:nonsense", "7:", "7:rest:2", "-1:", "x", "0:rest:3"] {
        let request = PaginatedRequestParams::default().with_cursor(Some(stranger.to_owned()));
        let refused = caller.peer.list_prompts(Some(request)).await;
        let Err(ServiceError::McpError(refused)) = refused else {
            panic!("{stranger:?} was taken: {refused:?}")
        };
        assert_eq!(refused.code, ErrorCode::INVALID_PARAMS, "{stranger:?}: {refused:?}");
    }
}

#[tokio::test]
async fn the_page_of_an_upstream_that_goes_away_between_two_pages_is_passed_over() {
    let first = Scripted::legacy(|asked| match asked.nth {
        0 => Reply::Result(json!({ "prompts": [{ "name": "p0" }], "nextCursor": "more" })),
        _ => Reply::Drop,
    });
    let upstreams =
        vec![Upstream::named("a", first.server()), Upstream::named("b", Rich::new("b", OLD).server())];
    let caller = Caller::new(&in_front_of(upstreams, calls_at_once()).await, OLD).await;
    let page = caller.peer.list_prompts(None).await.unwrap();
    assert_eq!(page.prompts[0].name, "a__p0");

    let request = PaginatedRequestParams::default().with_cursor(page.next_cursor);
    let page = caller.peer.list_prompts(Some(request)).await.unwrap();

    assert_eq!(page.prompts[0].name, "b__p0");
}

#[tokio::test]
async fn prompts_are_got_from_the_upstream_that_their_name_says() {
    for (theirs, ours) in [(OLD, OLD), (OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let upstreams = ["a", "b"].map(|name| Upstream::named(name, Rich::new(name, theirs).server()));
        let caller = Caller::new(&in_front_of(upstreams.into(), calls_at_once()).await, ours).await;

        let mut request = GetPromptRequestParams::new("b__p1");
        request.arguments = serde_json::from_value(json!({ "x": "1" })).unwrap();
        let got = caller.peer.get_prompt(request).await.unwrap();
        assert_eq!(text(&got, "/messages/0/content/text"), r#"p1 of b with {"x":"1"}"#);
        assert_eq!(json!(got.meta)["example.com/from"], "b");

        // The upstream's own error is the answer; a name of nobody's is refused.
        for (name, said) in
            [("a__nope", "no prompt nope"), ("p1", "no such prompt"), ("c__p1", "no such prompt")]
        {
            let refused = caller.peer.get_prompt(GetPromptRequestParams::new(name)).await;
            let Err(ServiceError::McpError(refused)) = refused else { panic!("{name} was got") };
            assert!(refused.message.contains(said), "{name}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn resources_are_read_wherever_they_are() {
    for (theirs, ours) in [(OLD, OLD), (OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let mut upstreams: Vec<_> =
            ["a", "b"].map(|name| Upstream::named(name, Rich::new(name, theirs).server())).into();
        upstreams.insert(0, Upstream::named("gone", nowhere()));
        let caller = Caller::new(&in_front_of(upstreams, calls_at_once()).await, ours).await;

        for (uri, name) in [("a://0", "a"), ("b://2", "b")] {
            let read = caller.peer.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap();
            assert_eq!(text(&read, "/contents/0/text"), format!("in {uri}"));
            assert_eq!(json!(read.meta)["example.com/from"], name);
        }
        let refused = caller.peer.read_resource(ReadResourceRequestParams::new("c://0")).await;
        let Err(ServiceError::McpError(refused)) = refused else { panic!("it was read") };
        assert_eq!(refused.message, "b has no such resource");
    }
}

#[tokio::test]
async fn arguments_are_completed_by_the_upstream_of_the_prompt_or_template() {
    for (theirs, ours) in [(OLD, OLD), (OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let upstreams = ["a", "b"].map(|name| Upstream::named(name, Rich::new(name, theirs).server()));
        let caller = Caller::new(&in_front_of(upstreams.into(), calls_at_once()).await, ours).await;
        let argument: ArgumentInfo = serde_json::from_value(json!({ "name": "id", "value": "1" })).unwrap();

        for (reference, of) in [
            (Reference::for_prompt("b__p1"), "p1 in b"),
            (Reference::for_resource("b://0/{id}"), "b://0/{id} in b"),
            (Reference::for_resource("a://0/{id}"), "a://0/{id} in a"),
        ] {
            let request = CompleteRequestParams::new(reference, argument.clone());
            let completed = caller.peer.complete(request).await.unwrap();
            assert_eq!(completed.completion.values, [format!("id=1 of {of}")]);
        }
        for reference in [Reference::for_prompt("p1"), Reference::for_resource("c://0/{id}")] {
            let request = CompleteRequestParams::new(reference, argument.clone());
            caller.peer.complete(request).await.unwrap_err();
        }
    }
}

#[tokio::test]
async fn meta_passes_both_ways_and_what_is_between_two_peers_stays_there() {
    for (theirs, ours) in [(OLD, OLD), (OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let rich = Rich::new("a", theirs);
        let upstream = Upstream::named("a", rich.server());
        let caller = Caller::new(&in_front_of(vec![upstream], calls_at_once()).await, ours).await;
        let meta: RequestMetaObject = serde_json::from_value(json!({
            "example.com/trace": { "id": 7 }, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "outlast-gateway/listener": "a mark that it does not know", "outlast/idempotencyKey": "the caller's",
        }))
        .unwrap();
        let argument: ArgumentInfo = serde_json::from_value(json!({ "name": "id", "value": "1" })).unwrap();

        let mut call = CallToolRequestParams::new("a__meta");
        call.meta = Some(meta.clone());
        let called = caller.peer.call_tool(call).await.unwrap();
        let mut prompt = GetPromptRequestParams::new("a__p0");
        prompt.meta = Some(meta.clone());
        caller.peer.get_prompt(prompt).await.unwrap();
        let mut read = ReadResourceRequestParams::new("a://0");
        read.meta = Some(meta.clone());
        caller.peer.read_resource(read).await.unwrap();
        let mut complete = CompleteRequestParams::new(Reference::for_prompt("a__p0"), argument);
        complete.meta = Some(meta.clone());
        caller.peer.complete(complete).await.unwrap();
        let mut list = PaginatedRequestParams::default();
        list.meta = Some(meta);
        caller.peer.list_prompts(Some(list)).await.unwrap();

        assert_eq!(json!(called.meta)["example.com/from"], "a");
        for method in ["tools/call", "prompts/get", "resources/read", "completion/complete", "prompts/list"] {
            let asked = rich.asked(method);
            let [asked] = &*asked else { panic!("{method} was asked {} times", asked.len()) };
            assert_eq!(asked["example.com/trace"], json!({ "id": 7 }), "{method}");
            assert!(
                asked["traceparent"].as_str().is_some_and(|trace| trace.starts_with("00-0af")),
                "{method}"
            );
            assert_eq!(asked.get("outlast-gateway/listener"), None, "{method}");
            assert_ne!(asked["outlast/idempotencyKey"], "the caller's", "{method}");
            let client = &asked["io.modelcontextprotocol/clientInfo"]["name"];
            assert!(client.is_null() || client == "outlast-gateway", "{method}: {client}");
        }
    }
}

#[tokio::test]
async fn a_ping_is_answered_by_the_gateway_whatever_its_upstreams_do() {
    let caller = Caller::new(&in_front_of(vec![Upstream::only(nowhere())], calls_at_once()).await, OLD).await;
    ping(&caller.peer).await;
}

async fn ping(peer: &Peer<rmcp::RoleClient>) {
    let ping = rmcp::model::ClientRequest::PingRequest(Default::default());
    peer.send_request(ping).await.unwrap();
}

#[tokio::test]
async fn what_the_upstreams_say_of_themselves_is_said_together() {
    for ours in [OLD, NEW] {
        let upstreams = vec![
            Upstream::named("a", Rich::new("a", OLD).server()),
            Upstream::named("plain", crate::support::streams("plain", crate::support::Plain::default())),
        ];
        let caller = Caller::new(&in_front_of(upstreams, calls_at_once()).await, ours).await;

        let info = caller.peer.peer_info().unwrap();
        assert_eq!(info.instructions.as_deref(), Some("This is a."));
        let capabilities = json!(info.capabilities);
        assert_eq!(capabilities["resources"], json!({ "subscribe": true, "listChanged": true }));
        assert_eq!(capabilities["prompts"], json!({ "listChanged": true }));
        assert!(capabilities["completions"].is_object() && capabilities["logging"].is_object());
    }
}
