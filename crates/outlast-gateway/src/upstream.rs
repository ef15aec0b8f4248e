//! A server that the gateway stands in front of.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use outlast::Recovery;
use outlast_client::{
    Authorization, CallError, CallErrorKind, ClientOptions, Server, TaskClient, is_unauthorized,
};
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationCapability,
        FormElicitationCapability, Implementation, PaginatedRequestParams, ProtocolVersion,
        ResourceUpdatedNotificationParam, ServerPeerInfo, TASKS_EXTENSION_ID, Tool, UrlElicitationCapability,
    },
    service::{NotificationContext, Peer, RequestContext, ServiceError},
};
use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    changes::{Change, Changes, Ear},
    clock,
    lanes::{Lanes, Way},
    watched::Watched,
};

/// How long an upstream may take to list its tools when the gateway starts.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// When a call becomes a task, for callers who can follow one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Never: every caller waits for the result, however long that takes.
    Never,
    /// At once.
    Now,
    /// When it is not over after this long, or when it asks something.
    After(Duration),
}

/// What is settled for a tool, beyond what its annotations say.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ToolPolicy {
    /// When a call becomes a task; none to leave it to the gateway's default.
    pub start: Option<When>,
    /// Whether a call may be made again after the gateway stopped in its middle; none to go by the tool's annotations.
    pub recovery: Option<Recovery>,
    /// How long a call may take at the most.
    pub deadline: Option<Duration>,
}

/// A server that the gateway stands in front of.
pub struct Upstream {
    name: Option<String>,
    pub(crate) policies: BTreeMap<String, ToolPolicy>,
    pub(crate) server: Server,
    client: TaskClient,
    backoff: Mutex<Backoff>,
    tools: Mutex<HashMap<String, Tool>>,
    /// When the tools were last listed for one that was not known.
    listed: tokio::sync::Mutex<Option<Instant>>,
    changes: Changes,
    ear: Ear,
    watched: Watched,
    /// What it last said of itself, when it was reached.
    declared: Mutex<Option<Arc<ServerPeerInfo>>>,
    pub(crate) protocol: Option<ProtocolVersion>,
    /// Who reaches it by this.
    pub(crate) way: Way,
}

/// What an upstream says of itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Introduction {
    /// Its name and version, as it gives them.
    pub server: String,
    /// The version of the protocol that it speaks.
    pub protocol: String,
    /// Whether it knows tasks itself.
    pub knows_tasks: bool,
    /// The names of its tools, without that of the upstream.
    pub tools: Vec<String>,
}

/// How long an upstream may take to answer what is no call of a tool.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// How long an upstream may take for a page of a list: what it keeps waiting are the lists of all.
pub(crate) const LIST_PATIENCE: Duration = Duration::from_secs(20);
/// How long the list of the tools is taken as it is.
const FRESH: Duration = Duration::from_secs(60);
/// More pages than any list has.
const PAGES: usize = 100;

/// What the gateway is to its upstreams. Questions that belong to no call have nobody to go to.
struct Client(Changes);

#[allow(deprecated, reason = "what upstreams may ask is for the callers to refuse")]
impl ClientHandler for Client {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.tell(Change::Tools);
    }

    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.tell(Change::Prompts);
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.tell(Change::Resources);
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.0.tell(Change::Resource(params.uri));
    }

    /// An error, and not a refusal: no person has said no.
    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(ErrorData::invalid_request("a gateway has nobody to ask outside of a call", None))
    }

    /// All that a caller can be asked; servers of earlier protocols hear it once for all of them, and some have fewer tools
    /// for those who can be asked less.
    fn get_info(&self) -> ClientConfig {
        let mut capabilities =
            ClientCapabilities::builder().enable_elicitation().enable_sampling().enable_roots().build();
        let elicitation = ElicitationCapability::new()
            .with_form(FormElicitationCapability::default())
            .with_url(UrlElicitationCapability::default());
        capabilities.elicitation = Some(elicitation);
        ClientConfig::new(capabilities, implementation())
    }
}

