//! What a hundred thousand parked questions cost on SQLite: the time from the start of a process to its first served
//! request after `kill -9`, its resident memory, and how fast it reads and resumes them. Prints a table beside the same
//! figures of an almost empty file, and judges nothing.
//!
//! `cargo bench -p outlast --bench parked -- [--tasks N] [--starts N] [--dir DIRECTORY] [--hours-ago N]`
//!
//! With `--hours-ago` the questions were asked that long before the starts. After more than half of their time to live
//! (a day) each of them is due for a longer one, and the server has to see to that while it serves.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use outlast::{
    Clock, Config, Elicited, Owner, Recovery, Store, SystemClock, TaskContext, TaskServer, TaskTool,
    Timestamp,
};
use outlast_core::{
    Applied, Asks, By, Call, Created, Event, InputKey, LeaseRequest, NewTask, Payload, Question,
    QuestionKind, Spec, TaskId, WorkerId,
};
use outlast_sqlite::{Options, SqliteStore};
use rmcp::{ErrorData, ServerHandler, model::Extensions, schemars, tool, tool_handler, tool_router};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// How many callers the tasks belong to.
const OWNERS: u64 = 1_000;
/// How many tasks the file has that the figures are compared with, and how many questions are answered in each.
const FEW: u64 = 100;
const READS: u64 = 1_000;
/// What the process may do in the background after its start, until it is looked at again.
const LATER: Duration = Duration::from_secs(3);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fill", file, tasks, hours] => fill(Path::new(file), tasks.parse()?, hours.parse()?),
        ["serve", file] => serve(Path::new(file)),
        _ => measure(&settings(arguments.into_iter())?),
    }
}

// --- the one that measures

struct Settings {
    tasks: u64,
    /// How often the server is started and killed.
    starts: usize,
    directory: PathBuf,
    hours_ago: u64,
}

fn settings(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Settings> {
    let (mut tasks, mut starts, mut directory) = (None, 5, std::env::temp_dir());
    let (mut hours_ago, mut bench) = (0, false);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match &*argument {
            "--tasks" => tasks = Some(value()?.parse()?),
            "--starts" => starts = value()?.parse()?,
            "--dir" => directory = value()?.into(),
            "--hours-ago" => hours_ago = value()?.parse()?,
            // What `cargo bench` adds; without it, it is run as a test and only shows that it runs.
            "--bench" => bench = true,
            _ => {}
        }
    }
    let usual = if bench { 100_000 } else { 2 * FEW };
    let tasks = tasks.unwrap_or(usual);
    ensure!(tasks >= FEW && starts > 0, "at least {FEW} tasks and one start are needed");
    Ok(Settings { tasks, starts, directory, hours_ago })
}

fn measure(settings: &Settings) -> anyhow::Result<()> {
    let directory = tempfile::tempdir_in(&settings.directory)?;
    let few = Figures::of(&directory.path().join("few.db"), FEW, settings)?;
    let many = Figures::of(&directory.path().join("many.db"), settings.tasks, settings)?;

    println!("in {}, questions of {} owners", settings.directory.display(), OWNERS.min(settings.tasks));
    println!("{:44} {:>14} {:>14} {:>8}", "parked questions", FEW, settings.tasks, "ratio");
    let row = |what: &str, unit: &str, figure: &dyn Fn(&Figures) -> f64| {
        let (few, many) = (figure(&few), figure(&many));
        println!("{what:44} {few:>11.1} {unit:2} {many:>11.1} {unit:2} {:>7.2}x", many / few);
    };
    row("the file", "MB", &|of| of.file_mb);
    row("filled and killed after", "s", &|of| of.filled.as_secs_f64());
    row("kill -9, start, first answer: median", "ms", &|of| median(&of.starts));
    row("kill -9, start, first answer: slowest", "ms", &|of| slowest(&of.starts));
    row("resident memory at the first answer", "MB", &|of| of.memory_at_once);
    row("resident memory 3 s later", "MB", &|of| of.memory_later);
    row("resident memory after reads and answers", "MB", &|of| of.memory_used);
    row("resident memory at its highest", "MB", &|of| of.memory_peak);
    row("tasks/get: median", "ms", &|of| median(&of.gets));
    row("tasks/update to completed: median", "ms", &|of| median(&of.resumed));
    row("tasks/update to completed: slowest", "ms", &|of| slowest(&of.resumed));
    Ok(())
}

fn median(sorted: &[Duration]) -> f64 {
    millis(sorted[sorted.len() / 2])
}

