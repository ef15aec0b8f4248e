//! A server that the gateway stands in front of.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::changes::{Change, Changes};
use outlast::{Recovery, Start};
use outlast_client::{ClientOptions, Server, TaskClient};
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, Implementation, ResourceUpdatedNotificationParam, ServerPeerInfo,
        Tool,
    },
    service::{NotificationContext, Peer},
};

/// How long an upstream may take to list its tools when the gateway starts.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// What is settled for a tool, beyond what its annotations say.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ToolPolicy {
    /// When a call becomes a task; none to leave it to the gateway's default.
    pub start: Option<Start>,
    /// Whether a call may be made again after the gateway stopped in its middle; none to go by the tool's annotations.
    pub recovery: Option<Recovery>,
    /// How long a call may take at the most.
    pub deadline: Option<Duration>,
}

/// A server that the gateway stands in front of.
pub struct Upstream {
    name: Option<String>,
    policies: BTreeMap<String, ToolPolicy>,
    client: TaskClient,
    tools: Mutex<HashMap<String, Tool>>,
    changes: Changes,
}

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

    fn get_info(&self) -> ClientConfig {
        let capabilities =
            ClientCapabilities::builder().enable_elicitation().enable_sampling().enable_roots().build();
        ClientConfig::new(capabilities, implementation())
    }
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

    fn new(name: Option<String>, server: Server) -> Self {
        let mut options = ClientOptions::default();
        // A call's own deadline is the task's, which the gateway's caller or its operator sets.
        options.call_timeout = Duration::from_secs(30 * 86_400);
        options.validate_output = false;
        let changes = Changes::default();
        let client = TaskClient::builder(server).handler(Client(changes.clone())).options(options).build();
        Self { name, policies: BTreeMap::new(), client, tools: Mutex::default(), changes }
    }

    /// Settles more for a tool than its annotations say.
    #[must_use]
    pub fn tool(mut self, name: impl Into<String>, policy: ToolPolicy) -> Self {
        self.policies.insert(name.into(), policy);
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

    /// The SDK's handle to the server. A connection that was lost, or a process that has ended, is made anew.
    pub(crate) async fn peer(&self) -> Result<Peer<RoleClient>, ErrorData> {
        self.client.peer().await.map_err(|error| {
            tracing::warn!(%error, upstream = self.name(), "an upstream cannot be reached");
            unreachable_upstream()
        })
    }

    /// What the server said of itself, if it can be reached.
    /// Its tools are known from then on.
    pub(crate) async fn info(&self) -> Option<ServerPeerInfo> {
        let peer = self.client.peer().await.ok()?;
        match tokio::time::timeout(INTRODUCTION, peer.list_all_tools()).await {
            Ok(Ok(tools)) => tools.iter().for_each(|tool| self.learn(tool)),
            _ => tracing::debug!(upstream = self.name(), "an upstream did not list its tools"),
        }
        peer.peer_info().map(|info| (*info).clone())
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

    /// Whether a call may be made twice, as the operator or the tool says.
    pub(crate) async fn may_repeat(&self, tool: &str) -> bool {
        if let Some(recovery) = self.policies.get(tool).and_then(|policy| policy.recovery) {
            return recovery == Recovery::Rerun;
        }
        let mut found = self.known(tool);
        if found.is_none()
            && let Ok(peer) = self.client.peer().await
            && let Ok(tools) = peer.list_all_tools().await
        {
            tools.iter().for_each(|tool| self.learn(tool));
            found = self.known(tool);
        }
        let annotations = found.and_then(|tool| tool.annotations).unwrap_or_default();
        annotations.read_only_hint == Some(true) || annotations.idempotent_hint == Some(true)
    }
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
