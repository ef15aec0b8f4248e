//! The way to the server: made at first use, made again when it is lost, one handshake at a time.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{
        ClientCapabilities, ClientRequest, CustomRequest, ErrorCode, ErrorData, ProtocolVersion,
        RequestMetaObject, ServerResult, TASKS_EXTENSION_ID,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, Peer, PeerRequestOptions, RequestHandle, RunningService,
        ServiceError, serve_client_with_lifecycle,
    },
    transport::DynamicTransportError,
};
use serde_json::{Value, json};
use tokio::sync::{oneshot::error::RecvError, watch};

use crate::{
    authorization::Authorization,
    calls::{Behind, Calls},
    clock,
    error::CallErrorKind,
    options::ClientOptions,
    pace,
    saved::Generation,
    server::Server,
    tap::{Hub, Tap, User},
    tools::Tools,
    wire::{Bound, Observed, Refused, WireError, raw_result},
};

/// The extension by which a server says that it recognises a repeated call by its key.
const IDEMPOTENCY_EXTENSION: &str = "outlast/idempotency";

/// One connection, from handshake to loss.
pub(crate) struct Connection {
    /// Keeps the connection up; dropped, it goes down.
    peer: Peer<RoleClient>,
    /// Which goes with the connection.
    running: tokio::sync::Mutex<RunningService<RoleClient, Tap>>,
    observed: Arc<Observed>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) user: User,
    pub(crate) generation: Generation,
    /// Whether the server offers tasks, of its generation.
    offers_tasks: bool,
    /// Whether the server lists the tasks of its callers, which only the earlier generation does (S7).
    lists_tasks: bool,
    /// What the server declares of recognising a repeated call by its key.
    repeats: Option<Value>,
    /// What tells the session apart, where the protocol has sessions.
    pub(crate) session: Option<String>,
    /// What is known of the server's tools.
    pub(crate) tools: Tools,
    /// Whether a request has found it gone. With the runtime that it was made in its tasks end one after the other, and the
    /// SDK calls it open until the last one has.
    is_gone: AtomicBool,
}

/// Why a request got no result.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The server answered with an error.
    Refused(ErrorData),
    /// The server asks to be left alone for a while.
    Busy(Option<Duration>),
    /// Nothing came, in time or at all; whether the request arrived is unknown.
    Lost(String),
    /// The request never left.
    Unreached(String),
    /// A call was given all the time there is, and cancelled.
    Overdue,
    /// The session is over.
    SessionEnded,
    /// The server asks for authorization.
    Unauthorized(String),
}

impl Failure {
    /// How long the server asks to be left alone.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self {
            Self::Busy(delay) => *delay,
            _ => None,
        }
    }

    /// The end that this means for a caller that does not try again.
    pub(crate) fn into_kind(self) -> CallErrorKind {
        match self {
            Self::Refused(error) => CallErrorKind::Failed(error),
            Self::Busy(delay) => CallErrorKind::Busy(delay),
            Self::Lost(why) | Self::Unreached(why) => CallErrorKind::Connection(why),
            Self::Overdue => CallErrorKind::OutcomeUnknown("no answer came in time".into()),
            Self::SessionEnded => CallErrorKind::SessionEnded,
            Self::Unauthorized(challenge) => CallErrorKind::Unauthorized(challenge),
        }
    }
}

/// What a handshake leaves.
struct Handshake {
    running: RunningService<RoleClient, Tap>,
    observed: Arc<Observed>,
    hub: Arc<Hub>,
    calls: Arc<Calls>,
}

enum HandshakeError {
    Connect(WireError),
    Serve(Box<ClientInitializeError>, Arc<Observed>),
}

