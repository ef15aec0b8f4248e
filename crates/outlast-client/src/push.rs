//! A subscription to one task (S27): its changes arrive when they happen.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use rmcp::{RoleClient, service::RequestHandle};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    connection::{Connection, Failure},
    follow::Followed,
    requests::{self, Error},
    tap::Heard,
};

/// A subscription on its way, or open.
pub(crate) enum Push {
    Opening(BoxFuture<'static, Result<Open, Failure>>),
    Open(Box<Open>),
}

/// An open subscription. Dropped, it tells the server.
pub(crate) struct Open {
    mailbox: watch::Receiver<Heard>,
    /// Taken when the answer has come, after which there is nothing to cancel.
    request: Option<RequestHandle<RoleClient>>,
    connection: Arc<Connection>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(request) = self.request.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // This ends the request for pushes, and has nothing to do with the task.
            runtime.spawn(request.cancel(None));
        }
    }
}

/// What a subscription brings.
pub(crate) enum Event {
    Heard(Heard),
    Ended(Result<(), Failure>),
}

impl Push {
    /// Whether the server agreed to push this task.
    pub(crate) fn is_acknowledged(&self) -> bool {
        matches!(self, Self::Open(open) if open.mailbox.borrow().acknowledged)
    }
}

/// Subscribes to a task.
pub(crate) fn listen(followed: &Arc<Followed>) -> Push {
    let followed = followed.clone();
    Push::Opening(
        async move {
            let connection = requests::connection(&followed).await.map_err(|error| match error {
                Error::Failed(failure) => failure,
                Error::End(end) => Failure::Unreached(end.to_string()),
            })?;
            // Heard from before it is asked for, so that nothing is missed between.
            let mailbox = connection.hub.follow(&followed.origin.id);
            let params = json!({ "notifications": { "taskIds": [followed.origin.id] } });
            let request = connection.send("subscriptions/listen", params, followed.authorization()).await?;
            Ok(Open { mailbox, request: Some(request), connection })
        }
        .boxed(),
    )
}

/// What comes next; never anything where there is no subscription.
pub(crate) async fn next(push: Option<&mut Push>) -> Event {
    let Some(push) = push else { return std::future::pending().await };
    if let Push::Opening(opening) = push {
        match opening.await {
            Ok(open) => *push = Push::Open(Box::new(open)),
            Err(failure) => return Event::Ended(Err(failure)),
        }
    }
    let Push::Open(open) = push else { unreachable!("it has just been opened") };
    let Some(request) = &mut open.request else {
        return Event::Ended(Ok(()));
    };
    tokio::select! {
        biased;
        changed = open.mailbox.changed() => match changed {
            Ok(()) => Event::Heard(open.mailbox.borrow_and_update().clone()),
            Err(_) => Event::Ended(Err(Failure::Lost("the connection was closed".into()))),
        },
        answer = &mut request.rx => {
            open.request = None;
            Event::Ended(open.connection.outcome(answer).map(drop))
        }
    }
}
