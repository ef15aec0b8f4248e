//! A server over Streamable HTTP: ready-made, or as a service for a router of your own.
//!
//! ```
//! # use outlast::{MemoryStore, SystemClock, TaskServer};
//! # #[derive(Clone)] struct MyHandler;
//! # impl rmcp::ServerHandler for MyHandler {}
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = TaskServer::builder(MyHandler).store(MemoryStore::new(SystemClock)).build().await?;
//! let options = outlast::http::Options::default();
//! let app: axum::Router = axum::Router::new()
//!     .route("/health", axum::routing::get(|| async { "ok" }))
//!     .route_service("/mcp", outlast::http::service(&server, &options));
//! # let _ = app; server.shutdown().await; Ok(()) }
//! ```

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use rmcp::{
    ServerHandler,
    model::Extensions,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde::Deserialize;
use tokio::{net::TcpListener, sync::oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer, Service};

use super::{
    TaskServer,
    connections::Connections,
    owner::{Principal, header_owner},
    push::{
        aside::{LISTEN, move_aside},
        pace::Pace,
        refusal::plain_refusal,
    },
    session_seal::SessionSeal,
};

/// How long a stream has for its end, however long the requests beside it took.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a server is reached over HTTP.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The `Host` headers that are served, with or without a port: the loopback names by default.
    pub allowed_hosts: Vec<String>,
    /// The `Origin` headers that are served (S29a); a port of `*` is any port, or none. Loopback by default. A request without one
    /// does not come from a web page, and is served.
    pub allowed_origins: Vec<String>,
    /// The largest request, in bytes. 4 MiB by default.
    pub max_body_bytes: usize,
    /// Ends every stream when cancelled.
    pub cancel: CancellationToken,
    /// Makes a session of an earlier protocol that of the `Authorization` header alone with which it was begun, where no
    /// [`Principal`] says who calls. Not so by default: a client that exchanges its token would lose the session.
    pub sessions_by_token: bool,
    /// Requests that are being answered, streams not counted.
    in_flight: TaskTracker,
    seal: SessionSeal,
}

impl Default for Options {
    fn default() -> Self {
        let loopback = ["localhost", "127.0.0.1", "[::1]"];
        let schemes = ["http", "https"];
        let origins = schemes.iter().flat_map(|scheme| loopback.map(|host| format!("{scheme}://{host}:*")));
        Self {
            allowed_hosts: ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec(),
            allowed_origins: origins.collect(),
            max_body_bytes: 4 << 20,
            cancel: CancellationToken::new(),
            sessions_by_token: false,
            in_flight: TaskTracker::new(),
            seal: SessionSeal::new(),
        }
    }
}

/// The MCP endpoint of `server` as a `tower` service, for a router of your own.
///
/// It is the SDK's service, set up for tasks, under a [`TaskLayer`]. It serves protocol 2026-07-28 without sessions and
/// older clients by session. A listener of your own should set `TCP_NODELAY`: without it each streamed answer waits
/// tens of milliseconds for the other side's acknowledgement.
pub fn service<H: ServerHandler>(
    server: &TaskServer<H>,
    options: &Options,
) -> TaskService<StreamableHttpService<TaskServer<H>, LocalSessionManager>> {
    let mut config = StreamableHttpServerConfig::default()
        .with_json_response(true)
        .with_legacy_session_mode(true)
        .with_allowed_hosts(options.allowed_hosts.clone())
        .with_allowed_origins(options.allowed_origins.clone())
        .with_cancellation_token(options.cancel.child_token());
    config = config.with_max_request_body_bytes(options.max_body_bytes);
    let server = server.clone();
    // The SDK asks for a service for each request; all of them share one server.
    let inner = StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
    layer(options).layer(inner)
}

/// A router that serves `server` at `/mcp`.
pub fn router<H: ServerHandler>(server: &TaskServer<H>, options: &Options) -> Router {
    Router::new().route_service("/mcp", service(server, options))
}

/// Serves `server` at `/mcp` on `listener` until `shutdown` resolves, then gives unfinished work back to the store.
///
/// Requests that are under way have once more [`Config::drain`](crate::Config) to be answered; connections that are still
/// open after it are closed.
///
/// # Errors
/// When the listener fails.
pub async fn serve<H: ServerHandler>(
    listener: TcpListener,
    server: TaskServer<H>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let options = Options::default();
    let app = router(&server, &options);
    serve_router(listener, app, server, &options, shutdown).await
}