fn client(server: Server, changes: &Changes, protocol: Option<ProtocolVersion>) -> TaskClient {
    let mut options = ClientOptions::default();
    options.protocol = protocol;
    // A call's own deadline is the task's, which the gateway's caller or its operator sets.
    options.call_timeout = Duration::from_secs(30 * 86_400);
    options.validate_output = false;
    TaskClient::builder(server).handler(Client(changes.clone())).options(options).build()
}

/// What the gateway calls itself.
pub(crate) fn implementation() -> Implementation {
    Implementation::new("outlast-gateway", env!("CARGO_PKG_VERSION"))
}

impl Upstream {
    /// The only upstream of a gateway, whose tools keep their names.
    #[must_use]
    pub fn only(server: Server) -> Self {
        Self::new(None, server)
    }

    /// One of several upstreams: its tools and prompts are named `name__tool`.
    #[must_use]
    pub fn named(name: impl Into<String>, server: Server) -> Self {
        Self::new(Some(name.into()), server)
    }

    pub(crate) fn new(name: Option<String>, server: Server) -> Self {
        let changes = Changes::default();
        let client = client(server.clone(), &changes, None);
        let (policies, tools) = (BTreeMap::new(), Mutex::default());
        let (backoff, listed) = (Mutex::default(), tokio::sync::Mutex::default());
        let (ear, watched, declared) = (Ear::default(), Watched::default(), Mutex::default());
        let (protocol, way) = (None, Way::Shared);
        Self {
            name,
            policies,
            server,
            client,
            backoff,
            tools,
            listed,
            changes,
            ear,
            watched,
            declared,
            protocol,
            way,
        }
    }

    /// Settles more for a tool than its annotations say.
    #[must_use]
    pub fn tool(mut self, name: impl Into<String>, policy: ToolPolicy) -> Self {
        self.policies.insert(name.into(), policy);
        self
    }

    /// Speaks this version of the protocol with it and no newer one, where the server would take a newer one but does not do
    /// well with it. By default it is the newest that both know.
    #[must_use]
    pub fn protocol(mut self, version: ProtocolVersion) -> Self {
        self.client = client(self.server.clone(), &self.changes, Some(version.clone()));
        self.protocol = Some(version);
        self
    }

