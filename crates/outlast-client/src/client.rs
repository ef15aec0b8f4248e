//! The client: calls tools, and follows the tasks that calls become.

use std::{fmt, io, sync::Arc};

use rmcp::{
    ClientHandler, RoleClient,
    model::{CallToolRequestParams, CallToolResult},
    service::{DynService, Peer},
};

use crate::{
    book::Book,
    call, clock,
    connection::Link,
    error::{CallError, CallErrorKind},
    follow::Origin,
    handle::TaskHandle,
    options::{CallOptions, ClientOptions},
    registry::Registry,
    requests,
    saved::SavedTask,
    server::Server,
    store::HandleStore,
    task::{Detail, Task},
};

/// A client of one server: call a tool and get the result, whether the server answers at once, asks first, or answers with a
/// task.
///
/// Cheap to clone. It connects at first use, and again when the connection is lost. Everything of MCP besides tool calls is
/// done with the SDK's own [`peer`](Self::peer).
///
/// ```no_run
/// use outlast_client::{Server, TaskClient};
/// use rmcp::model::CallToolRequestParams;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = TaskClient::new(Server::http("http://127.0.0.1:8808/mcp"), ());
/// let result = client.call_tool(CallToolRequestParams::new("report")).await?;
/// println!("{:?}", result.content);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TaskClient {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) link: Arc<Link>,
    pub(crate) registry: Registry,
    pub(crate) store: Option<Arc<dyn HandleStore>>,
}

/// What a call brought at once: there is no third.
#[derive(Debug)]
pub enum Started {
    /// The result.
    Ready(CallToolResult),
    /// A task, which will bring it.
    Task(TaskHandle),
}

/// Makes a [`TaskClient`].
pub struct TaskClientBuilder {
    server: Server,
    handler: Option<Arc<dyn DynService<RoleClient>>>,
    options: ClientOptions,
    store: Option<Arc<dyn HandleStore>>,
}

impl TaskClientBuilder {
    /// Puts the server's questions to this handler, and declares what it declares in `get_info`; what is not declared there
    /// is refused, and never put. Without a handler every question is refused.
    #[must_use]
    pub fn handler(mut self, handler: impl ClientHandler) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Sets limits and paces.
    #[must_use]
    pub fn options(mut self, options: ClientOptions) -> Self {
        self.options = options;
        self
    }

    /// Keeps the handles of tasks here, so that [`TaskClient::resume_all`] finds them in another process.
    #[must_use]
    pub fn store(mut self, store: impl HandleStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Makes the client. Nothing is sent yet.
    #[must_use]
    pub fn build(self) -> TaskClient {
        let handler = self.handler.unwrap_or_else(|| Arc::new(()));
        let link = Arc::new(Link::new(self.server, handler, self.options));
        TaskClient { inner: Arc::new(Inner { link, registry: Registry::default(), store: self.store }) }
    }
}

impl TaskClient {
    /// A client of a server, with the defaults.
    #[must_use]
    pub fn new(server: Server, handler: impl ClientHandler) -> Self {
        Self::builder(server).handler(handler).build()
    }

    /// A client of a server, to be set up.
    #[must_use]
    pub fn builder(server: Server) -> TaskClientBuilder {
        TaskClientBuilder { server, handler: None, options: ClientOptions::default(), store: None }
    }

    /// Calls a tool and gives its result, however long that takes.
    ///
    /// Questions of the server go to the client's handler, whether it asks before it makes a task or in the task. Dropping
    /// the future leaves the task alone.
    ///
    /// # Errors
    ///
    /// See [`CallErrorKind`]. An error after the call became a task carries its handle.
    pub async fn call_tool(&self, params: CallToolRequestParams) -> Result<CallToolResult, CallError> {
        self.call_tool_with(params, CallOptions::default()).await
    }

    /// Calls a tool as [`call_tool`](Self::call_tool) does, with a deadline, a key, a listener.
    ///
    /// # Errors
    ///
    /// As [`call_tool`](Self::call_tool).
    pub async fn call_tool_with(
        &self,
        params: CallToolRequestParams,
        options: CallOptions,
    ) -> Result<CallToolResult, CallError> {
        let until = options.deadline.and_then(|deadline| clock::now().checked_add(deadline));
        let listener = options.on_update.clone();
        match call::start(&self.inner, params, options, until).await? {
            Started::Ready(result) => Ok(result),
            Started::Task(handle) => handle.wait_until(until, listener.as_ref()).await,
        }
    }

    /// Calls a tool, and gives its result, or the task that will bring it.
    ///
    /// # Errors
    ///
    /// As [`call_tool`](Self::call_tool).
    pub async fn start_tool(&self, params: CallToolRequestParams) -> Result<Started, CallError> {
        self.start_tool_with(params, CallOptions::default()).await
    }

    /// Calls a tool as [`start_tool`](Self::start_tool) does, with a deadline for the answer to the call, or a key.
    ///
    /// # Errors
    ///
    /// As [`call_tool`](Self::call_tool).
    pub async fn start_tool_with(
        &self,
        params: CallToolRequestParams,
        options: CallOptions,
    ) -> Result<Started, CallError> {
        let until = options.deadline.and_then(|deadline| clock::now().checked_add(deadline));
        call::start(&self.inner, params, options, until).await
    }

