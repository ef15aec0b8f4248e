//! The server side of the extension: a wrapper that makes a handler's slow calls durable tasks.

pub(crate) mod attempt;
mod builder;
mod calls;
pub(crate) mod carry;
mod connections;
pub(crate) mod context;
mod delegate;
mod durable;
pub(crate) mod gate;
pub mod http;
mod measure;
mod owner;
mod push;
pub(crate) mod repeats;
mod session_seal;
pub mod stdio;
mod step;
mod tasks;
mod tool;
pub(crate) mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use outlast_core::{Counts, Owner, StoreError, ToolVersion};
use rmcp::{
    ServerHandler,
    model::{Extensions, JsonObject, Tool},
};

pub use self::{
    builder::{BuildError, TaskServerBuilder},
    context::{AskError, Cancelled, Elicited, TaskContext},
    measure::describe_metrics,
    owner::{OwnerFn, Principal, default_owner},
    step::StepError,
    tool::{Decision, Mode, Start, TaskTool},
};
use self::{carry::Carry, push::Feed};
use outlast_runtime::Runtime;

/// A [`ServerHandler`] that wraps another one and makes its slow calls durable tasks.
///
/// Everything that is not about tasks is passed on to the wrapped handler as it is. Clones share one runtime, so that
/// one server may be given to any number of connections.
///
/// ```
/// # use outlast::{TaskServer, TaskTool, MemoryStore, SystemClock};
/// # #[derive(Clone)] struct MyHandler;
/// # impl rmcp::ServerHandler for MyHandler {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = MemoryStore::new(SystemClock);
/// let server = TaskServer::builder(MyHandler).store(store).build().await?;
/// # server.shutdown().await; Ok(()) }
/// ```
pub struct TaskServer<H>(Arc<Shared<H>>);

struct Shared<H> {
    handler: Arc<H>,
    runtime: Runtime,
    tools: HashMap<String, TaskTool>,
    default_tool: TaskTool,
    /// For which tools a repeated call is recognised, as a client is told.
    repeats: Option<JsonObject>,
    /// The tools that the handler listed, for their annotations; kept current as lists pass through.
    catalog: Mutex<HashMap<String, Tool>>,
    owner: Arc<OwnerFn>,
    carries: Arc<[Carry]>,
    on_task_request: Option<Arc<TaskRequestFn>>,
    /// Whether the handler takes calls of the tools alone that it lists.
    lists_all: bool,
    feed: Arc<Feed>,
}

/// Is told of a request about a task.
type TaskRequestFn = dyn Fn(&Extensions, &str) + Send + Sync;

impl<H> Drop for Shared<H> {
    /// A server that is dropped without [`TaskServer::shutdown`] leaves its work as a process that ends does.
    fn drop(&mut self) {
        self.runtime.abandon();
    }
}

impl<H> Clone for TaskServer<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// A [`TaskServer`] for as long as somebody else has it: what the wrapped handler keeps of its own server, which would
/// otherwise never end.
pub struct WeakTaskServer<H>(Weak<Shared<H>>);

impl<H> WeakTaskServer<H> {
    /// The server, unless it was dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<TaskServer<H>> {
        self.0.upgrade().map(TaskServer)
    }
}

impl<H> Clone for WeakTaskServer<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H> std::fmt::Debug for WeakTaskServer<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakTaskServer")
    }
}

impl<H> std::fmt::Debug for TaskServer<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskServer").field("tools", &self.0.tools).finish_non_exhaustive()
    }
}

/// How much a server has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Load {
    /// Tasks in the store by status, over all processes.
    pub retained: Counts,
    /// Tasks in this process's memory.
    pub loaded: usize,
    /// Those of them that run, rather than wait for a person.
    pub running: usize,
    /// Streams on which this process sends changes of tasks.
    pub subscriptions: usize,
}

impl<H: ServerHandler> TaskServer<H> {
    /// Begins to wrap `handler`.
    pub fn builder(handler: H) -> TaskServerBuilder<H> {
        TaskServerBuilder::new(handler)
    }

    /// The wrapped handler.
    #[must_use]
    pub fn handler(&self) -> &Arc<H> {
        &self.0.handler
    }

    /// Asks the handler for its tools again, and from now on takes up tasks of those that it did not list before.
    ///
    /// Lists that clients ask for do the same as they pass; this is for a handler whose tools come later and whose tasks
    /// should not wait for a client.
    pub async fn relist(&self) {
        if let Some(tools) = builder::list_tools(&self.0.handler).await {
            self.learn(&tools);
        }
    }

    /// The server, without keeping it.
    #[must_use]
    pub fn downgrade(&self) -> WeakTaskServer<H> {
        WeakTaskServer(Arc::downgrade(&self.0))
    }

    /// How many tasks run and are retained.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn load(&self) -> Result<Load, StoreError> {
        let (loaded, running) = self.0.runtime.loaded();
        Ok(Load {
            retained: self.0.runtime.counts().await?,
            loaded,
            running,
            subscriptions: self.0.feed.count(),
        })
    }

    /// The change feed of the store.
    #[must_use]
    pub fn watch(&self) -> outlast_core::Hints {
        self.0.runtime.hints()
    }

    /// Stops: takes up no more work, lets running work end for as long as [`Config::drain`](crate::Config) says, gives
    /// the rest back to the store, and ends.
    pub async fn shutdown(&self) {
        self.0.runtime.drain().await;
    }

    /// Whether [`TaskServer::shutdown`] was called.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.0.runtime.is_draining()
    }

    /// Waits until [`TaskServer::shutdown`] is called.
    pub async fn shutting_down(&self) {
        self.0.runtime.draining().cancelled().await;
    }

    fn drain_time(&self) -> std::time::Duration {
        self.0.runtime.config().drain
    }

    fn policy(&self, tool: &str) -> &TaskTool {
        self.0.tools.get(tool).unwrap_or(&self.0.default_tool)
    }

    fn owner(&self, extensions: &Extensions) -> Owner {
        (self.0.owner)(extensions)
    }

    /// Remembers listed tools, for their annotations, and serves them from now on.
    fn learn(&self, tools: &[Tool]) {
        let mut catalog = self.0.catalog.lock().unwrap_or_else(PoisonError::into_inner);
        for tool in tools {
            outlast_core::tell_tool_apart(&tool.name);
            let version = self.policy(&tool.name).version_name();
            self.0.runtime.serve(ToolVersion::new(&*tool.name, version));
            catalog.insert(tool.name.clone().into_owned(), tool.clone());
        }
    }

    fn tool(&self, name: &str) -> Option<Tool> {
        self.0
            .handler
            .get_tool(name)
            .or_else(|| self.0.catalog.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned())
    }
}
