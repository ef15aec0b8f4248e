//! What of a request's context goes along with its task, to be there on every attempt.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use outlast_core::Payload;
use rmcp::model::Extensions;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Headers that a run may still see. Everything else, credentials above all, stays with the request.
const SAFE_HEADERS: [&str; 7] = [
    "accept-language",
    "user-agent",
    "traceparent",
    "tracestate",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
];

type Capture = dyn Fn(&Extensions) -> Option<Value> + Send + Sync;
type Restore = dyn Fn(Value, &mut Extensions) + Send + Sync;

/// The author's own part of what is carried.
#[derive(Clone)]
pub(crate) struct Carry {
    capture: Arc<Capture>,
    restore: Arc<Restore>,
}

impl Carry {
    pub(crate) fn new<T, C, R>(capture: C, restore: R) -> Self
    where
        T: Serialize + DeserializeOwned,
        C: Fn(&Extensions) -> Option<T> + Send + Sync + 'static,
        R: Fn(T, &mut Extensions) + Send + Sync + 'static,
    {
        Self {
            capture: Arc::new(move |extensions| serde_json::to_value(capture(extensions)?).ok()),
            restore: Arc::new(move |value, extensions| match serde_json::from_value(value) {
                Ok(value) => restore(value, extensions),
                // An older version of the server stored it; the tool then finds nothing, as it must be ready to.
                Err(error) => tracing::warn!(%error, "a carried context no longer has its type"),
            }),
        }
    }
}

/// What is stored with a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http: Option<SafeParts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    carried: Vec<Option<Value>>,
}

/// The parts of an HTTP request that may be kept: no query, no credentials.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SafeParts {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
}

/// Captures the context of a request; `None` when there is nothing to keep.
pub(crate) fn capture(carries: &[Carry], extensions: &Extensions) -> Option<Payload> {
    let http = extensions.get::<http::request::Parts>().map(|parts| SafeParts {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        headers: SAFE_HEADERS
            .iter()
            .filter_map(|name| {
                Some(((*name).to_owned(), parts.headers.get(*name)?.to_str().ok()?.to_owned()))
            })
            .collect(),
    });
    let carried: Vec<_> = carries.iter().map(|carry| (carry.capture)(extensions)).collect();
    if http.is_none() && carried.iter().all(Option::is_none) {
        return None;
    }
    Payload::encode(&Stored { http, carried }).ok()
}

/// Puts a captured context into the extensions of a run.
pub(crate) fn restore(carries: &[Carry], context: Option<&Payload>, extensions: &mut Extensions) {
    let Some(stored) = context.and_then(|context| context.decode::<Stored>().ok()) else { return };
    if let Some(parts) = stored.http.and_then(SafeParts::rebuild) {
        extensions.insert(parts);
    }
    for (carry, value) in carries.iter().zip(stored.carried) {
        if let Some(value) = value {
            (carry.restore)(value, extensions);
        }
    }
}

/// Does for a synchronous call what [`restore`] does for a run, so that a tool finds the same in both.
pub(crate) fn pass_on(carries: &[Carry], extensions: &mut Extensions) {
    for carry in carries {
        if let Some(value) = (carry.capture)(extensions) {
            (carry.restore)(value, extensions);
        }
    }
}

impl SafeParts {
    fn rebuild(self) -> Option<http::request::Parts> {
        let mut request = http::Request::new(());
        *request.method_mut() = Method::from_bytes(self.method.as_bytes()).ok()?;
        *request.uri_mut() = self.path.parse::<Uri>().ok()?;
        let headers: HeaderMap = self
            .headers
            .into_iter()
            .filter_map(|(name, value)| {
                Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(&value).ok()?))
            })
            .collect();
        *request.headers_mut() = headers;
        Some(request.into_parts().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Claims {
        tenant: String,
    }

    #[test]
    fn a_run_sees_the_safe_parts_and_the_carried_claims_and_no_credential() {
        let mut request = http::Request::post("https://host/mcp?secret=1").body(()).unwrap();
        request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer s3cret"));
        request.headers_mut().insert("user-agent", HeaderValue::from_static("agent"));
        request.extensions_mut().insert(Claims { tenant: "acme".to_owned() });
        let mut before = Extensions::new();
        before.insert(request.into_parts().0);
        let claims = |extensions: &Extensions| {
            extensions.get::<http::request::Parts>()?.extensions.get::<Claims>().cloned()
        };
        let carries = [Carry::new(claims, |claims: Claims, extensions: &mut Extensions| {
            extensions.insert(claims);
        })];

        let stored = capture(&carries, &before).unwrap();
        assert!(!stored.as_str().contains("s3cret") && !stored.as_str().contains("secret=1"));

        let mut after = Extensions::new();
        restore(&carries, Some(&stored), &mut after);
        assert_eq!(after.get::<Claims>(), Some(&Claims { tenant: "acme".to_owned() }));
        let parts = after.get::<http::request::Parts>().unwrap();
        assert_eq!((parts.method.as_str(), parts.uri.path()), ("POST", "/mcp"));
        assert_eq!(parts.headers["user-agent"], "agent");
        assert!(!parts.headers.contains_key("authorization"));
    }
}