impl Connection {
    async fn open(server: &Server, user: User, options: &ClientOptions) -> Result<Self, Failure> {
        let Handshake { running, observed, hub, calls } = tokio::time::timeout(
            options.connect_timeout,
            Self::shake_hands(server, &user, options.protocol.as_ref()),
        )
        .await
        .map_err(|_| Failure::Unreached("the handshake took too long".into()))??;
        let version = running.peer().peer_info().map(|info| info.protocol_version.clone());
        if let (Some(version), Some(set)) = (&version, &options.protocol)
            && version > set
        {
            return Err(Failure::Unreached(format!(
                "the server answers in protocol {version}, and {set} is set for it"
            )));
        }
        let generation = match version {
            Some(version) if version >= ProtocolVersion::V_2026_07_28 => Generation::Extension,
            _ => Generation::Experimental,
        };
        let capabilities = observed.capabilities().unwrap_or_default();
        let extension = |name: &str| capabilities.get("extensions").and_then(|all| all.get(name));
        let offers_tasks = match generation {
            Generation::Extension => extension(TASKS_EXTENSION_ID).is_some(),
            Generation::Experimental => capabilities.pointer("/tasks/requests/tools/call").is_some(),
        };
        let lists_tasks =
            generation == Generation::Experimental && capabilities.pointer("/tasks/list").is_some();
        // A session of 2025-11-25 is its id over HTTP, and the connection itself over anything else. The mark that stands for
        // it is made up, since the id is a secret of the session.
        let session = match generation {
            Generation::Extension => None,
            Generation::Experimental if server.is_http() && observed.session().is_none() => None,
            Generation::Experimental => Some(random_text()),
        };
        let repeats = extension(IDEMPOTENCY_EXTENSION).cloned();
        Ok(Self {
            peer: running.peer().clone(),
            running: tokio::sync::Mutex::new(running),
            observed,
            hub,
            calls,
            user,
            generation,
            offers_tasks,
            lists_tasks,
            repeats,
            session,
            tools: Tools::default(),
            is_gone: AtomicBool::new(false),
        })
    }

