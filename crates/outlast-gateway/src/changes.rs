//! What upstreams say of changes to their lists and resources, on its way to the callers who want to hear of it.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    RoleServer,
    model::{ProtocolVersion, ResourceUpdatedNotificationParam, ServerNotification, SubscriptionFilter},
    service::{Peer, ServiceError, SubscriptionContext},
};
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinSet,
};

use crate::{gateway::Inner, upstream::Upstream};

/// How many changes may wait for a caller who is slow to take them. One of a kind is enough to look again.
const WAITING: usize = 64;
/// How long it takes until a subscription at an upstream is tried again that was lost.
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
    fn of(notification: &ServerNotification) -> Option<Self> {
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

/// The changes that an upstream has told of by itself. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Changes(broadcast::Sender<Change>);

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
pub(crate) async fn serve(gateway: &Arc<Inner>, context: &SubscriptionContext) {
    let mut changes = follow(gateway, context.accepted());
    let (sink, accepted) = (context.sink(), context.accepted());
    loop {
        let change = tokio::select! {
            () = context.cancelled() => return,
            change = changes.next() => change,
        };
        let sent = match change {
            None => return,
            Some(Change::Tools) if accepted.tools_list_changed == Some(true) => {
                sink.notify_tool_list_changed().await
            }
            Some(Change::Prompts) if accepted.prompts_list_changed == Some(true) => {
                sink.notify_prompt_list_changed().await
            }
            Some(Change::Resources) if accepted.resources_list_changed == Some(true) => {
                sink.notify_resource_list_changed().await
            }
            Some(Change::Resource(uri))
                if accepted.resource_subscriptions.as_ref().is_some_and(|uris| uris.contains(&uri)) =>
            {
                sink.notify_resource_updated(uri).await
            }
            Some(_) => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The sessions of older callers, who hear of every change without asking.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    peers: Mutex<Vec<Peer<RoleServer>>>,
}

impl Sessions {
    /// Tells a session of changes from now on, until it ends.
    pub(crate) fn add(&self, gateway: &Arc<Inner>, peer: Peer<RoleServer>) {
        let is_first = {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.retain(|peer| !peer.is_transport_closed());
            peers.push(peer);
            peers.len() == 1
        };
        if is_first {
            let gateway = gateway.clone();
            tokio::spawn(async move {
                let everything = SubscriptionFilter::builder()
                    .tools_list_changed()
                    .prompts_list_changed()
                    .resources_list_changed();
                let mut changes = follow(&gateway, &everything.build());
                while let Some(change) = changes.next().await {
                    if !gateway.sessions.tell(&change).await {
                        return;
                    }
                }
            });
        }
    }

    /// Whether there is anybody left to tell.
    async fn tell(&self, change: &Change) -> bool {
        let peers = {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.retain(|peer| !peer.is_transport_closed());
            peers.clone()
        };
        for peer in &peers {
            // A session that is gone is found out by the next change.
            let _ = match change {
                Change::Tools => peer.notify_tool_list_changed().await,
                Change::Prompts => peer.notify_prompt_list_changed().await,
                Change::Resources => peer.notify_resource_list_changed().await,
                Change::Resource(uri) => {
                    peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri.clone())).await
                }
            };
        }
        !peers.is_empty()
    }
}

/// Changes of all upstreams, for as long as it lives.
struct Followed {
    changes: mpsc::Receiver<Change>,
    _upstreams: JoinSet<()>,
}

impl Followed {
    async fn next(&mut self) -> Option<Change> {
        self.changes.recv().await
    }
}

fn follow(gateway: &Arc<Inner>, filter: &SubscriptionFilter) -> Followed {
    let (sender, changes) = mpsc::channel(WAITING);
    let mut upstreams = JoinSet::new();
    for n in 0..gateway.upstreams.len() {
        let (gateway, sender, filter) = (gateway.clone(), sender.clone(), filter.clone());
        upstreams.spawn(async move {
            let upstream = &gateway.upstreams[n];
            tokio::join!(hear(upstream, &sender), ask(upstream, &filter, &sender));
        });
    }
    Followed { changes, _upstreams: upstreams }
}

/// What an upstream of 2025-11-25 tells by itself.
async fn hear(upstream: &Upstream, sender: &mpsc::Sender<Change>) {
    let mut told = upstream.changes().0.subscribe();
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

/// What an upstream of 2026-07-28 tells those who subscribe.
async fn ask(upstream: &Upstream, filter: &SubscriptionFilter, sender: &mpsc::Sender<Change>) {
    loop {
        if let Ok(peer) = upstream.peer().await {
            let is_modern =
                peer.peer_info().is_some_and(|info| info.protocol_version >= ProtocolVersion::V_2026_07_28);
            if !is_modern {
                return;
            }
            match peer.listen(filter.clone()).await {
                Ok(mut subscription) => {
                    while let Ok(Some(notification)) = subscription.next().await {
                        if let Some(change) = Change::of(&notification)
                            && sender.send(change).await.is_err()
                        {
                            return;
                        }
                    }
                }
                // It has none.
                Err(ServiceError::McpError(_)) => return,
                Err(error) => tracing::debug!(%error, "an upstream could not be subscribed to"),
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}