/// Serves a router of your own in the same way; `options` are those that its [`service`] was made with.
///
/// # Errors
/// When the listener fails.
pub async fn serve_router<H: ServerHandler>(
    listener: TcpListener,
    app: Router,
    server: TaskServer<H>,
    options: &Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let cut = CancellationToken::new();
    let (drained, patience) = (server.clone(), server.drain_time());
    let (cancel, in_flight) = (options.cancel.clone(), options.in_flight.clone());
    let (ended, streams_ended) = oneshot::channel();
    let stop = async move {
        shutdown.await;
        // Requests are still answered while the work drains; streams end after it.
        drained.shutdown().await;
        in_flight.close();
        let mut patience = Box::pin(tokio::time::sleep(patience));
        tokio::select! {
            () = in_flight.wait() => {}
            () = &mut patience => {}
        }
        cancel.cancel();
        let _ = ended.send(patience);
    };
    let serving = axum::serve(Connections::new(listener, cut.clone()), app).with_graceful_shutdown(stop);
    // A client that does not read its answer, or never sends the rest of its request, keeps nobody from stopping.
    let cutting = async {
        if let Ok(patience) = streams_ended.await {
            patience.await;
            tokio::time::sleep(LAST_WORDS).await;
            cut.cancel();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = async { serving.await } => served?,
        () = cutting => {}
    }
    server.shutdown().await;
    Ok(())
}

/// The layer that [`service`] has, for the SDK's own service under a router of your own: with it, clients can subscribe to
/// tasks there too.
///
/// Put it around the MCP route alone, because it reads the bodies of JSON posts that name no method. Of the `options` it uses
/// `max_body_bytes`; hosts and origins are for the SDK's own settings to allow.
///
/// Serve the router with [`serve_router`] and the same `options`. With a serve loop of your own, call
/// [`TaskServer::shutdown`] when it is to stop and *before* it waits for its connections, because that ends the streams of
/// subscribers; a loop that waits for them first waits until their tasks are final. Cancel
/// [`Options::cancel`] after that, which ends the other streams.
///
/// ```
/// # use std::sync::Arc;
/// # use outlast::{MemoryStore, SystemClock, TaskServer};
/// # use rmcp::transport::streamable_http_server::{
/// #     StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
/// # };
/// # #[derive(Clone)] struct MyHandler;
/// # impl rmcp::ServerHandler for MyHandler {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = TaskServer::builder(MyHandler).store(MemoryStore::new(SystemClock)).build().await?;
/// # let (shared, options) = (server.clone(), outlast::http::Options::default());
/// let config = StreamableHttpServerConfig::default().with_cancellation_token(options.cancel.child_token());
/// let mcp: StreamableHttpService<_, LocalSessionManager> =
///     StreamableHttpService::new(move || Ok(shared.clone()), Arc::default(), config);
/// let app: axum::Router = axum::Router::new().route_service("/mcp", mcp).layer(outlast::http::layer(&options));
/// # let shutdown = std::future::ready(());
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// outlast::http::serve_router(listener, app, server, &options, shutdown).await?;
/// # Ok(()) }
/// ```
#[must_use]
pub fn layer(options: &Options) -> TaskLayer {
    TaskLayer {
        max_body_bytes: options.max_body_bytes,
        in_flight: options.in_flight.clone(),
        seal: options.seal.clone(),
        by_token: options.sessions_by_token,
    }
}

/// What HTTP clients of tasks need and the SDK does not do:
///
/// - A `tasks/*` request without an `Mcp-Name` header gets it from its body, because a widely used client sends none and
///   the SDK would refuse it. One that differs from the body is left for the SDK to refuse (S29).
/// - A `subscriptions/listen` request with task ids gets past the SDK, which would drop them (S27), and a refusal of it is a
///   plain answer (S28b).
/// - A poll that came too fast is answered with status 429 and `Retry-After` (S23).
/// - A session of an earlier protocol is its [`Principal`]'s alone who began it; to everybody else it does not exist. Sessions
///   end with the process, also where the SDK is given a store for them.
#[derive(Debug, Clone)]
pub struct TaskLayer {
    max_body_bytes: usize,
    in_flight: TaskTracker,
    seal: SessionSeal,
    by_token: bool,
}

impl<S> Layer<S> for TaskLayer {
    type Service = TaskService<S>;

    fn layer(&self, inner: S) -> TaskService<S> {
        TaskService {
            inner,
            max_body_bytes: self.max_body_bytes,
            in_flight: self.in_flight.clone(),
            seal: self.seal.clone(),
            by_token: self.by_token,
        }
    }
}

/// The service of a [`TaskLayer`].
#[derive(Debug, Clone)]
pub struct TaskService<S> {
    inner: S,
    max_body_bytes: usize,
    in_flight: TaskTracker,
    seal: SessionSeal,
    by_token: bool,
}

impl<S, B> Service<Request<Body>> for TaskService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The clone takes the place of the service that was polled ready.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let (max, seal, by_token) = (self.max_body_bytes, self.seal.clone(), self.by_token);
        Box::pin(self.in_flight.track_future(async move {
            let caller = match request.extensions().get::<Principal>() {
                Some(principal) => Some(principal.clone()),
                None => by_token.then(|| Principal::new(header_owner(request.headers()).as_str())),
            };
            if !seal.take(caller.as_ref(), request.headers_mut()) {
                // As the SDK says it of one that never was.
                let mut response = Response::new(Body::from("Not Found: Session not found"));
                *response.status_mut() = StatusCode::NOT_FOUND;
                return Ok(response);
            }
            let retry = RetryAfter::default();
            request.extensions_mut().insert(retry.clone());
            let http1 = request.version() <= Version::HTTP_11;
            let read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
            request = request.map(|body| Body::new(Watched { body, read: read.clone() }));
            let (lacks_name, may_listen) = (lacks_task_name(&request), may_listen(&request));
            let mut listens = None;
            if lacks_name || may_listen {
                let (mut parts, mut body) = match read_body(request, max).await {
                    Ok(read) => read,
                    Err(refusal) => return Ok(refusal),
                };
                if lacks_name {
                    name_task(&mut parts, &body);
                }
                if may_listen && let Some(moved) = move_aside(&body) {
                    parts.headers.insert(header::CONTENT_LENGTH, moved.message.len().into());
                    body = moved.message.into();
                    let pace = Pace::new();
                    parts.extensions.insert(pace.clone());
                    listens = Some(pace);
                }
                request = Request::from_parts(parts, Body::from(body));
            }
            let mut response = inner.call(request).await?.map(Body::new);
            seal.put(caller.as_ref(), response.headers_mut());
            if let Some(pace) = listens {
                response = plain_refusal(response).await.map(|body| pace.watch(body));
            }
            if let Some(wait) = retry.0.get() {
                let seconds = wait.as_secs_f64().ceil().max(1.0);
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                if let Ok(seconds) = HeaderValue::from_str(&format!("{seconds:.0}")) {
                    response.headers_mut().insert(header::RETRY_AFTER, seconds);
                }
            }
            if http1 && !read.load(Ordering::Relaxed) {
                // Refused before its body was read, so the connection cannot be used again; the client is told.
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        }))
    }
}

