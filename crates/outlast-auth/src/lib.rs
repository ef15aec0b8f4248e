//! Who may call an MCP server: bearer tokens and JWTs become [`Principal`]s, and with that the owners of tasks.
//!
//! ```
//! use outlast::{MemoryStore, SystemClock, TaskServer, http};
//! use outlast_auth::{Auth, Jwt};
//! # #[derive(Clone)] struct MyHandler;
//! # impl rmcp::ServerHandler for MyHandler {}
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = TaskServer::builder(MyHandler).store(MemoryStore::new(SystemClock)).build().await?;
//! // Tokens of this issuer that are meant for this server; its keys are found by its metadata.
//! let jwt = Jwt::new("https://login.example.com", "https://tools.example.com/mcp")?;
//! let auth = Auth::new(jwt).resource("https://tools.example.com/mcp")?;
//! let app: axum::Router = auth.protect(http::router(&server, &http::Options::default()));
//! # let _ = app; server.shutdown().await; Ok(()) }
//! ```
//!
//! A request without a token, or with one that is not good, is refused before the server sees it: `401` with a
//! `WWW-Authenticate` header that says why and where the server's metadata is (RFC 6750, RFC 9728), so that a standard client
//! finds its way to the issuer. A task belongs to the principal that created it, and is not there for any other.
//!
//! - [`Bearer`]: tokens in a file ([`Bearer::from_file`]), each with the name of its bearer. A token can be exchanged for another without its
//!   bearer's losing their tasks.
//! - [`Jwt`]: signed tokens of an issuer. The principal is issuer and subject together.
//! - [`Authenticate`]: anything else.
#![deny(missing_docs)]

mod bearer;
mod clock;
mod fetch;
mod jwt;
mod keys;
mod layer;
mod metadata;
mod verify;

use async_trait::async_trait;
use std::{sync::Arc, time::Duration};

pub use bearer::{Bearer, BearerError};
#[doc(hidden)]
pub use fetch::https_client;
pub use jwt::{Jwt, JwtError};
pub use layer::{AuthLayer, AuthService};
pub use metadata::InvalidResource;
pub use outlast::Principal;

/// Tells whose a token is.
#[async_trait]
pub trait Authenticate: Send + Sync + 'static {
    /// Whose this token is.
    ///
    /// # Errors
    /// When it is not good, or cannot be looked at now.
    async fn authenticate(&self, token: &str) -> Result<Principal, Denied>;

    /// The issuers of its tokens, for the server's metadata; none where tokens are given out by hand.
    fn issuers(&self) -> Vec<String> {
        Vec::new()
    }

    /// The scopes that a token must have, for the server's metadata.
    fn scopes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// The token is not good; the text tells its bearer why. `401`.
    #[error("{0}")]
    Invalid(&'static str),
    /// The token is good, and does not reach far enough. `403`.
    #[error("the token does not have the scope that this server asks for")]
    Scope,
    /// Nobody can tell now; try again after this long. `503`.
    #[error("tokens cannot be checked now")]
    Unavailable(Duration),
}

/// Access to a server: its layer, and the metadata that tells clients where tokens come from.
#[derive(Clone)]
pub struct Auth {
    authenticate: Arc<dyn Authenticate>,
    metadata: Option<Arc<metadata::Metadata>>,
}

impl Auth {
    /// Lets in whom `authenticate` knows.
    #[must_use]
    pub fn new(authenticate: impl Authenticate) -> Self {
        Self { authenticate: Arc::new(authenticate), metadata: None }
    }

    /// Says by which URL clients reach the server, so that there is metadata about it.
    ///
    /// # Errors
    /// When it is no URL of a server: `https`, or `http` on this machine, without a fragment.
    pub fn resource(mut self, url: &str) -> Result<Self, InvalidResource> {
        let (issuers, scopes) = (self.authenticate.issuers(), self.authenticate.scopes());
        self.metadata = Some(Arc::new(metadata::Metadata::new(url, issuers, scopes)?));
        Ok(self)
    }

    /// The layer that refuses, for a router or a service of your own.
    #[must_use]
    pub fn layer(&self) -> AuthLayer {
        AuthLayer::new(self.authenticate.clone(), self.metadata.as_ref().map(|metadata| metadata.url()))
    }

    /// The router behind the layer, and beside it the metadata, which anybody may read.
    pub fn protect(&self, router: axum::Router) -> axum::Router {
        let protected = router.layer(self.layer());
        match &self.metadata {
            Some(metadata) => protected.merge(metadata.router()),
            None => protected,
        }
    }
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}
