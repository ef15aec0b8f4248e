//! How fast the store is on this machine: durable creates beside the rate at which the same database commits one small
//! row at a time, whole lives of tasks on several replicas, and reads. Prints a table and judges nothing.
//!
//! `cargo bench -p outlast-postgres -- [--seconds S] [--url URL]`; without a URL it starts a database that syncs, by
//! `scripts/postgres.sh`, in `TMPDIR`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    error::Error,
    process::Command,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use outlast_core::{
    By, Call, ClaimRequest, Event, Hint, NewTask, Owner, Payload, Spec, Store, StoreError, TaskId,
    ToolVersion, WorkerId,
};
use outlast_postgres::{Options, PostgresStore};
use tokio_postgres::Client;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let (mut url, mut span, mut bench) = (None, None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match &*argument {
            "--url" => url = Some(value()?),
            "--seconds" => span = Some(Duration::from_secs_f64(value()?.parse()?)),
            // What `cargo bench` adds; without it, it is run as a test and only shows that it runs.
            "--bench" => bench = true,
            _ => {}
        }
    }
    let span = span.unwrap_or(Duration::from_millis(if bench { 3_000 } else { 50 }));
    let url = match url {
        Some(url) => url,
        None => start()?,
    };
    println!("{span:?} a figure");
    let commits = commits(&url, span).await?;
    print_rate("database: commits of one small row", commits, "");
    let mut serial = 0.0;
    for callers in [1, 64, 512] {
        let store = fresh(&url).await?;
        let rate = creates(&store, callers, span).await?;
        if callers == 1 {
            serial = rate;
        }
        let note = format!("{:.1}x serial creates, {:.1}x commits", rate / serial, rate / commits);
        print_rate(&format!("durable creates, {callers} callers"), rate, &note);
        if callers == 512 {
            print_rate("reads of one task", reads(&store, span).await?, "one caller");
        }
        store.close().await;
    }
    let (observer, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    for replicas in [1, 2, 4] {
        let before = transactions(&observer).await?;
        let lives = lives(&url, &observer, replicas, span).await?;
        let transactions = transactions(&observer).await? - before;
        let changes = lives.created + lives.claimed + lives.completed;
        let note = format!(
            "{:.1} changes a transaction (each tells of its own by one NOTIFY), {:.0}% of {} claims came back empty, {} connections",
            changes as f64 / transactions.max(1) as f64,
            100.0 * lives.empty as f64 / lives.claims.max(1) as f64,
            lives.claims,
            lives.connections,
        );
        print_rate(
            &format!("create to complete, {replicas} replicas"),
            lives.completed as f64 / lives.took,
            &note,
        );
    }
    let mut delays = heard(&url, span).await?;
    delays.sort_unstable();
    let at = |share: usize| delays[(delays.len() - 1) * share / 1_000];
    println!(
        "{:<40} {:>10} changes   50 of 100 within {:.2?}, 99 of 100 within {:.2?}, all within {:.2?}",
        "a change heard at another replica",
        delays.len(),
        at(500),
        at(990),
        at(1_000),
    );
    Ok(())
}

/// What replicas did in a while.
#[derive(Default)]
struct Lives {
    took: f64,
    created: u64,
    claims: u64,
    /// Claims that found nothing, or only what another replica was taking.
    empty: u64,
    claimed: u64,
    completed: u64,
    connections: i64,
}

/// How many transactions this database has committed.
async fn transactions(observer: &Client) -> Result<u64> {
    // Its own counts are written down when a connection has been idle for a moment.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let row = observer
        .query_one(
            "SELECT sum(xact_commit)::int8 FROM pg_stat_database WHERE datname = current_database()",
            &[],
        )
        .await?;
    Ok(u64::try_from(row.get::<_, i64>(0))?)
}

/// How long after a change was acknowledged at one replica another one hears of it, one change after the other.
async fn heard(url: &str, span: Duration) -> Result<Vec<Duration>> {
    let schema = format!("bench_{}", &random_id().to_string()[..12]);
    let open = || PostgresStore::connect(url, Options::default().schema(&schema));
    let (here, there) = (open().await?, open().await?);
    let mut hints = there.watch();
    let (start, mut delays) = (Instant::now(), Vec::new());
    while start.elapsed() < span || delays.is_empty() {
        let new = new(random_id());
        let id = new.id;
        here.create(new, None).await?;
        let acknowledged = Instant::now();
        while hints.next().await != Some(Hint::Changed(id)) {}
        delays.push(acknowledged.elapsed());
    }
    Ok(delays)
}

fn print_rate(what: &str, rate: f64, note: &str) {
    println!("{what:<40} {rate:>10.0} /s   {note}");
}