/// A body that tells whether it was read to its end.
struct Watched {
    body: Body,
    read: Arc<AtomicBool>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.read.store(true, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Where the handler of a request leaves word for its HTTP answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetryAfter(Arc<OnceLock<Duration>>);

impl RetryAfter {
    pub(crate) fn tell(extensions: &Extensions, wait: Duration) {
        let parts = extensions.get::<http::request::Parts>();
        if let Some(told) = parts.and_then(|parts| parts.extensions.get::<Self>()) {
            let _ = told.0.set(wait);
        }
    }
}

const MCP_METHOD: &str = "mcp-method";
const MCP_NAME: &str = "mcp-name";

fn lacks_task_name(request: &Request<Body>) -> bool {
    let of_task = |value: &HeaderValue| value.as_bytes().starts_with(b"tasks/");
    request.method() == Method::POST
        && request.headers().get(MCP_METHOD).is_some_and(of_task)
        && !request.headers().contains_key(MCP_NAME)
}

/// Whether it may be a listen request: one that says so, or a message of a client that names no method in a header. The
/// body of anything else is left alone.
fn may_listen(request: &Request<Body>) -> bool {
    let headers = request.headers();
    request.method() == Method::POST
        && is_of_type(headers, "application/json")
        && headers.get(MCP_METHOD).is_none_or(|method| method.as_bytes() == LISTEN.as_bytes())
}

/// Whether the content is of this type; the case of its name says nothing.
pub(super) fn is_of_type(headers: &HeaderMap, wanted: &str) -> bool {
    let name = headers.get(header::CONTENT_TYPE).and_then(|value| value.as_bytes().get(..wanted.len()));
    name.is_some_and(|name| name.eq_ignore_ascii_case(wanted.as_bytes()))
}

/// Reads the body, of at most `max` bytes.
async fn read_body(
    request: Request<Body>,
    max: usize,
) -> Result<(http::request::Parts, Bytes), Response<Body>> {
    let refuse = |status: StatusCode| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        response
    };
    let (parts, body) = request.into_parts();
    match Limited::new(body, max).collect().await {
        Ok(body) => Ok((parts, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(refuse(StatusCode::PAYLOAD_TOO_LARGE)),
        Err(_) => Err(refuse(StatusCode::BAD_REQUEST)),
    }
}

/// Names the request's task in its header.
fn name_task(parts: &mut http::request::Parts, body: &[u8]) {
    #[derive(Deserialize)]
    struct Envelope {
        params: Params,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        task_id: String,
    }
    if let Ok(envelope) = serde_json::from_slice::<Envelope>(body)
        && let Some(name) = header_value(&envelope.params.task_id)
    {
        parts.headers.insert(MCP_NAME, name);
    }
}

/// Text as a header value; what cannot stand in one as it is travels as Base64 in the protocol's marks.
fn header_value(text: &str) -> Option<HeaderValue> {
    let plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.trim() == text
        && !text.starts_with("=?");
    if plain {
        HeaderValue::from_str(text).ok()
    } else {
        HeaderValue::from_str(&format!("=?base64?{}?=", BASE64_STANDARD.encode(text))).ok()
    }
}