fn slowest(sorted: &[Duration]) -> f64 {
    millis(sorted[sorted.len() - 1])
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// What was measured on one file. Lists are in order, the shortest time first; memory is in millions of bytes.
struct Figures {
    file_mb: f64,
    filled: Duration,
    starts: Vec<Duration>,
    memory_at_once: f64,
    memory_later: f64,
    memory_used: f64,
    memory_peak: f64,
    gets: Vec<Duration>,
    resumed: Vec<Duration>,
}

impl Figures {
    fn of(file: &Path, tasks: u64, settings: &Settings) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let (count, hours) = (tasks.to_string(), settings.hours_ago.to_string());
        let mut filling = Process::start(&["fill".as_ref(), file.as_ref(), count.as_ref(), hours.as_ref()])?;
        filling.line()?;
        let filled = begun.elapsed();
        filling.kill()?;
        let bytes: u64 = ["", "-wal"]
            .iter()
            .filter_map(|ending| fs::metadata(format!("{}{ending}", file.display())).ok())
            .map(|found| found.len())
            .sum();

        // Each of these but the last is killed as the one that filled the file was.
        let mut times = Vec::new();
        let (mut server, mut caller) = loop {
            let begun = Instant::now();
            let (mut server, mut caller) = Process::serving(file)?;
            let shown = caller.get(tasks / 2)?;
            times.push(begun.elapsed());
            assert_eq!(shown["status"], "input_required", "{shown}");
            if times.len() == settings.starts {
                break (server, caller);
            }
            server.kill()?;
        };
        let memory_at_once = server.memory("VmRSS");
        thread::sleep(LATER);
        let memory_later = server.memory("VmRSS");

        // Spread over the file, so that what was read last helps none of them.
        let spread = |turn: u64| turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % tasks;
        let mut gets = Vec::new();
        for turn in 0..READS {
            let begun = Instant::now();
            let shown = caller.get(spread(turn))?;
            gets.push(begun.elapsed());
            assert_eq!(shown["taskId"], id(spread(turn)).to_string(), "{shown}");
        }
        let mut resumed = Vec::new();
        for turn in 0..FEW {
            let number = turn * (tasks / FEW);
            let begun = Instant::now();
            caller.answer(number)?;
            loop {
                let shown = caller.get(number)?;
                match shown["status"].as_str() {
                    Some("completed") => break,
                    Some("working") => {}
                    _ => bail!("an answered task did not go on: {shown}"),
                }
            }
            resumed.push(begun.elapsed());
        }
        let (memory_used, memory_peak) = (server.memory("VmRSS"), server.memory("VmHWM"));
        server.kill()?;
        for times in [&mut times, &mut gets, &mut resumed] {
            times.sort();
        }
        Ok(Self {
            file_mb: bytes as f64 / 1e6,
            filled,
            starts: times,
            memory_at_once,
            memory_later,
            memory_used,
            memory_peak,
            gets,
            resumed,
        })
    }
}

/// This program, started again to be killed.
struct Process {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(arguments: &[&std::ffi::OsStr]) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().context("a child has its output")?);
        Ok(Self { child, stdout })
    }

    /// Starts a server on `file`, and connects to it.
    fn serving(file: &Path) -> anyhow::Result<(Self, Caller)> {
        let mut server = Self::start(&["serve".as_ref(), file.as_ref()])?;
        let address = server.line()?;
        Ok((server, Caller::new(&address)?))
    }

    /// The next line that it prints.
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        if line.is_empty() {
            bail!("the process ended early: {}", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    /// SIGKILL; when this returns, the process is gone.
    fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// A figure of its memory, in millions of bytes; not a number where the system does not tell.
    fn memory(&self, figure: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        kibibytes.map_or(f64::NAN, |kibibytes| kibibytes * 1_024.0 / 1e6)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A client on one connection.
struct Caller {
    stream: BufReader<TcpStream>,
}

impl Caller {
    fn new(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    fn get(&mut self, number: u64) -> anyhow::Result<Value> {
        self.request("tasks/get", number, json!({"taskId": id(number).to_string()}))
    }

    fn answer(&mut self, number: u64) -> anyhow::Result<Value> {
        let answer =
            json!({"action": "accept", "content": {"approve": true, "comment": "fine", "budget": 3}});
        let params = json!({"taskId": id(number).to_string(), "inputResponses": {KEY: answer}});
        self.request("tasks/update", number, params)
    }

    /// Sends a request as the owner of a task, and returns its result.
    fn request(&mut self, method: &str, number: u64, mut params: Value) -> anyhow::Result<Value> {
        params["_meta"] = meta();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let (id, token, length) = (id(number), token(number), body.len());
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
            Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
            Mcp-Method: {method}\r\nMcp-Name: {id}\r\nAuthorization: {token}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut length = None;
        loop {
            let mut line = String::new();
            ensure!(self.stream.read_line(&mut line)? > 0, "the server closed the connection");
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse()?);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length.context("an answer says how long it is")?];
        self.stream.read_exact(&mut body)?;
        let mut answer: Value = serde_json::from_slice(&body)?;
        match answer.get("error") {
            None => Ok(answer["result"].take()),
            Some(error) => bail!("{method} was refused: {error}"),
        }
    }
}

// --- the tasks

const TOOL: &str = "approve_release";
const KEY: &str = "approval";

/// The id of a task: as good as random, and known to each of the processes.
fn id(number: u64) -> TaskId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(number.to_be_bytes())[..16]);
    TaskId::from_bytes(bytes)
}

/// The `Authorization` header of its caller.
fn token(number: u64) -> String {
    format!("Bearer caller-{}", number % OWNERS)
}

fn owner(number: u64) -> Owner {
    let request = http::Request::builder().header(http::header::AUTHORIZATION, token(number)).body(());
    let mut extensions = Extensions::new();
    extensions.insert(request.unwrap().into_parts().0);
    outlast::default_owner(&extensions)
}

fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    })
}