/// A database that goes with this process.
fn start() -> Result<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/postgres.sh");
    let pid = std::process::id().to_string();
    let output = Command::new(script).args(["start", "--for", &pid, "--durable"]).output()?;
    let printed = String::from_utf8(output.stdout)?;
    Ok(printed.lines().next().ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())?.to_owned())
}

/// A store in a schema of its own.
async fn fresh(url: &str) -> Result<PostgresStore> {
    let schema = format!("bench_{}", &random_id().to_string()[..12]);
    Ok(PostgresStore::connect(url, Options::default().schema(schema)).await?)
}

/// How often a second one connection commits a row of its own, one after the other.
async fn commits(url: &str, span: Duration) -> Result<f64> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE IF NOT EXISTS commits (row text)").await?;
    let insert = client.prepare("INSERT INTO commits VALUES ($1)").await?;
    let row = "x".repeat(500);
    let (start, mut count) = (Instant::now(), 0_u64);
    while start.elapsed() < span {
        client.execute(&insert, &[&row]).await?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// How many tasks a second this many callers create, each one after the other, and each answer durable.
async fn creates(store: &PostgresStore, callers: usize, span: Duration) -> Result<f64> {
    let start = Instant::now();
    let running = (0..callers).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut created = 0_u64;
            while start.elapsed() < span {
                store.create(new(random_id()), None).await?;
                created += 1;
            }
            Ok::<_, StoreError>(created)
        })
    });
    let mut created = 0;
    for count in try_join_all(running).await? {
        created += count?;
    }
    Ok(created as f64 / start.elapsed().as_secs_f64())
}

async fn reads(store: &PostgresStore, span: Duration) -> Result<f64> {
    let new = new(random_id());
    let id = new.id;
    store.create(new, None).await?;
    let (start, mut count) = (Instant::now(), 0_u64);
    while start.elapsed() < span {
        assert!(store.get(id).await?.is_some());
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Creates, claims and completes tasks, with as many callers as there are workers.
async fn lives(url: &str, observer: &Client, replicas: usize, span: Duration) -> Result<Lives> {
    const WORKERS: usize = 64;
    let schema = format!("bench_{}", &random_id().to_string()[..12]);
    let start = Instant::now();
    let (mut callers, mut workers) = (Vec::new(), Vec::new());
    for replica in 0..replicas {
        let store = PostgresStore::connect(url, Options::default().schema(&schema)).await?;
        for _ in 0..WORKERS {
            let store = store.clone();
            callers.push(tokio::spawn(async move {
                let mut created = 0;
                while start.elapsed() < span {
                    store.create(new(random_id()), None).await?;
                    created += 1;
                }
                Ok::<u64, StoreError>(created)
            }));
        }
        workers.push(tokio::spawn(async move {
            let worker = WorkerId::new(format!("worker {replica}"));
            let mut lives = Lives::default();
            while start.elapsed() < span {
                let request = ClaimRequest {
                    worker: worker.clone(),
                    serves: [ToolVersion::new("hash", "")].into(),
                    per_owner: u32::MAX,
                    lease: Duration::from_secs(30),
                    max: u32::try_from(WORKERS).unwrap_or(u32::MAX),
                };
                let claimed = store.claim(request).await?;
                lives.claims += 1;
                lives.empty += u64::from(claimed.is_empty());
                lives.claimed += claimed.len() as u64;
                let done = claimed.into_iter().map(|claimed| {
                    let done = vec![Event::Complete(Payload::null())];
                    store.apply(claimed.task.id, By::Lease(claimed.token), done)
                });
                lives.completed += try_join_all(done).await?.len() as u64;
            }
            Ok::<_, StoreError>(lives)
        }));
    }
    tokio::time::sleep(span / 2).await;
    let name = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outlast'";
    let mut all = Lives { connections: observer.query_one(name, &[]).await?.get(0), ..Lives::default() };
    for created in try_join_all(callers).await? {
        all.created += created?;
    }
    for lives in try_join_all(workers).await? {
        let lives = lives?;
        all.claims += lives.claims;
        all.empty += lives.empty;
        all.claimed += lives.claimed;
        all.completed += lives.completed;
    }
    all.took = start.elapsed().as_secs_f64();
    Ok(all)
}

fn new(id: TaskId) -> NewTask {
    let params =
        Payload::from_value(&serde_json::json!({"name": "hash", "arguments": {"path": "/srv/data"}}));
    NewTask {
        max_open: u32::MAX,
        ..NewTask::new(id, Owner::new("alice"), Spec::new("hash"), Call::new(params))
    }
}

fn random_id() -> TaskId {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    TaskId::from_bytes(bytes)
}
