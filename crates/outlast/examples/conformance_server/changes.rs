//! Tells every open `subscriptions/listen` that a list has changed.

use rmcp::service::SubscriptionContext;
use tokio::sync::broadcast;

/// A list that a client may be subscribed to.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Tools,
    Prompts,
}

/// Where tools announce a change, and subscriptions hear of it. Clones share it.
#[derive(Clone)]
pub(crate) struct Changes(broadcast::Sender<Change>);

impl Default for Changes {
    fn default() -> Self {
        Self(broadcast::Sender::new(16))
    }
}

impl Changes {
    pub(crate) fn announce(&self, change: Change) {
        // The error means that nobody is subscribed.
        let _ = self.0.send(change);
    }

    /// Forwards what one subscription asked for, until it ends.
    pub(crate) async fn forward_to(&self, subscription: &SubscriptionContext) {
        let mut changes = self.0.subscribe();
        let (sink, accepted) = (subscription.sink(), subscription.accepted());
        loop {
            let change = tokio::select! {
                () = subscription.cancelled() => return,
                change = changes.recv() => change,
            };
            let sent = match change {
                Ok(Change::Tools) if accepted.tools_list_changed == Some(true) => {
                    sink.notify_tool_list_changed().await
                }
                Ok(Change::Prompts) if accepted.prompts_list_changed == Some(true) => {
                    sink.notify_prompt_list_changed().await
                }
                // Having missed some is no loss: one is enough for the client to read the whole list again.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => Ok(()),
                Err(broadcast::error::RecvError::Closed) => return,
            };
            if sent.is_err() {
                return;
            }
        }
    }
}
