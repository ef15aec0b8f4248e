//! `examples/report.rs`, killed at each of its await points.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::Duration,
};

use outlast::TaskServer;
use outlast_core::{EntryKind, Store, TaskId};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams, ServerConfig},
    service::RequestContext,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, server::config};

#[path = "../../examples/report.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a program of its own")]
mod example;

/// Where the store of a child process is, and when it is to die: before or after its nth await.
const DIRECTORY: &str = "OUTLAST_REPORT_DIRECTORY";
const DIES: &str = "OUTLAST_REPORT_DIES";

const LISTENING: &str = "listening on ";

/// When a process dies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Death {
    /// With the tool waiting at an await, for the nth time: what it waits for may or may not be done.
    Waiting(u32),
    /// When the tool is about to go on behind one.
    GoingOn(u32),
    Never,
}

/// The example's handler, in a process that dies.
struct Mortal {
    reports: example::Reports,
    death: Death,
    awaits: AtomicU32,
}

impl ServerHandler for Mortal {
    fn get_info(&self) -> ServerConfig {
        self.reports.get_info()
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.reports.list_tools(request, context).await
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut tool = std::pin::pin!(self.reports.call_tool(request, context));
        std::future::poll_fn(|context| {
            if self.death == Death::GoingOn(self.awaits.load(Ordering::SeqCst)) {
                std::process::abort();
            }
            let polled = tool.as_mut().poll(context);
            let awaits = self.awaits.fetch_add(1, Ordering::SeqCst) + 1;
            if polled.is_pending() && self.death == Death::Waiting(awaits) {
                std::process::abort();
            }
            polled
        })
        .await
    }
}

/// The child process; in the parent it does nothing.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    // It must not outlive the test, however that ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let dies = std::env::var(DIES).unwrap();
    let (when, count) = dies.split_once(' ').unwrap();
    let count = count.parse().unwrap();
    let death = match when {
        "waiting" => Death::Waiting(count),
        "going-on" => Death::GoingOn(count),
        _ => Death::Never,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(Path::new(&directory).join("report.db")).unwrap();
        let mut config = config();
        config.park_after = Duration::ZERO;
        config.poll_every = Duration::from_millis(20);
        let mortal = Mortal { reports: example::Reports, death, awaits: AtomicU32::new(0) };
        let server = TaskServer::builder(mortal).store(store).config(config).tool("report", example::terms());
        let server = server.build().await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // The test harness may have left a line unfinished.
        print!("\n{LISTENING}http://{}/mcp\n", listener.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        outlast::http::serve(listener, server, std::future::pending()).await.unwrap();
    });
}

/// A running child, and what it printed.
struct Process {
    child: Child,
    client: Client,
    lines: mpsc::Receiver<String>,
}

impl Process {
    /// `None` when it dies before it listens.
    fn start(directory: &Path, death: Death) -> Option<Self> {
        let dies = match death {
            Death::Waiting(n) => format!("waiting {n}"),
            Death::GoingOn(n) => format!("going-on {n}"),
            Death::Never => "never 0".to_owned(),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "report::child", "--nocapture"])
            .env(DIRECTORY, directory)
            .env(DIES, dies)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let printed = Mutex::new(Vec::new());
        let url = output.by_ref().map_while(Result::ok).find_map(|line| {
            let url = line.strip_prefix(LISTENING).map(str::to_owned);
            printed.lock().unwrap().push(line);
            url
        });
        let (send, lines) = mpsc::channel();
        for line in printed.into_inner().unwrap() {
            let _ = send.send(line);
        }
        std::thread::spawn(move || {
            for line in output.map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        match url {
            Some(url) => Some(Self { child, client: Client::new(url), lines }),
            None => {
                child.wait().unwrap();
                None
            }
        }
    }

    /// Ends it, unless it has ended, and gives what the example printed.
    fn printed(mut self) -> Vec<String> {
        let _ = self.child.kill();
        self.child.wait().unwrap();
        self.lines
            .iter()
            .filter(|line| line.starts_with("writing") || line.starts_with("publishing"))
            .collect()
    }

    async fn request(&self, method: &str, params: Value) -> Option<Value> {
        let reply = self.client.try_request(method, params).await?;
        Some(reply.result().clone())
    }
}

/// The lines of the steps that are in the journal, and the task, when it exists.
async fn durable(directory: &Path, id: Option<TaskId>) -> BTreeSet<String> {
    let store = SqliteStore::open(directory.join("report.db")).unwrap();
    let Some(id) = id else { return BTreeSet::new() };
    let entries = store.journal(id, 0, u64::MAX).await.unwrap().entries;
    let steps = entries.into_iter().filter(|entry| entry.kind == EntryKind::Step);
    steps
        .map(|entry| match entry.key.unwrap().as_str() {
            "publish" => "publishing".to_owned(),
            chapter => {
                let chapter = chapter.strip_prefix("chapter[").unwrap().strip_suffix("]/write").unwrap();
                format!("writing about the {chapter} of bees")
            }
        })
        .collect()
}

/// Drives the report to its end over as many processes as that takes, the first of which dies. Whether it did.
async fn live(death: Death) -> bool {
    let data = TempDir::new().unwrap();
    let mut id = None;
    let mut died = false;
    let mut first = true;
    loop {
        let done_before = durable(data.path(), id).await;
        let death = if std::mem::take(&mut first) { death } else { Death::Never };
        let Some(process) = Process::start(data.path(), death) else {
            died = true;
            continue;
        };
        let result = drive(&process, &mut id).await;
        let printed = process.printed();
        for line in &printed {
            assert!(
                !done_before.contains(line),
                "{death:?}: a step whose entry was durable ran again: {line}"
            );
            assert_eq!(printed.iter().filter(|other| *other == line).count(), 1, "{death:?}: {line}");
        }
        if let Some(result) = result {
            let report = "edition 1:\nThe past of bees is a long story.\nThe present of bees is a long story.\n\
                          The future of bees is a long story.\n";
            assert_eq!(result, report, "{death:?}");
            assert_eq!(durable(data.path(), id).await.len(), 4, "{death:?}");
            return died;
        }
        died = true;
    }
}

/// Orders the report, answers its question and waits for its end; `None` when the process dies meanwhile.
async fn drive(process: &Process, id: &mut Option<TaskId>) -> Option<Value> {
    let order = json!({"name": "report", "arguments": {"topic": "bees", "hurry": true},
        "_meta": {"outlast/idempotencyKey": "the report"}});
    let created = process.request("tools/call", order).await?;
    let task = created["taskId"].as_str().unwrap().to_owned();
    *id = Some(task.parse().unwrap());
    loop {
        let state = process.request("tasks/get", json!({"taskId": task})).await?;
        match state["status"].as_str().unwrap() {
            "completed" => return Some(state["result"]["content"][0]["text"].clone()),
            "input_required" => {
                let answer = json!({"approve": {"action": "accept", "content": {"publish": true}}});
                process.request("tasks/update", json!({"taskId": task, "inputResponses": answer})).await?;
            }
            "working" => tokio::task::yield_now().await,
            other => panic!("{other}: {state}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_is_the_same_and_no_step_runs_twice_wherever_its_server_dies() {
    let mut awaits = 0;
    for n in 1.. {
        let died = [live(Death::Waiting(n)).await, live(Death::GoingOn(n)).await];
        if died == [false, false] {
            break;
        }
        awaits = n;
    }
    // Four steps, a question and a timer: at the least their writes, the answer and the time.
    assert!(awaits >= 8, "only {awaits} awaits were reached");
    println!("killed at {awaits} awaits, before and behind each");
}