    /// Sends each caller's own `Authorization` header to it. Requests of the gateway itself have none, and what one owner was
    /// told is not shown to another: each has connections, sessions and lists of its own.
    ///
    /// For upstreams that accept the very tokens that callers show to the gateway. The specification of MCP forbids to pass on a
    /// token that is meant for the gateway alone.
    ///
    /// Headers are in memory only. After a restart, and when a token has expired meanwhile, work that the upstream lets in no
    /// more waits for the next request of its owner.
    #[must_use]
    pub fn forward_authorization(mut self) -> Self {
        self.way = Way::Each(Lanes::default());
        self
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn policies(&self) -> &BTreeMap<String, ToolPolicy> {
        &self.policies
    }

    pub(crate) fn client(&self) -> &TaskClient {
        &self.client
    }

    /// Reaches the upstream, and asks what it is.
    ///
    /// # Errors
    /// When it cannot be reached, or does not list its tools.
    pub async fn introduce(&self) -> Result<Introduction, CallError> {
        let peer = self.connect().await?;
        let info = peer.peer_info();
        let capabilities = info.as_ref().map(|info| info.capabilities.clone()).unwrap_or_default();
        let tools = match capabilities.tools {
            None => Vec::new(),
            Some(_) => self.list().await?,
        };
        let server = info.as_ref().and_then(|info| info.server_info.as_ref());
        let server = server.map(|server| format!("{} {}", server.name, server.version));
        Ok(Introduction {
            server: server.unwrap_or_default(),
            protocol: info.map(|info| info.protocol_version.to_string()).unwrap_or_default(),
            knows_tasks: capabilities.extensions.is_some_and(|known| known.contains_key(TASKS_EXTENSION_ID)),
            tools,
        })
    }

    /// Ends the connection, and the process where the upstream is one.
    pub async fn close(&self) {
        if let Way::Each(lanes) = &self.way {
            futures::future::join_all(lanes.all().iter().map(|lane| lane.client.close())).await;
        }
        self.client.close().await;
    }

    /// Waits until the upstream may be tried again, and tries it: a connection that was lost, or a process that has ended,
    /// is made anew.
    ///
    /// One that could not be reached is left alone for a while, and longer each time, so that a process which dies as it
    /// starts is not started by every call.
    pub(crate) async fn reach(&self) -> Result<(), Unreached> {
        while let Some(pause) = self.pause() {
            tokio::time::sleep(pause).await;
        }
        self.tried().await.map(drop)
    }

    /// The SDK's handle to the server; an error while it is left alone.
    pub(crate) async fn peer(&self) -> Result<Peer<RoleClient>, ErrorData> {
        self.tried().await.map_err(|unreached| match unreached {
            Unreached::Away => unreachable_upstream(),
            Unreached::NotLetIn => refused_caller(&self.newest().unwrap_or_else(Authorization::none)),
        })
    }

    async fn tried(&self) -> Result<Peer<RoleClient>, Unreached> {
        if self.pause().is_some() {
            return Err(Unreached::Away);
        }
        if let Way::Each(_) = self.way {
            // The gateway itself has no token to show.
            return Err(Unreached::NotLetIn);
        }
        self.connect().await.map_err(|error| match error.kind() {
            CallErrorKind::Unauthorized(_) if self.forwards() => {
                tracing::debug!(upstream = self.name(), "an upstream does not let a caller in");
                Unreached::NotLetIn
            }
            _ => {
                tracing::warn!(%error, upstream = self.name(), "an upstream cannot be reached");
                Unreached::Away
            }
        })
    }

    async fn connect(&self) -> Result<Peer<RoleClient>, CallError> {
        let reached = self.client.peer().await;
        let was_away = {
            let mut backoff = self.backoff.lock().unwrap_or_else(PoisonError::into_inner);
            match &reached {
                Ok(_) => backoff.reached(),
                // It is there, and the next request may bring another token.
                Err(error) if self.forwards() && is_unwelcome(error) => backoff.reached(),
                Err(_) => {
                    backoff.failed(clock::now());
                    false
                }
            }
        };
        if let Ok(peer) = &reached {
            self.declares(peer.peer_info());
            if was_away {
                self.tell_of_return();
            }
        }
        reached
    }

    /// It was reached, and says this of itself.
    pub(crate) fn declares(&self, info: Option<Arc<ServerPeerInfo>>) {
        *self.declared.lock().unwrap_or_else(PoisonError::into_inner) = info;
    }

    /// What it last said of itself; none before it was reached for the first time.
    pub(crate) fn declared(&self) -> Option<Arc<ServerPeerInfo>> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// While it was away the lists were without what it has.
    fn tell_of_return(&self) {
        let capabilities = self.declared().map(|info| info.capabilities.clone()).unwrap_or_default();
        self.changes.tell(Change::Tools);
        if capabilities.prompts.is_some() {
            self.changes.tell(Change::Prompts);
        }
        if capabilities.resources.is_some() {
            self.changes.tell(Change::Resources);
        }
    }

    /// Whether it could not be reached, and is not tried for a while.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.pause().is_some()
    }

