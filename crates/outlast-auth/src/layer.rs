//! The layer in front of a server: no request without a principal passes it.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use tower::{Layer, Service};

use crate::{Authenticate, Denied};

/// Puts [`AuthService`] in front of a service.
#[derive(Clone)]
pub struct AuthLayer {
    authenticate: Arc<dyn Authenticate>,
    metadata: Option<Arc<str>>,
}

impl AuthLayer {
    pub(crate) fn new(authenticate: Arc<dyn Authenticate>, metadata: Option<String>) -> Self {
        Self { authenticate, metadata: metadata.map(Into::into) }
    }
}

impl<S> Layer<S> for AuthLayer {
    type Service = AuthService<S>;

    fn layer(&self, inner: S) -> AuthService<S> {
        AuthService { inner, layer: self.clone() }
    }
}

/// A service that only requests of a known principal get to.
#[derive(Clone)]
pub struct AuthService<S> {
    inner: S,
    layer: AuthLayer,
}

impl<S, B> Service<Request<B>> for AuthService<S>
where
    S: Service<Request<B>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // The service that was asked whether it is ready is the one that is called.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let AuthLayer { authenticate, metadata } = self.layer.clone();
        Box::pin(async move {
            let Some(token) = token(request.headers()) else { return Ok(refusal(None, metadata.as_deref())) };
            match authenticate.authenticate(token).await {
                Ok(principal) => {
                    request.extensions_mut().insert(principal);
                    inner.call(request).await
                }
                Err(denied) => Ok(refusal(Some(&denied), metadata.as_deref())),
            }
        })
    }
}

/// The bearer token of a request that has one, and has it once.
fn token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// RFC 6750: a request that shows no token is told where to get one, and no more.
fn refusal(denied: Option<&Denied>, metadata: Option<&str>) -> Response<Body> {
    let (status, error) = match denied {
        None => (StatusCode::UNAUTHORIZED, None),
        Some(Denied::Invalid(_)) => (StatusCode::UNAUTHORIZED, Some("invalid_token")),
        Some(Denied::Scope) => (StatusCode::FORBIDDEN, Some("insufficient_scope")),
        Some(Denied::Unavailable(_)) => (StatusCode::SERVICE_UNAVAILABLE, None),
    };
    let text = denied.map_or_else(|| "a bearer token is needed".to_owned(), ToString::to_string);
    let mut response = Response::new(Body::from(format!("{text}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(Denied::Unavailable(delay)) = denied {
        headers.insert(header::RETRY_AFTER, delay.as_secs().max(1).into());
        return response;
    }
    let mut challenge = Vec::new();
    if let Some(error) = error {
        challenge.push(format!("error=\"{error}\""));
        challenge.push(format!("error_description=\"{text}\""));
    }
    challenge.extend(metadata.map(|url| format!("resource_metadata=\"{url}\"")));
    let challenge = format!("Bearer {}", challenge.join(", "));
    if let Ok(challenge) = HeaderValue::from_str(challenge.trim_end()) {
        headers.insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}
