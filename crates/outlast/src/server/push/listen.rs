//! One subscription from its request to its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use outlast_core::{Owner, StoreError, Task, TaskId};
use outlast_runtime::{join_trace, tool_in_span};
use rmcp::{
    ErrorData, Peer, RoleServer, ServerHandler,
    model::{
        CustomNotification, CustomRequest, CustomResult, ErrorCode, NotificationMetaObject, RequestId,
        ServerNotification, SubscriptionFilter, SubscriptionsListenResult, TaskStatusNotification,
        TaskStatusNotificationParams,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{Instrument as _, Span, info_span};

use super::{aside::FILTER, feed::Subscription, inner::Inner, pace::Pace};
use crate::server::{TaskServer, gate, http::RetryAfter, measure, wire};

/// How often the revisions are compared, should a hint have been lost.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl<H: ServerHandler> TaskServer<H> {
    /// Serves `subscriptions/listen` for tasks: the acknowledgement, the state of each task, every change, and the result
    /// when all of them are final.
    pub(crate) async fn handle_listen(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let filter = request.params.as_ref().and_then(|params| params.get(FILTER));
        if filter.is_some() {
            gate::declared(&context.meta).ok_or_else(gate::undeclared)?;
        }
        // In a session of an older protocol the SDK has no stream of the request's own: what it sends goes elsewhere, and it
        // does not see that the client has gone.
        if context.protocol_version().is_none_or(|version| version.has_initialize()) {
            let message = "subscriptions/listen is of protocol 2026-07-28; in a session of an older one, poll tasks/get";
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None));
        }
        let (asked, rest) = read_filter(filter)?;
        let config = self.0.runtime.config();
        if asked.len() > config.max_subscribed {
            let message = format!("one subscription may follow at most {} tasks", config.max_subscribed);
            return Err(ErrorData::invalid_params(message, None));
        }
        let owner = self.owner(&context.extensions);
        let ids = self.readable_ids(&asked, &owner).await?;
        // Registered before the first look, so that no change falls in between.
        let subscription = self.0.feed.subscribe(owner, ids.clone(), config.max_subscriptions_per_owner);
        let Some(subscription) = subscription else {
            RetryAfter::tell(&context.extensions, LOOK_AGAIN);
            let message =
                "this caller has as many subscriptions as allowed; end one, or follow more tasks in one";
            return Err(wire::slow_down(message, LOOK_AGAIN));
        };
        let inner = match rest {
            Some(rest) => {
                let (handler, id) = (self.0.handler.clone(), context.id.clone());
                Inner::listen(handler, id, context.meta.clone(), context.extensions.clone(), rest).await
            }
            None => None,
        };
        let (inner, agreed) = inner.map_or((None, None), |(inner, agreed)| (Some(inner), Some(agreed)));
        let pace = Pace::of(&context.extensions);
        let mut stream = Stream { peer: context.peer.clone(), id: context.id.clone(), pace, room: false };
        // As they were asked for, each once.
        let mut seen = BTreeSet::new();
        let agreed_ids: Vec<_> = asked
            .into_iter()
            .filter(|id| id.parse().is_ok_and(|id: TaskId| ids.contains(&id) && seen.insert(id)))
            .collect();
        let served = async {
            stream.acknowledge(&agreed_ids, agreed.as_ref()).await?;
            tokio::select! {
                biased;
                () = self.0.runtime.draining().cancelled() => Ok(()),
                sent = self.send_changes(&mut stream, subscription, inner) => sent,
            }
        };
        // Who has cancelled hears nothing more, not even of what was agreed to.
        tokio::select! {
            biased;
            () = context.ct.cancelled() => {}
            served = served => served?,
        }
        let mut result = SubscriptionsListenResult::complete(context.id);
        result.meta.set_server_info(self.0.handler.get_info().server_info);
        let result = serde_json::to_value(result);
        result.map(CustomResult::new).map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }

    /// Those of `ids` that the owner may read. Foreign, unknown and malformed ones are absent, all alike (S27).
    async fn readable_ids(&self, ids: &[String], owner: &Owner) -> Result<BTreeSet<TaskId>, ErrorData> {
        let mut readable = BTreeSet::new();
        for id in ids.iter().filter_map(|id| id.parse().ok()) {
            let task = match self.0.runtime.get(id).await {
                Ok(task) => task,
                // Whose it was cannot be read either. The other ones can be followed.
                Err(error @ StoreError::Damaged(_)) => {
                    tracing::error!(%error, "a task that was to be followed cannot be read");
                    None
                }
                Err(error) => return Err(wire::store_failed(&error)),
            };
            if task.is_some_and(|task| task.owner == *owner) {
                readable.insert(id);
            }
        }
        Ok(readable)
    }

    /// Sends until every task is final and the handler has nothing more to say.
    async fn send_changes(
        &self,
        stream: &mut Stream,
        mut subscription: Subscription,
        mut inner: Option<Inner>,
    ) -> Result<(), ErrorData> {
        let mut sent: BTreeMap<TaskId, u64> = BTreeMap::new();
        let mut look_again = interval(LOOK_AGAIN);
        // A reader that was slow for an hour is looked after once, not for each time that was missed.
        look_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look_again.reset();
        loop {
            for id in subscription.take_dirty() {
                // Read when it can be sent, and not before.
                stream.room().await;
                self.send_change(stream, &mut subscription, &mut sent, id).await?;
            }
            if subscription.ids().is_empty() && inner.is_none() {
                return Ok(());
            }
            tokio::select! {
                () = subscription.news() => {}
                _ = look_again.tick() => self.look_again(&subscription, &sent).await,
                notification = next(&mut inner) => match notification {
                    Some(notification) => stream.send(notification).await?,
                    None => inner = None,
                },
            }
        }
    }

    /// Sends a task's state, if it is newer than what was sent.
    async fn send_change(
        &self,
        stream: &mut Stream,
        subscription: &mut Subscription,
        sent: &mut BTreeMap<TaskId, u64>,
        id: TaskId,
    ) -> Result<(), ErrorData> {
        let task = match self.0.runtime.get(id).await {
            Ok(Some(task)) => task,
            // Its time is over: nothing of it will be seen again.
            Ok(None) => {
                subscription.forget(id);
                return Ok(());
            }
            // It is looked at again, as after a lost hint.
            Err(error) => {
                tracing::warn!(%error, "a change of a task could not be read");
                return Ok(());
            }
        };
        if sent.get(&id).is_some_and(|revision| *revision >= task.revision) {
            return Ok(());
        }
        let span = push_span(&task);
        let clock = &self.0.runtime.config().clock;
        let state = wire::detailed(&task, clock.now())?;
        let changed = TaskStatusNotification::new(TaskStatusNotificationParams::new(state.task));
        let sending = stream.send_with_meta(ServerNotification::TaskStatusNotification(changed));
        sending.instrument(span).await?;
        // The first state may be as old as it likes.
        if sent.insert(id, task.revision).is_some() {
            measure::pushed(clock.now().since(task.updated_at));
        }
        if task.is_final() {
            subscription.forget(id);
            sent.remove(&id);
        }
        Ok(())
    }

    /// Compares all revisions at once, and has those looked at that moved on unheard.
    async fn look_again(&self, subscription: &Subscription, sent: &BTreeMap<TaskId, u64>) {
        let ids: Vec<_> = subscription.ids().iter().copied().collect();
        // A store that is down is asked again next time.
        let Ok(heads) = self.0.runtime.heads(ids.clone()).await else { return };
        let moved = ids.into_iter().zip(heads).filter(|(id, head)| {
            head.is_none_or(|head| sent.get(id).is_none_or(|revision| *revision < head.revision))
        });
        subscription.mark(moved.map(|(id, _)| id));
    }
}