    /// Takes up a task that was saved, here or by another process. Nothing is sent; the first look at the handle finds out
    /// whether the server still has the task.
    ///
    /// # Errors
    ///
    /// [`CallErrorKind::OtherServer`] when the task is another server's; [`CallErrorKind::Store`] when it could not be
    /// written to the client's store.
    pub async fn resume(&self, saved: SavedTask) -> Result<TaskHandle, CallError> {
        let handle = self.take_up(saved)?;
        handle.keep().await?;
        Ok(handle)
    }

    /// Takes up every task of this server that is in the client's store.
    ///
    /// # Errors
    ///
    /// [`CallErrorKind::Store`] when the store cannot be read.
    pub async fn resume_all(&self) -> Result<Vec<TaskHandle>, CallError> {
        let Some(store) = &self.inner.store else { return Ok(Vec::new()) };
        let listed = store.list(self.inner.link.server().name());
        let saved = tokio::time::timeout(self.inner.link.options().request_timeout, listed)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "the store took too long")))
            .map_err(|error| CallError::new(CallErrorKind::Store(error.to_string())))?;
        saved.into_iter().map(|saved| self.take_up(saved)).collect()
    }

    /// Takes up every task that the server lists for this caller (`tasks/list`), whatever became of it. Only servers of
    /// 2025-11-25 do, and not each of them; what tool a task is of they do not say, so that [`TaskHandle::tool`] is empty.
    ///
    /// # Errors
    ///
    /// [`CallErrorKind::Unsupported`] where the server lists none, without asking it: since 2026-07-28 handles have to be
    /// kept (S26), see [`resume_all`](Self::resume_all).
    pub async fn list_tasks(&self) -> Result<Vec<TaskHandle>, CallError> {
        let link = &self.inner.link;
        let connection = link.connection().await.map_err(|failure| CallError::new(failure.into_kind()))?;
        let listed = requests::list(&connection, link.options().request_timeout).await;
        let listed = listed.map_err(|error| CallError::new(error.into_kind()))?;
        listed
            .into_iter()
            .map(|task| {
                self.take_up(SavedTask {
                    version: SavedTask::VERSION,
                    server: link.server().name().to_owned(),
                    task_id: task.id,
                    tool: String::new(),
                    created_at: task.created_at,
                    first_seen: clock::wall(),
                    generation: connection.generation,
                    session: connection.session.clone(),
                    output_schema: None,
                    answers: Default::default(),
                    delivered: Default::default(),
                })
            })
            .collect()
    }

    fn take_up(&self, saved: SavedTask) -> Result<TaskHandle, CallError> {
        if saved.server != self.inner.link.server().name() {
            return Err(CallErrorKind::OtherServer.into());
        }
        let seed = Task {
            id: saved.task_id.clone(),
            message: None,
            created_at: saved.created_at,
            updated_at: saved.created_at,
            ttl_ms: None,
            poll_interval_ms: None,
            detail: Detail::Working,
        };
        let origin = Origin {
            id: saved.task_id,
            tool: saved.tool,
            created_at: saved.created_at,
            first_seen: saved.first_seen,
            generation: saved.generation,
            session: saved.session,
            output_schema: saved.output_schema,
        };
        let Inner { link, registry, store } = &*self.inner;
        Ok(TaskHandle::new(registry.resumed(
            link,
            store.clone(),
            origin,
            seed,
            Book::resumed(saved.answers, saved.delivered),
        )))
    }

    /// The SDK's handle to the server, for everything besides tool calls.
    ///
    /// # Errors
    ///
    /// When there is no connection and none can be made.
    pub async fn peer(&self) -> Result<Peer<RoleClient>, CallError> {
        let connection =
            self.inner.link.connection().await.map_err(|failure| CallError::new(failure.into_kind()))?;
        Ok(connection.peer().clone())
    }

    /// Whether the server recognises a repeated call of this tool by its key, so that the call may be made again although
    /// nobody knows what became of it. Not where it cannot be reached.
    pub async fn recognises_repeats(&self, tool: &str) -> bool {
        let connection = self.inner.link.connection().await;
        connection.is_ok_and(|connection| connection.session.is_none() && connection.recognises_repeats(tool))
    }

    /// Whether the server may answer a call with a task. Not where it cannot be reached.
    pub async fn offers_tasks(&self) -> bool {
        self.inner.link.connection().await.is_ok_and(|connection| connection.offers_tasks())
    }

    /// Takes the connection down, and waits until it is. Tasks go on at the server, and the next use of the client connects
    /// again. A server that is a command is asked to end, and has: without this it is killed when the last clone of the
    /// client is dropped.
    pub async fn close(&self) {
        self.inner.link.close().await;
    }
}

impl fmt::Debug for TaskClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskClient").field("server", self.inner.link.server()).finish_non_exhaustive()
    }
}

impl fmt::Debug for TaskClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskClientBuilder").field("server", &self.server).finish_non_exhaustive()
    }
}
