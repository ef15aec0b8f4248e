//! A server on a socket of its own and a SQLite file of its own.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::{extract::Request, middleware::Next, response::Response};
use outlast::{Config, Principal, Start, Store, TaskServer, TaskServerBuilder, TaskTool};
use outlast_core::{Applied, By, Event, Held, ManualClock, Renewal, TaskError, Timestamp};
use outlast_sqlite::{OpenError, Options, Role, SqliteStore};
use rmcp::model::Extensions;
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::{
    Client,
    gates::Gates,
    handler::{Claims, Handler},
};

pub(crate) struct TestServer {
    pub(crate) client: Client,
    pub(crate) gates: Gates,
    pub(crate) server: TaskServer<Handler>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: ManualClock,
    pub(crate) data: Arc<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

type Customise = dyn Fn(TaskServerBuilder<Handler>) -> TaskServerBuilder<Handler> + Send + Sync;

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::with(|builder| builder).await
    }

    /// A server with something set differently.
    pub(crate) async fn with(
        customise: impl Fn(TaskServerBuilder<Handler>) -> TaskServerBuilder<Handler> + Send + Sync + 'static,
    ) -> Self {
        let data = Arc::new(TempDir::new().unwrap());
        let clock = ManualClock::new(Timestamp::from_millis(1_785_283_200_000));
        Self::open(data, clock, Gates::default(), None, &customise).await
    }

    /// A server on a store that a test made itself.
    pub(crate) async fn on(store: Arc<dyn Store>, clock: ManualClock) -> Self {
        Self::on_with(store, clock, |builder| builder).await
    }

    pub(crate) async fn on_with(
        store: Arc<dyn Store>,
        clock: ManualClock,
        customise: impl Fn(TaskServerBuilder<Handler>) -> TaskServerBuilder<Handler> + Send + Sync + 'static,
    ) -> Self {
        let data = Arc::new(TempDir::new().unwrap());
        Self::open(data, clock, Gates::default(), Some(store), &customise).await
    }

    pub(crate) fn file(data: &TempDir) -> PathBuf {
        data.path().join("tasks.db")
    }

    async fn open(
        data: Arc<TempDir>,
        clock: ManualClock,
        gates: Gates,
        store: Option<Arc<dyn Store>>,
        customise: &Customise,
    ) -> Self {
        let store = match store {
            Some(store) => store,
            None => Arc::new(open_file(&data, &clock).await),
        };
        let now = TaskTool::optional();
        let mut builder = TaskServer::builder(Handler { gates: gates.clone() })
            .shared_store(store.clone())
            .config(config())
            .default_tool(TaskTool::never())
            .carry(claims, |claims: Claims, extensions: &mut Extensions| drop(extensions.insert(claims)));
        for tool in ["gated", "once", "deaf", "busy", "fails", "is_error", "panics", "claims", "talks", "big"]
        {
            builder = builder.tool(tool, now.clone());
        }
        for tool in
            ["grows", "reserved", "unwritable", "refused", "chapters", "patient", "stages", "chatters"]
        {
            builder = builder.tool(tool, now.clone());
        }
        for tool in ["asks", "asks_all", "asks_two", "asks_twice", "asks_model", "later"] {
            builder = builder.tool(tool, TaskTool::required());
        }
        builder = builder.tool("rounds", TaskTool::required().start(Start::AfterInput));
        let server = customise(builder).build().await.unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let options = outlast::http::Options::default();
        let app = outlast::http::router(&server, &options).layer(axum::middleware::from_fn(authenticate));
        let serving = server.clone();
        let serving = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            outlast::http::serve_router(listener, app, serving, &options, shutdown).await.unwrap();
        });
        Self { client: Client::new(url), gates, server, store, clock, data, stop: Some(stop), serving }
    }

    /// Lets a final task's time run out, and waits until it is forgotten.
    pub(crate) async fn expire(&self, id: &str) {
        let id = id.parse().unwrap();
        while let Some(task) = self.store.get(id).await.unwrap() {
            assert!(task.is_final(), "only what has ended expires");
            self.clock.advance(Duration::from_secs(2 * 86_400));
            self.store.sweep(50).await.unwrap();
        }
    }

    /// Renews a task's lease as its worker does every third of it.
    pub(crate) async fn renew(&self, id: &str) {
        let id = id.parse().unwrap();
        let task = self.store.get(id).await.unwrap().unwrap();
        let worker = task.lease().unwrap().worker.clone();
        let held = Held { id, token: task.token };
        let renewed = self.store.renew(worker, vec![held], Duration::from_secs(3_600)).await.unwrap();
        assert!(matches!(renewed[..], [Renewal::Kept { .. }]));
    }

    /// Ends a running task on another worker's word, as after a takeover.
    pub(crate) async fn end_from_outside(&self, id: &str) {
        let id = id.parse().unwrap();
        let task = self.store.get(id).await.unwrap().unwrap();
        let failed = vec![Event::Fail(TaskError::internal("ended from outside"))];
        let ended = self.store.apply(id, By::Lease(task.token), failed).await.unwrap();
        assert!(matches!(ended, Applied::Applied(_)));
    }

    /// Waits until no task is in the server's memory.
    pub(crate) async fn until_unloaded(&self) {
        while self.server.load().await.unwrap().loaded > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Drops the server without a word, as the end of its process does, and starts it again on the same file.
    pub(crate) async fn crash(self) -> Self {
        self.kill().await.start().await
    }

    /// Drops the server without a word, as the end of its process does.
    pub(crate) async fn kill(self) -> Down {
        self.serving.abort();
        let _ = self.serving.await;
        let (data, clock) = (self.data.clone(), self.clock.clone());
        drop((self.server, self.store, self.stop));
        // The connections that the old server still holds end one by one, and the file's lock is free after the last.
        drop(open_file(&data, &clock).await);
        Down { data, clock }
    }

    /// The file as another process sees it that does not run its work.
    pub(crate) fn front_store(&self) -> SqliteStore {
        let options = Options::default().clock(self.clock.clone()).role(Role::Front);
        SqliteStore::open_with(Self::file(&self.data), options).unwrap()
    }

    /// Another server on the same file, beside this one.
    pub(crate) async fn front(
        &self,
        customise: impl Fn(TaskServerBuilder<Handler>) -> TaskServerBuilder<Handler> + Send + Sync + 'static,
    ) -> Self {
        let store = self.front_store();
        let (data, clock) = (self.data.clone(), self.clock.clone());
        Self::open(data, clock, Gates::default(), Some(Arc::new(store)), &customise).await
    }

    /// Ends the server as a clean stop does, and starts it again on the same file.
    pub(crate) async fn restart(self) -> Self {
        self.restart_with(|builder| builder).await
    }

    /// Stops as on a signal, and waits until the server has ended.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.serving).await.unwrap();
    }

    pub(crate) async fn restart_with(
        mut self,
        customise: impl Fn(TaskServerBuilder<Handler>) -> TaskServerBuilder<Handler> + Send + Sync + 'static,
    ) -> Self {
        drop(self.stop.take());
        self.serving.await.unwrap();
        let (data, clock) = (self.data.clone(), self.clock.clone());
        // The file's lock is free once every handle on the store is gone.
        drop((self.server, self.store));
        Self::open(data, clock, Gates::default(), None, &customise).await
    }
}

