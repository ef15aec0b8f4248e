//! PostgreSQL stores for the suite, each in a schema of its own in one throwaway database, on time that is moved by hand.

// The lint spares test functions alone; and no test file uses all of it.
#![allow(clippy::unwrap_used, dead_code, unused_imports)]

mod turns;

use std::{
    collections::HashMap,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outlast_core::{Store, Timestamp};
use outlast_postgres::{Options, PostgresStore, Skew};
use outlast_testkit::Harness;

pub(crate) use turns::{Turns, TwoReplicas};

/// The database of this run: the one that is given, or one that goes with this process.
pub(crate) fn url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| match std::env::var("OUTLAST_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => url,
        _ => started(&[]).0,
    })
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh")
}

/// Starts a database for this process; its URL and its folder.
fn started(arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(script());
    command.args(["start", "--for", &std::process::id().to_string()]).args(arguments);
    let output = command.env_remove("OUTLAST_TEST_POSTGRES").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut lines = printed.lines().map(str::to_owned);
    (lines.next().unwrap(), lines.next().unwrap())
}

/// A database of a test's own, which keeps what it commits, to be killed and started again.
pub(crate) struct Cluster {
    pub(crate) url: String,
    pub(crate) folder: String,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::with("--durable")
    }

    pub(crate) fn with(argument: &str) -> Self {
        let (url, folder) = started(&[argument]);
        Self { url, folder }
    }

    /// As a power cut would end it.
    pub(crate) fn kill(&self) {
        self.script("kill");
    }

    pub(crate) fn start_again(&self) {
        self.script("again");
    }

    fn script(&self, what: &str) {
        let status = Command::new(script()).args([what, &self.folder]).status().unwrap();
        assert!(status.success(), "postgres.sh {what}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.script("stop");
    }
}

/// A name that no other test of this database has.
pub(crate) fn fresh_schema() -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).unwrap();
    let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("test {random} {}", MADE.fetch_add(1, Ordering::Relaxed))
}

pub(crate) struct PostgresHarness {
    skew: Skew,
    /// The open stores, by their addresses.
    open: Mutex<HashMap<usize, Open>>,
}

struct Open {
    store: Weak<dyn Store>,
    /// Another handle of it.
    handle: PostgresStore,
    schema: String,
}

impl PostgresHarness {
    pub(crate) fn new() -> Self {
        Self { skew: still(), open: Mutex::default() }
    }

    async fn open_in(&self, schema: String) -> Arc<dyn Store> {
        let handle = open(&schema, &self.skew).await;
        let store: Arc<dyn Store> = Arc::new(handle.clone());
        let mut open = self.open.lock().unwrap();
        // Those that the suite has let go of end as well.
        open.retain(|_, open| open.store.strong_count() > 0);
        open.insert(address(&store), Open { store: Arc::downgrade(&store), handle, schema });
        store
    }
}

/// Time that is moved by hand, from the first instant of 2026.
pub(crate) fn still() -> Skew {
    Skew::still(Timestamp::from_millis(1_767_225_600_000))
}

/// A replica of the store in this schema.
pub(crate) async fn open(schema: &str, skew: &Skew) -> PostgresStore {
    let options = Options::default().schema(schema).skew(skew.clone());
    match std::env::var("OUTLAST_TEST_POOLER") {
        // By hand: through a pooler before the same database that knows nothing of prepared statements.
        Ok(pooler) => {
            PostgresStore::connect(&pooler, options.prepared(false).direct_url(url())).await.unwrap()
        }
        Err(_) => PostgresStore::connect(url(), options).await.unwrap(),
    }
}

/// A connection of the test's own, for looking and for doing harm.
pub(crate) async fn raw(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A schema's name in a statement.
pub(crate) fn quoted(schema: &str) -> String {
    format!("\"{schema}\"")
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}

fn address(store: &Arc<dyn Store>) -> usize {
    Arc::as_ptr(store).cast::<()>() as usize
}

#[async_trait]
impl Harness for PostgresHarness {
    async fn open(&self) -> Arc<dyn Store> {
        self.open_in(fresh_schema()).await
    }

    async fn advance(&self, by: Duration) {
        self.skew.advance(by);
    }

    async fn set_back(&self, by: Duration) {
        self.skew.set_wall(-millis(by));
    }

    async fn set_forward(&self, by: Duration) {
        self.skew.set_wall(millis(by));
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let Open { schema, handle, .. } = self.open.lock().unwrap().remove(&address(&store)).unwrap();
        handle.close().await;
        self.open_in(schema).await
    }
}
