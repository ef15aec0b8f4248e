//! What every request passes: the hosts that are served, the token, and the headers that keep a browser strict.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode, Uri,
    header::{self, Entry},
    uri::Authority,
};

use crate::{admin::Inner, api::Refused};

/// What an answer that is no page may do in a browser: nothing.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

const STRICT: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, NOTHING),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Serves the hosts that are allowed, and makes answers strict.
pub(crate) async fn host(State(inner): State<Arc<Inner>>, request: Request, next: Next) -> Response {
    let mut response = match admits(&inner.options.allowed_hosts, request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    for (name, value) in STRICT {
        if let Entry::Vacant(entry) = response.headers_mut().entry(name) {
            entry.insert(HeaderValue::from_static(value));
        }
    }
    response
}

/// Lets in who shows the token.
pub(crate) async fn token(State(inner): State<Arc<Inner>>, request: Request, next: Next) -> Response {
    if bearer(request.headers()).is_some_and(|given| inner.token.is(given)) {
        return next.run(request).await;
    }
    let refused =
        Refused(StatusCode::UNAUTHORIZED, "the admin token is needed, and this is not it".to_owned());
    ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
}

/// The bearer token of a request that has one, and has it once.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?.as_bytes(), values.next()) else { return None };
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A page of somebody else's must not get here under a name that it chose (DNS rebinding).
fn admits(allowed: &[String], uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    let bad = |what: &str| Refused(StatusCode::BAD_REQUEST, what.to_owned());
    let forbidden = |what: &str| Refused(StatusCode::FORBIDDEN, what.to_owned());
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => authority(host.as_bytes()),
        (None, _) => uri.authority().cloned(),
        (Some(_), Some(_)) => None,
    };
    let host = host.ok_or_else(|| bad("a request needs one Host header that names a host"))?;
    if !is_allowed(allowed, &host) {
        return Err(forbidden("the Host header is not one that is served here"));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.as_bytes();
    let place = origin.strip_prefix(b"http://").or(origin.strip_prefix(b"https://"));
    match place.and_then(authority) {
        Some(origin) if is_allowed(allowed, &origin) => Ok(()),
        _ => Err(forbidden("the Origin header is not one that is served here")),
    }
}

fn authority(text: &[u8]) -> Option<Authority> {
    // One with a user's name in front is no host.
    Authority::try_from(text).ok().filter(|host| !host.as_str().contains('@'))
}

/// Whether one of `allowed` is this host, on any port where it names none.
fn is_allowed(allowed: &[String], host: &Authority) -> bool {
    let plain = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    allowed.iter().any(|allowed| {
        // An address of version 6 may stand without its brackets.
        plain(allowed) == plain(host.host())
            || allowed.parse::<Authority>().is_ok_and(|allowed| {
                plain(allowed.host()) == plain(host.host())
                    && allowed.port_u16().is_none_or(|port| host.port_u16() == Some(port))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(headers: &[(&'static str, &str)]) -> u16 {
        let allowed = ["localhost", "127.0.0.1", "::1", "ops.example.com:8443"].map(str::to_owned);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        admits(&allowed, &Uri::from_static("/ui"), &map).map_or_else(|refused| refused.0.as_u16(), |()| 200)
    }

    #[test]
    fn hosts_are_served_by_name_with_any_port_or_the_one_that_is_named() {
        for host in
            ["localhost", "LOCALHOST:1", "127.0.0.1:8809", "[::1]:8809", "[::1]", "ops.example.com:8443"]
        {
            assert_eq!(status(&[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:8809",
            "ops.example.com",
            "ops.example.com:80",
            "127.0.0.2",
        ] {
            assert_eq!(status(&[("host", host)]), 403, "{host}");
        }
        for host in ["", "a b", "localhost@evil.example", "evil.example@localhost"] {
            assert_eq!(status(&[("host", host)]), 400, "{host}");
        }
        assert_eq!(status(&[]), 400);
        assert_eq!(status(&[("host", "localhost"), ("host", "evil.example")]), 400);
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let origin = |origin: &str| status(&[("host", "localhost:8809"), ("origin", origin)]);
        assert_eq!(origin("http://localhost:8809"), 200);
        assert_eq!(origin("https://ops.example.com:8443"), 200);
        for other in ["null", "http://evil.example", "file://localhost", "http://localhost@evil.example", ""]
        {
            assert_eq!(origin(other), 403, "{other}");
        }
    }

    #[test]
    fn a_bearer_token_is_read_where_it_stands_once() {
        let token = |values: &[&str]| {
            let mut map = HeaderMap::new();
            for value in values {
                map.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            bearer(&map).map(<[u8]>::to_vec)
        };
        assert_eq!(token(&["Bearer abc"]).as_deref(), Some(&b"abc"[..]));
        assert_eq!(token(&["bEARER  abc "]).as_deref(), Some(&b"abc"[..]));
        for none in [&[][..], &["abc"], &["Basic abc"], &["Bearer"], &["Bearer abc", "Bearer abc"]] {
            assert_eq!(token(none), None, "{none:?}");
        }
    }
}
