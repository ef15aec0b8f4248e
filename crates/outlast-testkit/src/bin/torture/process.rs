//! The server as a process of its own: this binary, started again.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use outlast::{Config, TaskServer};
use outlast_postgres::{Options, PostgresStore};
use outlast_sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::{
    side::Side,
    tools::{ON_PURPOSE, Tools, policies},
};

const LISTENING: &str = "listening on ";

/// How a server is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) home: Home,
    pub(crate) side: PathBuf,
    /// The side database; of a process's own where several work at once, so that one that is stopped locks out none.
    pub(crate) effects: PathBuf,
    /// The number of this process among those of its store.
    pub(crate) process: u64,
    pub(crate) park_after_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) slots: usize,
    /// The URL of PostgreSQL, where the store is there. It is handed on by the environment, because arguments can be seen.
    #[serde(skip)]
    pub(crate) database: Option<Secret>,
}

/// A URL with a password in it.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(a URL)")
    }
}

/// Where a store is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Home {
    /// In this file, for one server at a time.
    File(PathBuf),
    /// In this schema of PostgreSQL.
    Schema(String),
}

const DATABASE: &str = "OUTLAST_TORTURE_POSTGRES";

/// Opens the store in a schema; the database may be on its way up.
pub(crate) async fn open_schema(url: &str, schema: &str) -> anyhow::Result<PostgresStore> {
    let options = Options::default().schema(schema).wait(Some(Duration::from_secs(60)));
    Ok(PostgresStore::connect(url, options).await?)
}

/// What the server's process does until it is killed.
pub(crate) fn serve(setup: Setup) -> anyhow::Result<()> {
    // It must not outlive whoever started it, however that ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    // Panics that a program ends with are no news.
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>();
        if message.is_none_or(|message| !message.ends_with(ON_PURPOSE)) {
            say(panic);
        }
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let side = Arc::new(Side::open(&setup.side, &setup.effects, setup.process));
        let mut config = Config::default();
        config.max_running = setup.slots;
        config.park_after = Duration::from_millis(setup.park_after_ms);
        config.lease = Duration::from_millis(setup.lease_ms);
        config.poll_limit = None;
        let server = TaskServer::builder(Tools { side });
        let server = match &setup.home {
            Home::File(file) => server.store(SqliteStore::open(file)?),
            Home::Schema(schema) => server.store(open_schema(&std::env::var(DATABASE)?, schema).await?),
        };
        let mut server = server.config(config);
        for (tool, policy) in policies() {
            server = server.tool(tool, policy);
        }
        let server = server.build().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{LISTENING}http://{}/mcp", listener.local_addr()?);
        std::io::stdout().flush()?;
        outlast::http::serve(listener, server, std::future::pending()).await?;
        Ok(())
    })
}

fn command(setup: &Setup, log: &Path) -> Command {
    let said = OpenOptions::new().append(true).create(true).open(log).expect("the server's log opens");
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command
        .args(["serve", &serde_json::to_string(setup).expect("a set-up is JSON")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(said);
    if let Some(Secret(url)) = &setup.database {
        command.env(DATABASE, url);
    }
    command
}

/// What records the writes of a server.
pub(crate) struct Traced<'a> {
    /// The library that is loaded into it.
    pub(crate) library: &'a Path,
    /// The directory whose files count.
    pub(crate) of: &'a Path,
    pub(crate) to: &'a Path,
}

/// The server, as the run holds it.
pub(crate) struct Server {
    pub(crate) url: String,
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts it and waits until it listens. It gets no second try: whatever a kill left behind, the file must open.
    ///
    /// # Errors
    /// Says what the server said.
    pub(crate) fn start(setup: &Setup, traced: Option<&Traced<'_>>, log: &Path) -> Result<Self, String> {
        let mut command = command(setup, log);
        let from = std::fs::metadata(log).map_or(0, |log| log.len());
        if let Some(traced) = traced {
            command
                .env("LD_PRELOAD", traced.library)
                .env("OUTLAST_TRACE_OF", traced.of)
                .env("OUTLAST_TRACE_TO", traced.to);
        }
        let mut child = command.spawn().expect("the server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut line = String::new();
        let _ = stdout.read_line(&mut line);
        let mut server = Self { url: String::new(), child, _stdout: stdout };
        match line.trim_end().strip_prefix(LISTENING) {
            Some(url) => server.url.push_str(url),
            // The process is waited for as it goes.
            None => return Err(format!("the server does not listen: {line}{}", tail(log, from))),
        }
        Ok(server)
    }

    /// Starts it and kills it so soon that it may still be opening what the last one left.
    pub(crate) fn start_in_vain(setup: &Setup, log: &Path, after: Duration) {
        let mut child = command(setup, log).spawn().expect("the server starts");
        std::thread::sleep(after);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The number that its workers have in their names.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGSTOP: it stands still, with all that it holds.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.signal("-STOP")
    }

    /// SIGCONT: it goes on as if no time had passed.
    pub(crate) fn go_on(&mut self) -> Result<(), String> {
        self.signal("-CONT")
    }

    fn signal(&mut self, signal: &str) -> Result<(), String> {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return Err("the server ended by itself".to_owned());
        }
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status();
        match sent {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("kill {signal}: {status}")),
            Err(error) => Err(format!("kill {signal}: {error}")),
        }
    }

    /// SIGKILL. When this returns the process is gone; says whether it lived until then.
    pub(crate) fn kill(&mut self) -> bool {
        let lived = matches!(self.child.try_wait(), Ok(None));
        let _ = self.child.kill();
        let _ = self.child.wait();
        lived
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a log says from here on, at most its last few thousand bytes.
pub(crate) fn tail(log: &Path, from: u64) -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(log) {
        let _ = file.read_to_end(&mut text);
    }
    let from = usize::try_from(from).unwrap_or(0).max(text.len().saturating_sub(4_000)).min(text.len());
    String::from_utf8_lossy(&text[from..]).into_owned()
}
