//! Nothing is sent ahead of a connection that has not taken what was sent before.
//!
//! The SDK keeps up to sixteen messages for a connection. States that wait there are old when they leave, and large ones
//! would be held for every reader that is slow.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use rmcp::model::Extensions;
use tokio::sync::Notify;

/// Tells the sender of a stream when its connection has room.
#[derive(Debug, Clone)]
pub(crate) struct Pace(Arc<Notify>);

impl Pace {
    /// One with room for the first message.
    pub(crate) fn new() -> Self {
        let room = Notify::new();
        room.notify_one();
        Self(Arc::new(room))
    }

    /// That of the HTTP request that these belong to, where there is one.
    pub(super) fn of(extensions: &Extensions) -> Option<Self> {
        extensions.get::<http::request::Parts>()?.extensions.get::<Self>().cloned()
    }

    /// Waits until the message before was taken. It is true of one message.
    pub(super) async fn room(&self) {
        self.0.notified().await;
    }

    /// The same body, each frame of which makes room when it is taken.
    pub(crate) fn watch(self, body: Body) -> Body {
        Body::new(Paced { body, pace: self })
    }
}

struct Paced {
    body: Body,
    pace: Pace,
}

impl http_body::Body for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        // At most one at a time is kept, so that what the SDK sends by itself to keep the stream alive makes no more room.
        self.pace.0.notify_one();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
