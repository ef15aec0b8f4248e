//! `subscriptions/listen` with task ids: a client learns of a change when it happens (S27, S28).
//!
//! The SDK does not know `notifications.taskIds` yet and drops it when it parses. So [`aside`] moves the filter out of its
//! way before that, the request reaches the server as one of an unknown method, and [`listen`] serves it. Once the SDK's
//! `SubscriptionFilter` has the field, `aside` can go, and `listen` becomes the handler's own.

pub(crate) mod aside;
mod feed;
mod inner;
pub(crate) mod lines;
mod listen;
pub(crate) mod pace;
pub(crate) mod refusal;

pub(crate) use self::feed::Feed;
