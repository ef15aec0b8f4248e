//! The resources of an upstream that callers want to hear of. An upstream is told of each once, however many those are, and
//! again when it was lost; what it says of them goes the way of its other [changes](crate::changes).

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{collections::HashMap, sync::Arc};

use rmcp::{
    ErrorData, RoleClient,
    model::{
        ProtocolVersion, ServerPeerInfo, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::Peer,
};
use tokio::task::JoinSet;

use crate::{
    changes::Change,
    proxy::bounded,
    upstream::{ANSWER_PATIENCE, Upstream},
};

/// How many resources a session, or a subscription, may be told of: each costs its upstreams something.
pub(crate) const MAX_WATCHED: usize = 1_000;

/// See the module.
#[derive(Default)]
pub(crate) struct Watched(tokio::sync::Mutex<Told>);

#[derive(Default)]
struct Told {
    /// The connection on which the upstream was told: another one knows nothing of it.
    connection: Option<Arc<ServerPeerInfo>>,
    resources: HashMap<String, Resource>,
}

#[derive(Default)]
struct Resource {
    listeners: usize,
    /// None where the upstream has to be told yet.
    at_upstream: Option<AtUpstream>,
}

/// What keeps an upstream telling.
enum AtUpstream {
    /// Its session, in protocols that have one.
    Session,
    /// A subscription, which this listens to.
    Subscription(JoinSet<()>),
}

/// Somebody wants to hear of a resource of an upstream, until this is dropped.
pub(crate) struct Watch {
    upstream: Arc<Upstream>,
    uri: String,
}

impl Watch {
    /// # Errors
    /// When the upstream cannot be reached, or does not tell of this resource.
    pub(crate) async fn new(upstream: &Arc<Upstream>, uri: &str) -> Result<Self, ErrorData> {
        upstream.watch(uri).await?;
        Ok(Self { upstream: upstream.clone(), uri: uri.to_owned() })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (upstream, uri) = (self.upstream.clone(), std::mem::take(&mut self.uri));
        runtime.spawn(async move { upstream.unwatch(&uri).await });
    }
}

impl Upstream {
    async fn watch(&self, uri: &str) -> Result<(), ErrorData> {
        let mut told = self.watched().0.lock().await;
        told.resources.entry(uri.to_owned()).or_default().listeners += 1;
        let answer = self.tell(&mut told, uri).await;
        if answer.is_err() {
            told.leave(uri);
        }
        answer
    }

    async fn unwatch(&self, uri: &str) {
        let mut told = self.watched().0.lock().await;
        if let Some(AtUpstream::Session) = told.leave(uri)
            && let Ok(peer) = self.peer().await
            && told.is_of(&peer)
            && let Err(error) =
                bounded(ANSWER_PATIENCE, peer.unsubscribe(UnsubscribeRequestParams::new(uri))).await
        {
            tracing::debug!(?error, upstream = self.name(), "a subscription was not taken back");
        }
    }

    /// Tells the upstream again of what it was told on a connection that it has lost.
    pub(crate) async fn renew_watches(&self) {
        let mut told = self.watched().0.lock().await;
        let uris: Vec<String> = told.resources.keys().cloned().collect();
        for uri in uris {
            if let Err(error) = self.tell(&mut told, &uri).await {
                tracing::debug!(?error, upstream = self.name(), "a subscription was not made again");
            }
        }
    }

    async fn tell(&self, told: &mut Told, uri: &str) -> Result<(), ErrorData> {
        let peer = self.peer().await?;
        if !told.is_of(&peer) {
            told.connection = peer.peer_info();
            told.resources.values_mut().for_each(|resource| resource.at_upstream = None);
        }
        let Some(resource) = told.resources.get_mut(uri) else { return Ok(()) };
        let is_told = match &mut resource.at_upstream {
            None => false,
            Some(AtUpstream::Session) => true,
            // One that has ended has ended its task.
            Some(AtUpstream::Subscription(tasks)) => tasks.try_join_next().is_none(),
        };
        if !is_told {
            resource.at_upstream = Some(self.subscribe(&peer, uri).await?);
        }
        Ok(())
    }

    async fn subscribe(&self, peer: &Peer<RoleClient>, uri: &str) -> Result<AtUpstream, ErrorData> {
        let info = peer.peer_info();
        let resources = info.as_ref().and_then(|info| info.capabilities.resources.as_ref());
        let refused = || ErrorData::invalid_params("nobody tells of changes of this resource", None);
        if resources.is_none_or(|resources| resources.subscribe != Some(true)) {
            return Err(refused());
        }
        if !is_modern(peer) {
            bounded(ANSWER_PATIENCE, peer.subscribe(SubscribeRequestParams::new(uri))).await?;
            return Ok(AtUpstream::Session);
        }
        let mut filter = SubscriptionFilter::new();
        filter.resource_subscriptions = Some(vec![uri.to_owned()]);
        let mut subscription = bounded(ANSWER_PATIENCE, peer.listen(filter)).await?;
        let accepted = subscription.acknowledged().resource_subscriptions.as_deref().unwrap_or_default();
        if !accepted.iter().any(|accepted| accepted == uri) {
            return Err(refused());
        }
        let changes = self.changes().clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok(Some(notification)) = subscription.next().await {
                if let Some(change) = Change::of(&notification) {
                    changes.tell(change);
                }
            }
        });
        Ok(AtUpstream::Subscription(tasks))
    }
}

impl Told {
    fn is_of(&self, peer: &Peer<RoleClient>) -> bool {
        match (&self.connection, peer.peer_info()) {
            (Some(known), Some(now)) => Arc::ptr_eq(known, &now),
            _ => false,
        }
    }

    /// One who listened has left. What the upstream was told, where that was the last.
    fn leave(&mut self, uri: &str) -> Option<AtUpstream> {
        let resource = self.resources.get_mut(uri)?;
        resource.listeners -= 1;
        if resource.listeners > 0 {
            return None;
        }
        self.resources.remove(uri).and_then(|resource| resource.at_upstream)
    }
}

/// Whether an upstream tells those who subscribe, and nobody else.
pub(crate) fn is_modern(peer: &Peer<RoleClient>) -> bool {
    peer.peer_info().is_some_and(|info| info.protocol_version >= ProtocolVersion::V_2026_07_28)
}
