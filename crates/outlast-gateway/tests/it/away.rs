//! Upstreams that cannot be reached for a while.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast::{Config, MemoryStore, Recovery, Store, SystemClock};
use outlast_client::{Server, TaskClient};
use outlast_gateway::{Gateway, GatewayOptions, ToolPolicy, Upstream, When};
use rmcp::{
    ServerHandler,
    model::{CallToolRequestParams, ServerNotification, SubscriptionFilter},
    service::ServiceExt,
};
use tokio::io::{DuplexStream, ReadHalf, WriteHalf};

use crate::{
    rich::{Caller, NEW, OLD, Rich, in_front_of},
    support::{Plain, streams, text},
};

const LONG: Duration = Duration::from_secs(60);

/// A way to a server that is there only at times, and counts the tries.
#[derive(Clone, Default)]
struct Door<H = Plain> {
    plain: H,
    is_open: Arc<AtomicBool>,
    tries: Arc<AtomicUsize>,
}

impl<H: ServerHandler + Clone> Door<H> {
    fn server(&self) -> Server {
        let door = self.clone();
        Server::streams("door", move || door.clone().connect())
    }

    async fn connect(self) -> io::Result<(ReadHalf<DuplexStream>, WriteHalf<DuplexStream>)> {
        self.tries.fetch_add(1, Ordering::SeqCst);
        if !self.is_open.load(Ordering::SeqCst) {
            return Err(io::Error::other("the door is shut"));
        }
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let plain = self.plain.clone();
        tokio::spawn(async move {
            if let Ok(running) = plain.serve(ours).await {
                let _ = running.waiting().await;
            }
        });
        Ok(tokio::io::split(theirs))
    }

    fn tries(&self) -> usize {
        self.tries.load(Ordering::SeqCst)
    }
}

