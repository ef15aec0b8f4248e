//! Carries what an upstream asks and says during a call to the one who made the call at the gateway.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use outlast::TaskContext;
use outlast_client::QuestionKey;
use rmcp::{
    ClientHandler, ErrorData, RoleClient, RoleServer,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, ListRootsResult, LoggingLevel, LoggingMessageNotificationParam,
        ProgressNotificationParam, ProgressToken, RequestMetaObject,
    },
    service::{NotificationContext, Peer, RequestContext},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::outbox::Outbox;

/// The handler of one call: its questions become those of the task, its progress the task's status.
pub(crate) struct Bridge {
    context: TaskContext,
    /// What the caller can be asked.
    capabilities: ClientCapabilities,
    /// A caller who waits for the call.
    listener: Option<Listener>,
    /// The way to the caller while the call is no task, and by what they know its progress.
    attempt: Peer<RoleServer>,
    token: Option<ProgressToken>,
    logs: Logs,
    /// What the keys of questions begin with.
    prefix: &'static str,
    keys: Mutex<HashMap<String, usize>>,
    /// Each thing that is said comes by itself, and a caller may be slow to take it.
    outbox: Mutex<Outbox<Said>>,
}

/// What an upstream says in a call.
enum Said {
    Progress(ProgressNotificationParam),
    Log(LoggingMessageNotificationParam),
}

/// Where a caller is told of progress and of what is logged whose call is held open.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) peer: Peer<RoleServer>,
    /// None where the caller wants no progress.
    pub(crate) token: Option<ProgressToken>,
    pub(crate) logs: Logs,
}

/// What a caller wants to hear of what an upstream logs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Logs {
    Nothing,
    From(LoggingLevel),
    Everything,
}

impl Logs {
    /// What a request of 2026-07-28 wants to hear: it says so, or wants nothing.
    pub(crate) fn of(meta: &RequestMetaObject) -> Self {
        meta.log_level().map_or(Self::Nothing, Self::From)
    }

    fn takes(self, level: LoggingLevel) -> bool {
        match self {
            Self::Nothing => false,
            Self::From(least) => level as u8 >= least as u8,
            Self::Everything => true,
        }
    }
}

impl Bridge {
    /// The bridge of a call; `request` is the one that the attempt serves.
    pub(crate) fn new(
        context: TaskContext,
        request: &RequestContext<RoleServer>,
        listener: Option<Listener>,
    ) -> Self {
        Self {
            context,
            capabilities: request.meta.client_capabilities().unwrap_or_default(),
            listener,
            attempt: request.peer.clone(),
            token: request.meta.get_progress_token(),
            logs: Logs::of(&request.meta),
            prefix: "",
            keys: Mutex::default(),
            outbox: Mutex::default(),
        }
    }

    /// The bridge of the task that an upstream made of the call. The questions of a task have keys that stay the same whoever
    /// takes it up again (S18); those that were asked before there was a task are others.
    pub(crate) fn of_task(&self) -> Self {
        Self {
            context: self.context.clone(),
            capabilities: self.capabilities.clone(),
            listener: self.listener.clone(),
            attempt: self.attempt.clone(),
            token: self.token.clone(),
            logs: self.logs,
            prefix: "task-",
            keys: Mutex::default(),
            outbox: Mutex::default(),
        }
    }

    /// The key of a question: the upstream's own, where it has one, else one that follows from what is asked, so that a call
    /// which is made again gets the answers that were given to these very questions and to no others.
    fn key(&self, context: &RequestContext<RoleClient>, request: &Value) -> String {
        let key = match context.extensions.get::<QuestionKey>() {
            Some(QuestionKey(theirs)) => format!("{}{theirs}", self.prefix),
            None => {
                let digest = Sha256::digest(request.to_string());
                let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
                format!("{}upstream-{digest}", self.prefix)
            }
        };
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let times = keys.entry(key.clone()).or_default();
        *times += 1;
        match *times {
            1 => key,
            times => format!("{key}-{times}"),
        }
    }

    /// Who hears what is logged, and from which level on.
    fn hears(&self) -> (&Peer<RoleServer>, Logs) {
        match &self.listener {
            Some(listener) => (&listener.peer, listener.logs),
            None => (&self.attempt, self.logs),
        }
    }

    /// Says something to the caller, and all that is said meanwhile. Of what is said faster than the caller takes it, the
    /// newest reaches them.
    async fn say(&self, said: Said, length: usize) {
        if !self.outbox().put(said, length) {
            return;
        }
        loop {
            let next = self.outbox().take();
            match next {
                Some(Said::Progress(progress)) => self.tell(progress).await,
                Some(Said::Log(log)) => drop(self.hears().0.notify_logging_message(log).await),
                None => return,
            }
        }
    }

    async fn tell(&self, mut progress: ProgressNotificationParam) {
        if let Some(Listener { peer, token: Some(token), .. }) = &self.listener {
            self.context.progress(progress.progress, progress.total, progress.message.as_deref()).await;
            progress.progress_token = token.clone();
            // A caller who left needs no progress.
            let _ = peer.notify_progress(progress).await;
        } else if let Some(token) = &self.token {
            // To the caller while there is no task, and else the task's status.
            progress.progress_token = token.clone();
            let _ = self.attempt.notify_progress(progress).await;
        } else {
            self.context.progress(progress.progress, progress.total, progress.message.as_deref()).await;
        }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox<Said>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and gives the answer back; one that was given to the question before is not asked for again.
    async fn ask<T: DeserializeOwned>(
        &self,
        context: &RequestContext<RoleClient>,
        method: &str,
        params: impl Serialize,
    ) -> Result<T, ErrorData> {
        let params = serde_json::to_value(params).unwrap_or_default();
        let request = match params {
            Value::Null => json!({ "method": method }),
            params => json!({ "method": method, "params": params }),
        };
        let key = self.key(context, &request);
        let mut answers = self.context.ask([(key.as_str(), request)]).await.map_err(ErrorData::from)?;
        serde_json::from_value(answers.remove(&key).unwrap_or_default()).map_err(|_| {
            ErrorData::internal_error("the answer has not the shape that the question asks for", None)
        })
    }
}

impl ClientHandler for Bridge {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask(&context, "elicitation/create", request).await
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask(&context, "sampling/createMessage", params).await
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.ask(&context, "roots/list", Value::Null).await
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let length = params.message.as_ref().map_or(0, String::len);
        self.say(Said::Progress(params), length).await;
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        if self.hears().1.takes(params.level) {
            let length = params.data.to_string().len();
            self.say(Said::Log(params), length).await;
        }
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(self.capabilities.clone(), crate::upstream::implementation())
    }
}