    fn pause(&self) -> Option<Duration> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner).pause(clock::now())
    }

    /// Asks for all tools, remembers them, and gives their names.
    async fn list(&self) -> Result<Vec<String>, CallError> {
        let peer = self.client.peer().await?;
        let mut names = Vec::new();
        let mut cursor = None;
        for _ in 0..PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor.take());
            let page = tokio::time::timeout(LIST_PATIENCE, peer.list_tools(Some(params))).await;
            let page =
                page.map_err(|_| CallErrorKind::Connection("the tools were not listed in time".into()))?;
            let page = page.map_err(|error| match error {
                ServiceError::McpError(error) => CallErrorKind::Failed(error),
                error if is_unauthorized(&error) => CallErrorKind::Unauthorized(String::new()),
                other => CallErrorKind::Connection(other.to_string()),
            })?;
            page.tools.iter().for_each(|tool| self.learn(tool));
            names.extend(page.tools.into_iter().map(|tool| tool.name.into_owned()));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(names)
    }

    /// Whether the server can be reached. What it says of itself and its tools are known from then on.
    pub(crate) async fn is_there(&self) -> bool {
        if self.peer().await.is_err() {
            return false;
        }
        if !matches!(tokio::time::timeout(INTRODUCTION, self.list()).await, Ok(Ok(_))) {
            tracing::debug!(upstream = self.name(), "an upstream did not list its tools");
        }
        true
    }

    pub(crate) fn ear(&self) -> &Ear {
        &self.ear
    }

    pub(crate) fn watched(&self) -> &Watched {
        &self.watched
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// A tool that was listed.
    pub(crate) fn known(&self, tool: &str) -> Option<Tool> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).get(tool).cloned()
    }

    /// Remembers a tool for its annotations, under the upstream's own name.
    pub(crate) fn learn(&self, tool: &Tool) {
        let mut known = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(tool.name.to_string(), tool.clone());
    }

    /// Whether a call may be made twice, as the operator or the tool says, or because the upstream would know it again.
    pub(crate) async fn may_repeat(&self, tool: &str) -> bool {
        if self.policies.get(tool).is_none_or(|policy| policy.recovery.is_none())
            && self.client.recognises_repeats(tool).await
        {
            return true;
        }
        self.is_harmless(tool).await
    }

    /// Whether doing the work of a tool twice is as doing it once, as the operator or the tool says.
    pub(crate) async fn is_harmless(&self, tool: &str) -> bool {
        if let Some(recovery) = self.policies.get(tool).and_then(|policy| policy.recovery) {
            return recovery == Recovery::Rerun;
        }
        let annotations = self.find(tool).await.and_then(|tool| tool.annotations).unwrap_or_default();
        annotations.read_only_hint == Some(true) || annotations.idempotent_hint == Some(true)
    }

    /// What the upstream says of one of its tools; it is asked where that is not known yet.
    pub(crate) async fn find(&self, tool: &str) -> Option<Tool> {
        if let Some(tool) = self.known(tool) {
            return Some(tool);
        }
        if let Way::Each(_) = self.way {
            return None;
        }
        let mut listed = self.listed.lock().await;
        if listed.is_none_or(|listed| listed + FRESH <= clock::now()) {
            if let Err(error) = self.list().await {
                tracing::debug!(%error, upstream = self.name(), "an upstream did not list its tools");
            }
            // One that cannot be reached is not asked again and again.
            *listed = Some(clock::now());
        }
        self.known(tool)
    }
}

fn is_unwelcome(error: &CallError) -> bool {
    matches!(error.kind(), CallErrorKind::Unauthorized(_))
}

/// Why an upstream was not reached.
pub(crate) enum Unreached {
    /// It is not there, or was not a moment ago.
    Away,
    /// It does not let the one in whose way this is.
    NotLetIn,
}

/// What a caller is told where it is the gateway that an upstream does not let in: nothing that the caller shows would help.
pub(crate) fn not_let_in() -> ErrorData {
    ErrorData::internal_error(
        "the server behind this gateway does not let the gateway in; whoever runs the gateway can mend that",
        None,
    )
}

/// What a caller is told whose own `Authorization` header an upstream does not accept, or who has none.
pub(crate) fn refused_caller(brought: &Authorization) -> ErrorData {
    let message = match *brought == Authorization::none() {
        false => {
            "the server behind this gateway does not accept the `Authorization` header of this request (HTTP 401 or 403), and did \
            nothing; send the request again with a token that it accepts"
        }
        true => {
            "the server behind this gateway asks for an `Authorization` header of its caller's own, and this request has none; send \
            it again with a token that the server accepts"
        }
    };
    ErrorData::internal_error(message, None)
}

/// What a caller is told of an upstream that cannot be reached. The log has more.
pub(crate) fn unreachable_upstream() -> ErrorData {
    ErrorData::internal_error("the server behind this gateway cannot be reached; try again later", None)
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.name)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}
