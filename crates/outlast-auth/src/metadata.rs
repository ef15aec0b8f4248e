//! What a server says of itself to those who look for a token (RFC 9728).

use axum::{Router, routing};
use http::header;
use serde::Serialize;
use url::{Host, Url};

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The URL is not one by which a server can be reached safely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the URL of a server is https, or http on this machine, and has no fragment")]
pub struct InvalidResource;

/// See the module.
#[derive(Debug)]
pub(crate) struct Metadata {
    url: Url,
    document: Document,
}

#[derive(Debug, Clone, Serialize)]
struct Document {
    resource: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    authorization_servers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes_supported: Vec<String>,
    bearer_methods_supported: [&'static str; 1],
}

impl Metadata {
    pub(crate) fn new(
        resource: &str,
        issuers: Vec<String>,
        scopes: Vec<String>,
    ) -> Result<Self, InvalidResource> {
        let url = Url::parse(resource).map_err(|_| InvalidResource)?;
        if !is_safe(&url) || url.fragment().is_some() {
            return Err(InvalidResource);
        }
        let document = Document {
            resource: resource.to_owned(),
            authorization_servers: issuers,
            scopes_supported: scopes,
            bearer_methods_supported: ["header"],
        };
        Ok(Self { url, document })
    }

    /// Where the document is.
    pub(crate) fn url(&self) -> String {
        let mut url = self.url.clone();
        url.set_path(&self.path());
        url.into()
    }

    /// The path of the server stands behind the well-known one.
    fn path(&self) -> String {
        format!("{WELL_KNOWN}{}", self.url.path().trim_end_matches('/'))
    }

    /// Serves the document at its place, and at the place without the server's path, where some clients look.
    pub(crate) fn router(&self) -> Router {
        let document = serde_json::to_string(&self.document).unwrap_or_default();
        // Also for pages of any origin: there is nothing in it that not everybody may know.
        let headers =
            [(header::CONTENT_TYPE, "application/json"), (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*")];
        let get = routing::get(async move || (headers, document));
        let router = Router::new().route(WELL_KNOWN, get.clone());
        match self.path() {
            path if path == WELL_KNOWN => router,
            path => router.route(&path, get),
        }
    }
}

/// Whether what is sent there stays between the two ends.
pub(crate) fn is_safe(url: &Url) -> bool {
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => return false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_has_the_path_of_the_server_behind_the_well_known_one() {
        for (resource, place) in [
            ("https://a.example/mcp", "https://a.example/.well-known/oauth-protected-resource/mcp"),
            (
                "https://a.example:8443/x/mcp/",
                "https://a.example:8443/.well-known/oauth-protected-resource/x/mcp",
            ),
            ("https://a.example", "https://a.example/.well-known/oauth-protected-resource"),
            ("http://127.0.0.1:8808/mcp", "http://127.0.0.1:8808/.well-known/oauth-protected-resource/mcp"),
        ] {
            assert_eq!(Metadata::new(resource, vec![], vec![]).unwrap().url(), place);
        }
        for bad in
            ["http://a.example/mcp", "https://a.example/mcp#x", "mcp", "file:///mcp", "ftp://localhost/"]
        {
            assert_eq!(Metadata::new(bad, vec![], vec![]).unwrap_err(), InvalidResource, "{bad}");
        }
    }
}
