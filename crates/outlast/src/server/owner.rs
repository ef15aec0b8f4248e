//! Whose request it is (S30).

use std::sync::Arc;

use outlast_core::Owner;
use rmcp::model::Extensions;
use sha2::{Digest, Sha256};

/// A verified caller, put into the HTTP request's extensions by an authentication layer in front of the server.
///
/// ```
/// # use outlast::Principal;
/// # fn authenticated<B>(mut request: http::Request<B>) -> http::Request<B> {
/// request.extensions_mut().insert(Principal::new("https://issuer.example|user-7"));
/// # request }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// A caller of this name, which must be unique among all callers: an issuer and a subject, say.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Principal(..)")
    }
}

/// Derives the owner from a request's extensions.
pub type OwnerFn = dyn Fn(&Extensions) -> Owner + Send + Sync;

/// The owner where the author names no rule: the verified [`Principal`], else a digest of the `Authorization` header,
/// else the anonymous owner; everyone on standard input and output is one owner.
///
/// A digest follows the token: when a client refreshes its token, its earlier tasks are no longer its own. Servers whose
/// tokens are refreshed should verify them in a layer that inserts a [`Principal`].
#[must_use]
pub fn default_owner(extensions: &Extensions) -> Owner {
    let Some(parts) = extensions.get::<http::request::Parts>() else { return Owner::new("stdio") };
    if let Some(principal) = parts.extensions.get::<Principal>() {
        return Owner::new(format!("principal:{}", principal.name()));
    }
    header_owner(&parts.headers)
}

/// The owner where nothing is known of the caller but what the request says.
pub(super) fn header_owner(headers: &http::HeaderMap) -> Owner {
    match headers.get(http::header::AUTHORIZATION) {
        Some(token) => {
            let digest = Sha256::digest(token.as_bytes());
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            Owner::new(format!("token:{hex}"))
        }
        None => Owner::anonymous(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(
        change: impl FnOnce(http::request::Builder) -> http::request::Builder,
        principal: Option<&str>,
    ) -> Owner {
        let mut request = change(http::Request::builder()).body(()).unwrap();
        if let Some(name) = principal {
            request.extensions_mut().insert(Principal::new(name));
        }
        let mut extensions = Extensions::new();
        extensions.insert(request.into_parts().0);
        default_owner(&extensions)
    }

    #[test]
    fn a_principal_goes_before_a_token_and_a_token_before_nothing() {
        let token = |builder: http::request::Builder| builder.header("authorization", "Bearer s3cret");
        assert_eq!(owner(token, Some("alice")), Owner::new("principal:alice"));
        assert!(owner(token, None).as_str().starts_with("token:"));
        assert!(!owner(token, None).as_str().contains("s3cret"));
        assert_eq!(owner(|builder| builder, None), Owner::anonymous());
        assert_eq!(default_owner(&Extensions::new()), Owner::new("stdio"));
    }

    #[test]
    fn a_principal_cannot_pass_for_another_kind_of_owner() {
        assert_ne!(owner(|builder| builder, Some("anonymous")), Owner::anonymous());
    }
}
