//! The server as a process of its own: this test binary, started again.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use outlast::{Config, TaskServer};
use outlast_sqlite::SqliteStore;
use tokio::net::TcpListener;

use crate::{
    plan::STAY_AT_WORK,
    tools::{Folder, Tools, policies},
};

/// Tells the process that it is the server, and where its files are.
pub(crate) const DIRECTORY: &str = "OUTLAST_KILL_SERVER";

const LISTENING: &str = "listening on ";

/// Slots for all work that stays behind its gates, and a few for all the rest, so that tasks queue.
const SLOTS: usize = STAY_AT_WORK + 3;

pub(crate) fn database(directory: &Path) -> PathBuf {
    directory.join("tasks.db")
}

/// What the server process does until it is killed.
pub(crate) fn serve(directory: &Path) {
    // It must not outlive the test, however that ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut config = Config::default();
        config.max_running = SLOTS;
        config.max_running_per_owner = SLOTS as u32;
        config.poll_limit = None;
        // Much longer than a round: the next server must not wait for the leases of the killed one to run out.
        config.lease = Duration::from_secs(3_600);
        let mut server = TaskServer::builder(Tools { folder: Folder::of(directory) })
            .store(SqliteStore::open(database(directory)).unwrap())
            .config(config);
        for (tool, policy) in policies() {
            server = server.tool(tool, policy);
        }
        let server = server.build().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // The test harness may have left a line unfinished.
        print!("\n{LISTENING}http://{}/mcp\n", listener.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        outlast::http::serve(listener, server, std::future::pending()).await.unwrap();
    });
}

/// The server, as the test holds it.
pub(crate) struct Server {
    pub(crate) url: String,
    child: Child,
    _stdout: BufReader<ChildStdout>,
    output: PathBuf,
}

impl Server {
    /// Starts it and waits until it listens. It gets no second try: the file's lock must be free.
    pub(crate) fn start(directory: &Path) -> Self {
        let output = directory.join("stderr");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill_server", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&output).unwrap())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let url = loop {
            line.clear();
            if stdout.read_line(&mut line).unwrap() == 0 {
                let said = std::fs::read_to_string(&output).unwrap();
                panic!("the server ended before it listened: {said}");
            }
            if let Some(url) = line.trim_end().strip_prefix(LISTENING) {
                break url.to_owned();
            }
        };
        Self { url, child, _stdout: stdout, output }
    }

    /// SIGKILL. When this returns the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server said: {}", std::fs::read_to_string(&self.output).unwrap_or_default());
        }
    }
}
