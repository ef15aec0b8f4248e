//! The router, and what its handlers share.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    response::{IntoResponse as _, Redirect},
    routing::{get, post},
    serve::ListenerExt as _,
};
use outlast_core::Store;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot, watch},
    time::sleep,
};

use crate::{AdminToken, api, changes, guard, metrics, owners::Owners, page};

/// What other code measured, in the text format of Prometheus.
pub type Measured = Arc<dyn Fn() -> String + Send + Sync>;

/// What is served, and to whom.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The `Host` headers that are served, with or without a port: the loopback names by default. Those of the `Origin` header,
    /// where a request has one, have to be among them too.
    pub allowed_hosts: Vec<String>,
    /// What `/metrics` has besides the gauges of the store.
    pub measured: Option<Measured>,
}

impl Default for Options {
    fn default() -> Self {
        Self { allowed_hosts: ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec(), measured: None }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("allowed_hosts", &self.allowed_hosts).finish_non_exhaustive()
    }
}

/// The operator's side of a store. Clones share everything.
#[derive(Clone)]
pub struct Admin {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) token: AdminToken,
    pub(crate) options: Options,
    pub(crate) owners: Owners,
    /// A place for each stream of changes that may be open.
    pub(crate) streams: Arc<Semaphore>,
    /// Whether the process is about to end.
    pub(crate) stops: watch::Sender<bool>,
}

/// How many streams of changes may be open at one time.
const STREAMS: usize = 64;
/// How long answers that are under way have when the listener is to stop.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// More than any task takes by default as an answer.
const LARGEST_BODY: usize = 4 << 20;

impl Admin {
    /// The operator's side of `store`, for those who have `token`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, token: AdminToken, options: Options) -> Self {
        let inner = Inner {
            store,
            token,
            options,
            owners: Owners::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            stops: watch::Sender::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// All that is served, for a listener of its own.
    pub fn router(&self) -> Router {
        let guard = || middleware::from_fn_with_state(self.inner.clone(), guard::token);
        let api = Router::new()
            .route("/tasks", get(api::list))
            .route("/tasks/{id}", get(api::show))
            .route("/tasks/{id}/answers", post(api::answer))
            .route("/tasks/{id}/cancel", post(api::cancel))
            .route("/tasks/{id}/retry", post(api::retry))
            .route("/changes", get(changes::stream))
            .route("/counts", get(api::counts))
            .fallback(api::nothing)
            .method_not_allowed_fallback(api::no_such_method)
            .layer(guard());
        Router::new()
            .nest("/api", api)
            .route("/metrics", get(metrics::scrape).layer(guard()))
            .route("/ui", get(async || page::page()))
            .route("/", get(async || Redirect::temporary("/ui")))
            .route("/healthz", get(async || "ok\n".into_response()))
            .route("/readyz", get(metrics::ready))
            .fallback(api::nothing)
            .method_not_allowed_fallback(api::no_such_method)
            .layer(DefaultBodyLimit::max(LARGEST_BODY))
            .layer(middleware::from_fn_with_state(self.inner.clone(), guard::host))
            .with_state(self.inner.clone())
    }

    /// Serves it on `listener` until `shutdown` resolves.
    ///
    /// Whoever reaches the listener and has the token is an operator, so it is for this machine, or behind something that
    /// encrypts.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let (told, ends) = oneshot::channel();
        let admin = self.clone();
        let stop = async move {
            shutdown.await;
            admin.stop();
            let _ = told.send(());
        };
        // Without it each event of a stream waits for the other side's acknowledgement.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let serving = axum::serve(listener, self.router()).with_graceful_shutdown(stop);
        // A client that does not read its answer keeps nobody from stopping.
        let cutting = async {
            match ends.await {
                Ok(()) => sleep(LAST_WORDS).await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            served = async { serving.await } => served,
            () = cutting => Ok(()),
        }
    }

    /// Says that the process is about to end: it is ready no more, and streams of changes end, which a graceful stop of the
    /// listener would wait for.
    pub fn stop(&self) {
        self.inner.stops.send_replace(true);
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("options", &self.inner.options).finish_non_exhaustive()
    }
}
