//! A server that the gateway stands in front of.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use outlast::{Recovery, Start};
use outlast_client::{ClientOptions, Server, TaskClient};
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{ClientCapabilities, ClientConfig, Implementation, ServerPeerInfo, Tool},
    service::Peer,
};

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
}

/// What the gateway is to its upstreams. Questions that belong to no call have nobody to go to.
struct Client;

impl ClientHandler for Client {
    #[allow(deprecated, reason = "what upstreams may ask is for the callers to refuse")]
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
        let client = TaskClient::builder(server).handler(Client).options(options).build();
        Self { name, policies: BTreeMap::new(), client, tools: Mutex::default() }
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
    pub(crate) async fn info(&self) -> Option<ServerPeerInfo> {
        let peer = self.client.peer().await.ok()?;
        peer.peer_info().map(|info| (*info).clone())
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
        let known = |tool: &str| self.tools.lock().unwrap_or_else(PoisonError::into_inner).get(tool).cloned();
        let mut found = known(tool);
        if found.is_none()
            && let Ok(peer) = self.client.peer().await
            && let Ok(tools) = peer.list_all_tools().await
        {
            tools.iter().for_each(|tool| self.learn(tool));
            found = known(tool);
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
