//! How fast the store is on this machine's disk: durable creates beside the disk's own rate, and reads of a small and of
//! a large store. Prints a table and judges nothing.
//!
//! `cargo bench -p outlast-sqlite -- [--tasks N] [--seconds S] [--dir DIRECTORY]`

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    error::Error,
    fs::OpenOptions,
    hash::{BuildHasher, Hasher, RandomState},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::{
    executor::{ThreadPool, block_on},
    future::join_all,
    task::SpawnExt,
};
use outlast_core::{Call, NewTask, Owner, Payload, Spec, Store, TaskId};
use outlast_sqlite::SqliteStore;
use rusqlite::Connection;

struct Settings {
    /// How many tasks the large store has.
    tasks: u64,
    /// How long each figure is measured.
    span: Duration,
    directory: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let settings = settings(std::env::args().skip(1))?;
    let directory = tempfile::tempdir_in(&settings.directory)?;
    println!("in {}, {:?} a figure", settings.directory.display(), settings.span);

    let disk = syncs(directory.path(), settings.span)?;
    print_rate("disk: 4 KiB appends, each synced", disk, "");
    let mut serial = 0.0;
    for callers in [1, 64, 512] {
        let path = directory.path().join(format!("creates-{callers}.db"));
        let rate = creates(&path, callers, settings.span)?;
        if callers == 1 {
            serial = rate;
        }
        let note = format!("{:.1}x serial creates, {:.1}x disk", rate / serial, rate / disk);
        print_rate(&format!("durable creates, {callers} callers"), rate, &note);
    }
    let sizes = [1_000, settings.tasks];
    let rates = reads(directory.path(), sizes, settings.span)?;
    for (tasks, rate) in sizes.into_iter().zip(rates) {
        let note = format!("{:.2}x of 1000 tasks, {:.1} us each", rate / rates[0], 1e6 / rate);
        print_rate(&format!("reads of one task among {tasks}"), rate, &note);
    }
    Ok(())
}

fn print_rate(what: &str, rate: f64, note: &str) {
    println!("{what:<40} {rate:>10.0} /s   {note}");
}

fn settings(mut arguments: impl Iterator<Item = String>) -> Result<Settings, Box<dyn Error>> {
    let (mut tasks, mut span, mut directory, mut bench) = (None, None, std::env::temp_dir(), false);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match &*argument {
            "--tasks" => tasks = Some(value()?.parse()?),
            "--seconds" => span = Some(Duration::from_secs_f64(value()?.parse()?)),
            "--dir" => directory = value()?.into(),
            // What `cargo bench` adds; without it, it is run as a test and only shows that it runs.
            "--bench" => bench = true,
            _ => {}
        }
    }
    let (usual_tasks, usual_span) =
        if bench { (1_000_000, Duration::from_secs(3)) } else { (2_000, Duration::from_millis(50)) };
    Ok(Settings { tasks: tasks.unwrap_or(usual_tasks), span: span.unwrap_or(usual_span), directory })
}

/// How often a second the disk makes an append of 4 KiB durable, one after the other.
fn syncs(directory: &Path, span: Duration) -> Result<f64, Box<dyn Error>> {
    let mut file = OpenOptions::new().create(true).append(true).open(directory.join("appends"))?;
    let page = [7; 4_096];
    rate(span, || {
        file.write_all(&page)?;
        file.sync_data()?;
        Ok(())
    })
}

/// How many tasks a second this many callers create, each one after the other, and each answer durable.
fn creates(path: &Path, callers: usize, span: Duration) -> Result<f64, Box<dyn Error>> {
    let store = SqliteStore::open(path)?;
    let pool = ThreadPool::builder().pool_size(2).create()?;
    let start = Instant::now();
    let running: Vec<_> = (0..callers)
        .map(|_| {
            let store = store.clone();
            pool.spawn_with_handle(async move {
                let mut created = 0_u64;
                while start.elapsed() < span {
                    store.create(new(random_id()), None).await?;
                    created += 1;
                }
                Ok::<_, outlast_core::StoreError>(created)
            })
        })
        .collect::<Result<_, _>>()?;
    let mut created = 0;
    for count in block_on(join_all(running)) {
        created += count?;
    }
    Ok(created as f64 / start.elapsed().as_secs_f64())
}

/// How often a second one caller reads a task at random, in a store of each size. They take turns, so that what else
/// the machine does weighs on both.
fn reads(directory: &Path, sizes: [u64; 2], span: Duration) -> Result<[f64; 2], Box<dyn Error>> {
    const TURNS: u32 = 20;
    let mut stores = Vec::new();
    for (number, tasks) in sizes.into_iter().enumerate() {
        let path = directory.join(format!("reads-{number}.db"));
        let template = random_id();
        block_on(SqliteStore::open(&path)?.create(new(template), None))?;
        let ids = fill(&path, template, tasks)?;
        stores.push((SqliteStore::open(&path)?, ids.into_iter().cycle()));
    }
    let mut rates = [0.0; 2];
    for _ in 0..TURNS {
        for (sum, (store, ids)) in rates.iter_mut().zip(&mut stores) {
            *sum += rate(span / TURNS, || {
                let id = ids.next().ok_or("a store has tasks")?;
                let task = block_on(store.get(id))?;
                assert_eq!(task.map(|task| task.id), Some(id));
                Ok(())
            })?;
        }
    }
    Ok(rates.map(|sum| sum / f64::from(TURNS)))
}

/// Copies the task `template` until there are `tasks`, and returns the ids of a good many in random order.
fn fill(path: &Path, template: TaskId, tasks: u64) -> Result<Vec<TaskId>, Box<dyn Error>> {
    let connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; BEGIN")?;
    connection.execute(
        "WITH RECURSIVE counted (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM counted WHERE n < ?1),
              fresh (id) AS MATERIALIZED (SELECT randomblob(16) FROM counted)
         INSERT INTO tasks (id, owner, tool, status, leased, revision, ready_at, due_at, value)
         SELECT fresh.id, owner, tool, status, leased, revision, ready_at, due_at,
                replace(value, ?2, lower(hex(fresh.id)))
         FROM fresh, (SELECT * FROM tasks WHERE number = 1)",
        (tasks.cast_signed(), template.to_string()),
    )?;
    connection.execute_batch(
        "INSERT INTO calls (number, params) SELECT number, 'null' FROM tasks WHERE number > 1;
         UPDATE owners SET working = (SELECT count(*) FROM tasks);
         COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
    )?;
    let mut statement =
        connection.prepare("SELECT id FROM (SELECT id FROM tasks ORDER BY random() LIMIT 200000)")?;
    let ids = statement.query_map([], |row| Ok(TaskId::from_bytes(row.get(0)?)))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

fn rate(span: Duration, mut once: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut count = 0_u64;
    while start.elapsed() < span {
        once()?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
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
    let half = || RandomState::new().build_hasher().finish().to_be_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&half());
    bytes[8..].copy_from_slice(&half());
    TaskId::from_bytes(bytes)
}
