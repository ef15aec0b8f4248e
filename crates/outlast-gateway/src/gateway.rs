//! The gateway: its upstreams, what it does beyond passing on, and the server around it.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use outlast::{
    BuildError, Config, Decision, Owner, Recovery, Start, Store, TaskServer, TaskTool, WeakTaskServer,
    default_owner,
};
use rmcp::model::{Extensions, JsonObject, ServerCapabilities, ServerConfig};
use serde::{Deserialize, Serialize};

use crate::{
    asking::OpenForms,
    caller::Caller,
    describe, hold, names,
    remembered::Remembered,
    repeats,
    sessions::Sessions,
    upstream::{Upstream, When},
    works::{Ticket, Work, Works},
};

/// How long a call may take by default before it becomes a task.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a call is held open that is to be held until its end: longer than any connection.
const UNTIL_ITS_END: Duration = Duration::from_secs(30 * 86_400);
/// How often it is looked for ways to upstreams that nobody uses any more.
const LOOK: Duration = Duration::from_secs(60);
/// How long an upstream may take to say what it is to a caller who asks the gateway for that.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// What a gateway does beyond passing on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GatewayOptions {
    /// When a call becomes a task, for callers who can follow one. After three seconds by default.
    pub start: When,
    /// How long the call of a caller is held open who knows nothing of tasks. 50 s by default: hosts cut calls at 60. A call
    /// that is [never](When::Never) a task is held open until it ends.
    pub hold: Duration,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self { start: When::After(PATIENCE), hold: Duration::from_secs(50) }
    }
}

/// A server in front of servers. See the crate's page.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) options: GatewayOptions,
    /// How long work that is under way has for its end when the gateway ends.
    pub(crate) drain: Duration,
    /// For which tools a repeated call is recognised, as callers are told.
    pub(crate) repeats: Option<JsonObject>,
    /// The server that wraps the gateway, through which calls of callers without tasks become tasks as well.
    pub(crate) server: OnceLock<WeakTaskServer<Gateway>>,
    /// The work that such callers were told goes on, by what they asked for.
    pub(crate) held: Mutex<Remembered>,
    /// The questions of work that somebody looks at now.
    pub(crate) forms: OpenForms,
    /// The callers who wait for calls that are held open, and want to hear of progress.
    pub(crate) listeners: hold::Listeners,
    /// The callers who have a session, and hear of changes there.
    pub(crate) sessions: Sessions,
    /// What callers let work in by, for upstreams that get it.
    pub(crate) works: Works,
}

impl Gateway {
    /// Puts a gateway in front of upstreams, and makes its slow calls tasks of `store`.
    ///
    /// Each upstream is asked what it can. One that cannot be reached now is reached later, and callers are told that the lists
    /// have changed.
    ///
    /// # Errors
    /// What [`TaskServer`]'s builder refuses: also a [policy](Upstream::tool) for a tool that its upstream has not, where all
    /// upstreams can be reached now.
    pub async fn serve(
        upstreams: Vec<Upstream>,
        options: GatewayOptions,
        store: Arc<dyn Store>,
        mut config: Config,
    ) -> Result<TaskServer<Self>, BuildError> {
        let names: Vec<_> = upstreams.iter().map(Upstream::name).collect();
        if let Some(why) = names::misnamed(&names) {
            return Err(BuildError::Config(why));
        }
        if let Some(why) = upstreams.iter().find_map(Upstream::misfit) {
            return Err(BuildError::Config(why));
        }
        let upstreams: Vec<_> = upstreams.into_iter().map(Arc::new).collect();
        let forwards = upstreams.iter().any(|upstream| upstream.forwards());
        let away = introduce(&upstreams).await;
        let repeats = repeats(&upstreams, options.start);
        let mut builder_tools = Vec::new();
        for upstream in &upstreams {
            for (tool, policy) in upstream.policies() {
                let mut task = usual(policy.start.unwrap_or(options.start), options.hold);
                if let Some(deadline) = policy.deadline {
                    task = task.deadline(deadline);
                }
                builder_tools.push((names::outside(upstream.name(), tool), task));
            }
        }
        // The upstream waits with the call, so nothing would be saved by dropping the gateway's half of it.
        config.park_after = Duration::MAX;
        let inner = Inner {
            upstreams,
            drain: config.drain,
            repeats,
            server: OnceLock::new(),
            held: Mutex::default(),
            forms: OpenForms::default(),
            listeners: hold::Listeners::default(),
            sessions: Sessions::default(),
            works: Works::default(),
            options: options.clone(),
        };
        let gateway = Self { inner: Arc::new(inner) };
        match repeats::left_by_earlier(&gateway, &*store, config.clock.now()).await {
            Ok(left) => *gateway.inner.held.lock().unwrap_or_else(PoisonError::into_inner) = left,
            Err(error) => tracing::warn!(%error, "what earlier calls began is found by its id alone"),
        }
        let mut builder = TaskServer::builder(gateway.clone())
            .shared_store(store)
            .config(config)
            .carry(
                |extensions| Some(Person(default_owner(extensions).as_str().to_owned())),
                |person: Person, seen| drop(seen.insert(person)),
            )
            .unlisted_tools()
            .default_tool(usual(options.start, options.hold));
        if forwards {
            let (carries, hears) = (gateway.clone(), gateway.clone());
            builder = builder
                .carry(
                    move |extensions| carries.ticket(extensions),
                    |ticket: Ticket, seen| drop(seen.insert(ticket)),
                )
                .on_task_request(move |extensions, task| hears.heard_about(extensions, task));
        }
        for (name, tool) in builder_tools {
            builder = builder.tool(name, tool);
        }
        let server = builder.build().await?;
        let _ = gateway.inner.server.set(server.downgrade());
        if !away.is_empty() || (forwards && gateway.inner.upstreams.len() > 1) {
            // What the others have.
            server.relist().await;
        }
        if forwards {
            tokio::spawn(close_idle(Arc::downgrade(&gateway.inner)));
        }
        for n in away {
            tokio::spawn(await_upstream(Arc::downgrade(&gateway.inner), n));
        }
        Ok(server)
    }

