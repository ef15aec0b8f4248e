//! What upstreams say of changes to their lists and resources, on its way to the callers who want to hear of it.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{
    future::pending,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use outlast::WeakTaskServer;
use outlast_client::is_unauthorized;
use rmcp::{
    model::{ServerNotification, SubscriptionFilter},
    service::{ServiceError, Subscription, SubscriptionContext},
};
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinSet,
};

use crate::{
    caller::Caller,
    gateway::Inner,
    upstream::{ANSWER_PATIENCE, Upstream},
    watched::{Watch, is_modern},
};

/// How many changes may wait for a caller who is slow to take them. One of a kind is enough to look again.
const WAITING: usize = 64;
/// How long it takes until a subscription is tried again that was lost, or that an upstream was not there for.
const AGAIN: Duration = Duration::from_secs(5);

/// Something that a caller may want to look at again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resources,
    Resource(String),
}

impl Change {
    pub(crate) fn of(notification: &ServerNotification) -> Option<Self> {
        match notification {
            ServerNotification::ToolListChangedNotification(_) => Some(Self::Tools),
            ServerNotification::PromptListChangedNotification(_) => Some(Self::Prompts),
            ServerNotification::ResourceListChangedNotification(_) => Some(Self::Resources),
            ServerNotification::ResourceUpdatedNotification(updated) => {
                Some(Self::Resource(updated.params.uri.clone()))
            }
            _ => None,
        }
    }
}

/// The changes that an upstream has told of. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Changes(broadcast::Sender<Change>);

/// Who asks an upstream of 2026-07-28 to tell of changes: one for all that follow them, as long as there are any.
#[derive(Debug, Default)]
pub(crate) struct Ear(Mutex<Weak<JoinSet<()>>>);

impl Default for Changes {
    fn default() -> Self {
        Self(broadcast::Sender::new(WAITING))
    }
}

impl Changes {
    pub(crate) fn tell(&self, change: Change) {
        // The error means that nobody listens.
        let _ = self.0.send(change);
    }
}

/// Serves one subscription until it ends.
pub(crate) async fn serve(gateway: &Arc<Inner>, caller: &Caller, context: &SubscriptionContext) {
    let changes = follow(gateway, caller);
    let uris = context.accepted().resource_subscriptions.clone().unwrap_or_default();
    tokio::select! {
        () = context.cancelled() => {}
        () = pass_on(changes, context) => {}
        () = watch(reached_by(gateway, caller), &uris) => {}
    }
}

