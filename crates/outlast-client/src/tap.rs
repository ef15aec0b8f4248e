//! The service that rmcp serves for a client: the user's own handler, and beside it an ear for what is said of tasks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use rmcp::{
    RoleClient,
    model::{
        ClientConfig, ClientResult, CustomNotification, ErrorData, ProtocolVersion, ServerNotification,
        ServerRequest, TASKS_EXTENSION_ID,
    },
    service::{DynService, NotificationContext, RequestContext, Service},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    calls::Calls,
    task::{Invalid, Task, read_task},
    wire::{RawNotification, raw_notification},
};

/// The user's handler as this crate holds it, whatever its type.
pub(crate) type User = Arc<dyn DynService<RoleClient>>;

/// Serves the user's handler, and tells the [`Hub`] what was pushed.
pub(crate) struct Tap {
    pub(crate) user: User,
    pub(crate) hub: Arc<Hub>,
    pub(crate) calls: Arc<Calls>,
    /// The version of the protocol that `initialize` names.
    pub(crate) initial: ProtocolVersion,
}

impl Service<RoleClient> for Tap {
    async fn handle_request(
        &self,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        let mut begun = None;
        loop {
            let Some(mut asked) = self.calls.asked(&context, begun).await? else {
                return self.user.handle_request(request, context).await;
            };
            begun = Some(asked.begun);
            let handler = asked.handler.clone();
            // Where its call ends while it asks, it is another call's.
            tokio::select! {
                biased;
                answer = handler.handle_request(request.clone(), context.clone()) => {
                    if answer.is_ok() || !asked.is_misjudged() {
                        return answer;
                    }
                }
                () = asked.misjudged() => {}
            }
        }
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        context: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        let raw = match &notification {
            ServerNotification::CustomNotification(custom) => raw_notification(custom),
            _ => None,
        };
        let notification = match raw {
            Some(raw) => {
                self.hub.hear(&raw);
                as_the_sdk_reads_it(raw)
            }
            None => notification,
        };
        let during = match &notification {
            ServerNotification::ProgressNotification(progress) => {
                self.calls.told(&progress.params.progress_token).await
            }
            ServerNotification::LoggingMessageNotification(_) => {
                self.calls.overheard(&context.extensions).await
            }
            _ => None,
        };
        match during {
            Some(handler) => handler.handle_notification(notification, context).await,
            None => self.user.handle_notification(notification, context).await,
        }
    }

    fn get_info(&self) -> ClientConfig {
        let mut info = with_tasks(self.user.get_info());
        info.protocol_version = self.initial.clone();
        info
    }
}

/// S1: every request declares the extension; the settings that the user gave it are kept.
pub(crate) fn with_tasks(mut info: ClientConfig) -> ClientConfig {
    info.capabilities.extensions.get_or_insert_default().entry(TASKS_EXTENSION_ID.to_owned()).or_default();
    info
}

/// What was last pushed of one task.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard {
    /// Whether a subscription that names the task is acknowledged.
    pub(crate) acknowledged: bool,
    /// The newest state that was pushed.
    pub(crate) state: Option<Arc<Task>>,
    /// The place of that state among all that came.
    place: u64,
}

/// Where pushes are handed to those who follow the tasks. A connection has one; it keeps the newest state of each task that
/// is followed, and nothing of others.
#[derive(Default)]
pub(crate) struct Hub {
    followed: Mutex<HashMap<String, watch::Sender<Heard>>>,
}

impl Hub {
    /// Begins to follow a task. Dropping every receiver ends it.
    pub(crate) fn follow(&self, task: &str) -> watch::Receiver<Heard> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.retain(|id, sender| id == task || sender.receiver_count() > 0);
        let sender = followed.entry(task.to_owned()).or_insert_with(|| watch::channel(Heard::default()).0);
        if sender.receiver_count() == 0 {
            // What an earlier follower heard is of an earlier subscription.
            sender.send_replace(Heard::default());
        }
        sender.subscribe()
    }

    fn hear(&self, notification: &RawNotification) {
        let params = &notification.params;
        match notification.method.as_str() {
            "notifications/tasks" => match read_task(params) {
                Ok(task) => {
                    let (task, place) = (Arc::new(task), notification.place);
                    self.tell(&task.id, |heard| {
                        // The one that came first may be handled last.
                        let newer = place > heard.place;
                        if newer {
                            heard.state = Some(task.clone());
                            heard.place = place;
                        }
                        newer
                    });
                }
                // A notification has nobody to complain to.
                Err(Invalid(why)) => tracing::warn!(why, "a malformed notification about a task was dropped"),
            },
            "notifications/subscriptions/acknowledged" => {
                let ids = params
                    .get("notifications")
                    .and_then(|what| what.get("taskIds"))
                    .and_then(Value::as_array);
                for id in ids.into_iter().flatten().filter_map(Value::as_str) {
                    self.tell(id, |heard| !std::mem::replace(&mut heard.acknowledged, true));
                }
            }
            _ => {}
        }
    }

    fn tell(&self, id: &str, change: impl FnOnce(&mut Heard) -> bool) {
        if let Some(sender) = self.followed.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            sender.send_if_modified(change);
        }
    }
}

/// To the user it comes as the SDK would have given it, had it not been put aside.
fn as_the_sdk_reads_it(raw: RawNotification) -> ServerNotification {
    let RawNotification { method, params, .. } = raw;
    let read = serde_json::from_value(json!({ "method": method, "params": params.clone() }));
    read.unwrap_or_else(|_| {
        ServerNotification::CustomNotification(CustomNotification::new(method, Some(params)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(status: &str, place: u64) -> RawNotification {
        let params =
            json!({"taskId": "t", "status": status, "createdAt": "2026-11-29T10:00:00Z", "ttlMs": null});
        RawNotification { method: "notifications/tasks".to_owned(), params, place }
    }

    #[test]
    fn the_state_that_came_last_stays_in_whatever_order_they_are_handled() {
        for order in [[1, 2], [2, 1]] {
            let hub = Hub::default();
            let mailbox = hub.follow("t");
            for place in order {
                hub.hear(&pushed(if place == 2 { "cancelled" } else { "working" }, place));
            }
            let heard = mailbox.borrow().state.clone().unwrap();
            assert!(heard.is_cancelled(), "handled as {order:?}");
        }
    }
}
