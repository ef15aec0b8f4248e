//! The gateway and the servers behind it, each a process of its own.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::json;
use tempfile::TempDir;

/// Tells an upstream process where its files are.
pub(crate) const DIRECTORY: &str = "OUTLAST_KILL_UPSTREAM";
/// Tells it which one it is.
pub(crate) const KIND: &str = "OUTLAST_KILL_UPSTREAM_KIND";
/// What the line begins with by which a server says where it is.
pub(crate) const LISTENING: &str = "listening on ";

/// A folder, and the servers in it that live on when the gateway dies.
pub(crate) struct Site {
    folder: TempDir,
    _upstreams: [Process; 2],
}

impl Site {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let directory = folder.path();
        let [plain, tasks] = ["plain", "tasks"].map(|kind| {
            let mut command = upstream(directory);
            command.env(KIND, kind);
            Process::start(command, &directory.join(kind))
        });
        let settings = format!(
            "start = \"now\"\nhold = \"300ms\"\ndb = \"gateway.db\"\nlisten = \"127.0.0.1:0\"\n\
            [upstream.plain]\nurl = {}\n\
            [upstream.plain.tools.late_once]\nstart = \"50ms\"\n\
            [upstream.tasks]\nurl = {}\n\
            [upstream.piped]\ncommand = {}\n",
            json!(plain.url),
            json!(tasks.url),
            json!(command_line()),
        );
        fs::write(directory.join("gateway.toml"), settings).unwrap();
        Self { folder, _upstreams: [plain, tasks] }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.directory().join("gateway.db")
    }

    /// Starts the gateway and waits until it listens. It gets no second try: the file's lock must be free.
    pub(crate) fn gateway(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
        command.arg("gateway").env_remove("RUST_LOG").current_dir(self.directory());
        // For the server that it starts itself.
        command.env(DIRECTORY, self.directory()).env(KIND, "piped");
        Process::start(command, &self.directory().join("gateway.log"))
    }
}

/// The command by which this test binary is an upstream.
fn command_line() -> Vec<String> {
    let binary = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let arguments = ["upstream_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"];
    [&*binary].into_iter().chain(arguments).map(str::to_owned).collect()
}

fn upstream(directory: &Path) -> Command {
    let line = command_line();
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).env(DIRECTORY, directory);
    command
}

/// A server, as the test holds it.
pub(crate) struct Process {
    pub(crate) url: String,
    child: Child,
    _stdout: BufReader<ChildStdout>,
    output: PathBuf,
}

impl Process {
    fn start(mut command: Command, output: &Path) -> Self {
        let log = File::options().create(true).append(true).open(output).unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let url = loop {
            line.clear();
            if stdout.read_line(&mut line).unwrap() == 0 {
                panic!("the server ended before it listened: {}", fs::read_to_string(output).unwrap());
            }
            if let Some(url) = line.trim_end().strip_prefix(LISTENING) {
                break url.to_owned();
            }
        };
        Self { url, child, _stdout: stdout, output: output.to_owned() }
    }

    /// The host and port that it listens on.
    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("http://").and_then(|url| url.strip_suffix("/mcp")).unwrap()
    }

    /// SIGKILL. When this returns the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = fs::read_to_string(&self.output).unwrap_or_default();
            eprintln!("{} said: {said}", self.output.display());
        }
    }
}
