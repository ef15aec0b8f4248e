//! What upstreams say without being asked, and by and by: changes, log messages, progress.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::time::Duration;

use outlast_gateway::{GatewayOptions, Upstream, When};
use rmcp::{
    model::{
        CallToolRequestParams, LoggingLevel, ProtocolVersion, ServerNotification, SetLevelRequestParams,
        SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::Subscription,
};
use serde_json::json;

use crate::{
    rich::{Caller, NEW, OLD, Rich, in_front_of},
    scripted::{Reply, Scripted},
};

const LONG: Duration = Duration::from_secs(60);

fn options(start: When) -> GatewayOptions {
    let mut options = GatewayOptions::default();
    options.start = start;
    options
}

async fn pair(
    theirs: &'static [ProtocolVersion],
) -> (Rich, Rich, outlast::TaskServer<outlast_gateway::Gateway>) {
    let (a, b) = (Rich::new("a", theirs), Rich::new("b", theirs));
    let upstreams = vec![Upstream::named("a", a.server()), Upstream::named("b", b.server())];
    let server = in_front_of(upstreams, options(When::After(LONG))).await;
    (a, b, server)
}

/// Polls until something is so, which other tasks bring about.
async fn until(is_so: impl Fn() -> bool) {
    let waited = tokio::time::timeout(LONG, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap();
}

/// Says that something has changed until the caller hears it: it may not be listening yet.
async fn until_heard(rich: &Rich, what: &str, caller: &mut Caller) {
    let heard = async {
        loop {
            rich.changed(what).await;
            let next = tokio::time::timeout(Duration::from_millis(20), caller.heard.recv());
            if let Ok(Some(heard)) = next.await {
                break heard;
            }
        }
    };
    assert_eq!(tokio::time::timeout(LONG, heard).await.unwrap(), what);
}

#[tokio::test]
async fn a_session_hears_of_changes_to_the_lists_of_every_upstream() {
    for theirs in [OLD, NEW] {
        let (a, b, server) = pair(theirs).await;
        let mut caller = Caller::new(&server, OLD).await;
        for rich in [&a, &b] {
            for what in ["tools", "prompts", "resources"] {
                until_heard(rich, what, &mut caller).await;
                // Those that were told in vain before may still come.
                while let Ok(late) = caller.heard.try_recv() {
                    assert_eq!(late, what);
                }
            }
        }
    }
}

fn told(notification: Option<ServerNotification>) -> String {
    match notification {
        Some(ServerNotification::ToolListChangedNotification(_)) => "tools".to_owned(),
        Some(ServerNotification::PromptListChangedNotification(_)) => "prompts".to_owned(),
        Some(ServerNotification::ResourceListChangedNotification(_)) => "resources".to_owned(),
        Some(ServerNotification::ResourceUpdatedNotification(updated)) => updated.params.uri,
        other => panic!("unexpected {other:?}"),
    }
}

/// What a subscription tells when it is told this until it tells something.
async fn until_told(rich: &Rich, what: &str, subscription: &mut Subscription) -> String {
    let heard = async {
        loop {
            rich.changed(what).await;
            let next = tokio::time::timeout(Duration::from_millis(20), subscription.next());
            if let Ok(heard) = next.await {
                break told(heard.unwrap());
            }
        }
    };
    tokio::time::timeout(LONG, heard).await.unwrap()
}

#[tokio::test]
async fn a_subscription_tells_of_what_it_is_about_and_of_nothing_else() {
    for theirs in [OLD, NEW] {
        let (a, b, server) = pair(theirs).await;
        let caller = Caller::new(&server, NEW).await;
        let mut filter = SubscriptionFilter::builder().prompts_list_changed().build();
        filter.resource_subscriptions = Some(vec!["b://1".to_owned()]);
        let mut subscription = caller.peer.listen(filter.clone()).await.unwrap();
        assert_eq!(subscription.acknowledged(), &filter);

        until(|| b.subscriptions() == ["+b://1"]).await;
        for what in ["tools", "resources", "b://2"] {
            b.changed(what).await;
        }
        assert_eq!(until_told(&b, "b://1", &mut subscription).await, "b://1");
        let heard = until_told(&a, "prompts", &mut subscription).await;
        assert!(heard == "prompts" || heard == "b://1", "{heard}");

        drop(subscription);
        until(|| b.subscriptions() == ["+b://1", "-b://1"]).await;
        assert!(a.subscriptions().is_empty(), "a has no such resource");
    }
}

#[tokio::test]
async fn sessions_hear_of_the_resources_that_they_subscribed_to_and_an_upstream_is_told_once() {
    for theirs in [OLD, NEW] {
        let (a, b, server) = pair(theirs).await;
        let mut one = Caller::new(&server, OLD).await;
        let mut other = Caller::new(&server, OLD).await;
        one.peer.subscribe(SubscribeRequestParams::new("b://1")).await.unwrap();
        one.peer.subscribe(SubscribeRequestParams::new("b://1")).await.unwrap();
        other.peer.subscribe(SubscribeRequestParams::new("b://1")).await.unwrap();
        one.peer.subscribe(SubscribeRequestParams::new("a://0")).await.unwrap();
        assert_eq!((a.subscriptions(), b.subscriptions()), (vec!["+a://0".into()], vec!["+b://1".into()]));

        b.changed("b://1").await;
        assert_eq!((one.next().await, other.next().await), ("b://1".into(), "b://1".into()));
        // A part of a resource is told of as well, where the protocol has it so.
        if theirs == OLD {
            b.changed("b://1/part").await;
            assert_eq!((one.next().await, other.next().await), ("b://1/part".into(), "b://1/part".into()));
        }
        a.changed("a://0").await;
        assert_eq!(one.next().await, "a://0");

        // One takes it back, and the other goes on to hear.
        one.peer.unsubscribe(UnsubscribeRequestParams::new("b://1")).await.unwrap();
        b.changed("b://1").await;
        assert_eq!(other.next().await, "b://1");
        a.changed("a://0").await;
        assert_eq!(one.next().await, "a://0", "and nothing of b://1");
        assert!(other.heard.try_recv().is_err(), "the other did not ask for a://0");
        assert_eq!(b.subscriptions(), ["+b://1"]);
        other.peer.unsubscribe(UnsubscribeRequestParams::new("b://1")).await.unwrap();
        until(|| b.subscriptions() == ["+b://1", "-b://1"]).await;

        let refused = one.peer.subscribe(SubscribeRequestParams::new("c://0")).await;
        assert!(refused.is_err(), "nobody has it");
    }
}

#[tokio::test(start_paused = true)]
async fn the_resources_of_a_session_that_is_gone_are_taken_back() {
    for theirs in [OLD, NEW] {
        let (_, b, server) = pair(theirs).await;
        let caller = Caller::new(&server, OLD).await;
        caller.peer.subscribe(SubscribeRequestParams::new("b://1")).await.unwrap();

        drop(caller);

        until(|| b.subscriptions() == ["+b://1", "-b://1"]).await;
    }
}

#[tokio::test]
async fn progress_of_a_call_reaches_whoever_waits_for_it() {
    for (theirs, ours) in [(OLD, OLD), (OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let (_, _, server) = pair(theirs).await;
        let mut caller = Caller::new(&server, ours).await;

        caller.peer.call_tool(CallToolRequestParams::new("b__progresses")).await.unwrap();

        assert_eq!([caller.next().await, caller.next().await], ["1/2 step of b", "2/2 step of b"]);
    }
}

#[tokio::test]
async fn what_an_upstream_logs_during_a_call_reaches_its_caller_and_no_other() {
    for (theirs, ours) in [(OLD, OLD), (OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        for start in [When::After(LONG), When::Now] {
            let rich = Rich::new("a", theirs);
            let server = in_front_of(vec![Upstream::named("a", rich.server())], options(start)).await;
            let mut caller = Caller::new(&server, ours).await;
            let mut other = Caller::new(&server, ours).await;
            let mut call = CallToolRequestParams::new("a__logs");
            if ours == NEW {
                // There each request says what it wants to hear.
                let meta = json!({ "io.modelcontextprotocol/logLevel": "debug" });
                call.meta = Some(serde_json::from_value(meta).unwrap());
            }

            caller.peer.call_tool(call).await.unwrap();

            assert_eq!([caller.next().await, caller.next().await], ["Info of a", "Error of a"]);
            assert!(other.heard.try_recv().is_err());
        }
    }
}

#[tokio::test]
async fn what_comes_just_after_the_answer_reaches_the_caller_too() {
    // Messages are handled side by side, so that the last ones before an answer may be handled after it.
    let scripted = Scripted::legacy(|asked| {
        let text = |text: &str| json!({ "content": [{ "type": "text", "text": text }] });
        let lines = [
            json!({ "jsonrpc": "2.0", "id": asked.id, "result": text("done") }),
            json!({
                "jsonrpc": "2.0", "method": "notifications/progress",
                "params": { "progressToken": asked.params["_meta"]["progressToken"], "progress": 1, "message": "last" },
            }),
            json!({
                "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": "last words" },
            }),
        ];
        Reply::Raw(lines.map(|line| format!("{line}\n")).concat().into_bytes())
    });
    let server = in_front_of(vec![scripted.upstream()], options(When::Now)).await;
    let mut caller = Caller::new(&server, OLD).await;

    caller.peer.call_tool(CallToolRequestParams::new("plain")).await.unwrap();

    let mut heard = [caller.next().await, caller.next().await];
    heard.sort();
    assert_eq!(heard, ["1 last", "last words"]);
}

#[tokio::test]
async fn a_session_hears_no_more_than_the_level_that_it_set() {
    for theirs in [OLD, NEW] {
        let (a, b, server) = pair(theirs).await;
        let (mut loud, mut quiet) = (Caller::new(&server, OLD).await, Caller::new(&server, OLD).await);
        loud.peer.set_level(SetLevelRequestParams::new(LoggingLevel::Debug)).await.unwrap();
        quiet.peer.set_level(SetLevelRequestParams::new(LoggingLevel::Error)).await.unwrap();

        // One upstream serves both, so it has to say what the louder one wants.
        if theirs == OLD {
            for rich in [&a, &b] {
                assert_eq!(rich.levels().last(), Some(&LoggingLevel::Debug));
            }
        }
        quiet.peer.call_tool(CallToolRequestParams::new("b__logs")).await.unwrap();
        loud.peer.call_tool(CallToolRequestParams::new("b__logs")).await.unwrap();

        assert_eq!(quiet.next().await, "Error of b");
        assert!(quiet.heard.try_recv().is_err());
        assert_eq!([loud.next().await, loud.next().await], ["Info of b", "Error of b"]);
        let asked: Vec<_> = b
            .asked("tools/call")
            .iter()
            .map(|meta| meta["io.modelcontextprotocol/logLevel"].clone())
            .collect();
        if theirs == NEW {
            assert_eq!(asked, ["error", "debug"]);
        }
    }
}

#[tokio::test]
async fn a_caller_is_told_of_a_thousand_resources_and_of_no_more() {
    const MAX: usize = 1_000;
    let (_, b, server) = pair(OLD).await;
    let uris: Vec<String> = (0..=MAX).map(|n| format!("b://{n}")).collect();
    let session = Caller::new(&server, OLD).await;
    for uri in &uris[..MAX] {
        session.peer.subscribe(SubscribeRequestParams::new(uri)).await.unwrap();
    }
    session.peer.subscribe(SubscribeRequestParams::new(&uris[0])).await.unwrap();
    let refused = session.peer.subscribe(SubscribeRequestParams::new(&uris[MAX])).await.unwrap_err();
    assert!(refused.to_string().contains("unsubscribe"), "{refused}");
    session.peer.unsubscribe(UnsubscribeRequestParams::new(&uris[1])).await.unwrap();
    session.peer.subscribe(SubscribeRequestParams::new(&uris[MAX])).await.unwrap();
    assert!(b.subscriptions().contains(&format!("+b://{MAX}")));

    let caller = Caller::new(&server, NEW).await;
    let mut filter = SubscriptionFilter::new();
    filter.resource_subscriptions = Some(uris.clone());
    let subscription = caller.peer.listen(filter).await.unwrap();
    let accepted = subscription.acknowledged().resource_subscriptions.as_deref();
    assert_eq!(accepted, Some(&uris[..MAX]));
}