    /// Ends the connections to the upstreams, and the processes that upstreams are. For when the server has been shut down; a
    /// call that comes later connects again.
    pub async fn close(&self) {
        futures::future::join_all(self.inner.upstreams.iter().map(|upstream| upstream.close())).await;
    }

    /// What the gateway says of itself now: what those of its upstreams can that were ever reached. Those that get their callers'
    /// own tokens are known as the caller knows them, where it is said who asks.
    pub(crate) fn describe(&self, caller: Option<&Caller>) -> ServerConfig {
        let mut declared = Vec::new();
        let mut unknown = None;
        for upstream in &self.inner.upstreams {
            let known = match (upstream.forwards(), caller) {
                (false, _) => upstream.declared(),
                (true, Some(caller)) => upstream.for_caller(caller).ok().and_then(|lane| lane.declared()),
                (true, None) => None,
            };
            if known.is_none() && upstream.forwards() {
                unknown = Some(describe::anything());
            }
            declared.extend(known);
        }
        let theirs: Vec<&ServerCapabilities> =
            declared.iter().map(|declared| &declared.capabilities).collect();
        let mut capabilities = describe::capabilities(theirs.into_iter().chain(&unknown));
        if let Some(repeats) = &self.inner.repeats {
            let extensions = capabilities.extensions.get_or_insert_default();
            extensions.insert("outlast/idempotency".to_owned(), repeats.clone());
        }
        let info = ServerConfig::new(capabilities).with_server_info(crate::upstream::implementation());
        let instructions: Vec<&str> =
            declared.iter().filter_map(|declared| declared.instructions.as_deref()).collect();
        if instructions.is_empty() { info } else { info.with_instructions(instructions.join("\n\n")) }
    }

    /// How long a call of a tool is held open for a caller who waits.
    pub(crate) fn hold(&self, name: &str) -> Duration {
        let policy = self.named(name).and_then(|(upstream, tool)| upstream.policies().get(tool));
        match policy.and_then(|policy| policy.start).unwrap_or(self.inner.options.start) {
            When::Never => UNTIL_ITS_END,
            When::Now | When::After(_) => self.inner.options.hold,
        }
    }

    /// The upstream of a tool or prompt, and its name there.
    pub(crate) fn named<'n>(&self, name: &'n str) -> Option<(&Arc<Upstream>, &'n str)> {
        self.inner
            .upstreams
            .iter()
            .find_map(|upstream| Some((upstream, names::inside(upstream.name(), name)?)))
    }
}

impl Gateway {
    /// Who makes a request. Its `Authorization` is known from then on where it is needed.
    pub(crate) fn caller(&self, extensions: &Extensions) -> Caller {
        let caller = Caller::of(extensions);
        self.heard(&caller, None);
        caller
    }

    /// Reaches the upstreams that get their callers' own tokens, so that this caller can be told what they are.
    pub(crate) async fn introduce_to(&self, caller: &Caller) {
        let reached =
            self.inner.upstreams.iter().filter(|upstream| upstream.forwards()).map(async |upstream| {
                if let Ok(lane) = upstream.for_caller(caller) {
                    // One that is not reached is described by what it may be able to do.
                    let _ = tokio::time::timeout(INTRODUCTION, lane.peer()).await;
                }
            });
        futures::future::join_all(reached).await;
    }

