//! Meets the challenges of a server by the SDK's OAuth, with a person who agrees to everything at once.

use std::sync::{Arc, Once};

use anyhow::Context;
use futures::{FutureExt, future::BoxFuture};
use outlast_client::Authorize;
use rmcp::transport::auth::{AuthorizationManager, AuthorizationRequest, OAuthState};
use serde_json::Value;
use tokio::sync::Mutex;

/// Where the authorization server sends the person back to. Nobody listens there: the address is read from the redirect.
const CALLBACK: &str = "http://localhost:3000/callback";
/// The document that describes this client to servers that take one (SEP-991).
const METADATA: &str = "https://conformance-test.local/client-metadata.json";

/// What is agreed so far.
pub(crate) struct OAuth {
    server: String,
    /// What a scenario gives of a client that is registered already.
    context: Value,
    token: Arc<Mutex<Option<String>>>,
}

impl OAuth {
    pub(crate) fn new(server: String, context: Value) -> Self {
        static PROVIDER: Once = Once::new();
        // The SDK makes its own HTTP clients, which take what the process has.
        PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        Self { server, context, token: Arc::default() }
    }

    async fn authorize(&self, challenge: &str) -> anyhow::Result<String> {
        let mut state = OAuthState::Unauthorized(
            AuthorizationManager::new_allowing_private_addresses(&self.server).await?,
        );
        let mut request = AuthorizationRequest::new(CALLBACK)
            .with_client_name("outlast conformance client")
            .with_client_metadata_url(METADATA)
            .with_challenge(challenge);
        let given = |name: &str| self.context.get(name).and_then(Value::as_str);
        if let Some(id) = given("client_id") {
            request = request.with_preregistered_client(id);
            if let Some(secret) = given("client_secret") {
                request = request.with_client_secret(secret);
            }
        }
        state.start_authorization(request).await?;
        let page = state.get_authorization_url().await?;
        // The person agrees: the page answers with the way back.
        let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        let answer = browser.get(page).send().await?;
        let back = answer.headers().get("location").context("the authorization page does not lead back")?;
        state.handle_callback_url(back.to_str()?).await?;
        let (_, credentials) = state.get_credentials().await?;
        let credentials = serde_json::to_value(credentials.context("no token was given")?)?;
        Ok(credentials["access_token"].as_str().context("no token was given")?.to_owned())
    }
}

impl Authorize for OAuth {
    fn token(&self) -> BoxFuture<'_, Option<String>> {
        async { self.token.lock().await.clone() }.boxed()
    }

    fn challenged<'a>(&'a self, challenge: &'a str, _refused: Option<&'a str>) -> BoxFuture<'a, bool> {
        async move {
            let mut token = self.token.lock().await;
            match self.authorize(challenge).await {
                Ok(fresh) => {
                    *token = Some(fresh);
                    true
                }
                Err(error) => {
                    eprintln!("not authorized: {error:#}");
                    false
                }
            }
        }
        .boxed()
    }
}