/// What a notification about a task is in the trace of that task.
fn push_span(task: &Task) -> Span {
    let (tool, status, revision) = (tool_in_span(&task.spec.tool), task.status().as_str(), task.revision);
    let span = info_span!(parent: None, "push", tool, task = ?task.id, status, revision);
    join_trace(&span, task.spec.trace);
    span
}

async fn next(inner: &mut Option<Inner>) -> Option<ServerNotification> {
    match inner {
        Some(inner) => inner.next().await,
        None => std::future::pending().await,
    }
}

/// Where a subscription's notifications go.
struct Stream {
    peer: Peer<RoleServer>,
    id: RequestId,
    /// That of its connection; standard output has one by itself.
    pace: Option<Pace>,
    /// Whether the connection is known to have room for a message.
    room: bool,
}

impl Stream {
    /// Says what was agreed to (S27); the first message of the stream (S28a).
    async fn acknowledge(
        &mut self,
        ids: &[String],
        agreed: Option<&SubscriptionFilter>,
    ) -> Result<(), ErrorData> {
        let mut filter =
            agreed.and_then(|agreed| serde_json::to_value(agreed).ok()).unwrap_or_else(|| json!({}));
        filter["taskIds"] = json!(ids);
        let params = json!({"notifications": filter});
        let acknowledged = CustomNotification::new("notifications/subscriptions/acknowledged", Some(params));
        self.send_with_meta(ServerNotification::CustomNotification(acknowledged)).await
    }

    async fn send_with_meta(&mut self, mut notification: ServerNotification) -> Result<(), ErrorData> {
        let mut meta = NotificationMetaObject::new();
        meta.set_subscription_id(self.id.clone());
        match &mut notification {
            ServerNotification::TaskStatusNotification(changed) => drop(changed.extensions.insert(meta)),
            ServerNotification::CustomNotification(custom) => drop(custom.extensions.insert(meta)),
            _ => {}
        }
        self.send(notification).await
    }

    /// Waits until a message can be sent.
    async fn room(&mut self) {
        if let Some(pace) = self.pace.as_ref().filter(|_| !self.room) {
            pace.room().await;
        }
        self.room = true;
    }

    /// A client that is gone ends the subscription.
    async fn send(&mut self, notification: ServerNotification) -> Result<(), ErrorData> {
        self.room().await;
        self.room = false;
        let sent = self.peer.send_notification(notification).await;
        sent.map_err(|_| ErrorData::internal_error("the subscriber is gone", None))
    }
}

/// The task ids of a filter, and the rest of it where that asks for anything.
fn read_filter(filter: Option<&Value>) -> Result<(Vec<String>, Option<SubscriptionFilter>), ErrorData> {
    let unfit = |what: &str| ErrorData::invalid_params(what.to_owned(), None);
    let mut filter = filter
        .and_then(Value::as_object)
        .cloned()
        .ok_or_else(|| unfit("subscriptions/listen needs notifications, an object"))?;
    let ids = filter.remove("taskIds").unwrap_or_default();
    let ids = serde_json::from_value(ids).map_err(|_| unfit("taskIds is a list of task ids"))?;
    let rest: SubscriptionFilter = serde_json::from_value(Value::Object(filter))
        .map_err(|_| unfit("a filter has toolsListChanged and the like, and lists of uris and task ids"))?;
    Ok((ids, Some(rest).filter(|rest| *rest != SubscriptionFilter::default())))
}
