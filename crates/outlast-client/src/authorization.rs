//! `Authorization` headers that differ from request to request: what a program sends that stands between its own callers and a
//! server.

use std::{fmt, sync::Arc};

use http::HeaderValue;
use rmcp::service::ServiceError;

use crate::wire::{Refused, WireError};

/// The `Authorization` header of a request, or that it has none. It is never shown.
///
/// In the extensions of a request that is made with the SDK's own [`peer`](crate::TaskClient::peer) it takes the place of
/// what the [`Server`](crate::Server) would send, for this one request.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization(Option<HeaderValue>);

/// Gives the header of the next request; none to leave it to the [`Server`](crate::Server).
pub type AuthorizationSource = Arc<dyn Fn() -> Option<Authorization> + Send + Sync>;

impl Authorization {
    /// This very value.
    #[must_use]
    pub fn new(value: HeaderValue) -> Self {
        // That of a request is a piece of all its headers, which would be kept as long as this.
        let mut own = HeaderValue::from_bytes(value.as_bytes()).unwrap_or(value);
        own.set_sensitive(true);
        Self(Some(own))
    }

    /// No header at all.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// How many bytes the header has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(0, HeaderValue::len)
    }

    pub(crate) fn value(&self) -> Option<&HeaderValue> {
        self.0.as_ref()
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(..)")
    }
}

/// Whether a request with the SDK's own [`peer`](crate::TaskClient::peer) failed because the server asks for authorization, or
/// for more of it: it answered with 401 or 403.
#[must_use]
pub fn is_unauthorized(error: &ServiceError) -> bool {
    match error {
        ServiceError::TransportSend(error) => {
            WireError::of(error).is_some_and(|known| matches!(known.refused(), Refused::Unauthorized(_)))
        }
        other => other.auth_challenge().is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_nothing_but_the_header() {
        let value = HeaderValue::from_static("Bearer s3cret");
        let authorization = Authorization::new(value.clone());
        assert_eq!((authorization.value(), authorization.size()), (Some(&value), value.len()));
        assert_ne!(authorization.value().unwrap().as_bytes().as_ptr(), value.as_bytes().as_ptr());
        assert_eq!(Authorization::none().size(), 0);
    }

    #[test]
    fn what_it_prints_is_not_the_header() {
        let authorization = Authorization::new(HeaderValue::from_static("Bearer s3cret"));
        assert!(!format!("{authorization:?} {:?}", authorization.value()).contains("s3cret"));
    }
}
