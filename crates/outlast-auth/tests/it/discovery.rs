//! A standard client, the SDK's own, finds its way from a refusal to a token that is good here.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header},
    middleware, routing,
};
use outlast_auth::{Auth, Jwt};
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadataSource, AuthorizationRequest, OAuthState,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use url::Url;

use crate::{
    issuer::Signer,
    support::{Answer, call, client, serve_on},
};

/// Where the issuer sends the person back to. Nobody listens there: the address is read from the redirect.
const CALLBACK: &str = "http://localhost:3000/callback";
const CODE: &str = "the-code-of-ann";

/// The requests that came, in order: the path and the query.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

#[allow(clippy::disallowed_methods)]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// An authorization server, whose person agrees to everything: tokens are for whatever resource is asked for.
struct AuthorizationServer {
    url: String,
    seen: Seen,
}

impl AuthorizationServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Seen::default();
        let (signer, issuer, notes) = (Arc::new(Signer::ed25519()), url.clone(), seen.clone());
        let keys = json!({ "keys": [signer.jwk("a")] }).to_string();
        let metadata = json!({
            "issuer": url, "jwks_uri": format!("{url}/keys"), "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"), "registration_endpoint": format!("{url}/register"),
            "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
        })
        .to_string();
        let json = |text: String| ([(header::CONTENT_TYPE, "application/json")], text);
        let document = metadata.clone();
        let router = Router::new()
            .route("/.well-known/oauth-authorization-server", routing::get(async move || json(metadata)))
            .route("/.well-known/openid-configuration", routing::get(async move || json(document)))
            .route("/keys", routing::get(async move || json(keys)))
            .route(
                "/register",
                routing::post(async move |body: String| {
                    let mut client: Value = serde_json::from_str(&body).unwrap();
                    client["client_id"] = "the-client".into();
                    (StatusCode::CREATED, json(client.to_string()))
                }),
            )
            .route(
                "/authorize",
                routing::get(async move |request: Request| {
                    let asked = pairs(request.uri().query().unwrap_or_default());
                    let mut back = Url::parse(&asked["redirect_uri"]).unwrap();
                    back.query_pairs_mut()
                        .append_pair("code", CODE)
                        .append_pair("state", &asked["state"])
                        .append_pair("iss", &issuer);
                    (StatusCode::FOUND, [(header::LOCATION, back.to_string())])
                }),
            )
            .route(
                "/token",
                routing::post({
                    let issuer = url.clone();
                    async move |body: String| {
                        let asked = pairs(&body);
                        if asked["code"] != CODE || !asked.contains_key("code_verifier") {
                            return (StatusCode::BAD_REQUEST, json(json!({ "error": "invalid_grant" }).to_string()));
                        }
                        let claims = json!({
                            "iss": issuer, "sub": "ann", "aud": asked["resource"], "exp": now() + 300, "iat": now(),
                            "scope": "tools",
                        });
                        let token = json!({
                            "access_token": signer.token("a", &claims), "token_type": "Bearer", "expires_in": 300,
                        });
                        (StatusCode::OK, json(token.to_string()))
                    }
                }),
            )
            .layer(middleware::map_request(move |request: Request| {
                let uri = request.uri();
                let noted = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
                notes.lock().unwrap().push(noted);
                async { request }
            }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, seen }
    }

    /// The query of the request for a page.
    fn asked(&self, path: &str) -> Option<BTreeMap<String, String>> {
        let seen = self.seen.lock().unwrap();
        seen.iter().find(|(asked, _)| asked == path).map(|(_, query)| pairs(query))
    }
}

/// A query, or a form.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let mut url = Url::parse("http://localhost/").unwrap();
    url.set_query(Some(text));
    url.query_pairs().into_owned().collect()
}

/// A server that lets in whom that issuer sends, and says so to those who look.
async fn server(issuer: &AuthorizationServer) -> (SocketAddr, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let resource = format!("http://{address}/mcp");
    let jwt = Jwt::new(&issuer.url, &resource).unwrap().scope("tools");
    serve_on(listener, Auth::new(jwt).resource(&resource).unwrap()).await;
    (address, resource)
}

/// What the SDK's client does about a refusal, with a person who agrees at once. Gives the token.
async fn authorized(resource: &str, challenge: Option<&str>) -> Result<String, AuthError> {
    let mut state = OAuthState::Unauthorized(AuthorizationManager::new(resource).await?);
    let mut request = AuthorizationRequest::new(CALLBACK).with_client_name("a standard client");
    if let Some(challenge) = challenge {
        request = request.with_challenge(challenge);
    }
    state.start_authorization(request).await?;
    let page = state.get_authorization_url().await?;
    let browser = reqwest::Client::builder()
        .tls_certs_only([])
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let answer = browser.get(page).send().await.unwrap();
    let back = answer.headers()["location"].to_str().unwrap().to_owned();
    state.handle_callback_url(&back).await?;
    state.into_authorization_manager().expect("a person has agreed").get_access_token().await
}

#[tokio::test]
async fn a_standard_client_finds_the_issuer_from_the_refusal_and_its_token_is_good() {
    // The client makes its HTTP clients of what the process has.
    drop(client());
    let issuer = AuthorizationServer::start().await;
    let (address, resource) = server(&issuer).await;
    let refused = call(address, None).await;
    assert_eq!(refused.status, 401);
    let challenge = refused.challenge.expect("the refusal says where to look");

    let token = authorized(&resource, Some(&challenge)).await.unwrap();

    let called: Answer = call(address, Some(&format!("Bearer {token}"))).await;
    assert_eq!(called.json()["result"]["resultType"], "task", "{called:?}");
    // It asked for a token that is meant for this server, with the scope that this server's metadata names.
    let asked = issuer.asked("/authorize").unwrap();
    assert_eq!((asked["resource"].as_str(), asked["scope"].as_str()), (resource.as_str(), "tools"));
    assert_eq!(asked["code_challenge_method"], "S256");
}

#[tokio::test]
async fn a_standard_client_finds_the_issuer_without_a_refusal_too() {
    drop(client());
    let issuer = AuthorizationServer::start().await;
    let (address, resource) = server(&issuer).await;

    let token = authorized(&resource, None).await.unwrap();

    let called = call(address, Some(&format!("Bearer {token}"))).await;
    assert_eq!(called.json()["result"]["resultType"], "task", "{called:?}");
    // A token of the same issuer for another server is not good here.
    let (other, _) = server(&issuer).await;
    assert_eq!(call(other, Some(&format!("Bearer {token}"))).await.status, 401);
}

#[tokio::test]
async fn the_way_goes_over_the_metadata_and_not_over_a_guess() {
    drop(client());
    let issuer = AuthorizationServer::start().await;
    let (address, resource) = server(&issuer).await;
    let challenge = call(address, None).await.challenge.unwrap();
    let manager = AuthorizationManager::new(resource.as_str()).await.unwrap();

    let found = manager.resolve_metadata_from_challenge(Some(&challenge)).await.unwrap();

    assert_eq!(found.source, AuthorizationMetadataSource::ProtectedResourceMetadata);
    assert_eq!(found.metadata.issuer.as_deref(), Some(issuer.url.as_str()));
    assert_eq!(found.metadata.token_endpoint, format!("{}/token", issuer.url));
}
