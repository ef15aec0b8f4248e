//! What it takes to push changes: many subscribers over real sockets, a task each, thousands of changes a second on
//! SQLite, while a tenth of them stop reading. Prints the time from a change's commit to its receipt and the resident memory,
//! and fails where a subscriber misses its task's end or sees a state go back.
//!
//! `cargo bench -p outlast --bench push -- [--subscribers N] [--changes N] [--seconds N] [--store URL]`
//!
//! With the URL of a PostgreSQL (`scripts/postgres.sh start --for $$` starts one) the subscribers are those of one replica, and
//! every change is made at another.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use outlast::{Config, Owner, Store, TaskServer};
use outlast_core::{
    Applied, By, Call, Created, Event, LeaseRequest, NewTask, Payload, Spec, TaskId, Token, WorkerId,
};
use outlast_postgres::PostgresStore;
use outlast_sqlite::SqliteStore;
use rmcp::ServerHandler;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Barrier, Semaphore},
    task::JoinSet,
};

#[derive(Clone)]
struct Nothing;

impl ServerHandler for Nothing {}

/// One in so many stops reading after its subscription is agreed to.
const SLEEPY: usize = 10;
/// How many changes are on their way to the store at one time.
const CALLERS: usize = 64;

struct Followed {
    id: TaskId,
    token: Token,
    /// When each change was durable, by its number.
    committed: Mutex<Vec<Instant>>,
}

fn main() -> anyhow::Result<()> {
    let mut settings = [("--subscribers", 1_000), ("--changes", 2_000), ("--seconds", 10)];
    let mut url = None;
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(name) = arguments.next() {
        if name == "--store" {
            url = Some(arguments.next().context("--store needs a URL")?);
            continue;
        }
        let setting = settings.iter_mut().find(|(known, _)| *known == name);
        let (_, value) = setting.with_context(|| format!("there is no option {name}"))?;
        *value = arguments.next().with_context(|| format!("{name} needs a number"))?.parse()?;
    }
    let [subscribers, changes, seconds] = settings.map(|(_, value)| value);
    tokio::runtime::Runtime::new()?.block_on(measure(subscribers, changes, seconds, url))
}

/// The store of the subscribers' server, and the one that changes are made at.
async fn stores(directory: &Path, url: Option<String>) -> anyhow::Result<(Arc<dyn Store>, Arc<dyn Store>)> {
    let Some(url) = url else {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.join("tasks.db"))?);
        return Ok((store.clone(), store));
    };
    let mut random = [0; 6];
    getrandom::fill(&mut random)?;
    let schema: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let replica = || {
        PostgresStore::connect(&url, outlast_postgres::Options::default().schema(format!("push_{schema}")))
    };
    let (here, there) = (replica().await?, replica().await?);
    Ok((Arc::new(here), Arc::new(there)))
}

