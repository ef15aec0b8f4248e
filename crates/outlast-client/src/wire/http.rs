//! A connection over Streamable HTTP.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};

use futures::stream::BoxStream;
use http::{
    HeaderName, HeaderValue, Method, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER},
};
use reqwest::{Response, redirect::Policy};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, GetExtensions, RequestId, ServerJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport,
        common::client_side_sse::ExponentialBackoff,
        streamable_http_client::{
            HttpStatusError, SseError, StreamableHttpClient, StreamableHttpClientTransportConfig,
            StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
        },
    },
};
use rustls_platform_verifier::BuilderVerifierExt;
use serde_json::{Value, json};
use sse_stream::Sse;

use crate::{
    authorization::{Authorization, AuthorizationSource},
    server::Authorize,
};

use super::{
    answer::{beginning, challenged, failed, first_bytes, is_type, say_when, text, whole_body},
    asked::{Asked, UnderWay, is_answer_to},
    observed::Observed,
    sse::events,
};

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
const SESSION_ID: &str = "mcp-session-id";
const LAST_EVENT_ID: &str = "last-event-id";

/// Headers that are the transport's own.
const RESERVED: [&str; 4] = ["accept", "content-type", SESSION_ID, LAST_EVENT_ID];

/// Requests under way at one time: a slow one must not hold up the polls.
const CONCURRENT: usize = 1024;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long an unused connection is kept: less than the five seconds after which common servers close theirs, so that no
/// call is sent into a connection which is being closed.
const IDLE: Duration = Duration::from_secs(4);

/// After how long without a byte the other end is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The longest pause before an event stream is asked for again.
const MAX_PAUSE: Duration = Duration::from_secs(30);

const MAX_REDIRECTS: usize = 10;

/// How many challenges of a server are met for one request.
const CHALLENGES: usize = 3;

pub(super) type Error = StreamableHttpError<reqwest::Error>;

/// How long a request may take, its answer included: an extension of the request. The connection of one that takes longer is
/// closed; nothing else would close it, since nothing tells a server that nobody waits for an answer about a task any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound(pub(crate) Duration);

fn bound(message: &ClientJsonRpcMessage) -> Option<Bound> {
    match message {
        ClientJsonRpcMessage::Request(request) => match &request.request {
            ClientRequest::CustomRequest(request) => request.extensions.get().copied(),
            _ => None,
        },
        _ => None,
    }
}

/// Where a server is and what is sent along with each request.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) bearer: Option<String>,
    pub(crate) authority: Option<Arc<dyn Authorize>>,
    pub(crate) authorization: Option<AuthorizationSource>,
}

/// The transport to `address`. Nothing is sent yet.
///
/// # Errors
/// `InvalidInput` when the address or a header cannot be one.
pub(crate) fn transport(
    address: &Address,
    observed: &Arc<Observed>,
) -> io::Result<StreamableHttpClientTransport<HttpClient>> {
    let mut pauses = ExponentialBackoff::default();
    pauses.max_delay = Some(MAX_PAUSE);
    let mut config = StreamableHttpClientTransportConfig::with_uri(address.url.as_str())
        .max_concurrent_requests(CONCURRENT)
        // A call is made at most once, and a task belongs to the session of its call: the client decides what to do.
        .reinit_on_expired_session(false)
        .custom_headers(headers(&address.headers)?);
    config.retry_config = Arc::new(pauses);
    config.channel_buffer_capacity = CONCURRENT;
    config.auth_header = address.bearer.clone();
    Ok(StreamableHttpClientTransport::with_client(HttpClient::new(address, observed)?, config))
}

/// The requests of one connection, and what becomes of their answers.
#[derive(Clone)]
pub(crate) struct HttpClient {
    client: reqwest::Client,
    asked: Arc<Asked>,
    observed: Arc<Observed>,
    authority: Option<Arc<dyn Authorize>>,
    authorization: Option<AuthorizationSource>,
}

/// The `Authorization` that a message brings itself.
fn brought(message: &ClientJsonRpcMessage) -> Option<Authorization> {
    match message {
        ClientJsonRpcMessage::Request(request) => request.request.extensions().get().cloned(),
        _ => None,
    }
}

