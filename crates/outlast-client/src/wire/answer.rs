//! What an answer over HTTP says, apart from the protocol: its headers, its body, and whether it asks for authorization.

use std::borrow::Cow;

use futures::StreamExt;
use http::{HeaderMap, StatusCode, header::WWW_AUTHENTICATE};
use reqwest::Response;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, InsufficientScopeError, StreamableHttpError,
};
use serde_json::{Value, json};

use super::http::Error;

/// # Errors
/// When the server asks for authorization.
pub(super) fn challenged(response: &Response) -> Result<(), Error> {
    let Some(challenge) = text(response.headers(), WWW_AUTHENTICATE) else { return Ok(()) };
    match response.status() {
        StatusCode::UNAUTHORIZED => Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge))),
        StatusCode::FORBIDDEN => {
            let scope = scope(&challenge);
            Err(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge, scope)))
        }
        _ => Ok(()),
    }
}

/// The `scope` of a challenge.
fn scope(challenge: &str) -> Option<String> {
    let at = challenge.to_ascii_lowercase().find("scope=")? + "scope=".len();
    let value = &challenge[at..];
    match value.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').map(|(scope, _)| scope.to_owned()),
        None => value.split([',', ';', ' ']).next().filter(|scope| !scope.is_empty()).map(str::to_owned),
    }
}

/// Puts the seconds of a `Retry-After` header where an error says when to try again, if it does not say so itself.
pub(super) fn say_when(answer: &mut Value, retry_after: Option<&str>) {
    let Some(millis) = retry_after
        .and_then(|text| text.trim().parse::<u64>().ok())
        .and_then(|seconds| seconds.checked_mul(1_000))
    else {
        return;
    };
    match answer["error"].get_mut("data") {
        Some(Value::Object(data)) => {
            data.entry("retryAfterMs").or_insert_with(|| millis.into());
        }
        None => answer["error"]["data"] = json!({"retryAfterMs": millis}),
        Some(_) => {}
    }
}

/// An error without the URL, whose query may hold a key.
pub(super) fn failed(error: reqwest::Error) -> Error {
    StreamableHttpError::Client(error.without_url())
}

/// # Errors
/// `ResponseBodyTooLarge` as soon as it is known to be.
pub(super) async fn whole_body(response: Response, max_size: usize) -> Result<Vec<u8>, Error> {
    let too_large = || StreamableHttpError::ResponseBodyTooLarge { max_size };
    if response.content_length().is_some_and(|length| length > max_size as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(failed)?;
        if piece.len() > max_size - body.len() {
            return Err(too_large());
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// As much of a body as there is, and as is wanted.
pub(super) async fn first_bytes(response: Response, max: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while body.len() < max
        && let Some(Ok(piece)) = pieces.next().await
    {
        body.extend_from_slice(&piece[..piece.len().min(max - body.len())]);
    }
    body
}

pub(super) fn beginning(body: &[u8], max: usize) -> Cow<'_, str> {
    if body.is_empty() { "<empty>".into() } else { String::from_utf8_lossy(&body[..body.len().min(max)]) }
}

pub(super) fn text(headers: &HeaderMap, name: impl http::header::AsHeaderName) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

pub(super) fn is_type(content_type: Option<&str>, expected: &str) -> bool {
    content_type
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_of_a_challenge_is_found_with_quotes_and_without() {
        assert_eq!(scope(r#"Bearer error="x", Scope="a b", realm="c""#).as_deref(), Some("a b"));
        assert_eq!(scope("Bearer scope=a,realm=c").as_deref(), Some("a"));
        assert_eq!([scope("Bearer"), scope("Bearer scope="), scope("Bearer scope=\"a")], [None, None, None]);
    }
}