fn new(number: u64) -> NewTask {
    let arguments = json!({
        "service": format!("billing-{}", number % 97),
        "version": format!("4.{}.{}", number / 100, number % 100),
        "changes": [
            "Invoices are sent in the language of the customer",
            "A refund of a part of an invoice keeps its tax",
            "The nightly export no longer waits for the bank's server",
        ],
    });
    let params = json!({"name": TOOL, "arguments": arguments, "_meta": meta()});
    let mut spec = Spec::new(TOOL);
    spec.recovery = Recovery::Rerun;
    spec.asks = Asks::none().with(QuestionKind::ElicitForm);
    let call = Call::new(Payload::from_value(&params));
    NewTask { max_open: u32::MAX, ..NewTask::new(id(number), owner(number), spec, call) }
}

fn question(number: u64) -> Question {
    let request = json!({
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": format!(
                "Release 4.{}.{} of billing has passed its tests on all of the 14 machines and waits for your word. \
                It changes three things that customers see, and moves two tables, which takes about four minutes in \
                which no invoice can be written. Approve it, and say how many minutes of that you allow.",
                number / 100, number % 100
            ),
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "approve": {"type": "boolean", "description": "Whether it may be released"},
                    "comment": {"type": "string", "description": "What the log is to say", "maxLength": 500},
                    "budget": {"type": "integer", "description": "Minutes without invoices", "minimum": 0},
                },
                "required": ["approve", "comment", "budget"],
            },
        },
    });
    Question::new(&request).unwrap()
}

// --- the one that fills the file

/// Creates the tasks, each of which asks and is parked, and then waits to be killed.
fn fill(file: &Path, tasks: u64, hours_ago: u64) -> anyhow::Result<()> {
    const CALLERS: usize = 256;
    die_with_the_parent();
    let clock = Earlier(Duration::from_secs(hours_ago * 3_600));
    let store = SqliteStore::open_with(file, Options::default().clock(clock))?;
    let next = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(async {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let (store, next) = (store.clone(), next.clone());
            callers.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= tasks {
                        return;
                    }
                    park(&store, number).await;
                }
            });
        }
        callers.join_all().await;
    });
    println!("filled");
    loop {
        thread::park();
    }
}

/// The machine's clock, set back.
struct Earlier(Duration);

impl Clock for Earlier {
    fn now(&self) -> Timestamp {
        SystemClock.now() - self.0
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }
}

async fn park(store: &SqliteStore, number: u64) {
    let lease = LeaseRequest { worker: WorkerId::new("bench"), lease: Duration::from_secs(3_600) };
    let created = store.create(new(number), Some(lease)).await.unwrap();
    let Created::Created { token: Some(token), .. } = created else { panic!("task {number}: {created:?}") };
    let key = InputKey::new(KEY).unwrap();
    let asks = Event::Ask { key, question: question(number) };
    let parks = Event::Park { seen_seq: 1, wake: None };
    let parked = store.apply(id(number), By::Lease(token), vec![asks, parks]).await.unwrap();
    assert!(matches!(parked, Applied::Applied(_)), "task {number}: {parked:?}");
}

/// A child must not outlive the bench, however that ends.
fn die_with_the_parent() {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

// --- the server

struct Releases;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Approval {
    approve: bool,
    comment: String,
    budget: u32,
}

#[tool_router]
impl Releases {
    #[tool(description = "Releases a version once that is approved")]
    async fn approve_release(&self, task: TaskContext) -> Result<String, ErrorData> {
        match task.elicit::<Approval>(KEY, "Approve the release?").await? {
            Elicited::Accept(Approval { approve: true, comment, budget }) => {
                Ok(format!("released ({comment}); it may take {budget} minutes"))
            }
            _ => Ok("not released".to_owned()),
        }
    }
}

#[tool_handler]
impl ServerHandler for Releases {}

/// Serves the file over HTTP until it is killed; its first line says where.
fn serve(file: &Path) -> anyhow::Result<()> {
    die_with_the_parent();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut config = Config::default();
        // The bench polls for as fast as it can.
        config.poll_limit = None;
        let server = TaskServer::builder(Releases)
            .store(SqliteStore::open(file)?)
            .config(config)
            .tool(TOOL, TaskTool::required().recovery(Recovery::Rerun))
            .build()
            .await?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        outlast::http::serve(listener, server, std::future::pending()).await?;
        Ok(())
    })
}
