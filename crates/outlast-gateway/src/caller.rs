//! Who makes a request at the gateway, and with which `Authorization` header.

use outlast::{Owner, default_owner};
use outlast_client::Authorization;
use rmcp::model::Extensions;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) owner: Owner,
    /// None where the request has no such header, or several.
    pub(crate) authorization: Option<Authorization>,
    /// Whether the request came over HTTP. The gateway's own have come in no way at all.
    pub(crate) is_remote: bool,
}

impl Caller {
    pub(crate) fn of(extensions: &Extensions) -> Self {
        let parts = extensions.get::<http::request::Parts>();
        let authorization = parts.and_then(|parts| {
            let mut values = parts.headers.get_all(http::header::AUTHORIZATION).iter();
            let (Some(value), None) = (values.next(), values.next()) else { return None };
            Some(Authorization::new(value.clone()))
        });
        Self { owner: default_owner(extensions), authorization, is_remote: parts.is_some() }
    }
}