fn options(start: When) -> GatewayOptions {
    let mut options = GatewayOptions::default();
    options.start = start;
    options
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(SystemClock))
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_away_is_tried_less_and_less() {
    let door = <Door>::default();
    let upstream = Upstream::only(door.server());
    let server =
        Gateway::serve(vec![upstream], options(When::Now), memory(), Config::default()).await.unwrap();
    let client = TaskClient::new(streams("gateway", server), ());
    let peer = client.peer().await.unwrap();

    tokio::time::sleep(Duration::from_secs(60)).await;
    let tries = door.tries();
    assert!((5..=9).contains(&tries), "a minute of doubled pauses had {tries} tries");
    for _ in 0..20 {
        peer.list_all_tools().await.unwrap_err();
    }
    assert!(door.tries() <= tries + 1, "lists wait for nothing, and try nothing while it is left alone");
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_until_an_upstream_that_was_away_is_tried_again() {
    let door = <Door>::default();
    let upstream = Upstream::only(door.server());
    let server =
        Gateway::serve(vec![upstream], options(When::Now), memory(), Config::default()).await.unwrap();
    let client = TaskClient::new(streams("gateway", server), ());

    door.is_open.store(true, Ordering::SeqCst);
    let result = client.call_tool(CallToolRequestParams::new("quick")).await.unwrap();

    assert_eq!(text(&result), "quick null");
}

#[tokio::test(start_paused = true)]
async fn tasks_of_an_upstream_that_comes_late_are_taken_up_with_it() {
    let store = memory();
    let door = <Door>::default();
    door.is_open.store(true, Ordering::SeqCst);
    let upstreams = || {
        let mut policy = ToolPolicy::default();
        policy.recovery = Some(Recovery::Rerun);
        vec![
            Upstream::named("late", door.server()).tool("slow", policy),
            Upstream::named("other", streams("other", Plain::default())),
        ]
    };
    let mut config = Config::default();
    config.drain = Duration::from_millis(10);
    let first = Gateway::serve(upstreams(), options(When::Now), store.clone(), config).await.unwrap();
    let client = TaskClient::new(streams("gateway", first.clone()), ());
    let started = client.start_tool(CallToolRequestParams::new("late__slow_and_harmless")).await.unwrap();
    let outlast_client::Started::Task(task) = started else { panic!("no task") };
    while door.plain.calls.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let saved = task.to_json();
    // It is given back, not done.
    first.shutdown().await;
    first.handler().close().await;

    // What is settled for a tool of a server that is away may be right, and keeps nobody from starting.
    door.is_open.store(false, Ordering::SeqCst);
    let second =
        Gateway::serve(upstreams(), options(When::Now), store.clone(), Config::default()).await.unwrap();
    let (calls, tries) = (door.plain.calls.load(Ordering::SeqCst), door.tries());
    while door.tries() < tries + 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    door.is_open.store(true, Ordering::SeqCst);
    while door.plain.calls.load(Ordering::SeqCst) == calls {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    door.plain.go.notify_one();
    let client = TaskClient::new(streams("gateway", second), ());
    let task = client.resume(outlast_client::SavedTask::from_json(&saved).unwrap()).await.unwrap();
    assert_eq!(text(&task.wait(Some(LONG)).await.unwrap()), "slow");
}

#[tokio::test(start_paused = true)]
async fn what_an_upstream_can_that_comes_late_is_declared_from_then_on_and_callers_are_told() {
    for theirs in [OLD, NEW] {
        let door = Door { plain: Rich::new("late", theirs), is_open: Arc::default(), tries: Arc::default() };
        let upstreams = vec![
            Upstream::named("late", door.server()),
            Upstream::named("other", streams("other", Plain::default())),
        ];
        let server = in_front_of(upstreams, options(When::Now)).await;
        let mut early = Caller::new(&server, OLD).await;
        let info = early.peer.peer_info().unwrap();
        assert_eq!((&info.capabilities.prompts, &info.instructions), (&None, &None));
        assert_eq!(info.capabilities.tools.as_ref().unwrap().list_changed, Some(true));
        let modern = Caller::new(&server, NEW).await;
        let tools = SubscriptionFilter::builder().tools_list_changed().build();
        let mut subscription = modern.peer.listen(tools).await.unwrap();

        door.is_open.store(true, Ordering::SeqCst);
        assert_eq!(
            [early.next().await, early.next().await, early.next().await],
            ["tools", "prompts", "resources"]
        );
        let told = subscription.next().await.unwrap().unwrap();
        assert!(matches!(told, ServerNotification::ToolListChangedNotification(_)), "{told:?}");

        for ours in [OLD, NEW] {
            let info = Caller::new(&server, ours).await.peer.peer_info().unwrap();
            let capabilities = &info.capabilities;
            assert_eq!(capabilities.resources.as_ref().unwrap().subscribe, Some(true), "{ours:?}");
            assert!(capabilities.prompts.is_some() && capabilities.completions.is_some());
            assert!(serde_json::to_value(capabilities).unwrap()["logging"].is_object());
            assert_eq!(info.instructions.as_deref(), Some("This is late."));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_upstream_can_is_declared_while_it_is_away_again() {
    let door = Door { plain: Rich::new("comes", OLD), is_open: Arc::default(), tries: Arc::default() };
    door.is_open.store(true, Ordering::SeqCst);
    let server = in_front_of(vec![Upstream::named("comes", door.server())], options(When::Now)).await;
    let mut caller = Caller::new(&server, OLD).await;
    door.is_open.store(false, Ordering::SeqCst);
    server.handler().close().await;
    caller.peer.list_prompts(None).await.unwrap_err();

    let info = Caller::new(&server, OLD).await.peer.peer_info().unwrap();
    assert!(info.capabilities.prompts.is_some());

    door.is_open.store(true, Ordering::SeqCst);
    while caller.peer.list_prompts(None).await.is_err() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(
        [caller.next().await, caller.next().await, caller.next().await],
        ["tools", "prompts", "resources"]
    );
}

#[tokio::test]
async fn a_setting_for_a_tool_that_no_upstream_has_is_refused() {
    let upstream = Upstream::only(streams("upstream", Plain::default())).tool("slwo", ToolPolicy::default());
    let refused = Gateway::serve(vec![upstream], options(When::Now), memory(), Config::default()).await;
    let Err(outlast::BuildError::UnknownTool(tool)) = refused else { panic!("it was taken") };
    assert_eq!(tool, "slwo");
}

#[tokio::test]
async fn what_an_upstream_is_can_be_asked() {
    let upstream = Upstream::only(streams("upstream", Plain::default()));
    let introduced = upstream.introduce().await.unwrap();
    assert_eq!(introduced.protocol, "2025-11-25");
    assert!(introduced.tools.contains(&"slow".to_owned()) && !introduced.knows_tasks, "{introduced:?}");
    let shut = Upstream::only(<Door>::default().server()).introduce().await.unwrap_err();
    assert!(shut.to_string().contains("the door is shut"), "{shut}");
}