    /// The work of a task begins, or goes on after a restart.
    pub(crate) fn begin(&self, owner: &Owner, mark: String, ticket: Option<&Ticket>) -> Arc<Work> {
        self.inner.works.begin(owner, mark, ticket)
    }

    /// What is stored of a call in the place of its `Authorization`.
    fn ticket(&self, extensions: &Extensions) -> Option<Ticket> {
        let caller = self.caller(extensions);
        match caller.authorization {
            Some(authorization) => self.inner.works.ticket(&caller.owner, authorization),
            None => Some(Ticket::none()),
        }
    }

    /// A call that is held comes by again, and has its ticket then.
    pub(crate) fn discard_ticket(&self, extensions: &mut Extensions) {
        if let Some(ticket) = extensions.remove::<Ticket>() {
            self.inner.works.discard(&ticket);
        }
    }

    fn heard_about(&self, extensions: &Extensions, task: &str) {
        // What is asked again and again for a caller who waits brings nothing new, and may be older than what others brought.
        if extensions.get::<hold::Again>().is_none() {
            self.heard(&Caller::of(extensions), Some(task));
        }
    }

    fn heard(&self, caller: &Caller, about: Option<&str>) {
        let Some(authorization) = &caller.authorization else { return };
        if self.inner.upstreams.iter().any(|upstream| upstream.forwards()) {
            self.inner.upstreams.iter().for_each(|upstream| upstream.heard(caller));
            self.inner.works.heard(&caller.owner, about, authorization);
        }
    }
}

/// Closes the ways of owners that nobody has used for a while.
async fn close_idle(gateway: Weak<Inner>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(inner) = gateway.upgrade() else { return };
        futures::future::join_all(inner.upstreams.iter().map(|upstream| upstream.close_idle())).await;
    }
}

/// For whom a call is made, as the store knows its owner.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Person(pub(crate) String);

/// Waits for an upstream that could not be reached at the start, so that the tasks of its tools are taken up with it.
async fn await_upstream(gateway: Weak<Inner>, n: usize) {
    loop {
        let Some(inner) = gateway.upgrade() else { return };
        let upstream = &inner.upstreams[n];
        let is_reached = upstream.reach().await.is_ok();
        let Some(server) = inner.server.get().and_then(WeakTaskServer::upgrade) else { return };
        if server.is_shutting_down() {
            return;
        }
        if is_reached {
            tracing::info!(upstream = upstream.name(), "an upstream was reached that was away at the start");
            return server.relist().await;
        }
    }
}

/// For which tools a repeated call is recognised by its key, as a client is told: for those whose calls are kept from their
/// start. The server cannot know, since when a call becomes a task depends on who makes it.
fn repeats(upstreams: &[Arc<Upstream>], start: When) -> Option<JsonObject> {
    let settled = || {
        upstreams.iter().flat_map(|upstream| {
            let name = |tool: &str| names::outside(upstream.name(), tool);
            upstream.policies().iter().map(move |(tool, policy)| (name(tool), policy.start.unwrap_or(start)))
        })
    };
    match start {
        When::Never => {
            let named: Vec<String> =
                settled().filter(|(_, start)| *start != When::Never).map(|(name, _)| name).collect();
            (!named.is_empty()).then(|| JsonObject::from_iter([("tools".to_owned(), named.into())]))
        }
        // The tools that are not settled are all the rest, and cannot be named.
        When::Now | When::After(_) if settled().any(|(_, start)| start == When::Never) => None,
        When::Now | When::After(_) => Some(JsonObject::new()),
    }
}

/// What calls of a tool become. That a call is not made twice is for the call itself to see to.
fn usual(start: When, hold: Duration) -> TaskTool {
    TaskTool::optional().recovery(Recovery::Rerun).decide(move |_, context| match start {
        When::Now => Decision::Task(Start::Now),
        When::After(patience) if hold::comes_back(context) => {
            Decision::Task(Start::After(patience.min(hold)))
        }
        When::After(patience) => Decision::Task(Start::After(patience)),
        When::Never if hold::comes_back(context) => Decision::Task(Start::After(PATIENCE)),
        When::Never => Decision::Sync,
    })
}

/// Reaches the upstreams, and gives those that cannot be. One that gets its callers' own tokens is for callers to reach.
async fn introduce(upstreams: &[Arc<Upstream>]) -> Vec<usize> {
    let is_there = async |upstream: &Arc<Upstream>| upstream.forwards() || upstream.is_there().await;
    let there = futures::future::join_all(upstreams.iter().map(is_there)).await;
    let away: Vec<usize> = (0..upstreams.len()).filter(|n| !there[*n]).collect();
    for n in &away {
        tracing::warn!(upstream = upstreams[*n].name(), "an upstream cannot be reached yet");
    }
    away
}