    /// Begins with `server/discover`, and goes back to `initialize` where the server does not know it. The SDK sees that by the
    /// error of the answer, or when none comes; here also servers count that answer with something else, hang up, or know
    /// `server/discover` and no version that has it. Where a version is set, nothing else is offered.
    async fn shake_hands(
        server: &Server,
        user: &User,
        set: Option<&ProtocolVersion>,
    ) -> Result<Handshake, Failure> {
        let lifecycle = match set {
            None => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            },
            Some(set) if set.has_initialize() => ClientLifecycleMode::Initialize,
            Some(set) => ClientLifecycleMode::Discover { preferred_versions: vec![set.clone()] },
        };
        // What `initialize` names where the SDK does not settle it.
        let initial = set.unwrap_or(&ProtocolVersion::LATEST_WITH_INITIALIZE);
        let shaken = match (Self::shake_hands_by(server, user, initial, lifecycle).await, set) {
            (Err(HandshakeError::Serve(error, _)), None)
                if matches!(
                    *error,
                    ClientInitializeError::ExpectedInitResult(_)
                        | ClientInitializeError::ExpectedInitResponse(_)
                        | ClientInitializeError::UncorrelatedErrorResponse { .. }
                        | ClientInitializeError::NoCompatibleProtocolVersion { .. }
                        | ClientInitializeError::ConnectionClosed(_)
                ) =>
            {
                Self::shake_hands_by(server, user, initial, ClientLifecycleMode::Initialize).await
            }
            (Err(HandshakeError::Serve(error, _)), Some(set)) if is_unknown_to(&error) => {
                return Err(Failure::Unreached(format!(
                    "the server does not speak protocol {set}, which is set for it"
                )));
            }
            (shaken, _) => shaken,
        };
        match shaken {
            Ok(handshake) => Ok(handshake),
            Err(HandshakeError::Connect(error)) => Err(Failure::Unreached(error.to_string())),
            Err(HandshakeError::Serve(error, observed)) => Err(match of_handshake(*error) {
                Failure::Unreached(why) => Failure::Unreached(observed.failed(why).await),
                Failure::Lost(why) => Failure::Lost(observed.failed(why).await),
                told => told,
            }),
        }
    }

    async fn shake_hands_by(
        server: &Server,
        user: &User,
        initial: &ProtocolVersion,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Handshake, HandshakeError> {
        let observed = Arc::new(Observed::default());
        let hub = Arc::new(Hub::default());
        let wire = server.connect(observed.clone()).await.map_err(HandshakeError::Connect)?;
        let calls = Arc::new(Calls::default());
        let tap =
            Tap { user: user.clone(), hub: hub.clone(), calls: calls.clone(), initial: initial.clone() };
        let running = serve_client_with_lifecycle(tap, wire, lifecycle)
            .await
            .map_err(|error| HandshakeError::Serve(Box::new(error), observed.clone()))?;
        Ok(Handshake { running, observed, hub, calls })
    }

    /// The SDK's own handle to the server.
    pub(crate) fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed) || self.peer.is_transport_closed()
    }

    /// Whether requests about tasks may be sent at all; what may not fails before any I/O.
    pub(crate) fn offers_tasks(&self) -> bool {
        self.offers_tasks
    }

    /// Whether the tasks of this caller can be asked for; where they cannot, asking fails before any I/O.
    pub(crate) fn lists_tasks(&self) -> bool {
        self.lists_tasks
    }

    /// Whether the server recognises a repeated call of this tool by its key.
    pub(crate) fn recognises_repeats(&self, tool: &str) -> bool {
        self.repeats.as_ref().is_some_and(|settings| match settings.get("tools") {
            None => true,
            Some(named) => named.as_array().is_some_and(|named| named.iter().any(|name| name == tool)),
        })
    }

    /// Sends a request and waits for its result, as it came over the wire, for no longer than `bound`. Without an
    /// `authorization` of its own it is sent with what is set for the server.
    pub(crate) async fn request(
        &self,
        method: &str,
        params: Value,
        bound: Duration,
        authorization: Option<Authorization>,
    ) -> Result<Value, Failure> {
        self.request_during(method, params, bound, authorization, |_| ()).await
    }

    /// `tasks/result` of the earlier generation, during which the questions of the task come: they go to `handler`, or to the
    /// client's.
    pub(crate) async fn result_of_task(
        &self,
        task: &str,
        handler: Option<User>,
        bound: Duration,
        authorization: Option<Authorization>,
    ) -> Result<Value, Failure> {
        let params = json!({ "taskId": task });
        self.request_during("tasks/result", params, bound, authorization, |request| {
            let handler = handler.unwrap_or_else(|| self.user.clone());
            self.calls.during(request, Behind { handler, person: None }, Some(task.to_owned()))
        })
        .await
    }

    /// `sent` is told of the request; what it gives is kept until the answer is there.
    async fn request_during<G>(
        &self,
        method: &str,
        params: Value,
        bound: Duration,
        authorization: Option<Authorization>,
        sent: impl FnOnce(&RequestHandle<RoleClient>) -> G,
    ) -> Result<Value, Failure> {
        let mut request = CustomRequest::new(method, Some(params));
        request.extensions.insert(Bound(bound));
        brings(&mut request, authorization);
        let answered = async {
            let sending = self.calls.sending().await;
            let request = self.send_request(request, PeerRequestOptions::no_options()).await?;
            let _during = sent(&request);
            drop(sending);
            Ok(self.outcome(request.rx.await))
        };
        match tokio::time::timeout(bound, answered).await {
            Ok(answer) => answer.flatten(),
            Err(_) => Err(Failure::Lost("no answer came in time".into())),
        }
    }

    /// Sends a request; its answer is still to be waited for.
    pub(crate) async fn send(
        &self,
        method: &str,
        params: Value,
        authorization: Option<Authorization>,
    ) -> Result<RequestHandle<RoleClient>, Failure> {
        self.send_as(method, params, None, authorization).await
    }

    /// Sends a request that declares these capabilities and not the client's own, where each request says for itself.
    pub(crate) async fn send_as(
        &self,
        method: &str,
        params: Value,
        declared: Option<ClientCapabilities>,
        authorization: Option<Authorization>,
    ) -> Result<RequestHandle<RoleClient>, Failure> {
        let mut options = PeerRequestOptions::no_options();
        if let Some(declared) = declared.filter(|_| self.generation == Generation::Extension) {
            let mut meta = RequestMetaObject::default();
            meta.set_client_capabilities(declared);
            options.meta = Some(meta);
        }
        let mut request = CustomRequest::new(method, Some(params));
        brings(&mut request, authorization);
        self.send_request(request, options).await
    }

    async fn send_request(
        &self,
        request: CustomRequest,
        options: PeerRequestOptions,
    ) -> Result<RequestHandle<RoleClient>, Failure> {
        let request = ClientRequest::CustomRequest(request);
        // `send_cancellable_request` sends nothing when it is dropped: no `notifications/cancelled` for a task (S22).
        self.peer().send_cancellable_request(request, options).await.map_err(|error| self.failed(error))
    }

    /// Why a request failed; with the connection, no other is made on it.
    fn failed(&self, error: ServiceError) -> Failure {
        let is_gone = match &error {
            ServiceError::TransportClosed => true,
            ServiceError::TransportSend(error) => WireError::of(error).is_some_and(WireError::is_closed),
            _ => false,
        };
        self.is_gone.fetch_or(is_gone, Ordering::Relaxed);
        match (error, self.observed.end()) {
            // A process that has ended says how, which is more than that it has.
            (ServiceError::TransportClosed, Some(end)) => Failure::Lost(end),
            (error, _) => of_request(error),
        }
    }

    /// What an answer says, as it came over the wire.
    pub(crate) fn outcome(
        &self,
        answer: Result<Result<ServerResult, ServiceError>, RecvError>,
    ) -> Result<Value, Failure> {
        match answer.unwrap_or(Err(ServiceError::TransportClosed)) {
            Ok(result) => Ok(raw_result(result)),
            Err(error) => Err(self.failed(error)),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Has a request sent with this header, where there is one.
fn brings(request: &mut CustomRequest, authorization: Option<Authorization>) {
    if let Some(authorization) = authorization {
        request.extensions.insert(authorization);
    }
}

/// Whether a handshake failed because the server does not know the version that was offered, or how it is offered.
fn is_unknown_to(error: &ClientInitializeError) -> bool {
    match error {
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => true,
        ClientInitializeError::JsonRpcError(error) => {
            matches!(error.code, ErrorCode::METHOD_NOT_FOUND | ErrorCode::UNSUPPORTED_PROTOCOL_VERSION)
        }
        _ => false,
    }
}

fn of_handshake(error: ClientInitializeError) -> Failure {
    if let Some(challenge) = error.auth_challenge() {
        return Failure::Unauthorized(challenge.to_owned());
    }
    match error {
        ClientInitializeError::JsonRpcError(error) => Failure::Refused(error),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => of_handshake(*fallback),
        ClientInitializeError::TransportError { error, .. } => of_transport(&error),
        other => Failure::Unreached(other.to_string()),
    }
}

fn of_request(error: ServiceError) -> Failure {
    if let Some(challenge) = error.auth_challenge() {
        return Failure::Unauthorized(challenge.to_owned());
    }
    match error {
        ServiceError::McpError(error) => of_refusal(error),
        ServiceError::TransportSend(error) => of_transport(&error),
        ServiceError::TransportClosed => Failure::Lost("the connection was closed".into()),
        other => Failure::Lost(other.to_string()),
    }
}

/// An error answer; a refusal for the time being says when to come back.
fn of_refusal(error: ErrorData) -> Failure {
    let delay = error.data.as_ref().and_then(|data| data.get("retryAfterMs")).and_then(Value::as_u64);
    match delay {
        Some(delay) => Failure::Busy(Some(Duration::from_millis(delay))),
        None => Failure::Refused(error),
    }
}

fn of_transport(error: &DynamicTransportError) -> Failure {
    let Some(known) = WireError::of(error) else { return Failure::Lost(error.to_string()) };
    match known.refused() {
        Refused::NotSent => Failure::Unreached(known.to_string()),
        Refused::SessionExpired => Failure::SessionEnded,
        Refused::Unauthorized(challenge) => Failure::Unauthorized(challenge.unwrap_or_default()),
        // These two say that the request was turned away; any other says nothing of what became of it.
        Refused::Status(429 | 503, delay) => {
            Failure::Busy(delay.and_then(|delay| pace::retry_after(&delay, clock::wall())))
        }
        Refused::Status(status, _) => Failure::Lost(format!("HTTP {status}")),
        Refused::Unknown => Failure::Lost(known.to_string()),
    }
}

/// The code of a missing capability, today's and that of early drafts.
pub(crate) fn is_missing_capability(code: ErrorCode) -> bool {
    matches!(code.0, -32021 | -32003)
}

/// Text that no other connection or call has.
pub(crate) fn random_text() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The connection of a client, whichever it is at the time.
pub(crate) struct Link {
    server: Server,
    user: User,
    options: ClientOptions,
    state: Mutex<State>,
}

type Opening = watch::Receiver<Option<Result<Arc<Connection>, Failure>>>;

enum State {
    Down,
    /// A handshake runs; whoever needs the connection waits for the same one.
    Connecting(Opening),
    Up(Arc<Connection>),
}

impl Link {
    pub(crate) fn new(server: Server, user: User, options: ClientOptions) -> Self {
        Self { server, user, options, state: Mutex::new(State::Down) }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// The connection; made if there is none. A caller that gives up leaves the handshake to the next one.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        let mut handshake = match &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Up(connection) if !connection.is_closed() => return Ok(connection.clone()),
            State::Connecting(handshake) if !has_ended(handshake) => handshake.clone(),
            // One whose runtime ended under it has no outcome.
            state @ (State::Down | State::Up(_) | State::Connecting(_)) => {
                let (sender, receiver) = watch::channel(None);
                *state = State::Connecting(receiver.clone());
                tokio::spawn(self.clone().connect(sender));
                receiver
            }
        };
        match handshake.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("waited for"),
            Err(_) => Err(Failure::Unreached("the handshake ended without an outcome".into())),
        }
    }

    async fn connect(self: Arc<Self>, outcome: watch::Sender<Option<Result<Arc<Connection>, Failure>>>) {
        let opened = Connection::open(&self.server, self.user.clone(), &self.options).await.map(Arc::new);
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever closed the client meanwhile wants it to stay closed.
            if matches!(&*state, State::Connecting(handshake) if handshake.same_channel(&outcome.subscribe()))
            {
                *state = match &opened {
                    Ok(connection) => State::Up(connection.clone()),
                    Err(_) => State::Down,
                };
            }
        }
        outcome.send_replace(Some(opened));
    }

    /// Gives a connection up, so that the next request makes another: its session is over.
    pub(crate) fn drop_connection(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*state, State::Up(held) if Arc::ptr_eq(held, connection)) {
            *state = State::Down;
        }
    }

    /// Takes the connection down, and waits until it is: a process that it started has ended.
    pub(crate) async fn close(&self) {
        let state =
            std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), State::Down);
        if let State::Up(connection) = state
            && let Err(error) = connection.running.lock().await.close().await
        {
            tracing::warn!(%error, "the connection ended in a panic");
        }
    }
}

/// Whether a handshake has ended without an outcome.
fn has_ended(handshake: &Opening) -> bool {
    handshake.has_changed().is_err() && handshake.borrow().is_none()
}

/// `_meta` with the key under which a server recognises a repeat of the call.
pub(crate) fn keyed(mut params: Value, key: &str) -> Value {
    if let Some(params) = params.as_object_mut() {
        let meta = params.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert("outlast/idempotencyKey".into(), key.into());
        }
    }
    params
}

/// What is left of a time that may be unbounded.
pub(crate) fn left(until: Option<tokio::time::Instant>, bound: Duration) -> Duration {
    until.map_or(bound, |until| until.saturating_duration_since(clock::now()).min(bound))
}