async fn pass_on(mut changes: Followed, context: &SubscriptionContext) {
    let (sink, accepted) = (context.sink(), context.accepted());
    while let Some(change) = changes.next().await {
        let sent = match change {
            Change::Tools if accepted.tools_list_changed == Some(true) => {
                sink.notify_tool_list_changed().await
            }
            Change::Prompts if accepted.prompts_list_changed == Some(true) => {
                sink.notify_prompt_list_changed().await
            }
            Change::Resources if accepted.resources_list_changed == Some(true) => {
                sink.notify_resource_list_changed().await
            }
            Change::Resource(uri)
                if accepted.resource_subscriptions.as_ref().is_some_and(|uris| uris.contains(&uri)) =>
            {
                sink.notify_resource_updated(uri).await
            }
            _ => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Has the upstreams tell of these resources, for as long as it is polled.
async fn watch(upstreams: Vec<Arc<Upstream>>, uris: &[String]) {
    let mut left: Vec<_> = upstreams.iter().flat_map(|one| uris.iter().map(move |uri| (one, uri))).collect();
    let mut watches = Vec::new();
    while !left.is_empty() {
        let mut away = Vec::new();
        for (upstream, uri) in left {
            match Watch::new(upstream, uri).await {
                Ok(watch) => watches.push(watch),
                Err(_) if upstream.is_left_alone() => away.push((upstream, uri)),
                // Another one may have it.
                Err(error) => tracing::debug!(?error, "an upstream does not tell of a resource"),
            }
        }
        left = away;
        if !left.is_empty() {
            tokio::time::sleep(AGAIN).await;
        }
    }
    pending::<()>().await;
}

/// Changes of all upstreams, for as long as it lives.
pub(crate) struct Followed {
    changes: mpsc::Receiver<Change>,
    _upstreams: JoinSet<()>,
    _ears: Vec<Arc<JoinSet<()>>>,
}

impl Followed {
    pub(crate) async fn next(&mut self) -> Option<Change> {
        self.changes.recv().await
    }
}

/// Follows the changes of all upstreams from now on.
pub(crate) fn follow(gateway: &Arc<Inner>, caller: &Caller) -> Followed {
    let (sender, changes) = mpsc::channel(WAITING);
    let mut upstreams = JoinSet::new();
    let reached = reached_by(gateway, caller);
    for upstream in &reached {
        upstreams.spawn(hear(upstream.changes().0.subscribe(), sender.clone()));
    }
    let ears = reached.into_iter().map(|upstream| ear(gateway, upstream)).collect();
    Followed { changes, _upstreams: upstreams, _ears: ears }
}

/// The upstreams as this caller reaches them, without those that it does not.
fn reached_by(gateway: &Arc<Inner>, caller: &Caller) -> Vec<Arc<Upstream>> {
    gateway.upstreams.iter().filter_map(|upstream| upstream.for_caller(caller).ok()).collect()
}

async fn hear(mut told: broadcast::Receiver<Change>, sender: mpsc::Sender<Change>) {
    loop {
        let change = match told.recv().await {
            Ok(change) => change,
            // Having missed some is no loss: those that come are enough to look again.
            Err(broadcast::error::RecvError::Lagged(_)) => continue,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if sender.send(change).await.is_err() {
            return;
        }
    }
}

fn ear(gateway: &Arc<Inner>, upstream: Arc<Upstream>) -> Arc<JoinSet<()>> {
    let mut ear = upstream.ear().0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = ear.upgrade() {
        return there;
    }
    let mut task = JoinSet::new();
    task.spawn(listen(gateway.clone(), upstream.clone()));
    let task = Arc::new(task);
    *ear = Arc::downgrade(&task);
    task
}

/// Has an upstream tell of changes of its lists, where it has to be asked for that, and of resources again that it has
/// forgotten with its connection.
async fn listen(gateway: Arc<Inner>, upstream: Arc<Upstream>) {
    let mut subscription = None;
    let mut has_none = false;
    // Until the owner whose way this is sends another, it is of no use to ask again.
    let mut refused = None;
    loop {
        let server = gateway.server.get().and_then(WeakTaskServer::upgrade);
        if server.is_none_or(|server| server.is_shutting_down()) {
            return;
        }
        let newest = upstream.newest();
        let is_refused = refused.is_some() && refused == newest;
        if subscription.is_none() && !has_none && !is_refused {
            match subscribe(&upstream).await {
                Ok(subscribed) => subscription = subscribed,
                Err(ServiceError::McpError(_)) => has_none = true,
                Err(error) => {
                    if is_unauthorized(&error) {
                        refused = newest;
                    }
                    tracing::debug!(%error, "an upstream could not be subscribed to");
                }
            }
        }
        if !is_refused {
            upstream.renew_watches().await;
        }
        let pause = tokio::time::sleep(AGAIN);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                told = next(&mut subscription) => match told {
                    Some(notification) => {
                        if let Some(change) = Change::of(&notification) {
                            upstream.changes().tell(change);
                        }
                    }
                    None => subscription = None,
                },
            }
        }
    }
}

/// A subscription to the lists of an upstream; none where it cannot be reached, or tells without being asked.
async fn subscribe(upstream: &Upstream) -> Result<Option<Subscription>, ServiceError> {
    let Ok(peer) = upstream.peer().await else { return Ok(None) };
    if !is_modern(&peer) {
        return Ok(None);
    }
    let lists =
        SubscriptionFilter::builder().tools_list_changed().prompts_list_changed().resources_list_changed();
    match tokio::time::timeout(ANSWER_PATIENCE, peer.listen(lists.build())).await {
        Ok(subscribed) => subscribed.map(Some),
        Err(_) => Ok(None),
    }
}

/// What a subscription tells next; none when it has ended.
async fn next(subscription: &mut Option<Subscription>) -> Option<ServerNotification> {
    match subscription {
        Some(subscription) => subscription.next().await.ok().flatten(),
        None => pending().await,
    }
}