/// The file of a server that was killed.
pub(crate) struct Down {
    data: Arc<TempDir>,
    pub(crate) clock: ManualClock,
}

impl Down {
    /// The file as a process sees it that does not run its work.
    pub(crate) fn front(&self) -> SqliteStore {
        let options = Options::default().clock(self.clock.clone()).role(Role::Front);
        SqliteStore::open_with(TestServer::file(&self.data), options).unwrap()
    }

    /// Starts the server again.
    pub(crate) async fn start(self) -> TestServer {
        TestServer::open(self.data, self.clock, Gates::default(), None, &|builder| builder).await
    }
}

/// The server before this one has answered its last request, but tasks of the SDK may still be about to let go of it.
async fn open_file(data: &TempDir, clock: &ManualClock) -> SqliteStore {
    loop {
        let options = Options::default().clock(clock.clone());
        match SqliteStore::open_with(TestServer::file(data), options) {
            Err(OpenError::Held { .. }) => tokio::task::yield_now().await,
            opened => return opened.unwrap(),
        }
    }
}

/// The defaults, for tests that poll as fast as they can and do not wait for work to drain.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.poll_limit = None;
    config.drain = Duration::from_millis(50);
    config
}

/// The tests' authentication: a token `Bearer NAME@TENANT` is the principal NAME with the claims of TENANT.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
    if let Some((name, tenant)) = token.as_deref().and_then(|token| token.split_once('@')) {
        request.extensions_mut().insert(Claims { tenant: tenant.to_owned() });
        request.extensions_mut().insert(Principal::new(name));
    }
    next.run(request).await
}

fn claims(extensions: &Extensions) -> Option<Claims> {
    extensions.get::<http::request::Parts>()?.extensions.get::<Claims>().cloned()
}