async fn measure(
    subscribers: usize,
    changes: usize,
    seconds: usize,
    url: Option<String>,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (served, store) = stores(directory.path(), url).await?;
    let mut config = Config::default();
    config.max_subscriptions_per_owner = subscribers;
    let server = TaskServer::builder(Nothing).shared_store(served).config(config).build().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(outlast::http::serve(listener, server.clone(), std::future::pending()));

    let mut tasks = Vec::with_capacity(subscribers);
    for n in 0..subscribers {
        tasks.push(Arc::new(create(&*store, n).await?));
    }
    let agreed = Arc::new(Barrier::new(subscribers + 1));
    let mut streams = JoinSet::new();
    for (n, task) in tasks.iter().enumerate() {
        let (address, task, agreed) = (address.clone(), task.clone(), agreed.clone());
        streams.spawn(async move { follow(&address, &task, n % SLEEPY == 0, &agreed).await });
    }
    agreed.wait().await;
    let load = server.load().await?;
    ensure!(load.subscriptions == subscribers, "{} of {subscribers} subscriptions", load.subscriptions);

    let before = resident();
    let began = Instant::now();
    let room = Arc::new(Semaphore::new(CALLERS));
    let mut pace = tokio::time::interval(Duration::from_secs(1) / u32::try_from(changes)?);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut halfway = 0.0;
    for n in 0..changes * seconds {
        pace.tick().await;
        if n == changes * seconds / 2 {
            halfway = resident();
        }
        let (task, permit) = (tasks[n % subscribers].clone(), room.clone().acquire_owned().await?);
        let store = store.clone();
        tokio::spawn(async move {
            change(&*store, &task, n / subscribers).await;
            drop(permit);
        });
    }
    drop(room.acquire_many(u32::try_from(CALLERS)?).await?);
    let took = began.elapsed();
    let after = resident();
    for task in &tasks {
        let ended =
            store.apply(task.id, By::Lease(task.token), vec![Event::Complete(Payload::null())]).await?;
        ensure!(matches!(ended, Applied::Applied(_)));
    }
    let mut latencies = Vec::new();
    let sleepy = subscribers.div_ceil(SLEEPY);
    for _ in sleepy..subscribers {
        match streams.join_next().await.context("a reader is left")?? {
            Ok(seen) => latencies.extend(seen),
            Err(error) => bail!(error),
        }
    }
    latencies.sort();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("subscribers, a task each                 {subscribers:>8}   {sleepy} of them do not read");
    println!(
        "changes a second                         {:>8.0}",
        (changes * seconds) as f64 / took.as_secs_f64()
    );
    println!("states received                          {:>8}   the end by each that reads", latencies.len());
    println!("commit to receipt: median                {:>8.2} ms", at(0.5));
    println!("commit to receipt: 99 of 100             {:>8.2} ms", at(0.99));
    println!("commit to receipt: slowest               {:>8.2} ms", at(1.0));
    println!("resident memory: before the changes      {before:>8.1} MB");
    println!("resident memory: halfway                 {halfway:>8.1} MB");
    println!("resident memory: after them              {after:>8.1} MB  {:.2}x of halfway", after / halfway);

    // A client that is gone.
    let left = Instant::now();
    streams.shutdown().await;
    while server.load().await?.subscriptions > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("clients gone: all {sleepy} freed after      {:>8.2} ms", left.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

async fn create(store: &dyn Store, n: usize) -> anyhow::Result<Followed> {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&n.to_be_bytes());
    let mut new = NewTask::new(
        TaskId::from_bytes(id),
        Owner::anonymous(),
        Spec::new("bench"),
        Call::new(Payload::null()),
    );
    new.max_open = u32::MAX;
    let lease = LeaseRequest { worker: WorkerId::new("bench"), lease: Duration::from_secs(86_400) };
    match store.create(new, Some(lease)).await? {
        Created::Created { task, token: Some(token) } => {
            Ok(Followed { id: task.id, token, committed: Mutex::default() })
        }
        other => bail!("{other:?}"),
    }
}

async fn change(store: &dyn Store, task: &Followed, number: usize) {
    let events = vec![Event::SetMessage(Some(number.to_string()))];
    let changed = store.apply(task.id, By::Lease(task.token), events).await;
    assert!(matches!(changed, Ok(Applied::Applied(_))), "{changed:?}");
    let mut committed = task.committed.lock().unwrap();
    let now = Instant::now();
    if committed.len() <= number {
        committed.resize(number + 1, now);
    }
    committed[number] = now;
}

/// Follows a task to its end, and gives how long each state that was seen took to come.
async fn follow(
    address: &str,
    task: &Followed,
    sleepy: bool,
    agreed: &Barrier,
) -> anyhow::Result<Vec<Duration>> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    let params = json!({
        "notifications": {"taskIds": [task.id.to_string()]},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        },
    });
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}).to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: subscriptions/listen\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let first = message(&mut stream).await?;
    ensure!(first["method"] == "notifications/subscriptions/acknowledged", "{first}");
    agreed.wait().await;
    if sleepy {
        std::future::pending::<()>().await;
    }
    let (mut latencies, mut last) = (Vec::new(), None);
    loop {
        let state = message(&mut stream).await?;
        let received = Instant::now();
        let number = state["params"]["statusMessage"].as_str().and_then(|number| number.parse().ok());
        ensure!(number >= last, "a state went back from {last:?} to {number:?}");
        if let Some(number) = number.filter(|_| number > last) {
            let committed = task.committed.lock().unwrap().get::<usize>(number).copied();
            // Seen before its writer was told: there was no wait.
            latencies.push(committed.map_or(Duration::ZERO, |committed| received - committed));
        }
        last = number;
        if state["params"]["status"] == "completed" {
            return Ok(latencies);
        }
    }
}

/// The next message of a stream of events.
async fn message(stream: &mut BufReader<TcpStream>) -> anyhow::Result<Value> {
    let mut line = String::new();
    loop {
        line.clear();
        ensure!(stream.read_line(&mut line).await? > 0, "the stream ended early");
        if let Some(data) = line.strip_prefix("data:")
            && let Ok(message) = serde_json::from_str(data.trim())
        {
            return Ok(message);
        }
    }
}

/// The resident memory of this process, the clients' included, in megabytes; zero where it is not told.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    kilobytes.and_then(|kilobytes| kilobytes.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}