/// What goes along with a request to be let in.
enum Pass {
    Token(Option<String>),
    Header(Option<HeaderValue>),
}

impl HttpClient {
    fn new(address: &Address, observed: &Arc<Observed>) -> io::Result<HttpClient> {
        let url = reqwest::Url::parse(&address.url)
            .map_err(|error| invalid(format!("the URL of the server: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(invalid("the URL of the server is neither http:// nor https://".to_owned()));
        }
        let mut client = reqwest::Client::builder();
        if is_here(&url) {
            // A proxy has another notion of where that is.
            client = client.no_proxy();
        }
        let client = client
            .tls_backend_preconfigured(tls(url.scheme() == "https")?)
            .redirect(same_origin())
            .tcp_nodelay(true)
            .tcp_keepalive(KEEPALIVE)
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .build()
            .map_err(io::Error::other)?;
        Ok(HttpClient {
            client,
            asked: Asked::new(observed.clone()),
            observed: observed.clone(),
            authority: address.authority.clone(),
            authorization: address.authorization.clone(),
        })
    }

    fn request(
        &self,
        method: Method,
        uri: &str,
        session: Option<&str>,
        pass: Pass,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<reqwest::RequestBuilder, Error> {
        let mut request = self.client.request(method, uri);
        for (name, value) in headers {
            if RESERVED.contains(&name.as_str()) {
                return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
            }
            request = request.header(name, value);
        }
        if let Some(session) = session {
            request = request.header(SESSION_ID, session);
        }
        Ok(match pass {
            Pass::Token(Some(token)) => request.bearer_auth(token),
            Pass::Header(Some(header)) => request.header(AUTHORIZATION, header),
            Pass::Token(None) | Pass::Header(None) => request,
        })
    }

    /// What a request is let in by: what it brings itself, else what is set for the server.
    async fn pass(&self, brought: Option<Authorization>, fixed: Option<String>) -> Pass {
        let given = || self.authorization.as_ref().map(|source| source().unwrap_or_else(Authorization::none));
        if let Some(authorization) = brought.or_else(given) {
            return Pass::Header(authorization.value().cloned());
        }
        Pass::Token(match &self.authority {
            Some(authority) => authority.token().await,
            None => fixed,
        })
    }

    /// Whether the authority has met the challenge that an error brings.
    async fn met(&self, error: &Error, refused: Option<&str>) -> bool {
        // The SDK's `auth_challenge` of this error is there with all of its OAuth alone.
        let challenge = match error {
            StreamableHttpError::AuthRequired(error) => &error.www_authenticate_header,
            StreamableHttpError::InsufficientScope(error) => &error.www_authenticate_header,
            _ => return false,
        };
        match &self.authority {
            Some(authority) => authority.challenged(challenge, refused).await,
            None => false,
        }
    }

    /// The answer to a message that has reached the server.
    async fn answer(
        &self,
        message: &ClientJsonRpcMessage,
        under_way: UnderWay,
        in_session: bool,
        response: Response,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let status = response.status();
        challenged(&response)?;
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            // The answer of a request comes on the stream of its session.
            under_way.keep();
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && in_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let session = text(response.headers(), SESSION_ID);
        let request = match message {
            ClientJsonRpcMessage::Request(request) => Some(request),
            _ => None,
        };
        if let Some(session) = &session
            && status.is_success()
            && request.is_some_and(|request| matches!(request.request, ClientRequest::InitializeRequest(_)))
        {
            self.observed.joined(session);
        }
        let id = request.map(|request| &request.id);
        if !status.is_success() {
            let discovers =
                request.is_some_and(|request| matches!(request.request, ClientRequest::DiscoverRequest(_)));
            let error = self.refusal(id, discovers && !in_session, response, limits).await?;
            return Ok(StreamableHttpPostResponse::Json(error, session));
        }
        let content_type = text(response.headers(), CONTENT_TYPE);
        if is_type(content_type.as_deref(), EVENT_STREAM) {
            let body = response.bytes_stream();
            let events = events(body, limits.max_sse_event_size, self.asked.clone(), Some(under_way));
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        let Some(id) = id else {
            // Nobody waits for an answer. Some servers send one, or nothing with the wrong status.
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        if !is_type(content_type.as_deref(), JSON) {
            return Err(StreamableHttpError::UnexpectedContentType(content_type));
        }
        let body = whole_body(response, limits.max_json_response_size).await?;
        Ok(StreamableHttpPostResponse::Json(self.decode(id, &body)?, session))
    }

    /// The one message that answers the request `id`.
    fn decode(&self, id: &RequestId, body: &[u8]) -> Result<ServerJsonRpcMessage, Error> {
        let unexpected = |why: String| {
            // The error is shown and logged; what came may be a result, or what the server was sent.
            tracing::debug!(body = %beginning(body, 256), "what the server answered begins so");
            Err(StreamableHttpError::UnexpectedServerResponse(why.into()))
        };
        let mut answer: Value = match serde_json::from_slice(body) {
            Ok(answer) => answer,
            Err(error) => return unexpected(format!("it is not JSON ({error})")),
        };
        if answer.get("error").is_some_and(|error| !error.is_null()) {
            // It answers this request, whatever its id is: who cannot read a request cannot read its id.
            answer["id"] = id.clone().into_json_value();
        } else if answer.get("result").is_none() {
            return unexpected("it has neither a result nor an error".to_owned());
        } else if !answer.get("id").is_some_and(|answered| is_answer_to(id, answered)) {
            return unexpected("it answers another request".to_owned());
        }
        self.asked.received(&mut answer);
        serde_json::from_value(answer).or_else(|error| unexpected(format!("it is no message ({error})")))
    }

    /// The JSON-RPC error with which a request was refused.
    ///
    /// # Errors
    /// When it was refused without one.
    async fn refusal(
        &self,
        id: Option<&RequestId>,
        discovers: bool,
        response: Response,
        limits: StreamableHttpResponseLimits,
    ) -> Result<ServerJsonRpcMessage, Error> {
        let status = response.status();
        let retry_after = text(response.headers(), RETRY_AFTER);
        let by_status = HttpStatusError::new(status.as_u16(), retry_after.clone());
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(by_status.into());
        }
        let is_busy = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        let is_json = is_type(text(response.headers(), CONTENT_TYPE).as_deref(), JSON);
        if is_busy && !is_json {
            return Err(by_status.into());
        }
        let body = if is_json {
            match whole_body(response, limits.max_json_response_size).await {
                Err(StreamableHttpError::ResponseBodyTooLarge { .. }) if is_busy => {
                    return Err(by_status.into());
                }
                body => body?,
            }
        } else {
            first_bytes(response, limits.max_error_response_size).await
        };
        let mut error = match serde_json::from_slice::<Value>(&body) {
            Ok(answer) if is_json && answer.get("error").is_some_and(Value::is_object) => answer,
            _ if is_busy => return Err(by_status.into()),
            _ => {
                let said = beginning(&body, limits.max_error_response_size);
                if discovers && status.is_client_error() {
                    // What a server of an earlier generation says to a method, or to headers, that it does not know.
                    let message = format!("server/discover was refused with HTTP {status}: {said}");
                    json!({"jsonrpc": "2.0", "error": {"code": -32600, "message": message}})
                } else {
                    tracing::debug!(body = %said, "what the server answered begins so");
                    return Err(StreamableHttpError::UnexpectedServerResponse(
                        format!("HTTP {status}").into(),
                    ));
                }
            }
        };
        if let Some(id) = id {
            error["id"] = id.clone().into_json_value();
        }
        if is_busy {
            say_when(&mut error, retry_after.as_deref());
        }
        self.asked.received(&mut error);
        Ok(serde_json::from_value(error)?)
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, token, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let mut challenges = 0;
        loop {
            let pass = self.pass(brought(&message), token.clone()).await;
            let shown = match &pass {
                Pass::Token(token) => token.clone(),
                Pass::Header(_) => None,
            };
            let under_way = self.asked.sent(&message);
            let mut request = self.request(Method::POST, &uri, session.as_deref(), pass, headers.clone())?;
            if let Some(Bound(bound)) = bound(&message) {
                request = request.timeout(bound);
            }
            let response = request
                .header(ACCEPT, format!("{JSON}, {EVENT_STREAM}"))
                .header(CONTENT_TYPE, JSON)
                .body(serde_json::to_vec(&message)?)
                .send()
                .await
                .map_err(failed)?;
            match self.answer(&message, under_way, session.is_some(), response, limits).await {
                // The server has not looked at the request, so it may be sent again.
                Err(error) if challenges < CHALLENGES && self.met(&error, shown.as_deref()).await => {
                    challenges += 1;
                }
                answered => return answered,
            }
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        let response = self
            .request(Method::DELETE, &uri, Some(&session), self.pass(None, token).await, headers)?
            .send()
            .await;
        let response = response.map_err(failed)?;
        match response.status() {
            // It is gone already.
            StatusCode::NOT_FOUND => Ok(()),
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportDeleteSession),
            _ => response.error_for_status().map(drop).map_err(failed),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        let max = StreamableHttpResponseLimits::default().max_sse_event_size;
        self.get_stream_with_max_sse_event_size(uri, session, last_event, token, headers, max).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        max_event: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        let mut request = self
            .request(Method::GET, &uri, session.as_deref(), self.pass(None, token).await, headers)?
            .header(ACCEPT, format!("{EVENT_STREAM}, {JSON}"));
        if let Some(last_event) = last_event {
            request = request.header(LAST_EVENT_ID, last_event);
        }
        let response = request.send().await.map_err(failed)?;
        challenged(&response)?;
        let status = response.status();
        match status {
            // The session is gone, or there are no such streams: asking again changes nothing.
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => {
                return Err(StreamableHttpError::ServerDoesNotSupportSse);
            }
            _ if !status.is_success() => {
                let retry_after = text(response.headers(), RETRY_AFTER);
                return Err(HttpStatusError::new(status.as_u16(), retry_after).into());
            }
            _ => {}
        }
        let content_type = text(response.headers(), CONTENT_TYPE);
        if !is_type(content_type.as_deref(), EVENT_STREAM) {
            return Err(StreamableHttpError::UnexpectedContentType(content_type));
        }
        Ok(events(response.bytes_stream(), max_event, self.asked.clone(), None))
    }
}

/// Whether a URL leads to this very machine.
fn is_here(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// What goes along with each request.
fn headers(given: &[(String, String)]) -> io::Result<HashMap<HeaderName, HeaderValue>> {
    let mut headers = HashMap::new();
    for (name, value) in given {
        // The value may be a secret, and stays out of the error.
        let header =
            name.parse::<HeaderName>().map_err(|_| invalid(format!("{name:?} is no name of a header")))?;
        if RESERVED.contains(&header.as_str()) {
            return Err(invalid(format!("the header {name:?} is set by the transport")));
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| {
            invalid(format!("the value of the header {name:?} has characters that are not allowed"))
        })?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// TLS with ring, whatever provider the process has installed or not.
fn tls(wanted: bool) -> io::Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = if wanted {
        builder.with_platform_verifier().map_err(io::Error::other)?
    } else {
        // Never used: a redirect does not lead from http to https. Reading the certificates of the system takes time.
        builder.with_root_certificates(rustls::RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

/// Follows a redirect that keeps the method and the body, and never to where the credentials are not meant for.
fn same_origin() -> Policy {
    Policy::custom(|attempt| {
        let keeps =
            matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let first = attempt.previous().first();
        if !keeps || first.is_none_or(|first| first.origin() != attempt.url().origin()) {
            attempt.stop()
        } else if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("the server redirects without end")
        } else {
            attempt.follow()
        }
    })
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_told_from_others() {
        let is_here = |url| is_here(&reqwest::Url::parse(url).unwrap());
        assert!(is_here("http://localhost:1/") && is_here("http://127.0.0.2/") && is_here("http://[::1]:1/"));
        assert!(!is_here("http://localhost.example.com/") && !is_here("http://10.0.0.1/"));
    }
}
