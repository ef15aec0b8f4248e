//! A refusal of a subscription is no stream (S28b), whatever the SDK's own settings say.

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt;
use serde::{Deserialize, de::IgnoredAny};

use crate::server::http::is_of_type;

/// The answer to a listen request: where it is a stream that begins with an error, that error as plain JSON.
pub(crate) async fn plain_refusal(response: Response<Body>) -> Response<Body> {
    if !is_of_type(response.headers(), "text/event-stream") {
        return response;
    }
    let (mut parts, mut body) = response.into_parts();
    let Some(Ok(frame)) = body.frame().await else {
        return Response::from_parts(parts, body);
    };
    let Ok(first) = frame.into_data() else {
        return Response::from_parts(parts, body);
    };
    if let Some(refusal) = refusal(&first) {
        parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Response::from_parts(parts, Body::from(refusal));
    }
    let all = stream::iter([Ok(first)]).chain(body.into_data_stream());
    Response::from_parts(parts, Body::from_stream(all))
}

/// The error that an event holds.
fn refusal(event: &Bytes) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Refusal {
        #[serde(rename = "error")]
        _error: IgnoredAny,
    }
    // The SDK writes a message as one line.
    let line = event.strip_prefix(b"data:")?.trim_ascii();
    serde_json::from_slice::<Refusal>(line).ok()?;
    Some(event.slice_ref(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answered(kind: &'static str, events: &'static [&'static str]) -> (String, String) {
        let body = Body::from_stream(stream::iter(events).map(|event| Ok::<_, axum::Error>(*event)));
        let response = Response::builder().header("content-type", kind).body(body).unwrap();
        let (parts, body) = plain_refusal(response).await.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        (parts.headers["content-type"].to_str().unwrap().to_owned(), String::from_utf8(text.into()).unwrap())
    }

    #[tokio::test]
    async fn only_an_error_that_comes_first_is_no_stream() {
        const STREAM: &str = "text/event-stream";
        const ERROR: &str = "data: {\"id\":1,\"error\":{}}\n\n";
        let told = |kind: &str, text: &str| (kind.to_owned(), text.to_owned());
        assert_eq!(answered(STREAM, &[ERROR]).await, told("application/json", "{\"id\":1,\"error\":{}}"));
        let stream = &["data: {\"method\":\"a\"}\n\n", ": ping\n\n", "data: {\"error\":1}\n\n"];
        assert_eq!(answered(STREAM, stream).await, told(STREAM, &stream.concat()));
        for odd in [const { &["data: \n\n", ERROR] }, const { &[": ping\n\n", ERROR] }] {
            assert_eq!(answered(STREAM, odd).await, told(STREAM, &odd.concat()));
        }
        assert_eq!(answered(STREAM, &[]).await, told(STREAM, ""));
        assert_eq!(answered("text/plain", &[ERROR]).await, told("text/plain", ERROR));
    }
}
