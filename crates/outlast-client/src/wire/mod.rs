//! The connections to a server: what the SDK's own transports lose of an answer, these keep.

mod answer;
mod aside;
mod asked;
mod child;
mod glance;
mod http;
mod lines;
mod observed;
mod sse;
#[cfg(test)]
mod tests;
mod unanswered;

use std::{io, sync::Arc};

use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        DynamicTransportError, StreamableHttpClientTransport, Transport,
        streamable_http_client::StreamableHttpError,
    },
};

pub(crate) use self::{
    aside::{RawNotification, raw_notification, raw_result},
    child::{Process, Program},
    http::{Address, Bound, HttpClient},
    lines::{Lines, Reader, Writer},
    observed::Observed,
};

/// A connection of any kind, for `rmcp::service::serve_client_with_lifecycle`.
pub(crate) enum Wire {
    /// Streamable HTTP.
    Http(StreamableHttpClientTransport<HttpClient>),
    /// A child process.
    Process(Box<Process>),
    /// Two byte streams.
    Lines(Lines),
}

/// Why a message was not sent, or not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// Over HTTP.
    #[error("{}", in_full(.0))]
    Http(#[from] StreamableHttpError<reqwest::Error>),
    /// Over byte streams, or when the connection was made.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What the error of a request means for its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The request never left: the server did not accept a connection, or the connection had ended before.
    NotSent,
    /// The server has forgotten the session of the connection. It did not look at the request.
    SessionExpired,
    /// The server wants authorization, or more of it. Its `WWW-Authenticate` challenge, if it sent one.
    Unauthorized(Option<String>),
    /// The server answered with this HTTP status and no JSON-RPC error, and this `Retry-After`.
    Status(u16, Option<String>),
    /// Anything else. Whether the server got the request, and what it made of it, is not known.
    Unknown,
}

impl WireError {
    /// The error that a transport of this crate gave the SDK.
    pub(crate) fn of(error: &DynamicTransportError) -> Option<&WireError> {
        error.error.downcast_ref()
    }

    /// Whether it says that the connection has gone, and not that a request failed on it.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, WireError::Http(StreamableHttpError::TransportChannelClosed))
    }

    /// What it means.
    pub(crate) fn refused(&self) -> Refused {
        match self {
            WireError::Http(StreamableHttpError::SessionExpired) => Refused::SessionExpired,
            WireError::Http(StreamableHttpError::AuthRequired(error)) => {
                Refused::Unauthorized(Some(error.www_authenticate_header.clone()))
            }
            WireError::Http(StreamableHttpError::InsufficientScope(error)) => {
                Refused::Unauthorized(Some(error.www_authenticate_header.clone()))
            }
            WireError::Http(StreamableHttpError::HttpStatus(error)) if matches!(error.status, 401 | 403) => {
                Refused::Unauthorized(None)
            }
            WireError::Http(StreamableHttpError::HttpStatus(error)) => {
                Refused::Status(error.status, error.retry_after.clone())
            }
            WireError::Http(StreamableHttpError::ReservedHeaderConflict(_)) => Refused::NotSent,
            WireError::Http(StreamableHttpError::Client(error))
                if error.is_connect() || error.is_builder() =>
            {
                Refused::NotSent
            }
            WireError::Io(error) if error.kind() == io::ErrorKind::NotConnected => Refused::NotSent,
            _ => Refused::Unknown,
        }
    }
}

/// An error with its causes: that of HTTP says only that a request could not be sent, its last cause says why.
fn in_full(error: &StreamableHttpError<reqwest::Error>) -> String {
    let StreamableHttpError::Client(error) = error else { return error.to_string() };
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

impl Transport<RoleClient> for Wire {
    type Error = WireError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), WireError>> + Send + 'static {
        let sent: BoxFuture<'static, _> = match self {
            Wire::Http(wire) => wire.send(message).err_into().boxed(),
            Wire::Process(wire) => wire.send(message).err_into().boxed(),
            Wire::Lines(wire) => wire.send(message).err_into().boxed(),
        };
        sent
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        match self {
            Wire::Http(wire) => wire.receive().await,
            Wire::Process(wire) => wire.receive().await,
            Wire::Lines(wire) => wire.receive().await,
        }
    }

    async fn close(&mut self) -> Result<(), WireError> {
        match self {
            Wire::Http(wire) => wire.close().await?,
            Wire::Process(wire) => wire.close().await?,
            Wire::Lines(wire) => wire.close().await?,
        }
        Ok(())
    }
}

impl Wire {
    /// The transport over HTTP.
    pub(crate) fn http(address: &Address, observed: &Arc<Observed>) -> io::Result<Wire> {
        http::transport(address, observed).map(Wire::Http)
    }
}
