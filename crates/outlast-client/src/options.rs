//! What can be set: of a client, and of one call.

use std::{fmt, sync::Arc, time::Duration};

use rmcp::{ClientHandler, RoleClient, model::ProtocolVersion, service::DynService};

use crate::{authorization::AuthorizationSource, task::Task};

/// The limits and paces of a client. The defaults suit most.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The version of the protocol to speak, for a server that speaks a newer one and does not do well with it. The server may
    /// answer with an older one; a newer one is refused. Default none: the newest that both know.
    pub protocol: Option<ProtocolVersion>,
    /// How long a handshake may take. Default 30 s.
    pub connect_timeout: Duration,
    /// How long any request about a task may take before it counts as failed and is repeated; and how long a store of
    /// handles may take before it counts as failed, so that no task hangs with a disk. Default 30 s.
    pub request_timeout: Duration,
    /// How long a `tools/call` may take that names no deadline. Default 10 min.
    pub call_timeout: Duration,
    /// How long a server may fail every request about a task before waiting ends with an error, which keeps the handle.
    /// Default 10 min.
    pub give_up_after: Duration,
    /// How often a task is polled while its changes are pushed, in case a push was lost. Default 30 s.
    pub poll_beside_push: Duration,
    /// Whether to ask for pushes (`subscriptions/listen`). Default yes; polling covers for them where there are none.
    pub push: bool,
    /// How many rounds of questions one call may ask, before and in its task. Default 32.
    pub max_rounds: u32,
    /// Whether structured results are checked against the output schema of their tool. Default yes.
    pub validate_output: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            protocol: None,
            connect_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(600),
            give_up_after: Duration::from_secs(600),
            poll_beside_push: Duration::from_secs(30),
            push: true,
            max_rounds: 32,
            validate_output: true,
        }
    }
}

/// What can be said of one call.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// How long the caller waits; the task goes on after, and the error carries its handle. Handshake, questions and polls
    /// are all within it.
    pub deadline: Option<Duration>,
    /// The key under which the server knows a repeat of this very call, at most 256 bytes. One is made where none is given;
    /// give one to make a call repeatable across a restart of the caller.
    pub idempotency_key: Option<String>,
    /// For servers of 2025-11-25: how long the task is to be kept, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Is told each new state of the task.
    pub on_update: Option<OnUpdate>,
    /// Who answers what the server asks during this call and in its task, and hears of its progress.
    pub(crate) handler: Option<Arc<dyn DynService<RoleClient>>>,
    /// Who the call is made for, where one client calls for several.
    pub(crate) person: Option<Arc<str>>,
    /// What the requests of the call and of its task are sent with.
    pub(crate) authorization: Option<AuthorizationSource>,
}

/// A listener to the states of a task.
pub type OnUpdate = Arc<dyn Fn(&Task) + Send + Sync>;

impl CallOptions {
    /// Waits for at most this long.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Makes the call repeatable under this key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Asks a server of 2025-11-25 to keep the task for this many milliseconds.
    #[must_use]
    pub fn with_ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.ttl_ms = Some(ttl_ms);
        self
    }

    /// Is told each new state of the task.
    #[must_use]
    pub fn with_on_update(mut self, listener: impl Fn(&Task) + Send + Sync + 'static) -> Self {
        self.on_update = Some(Arc::new(listener));
        self
    }

    /// Puts what the server asks during this call and in its task to this handler, and not to the client's. On 2026-07-28 the
    /// call declares what this handler does; on 2025-11-25 the connection has declared what the client's does.
    #[must_use]
    pub fn with_handler(mut self, handler: impl ClientHandler) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Says for whom the call is made, by a name that is theirs alone. A question that may be about a call of somebody else is
    /// refused; without a name, one that may be about any earlier call is.
    #[must_use]
    pub fn on_behalf_of(mut self, person: impl Into<Arc<str>>) -> Self {
        self.person = Some(person.into());
        self
    }

    /// Sends the call, and the requests about its task, with the header that `authorization` gives for each, and not with what
    /// is set for the server. What the client asks for itself, such as the list of the tools, it is not for.
    #[must_use]
    pub fn with_authorization(mut self, authorization: AuthorizationSource) -> Self {
        self.authorization = Some(authorization);
        self
    }
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions")
            .field("deadline", &self.deadline)
            .field("ttl_ms", &self.ttl_ms)
            .finish_non_exhaustive()
    }
}
