//! Reads documents of an issuer.

use std::{sync::Arc, time::Duration};

use reqwest::{Client, redirect::Policy};
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde_json::Value;
use url::Url;

/// How long an issuer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// No document of an issuer is larger.
const LARGEST: usize = 1 << 20;

/// A client that waits no longer than `patience`, trusts whom this machine trusts, and follows nobody elsewhere.
///
/// # Errors
/// When the machine's certificates cannot be used.
#[doc(hidden)]
pub fn https_client(patience: Duration) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    Ok(Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none()).timeout(patience).build()?)
}

/// A client for the documents of issuers.
pub(crate) fn client() -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    https_client(PATIENCE)
}

/// Reads a JSON document.
pub(crate) async fn json(client: &Client, url: &Url) -> Result<Value, String> {
    // The error's own text has the URL, which the log has already.
    let why = |error: reqwest::Error| error.without_url().to_string();
    let mut response =
        client.get(url.clone()).header("accept", "application/json").send().await.map_err(why)?;
    if !response.status().is_success() {
        return Err(format!("it answers {}", response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(why)? {
        if body.len() + chunk.len() > LARGEST {
            return Err("its answer is larger than any such document".into());
        }
        body.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&body).map_err(|error| format!("its answer is no JSON: {error}"))
}
