//! The part of a filter that is not about tasks, served by the wrapped handler on a connection of its own.

use std::sync::Arc;

use rmcp::{
    RoleServer, ServerHandler,
    model::{
        ClientJsonRpcMessage, ClientRequest, Extensions, JsonRpcMessage, RequestId, RequestMetaObject,
        ServerJsonRpcMessage, ServerNotification, SubscriptionFilter, SubscriptionsListenRequest,
        SubscriptionsListenRequestParams,
    },
    service::serve_directly_with_ct,
    transport::OneshotTransport,
};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::server::attempt::peer_info;

/// A running subscription of the wrapped handler; dropped, it ends.
pub(super) struct Inner {
    messages: mpsc::Receiver<ServerJsonRpcMessage>,
    _end: DropGuard,
}

impl Inner {
    /// Subscribes, and waits for what the handler agrees to; `None` when it serves no subscriptions.
    pub(super) async fn listen<H: ServerHandler>(
        handler: Arc<H>,
        id: RequestId,
        meta: RequestMetaObject,
        extensions: Extensions,
        filter: SubscriptionFilter,
    ) -> Option<(Self, SubscriptionFilter)> {
        let mut request =
            SubscriptionsListenRequest::new(SubscriptionsListenRequestParams::new(filter).with_meta(meta));
        request.extensions = extensions;
        let message: ClientJsonRpcMessage =
            JsonRpcMessage::request(ClientRequest::SubscriptionsListenRequest(request), id);
        let (transport, messages) = OneshotTransport::<RoleServer>::new(message);
        let ct = CancellationToken::new();
        let service = serve_directly_with_ct(handler, transport, Some(peer_info()), ct.clone());
        tokio::spawn(service.waiting());
        let mut inner = Self { messages, _end: ct.drop_guard() };
        match inner.next().await? {
            ServerNotification::SubscriptionsAcknowledgedNotification(agreed) => {
                Some((inner, agreed.params.notifications))
            }
            _ => None,
        }
    }

    /// The next notification of what was subscribed to; `None` when the subscription has ended. Progress and log messages
    /// do not ride on a stream with tasks (S28).
    pub(super) async fn next(&mut self) -> Option<ServerNotification> {
        loop {
            let ServerJsonRpcMessage::Notification(told) = self.messages.recv().await? else { return None };
            if matches!(
                told.notification,
                ServerNotification::SubscriptionsAcknowledgedNotification(_)
                    | ServerNotification::ToolListChangedNotification(_)
                    | ServerNotification::PromptListChangedNotification(_)
                    | ServerNotification::ResourceListChangedNotification(_)
                    | ServerNotification::ResourceUpdatedNotification(_)
            ) {
                return Some(told.notification);
            }
        }
    }
}
