//! How fast the store is on this machine: durable creates beside the rate at which the same database commits one small
//! row at a time, whole lives of tasks on several replicas, and reads. Prints a table and judges nothing.
//!
//! `cargo bench -p outlast-postgres -- [--seconds S] [--url URL]`; without a URL it starts a database that syncs, by
//! `scripts/postgres.sh`, in `TMPDIR`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    error::Error,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use outlast_core::{
    By, Call, ClaimRequest, Event, NewTask, Owner, Payload, Spec, Store, StoreError, TaskId, ToolVersion,
    WorkerId,
};
use outlast_postgres::{Options, PostgresStore};

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
    for replicas in [1, 2, 4] {
        let rate = lives(&url, replicas, span).await?;
        print_rate(&format!("create to complete, {replicas} replicas"), rate, "64 workers each, one owner");
    }
    Ok(())
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

/// How many tasks a second are created, claimed and completed, with as many callers as there are workers.
async fn lives(url: &str, replicas: usize, span: Duration) -> Result<f64> {
    const WORKERS: usize = 64;
    let schema = format!("bench_{}", &random_id().to_string()[..12]);
    let start = Instant::now();
    let completed = Arc::new(AtomicU64::new(0));
    let mut running = Vec::new();
    for replica in 0..replicas {
        let store = PostgresStore::connect(url, Options::default().schema(&schema)).await?;
        for _ in 0..WORKERS {
            let store = store.clone();
            running.push(tokio::spawn(async move {
                while start.elapsed() < span {
                    store.create(new(random_id()), None).await?;
                }
                Ok::<_, StoreError>(())
            }));
        }
        let completed = completed.clone();
        running.push(tokio::spawn(async move {
            let worker = WorkerId::new(format!("worker {replica}"));
            while start.elapsed() < span {
                let request = ClaimRequest {
                    worker: worker.clone(),
                    serves: [ToolVersion::new("hash", "")].into(),
                    per_owner: u32::MAX,
                    lease: Duration::from_secs(30),
                    max: u32::try_from(WORKERS).unwrap_or(u32::MAX),
                };
                let claimed = store.claim(request).await?;
                try_join_all(claimed.into_iter().map(|claimed| {
                    let done = vec![Event::Complete(Payload::null())];
                    store.apply(claimed.task.id, By::Lease(claimed.token), done)
                }))
                .await
                .map(|done| completed.fetch_add(done.len() as u64, Ordering::Relaxed))?;
            }
            Ok(())
        }));
    }
    for done in try_join_all(running).await? {
        done?;
    }
    Ok(completed.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
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
