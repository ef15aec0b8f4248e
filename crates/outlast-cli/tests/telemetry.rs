//! What operators see of a gateway from outside: the numbers of `/metrics`, and traces in a collector.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use outlast::Store;
use outlast_core::{Filter, Inspect as _};
use outlast_sqlite::{Options, Role, SqliteStore};
use outlast_testkit::counted::metric;
use serde_json::{Value, json};
use support::{
    Caller, Http, PATIENCE, Place,
    collector::{Collector, Span},
    outlast, page, plain, text, with_meta, works,
};

/// The process behind the gateways of these tests.
#[test]
#[ignore = "a process of the other tests here"]
fn plain_server() {
    if let Some(folder) = std::env::var_os(plain::FOLDER) {
        plain::serve(folder.as_ref());
    }
}

fn gateway(place: &Place, args: &[&str]) -> Command {
    plain::gateway(place, &[&["--listen", "127.0.0.1:0", "--start", "now"], args].concat())
}

/// What a store holds: tasks by tool and status, and journal entries by kind.
#[derive(Debug, Default, PartialEq)]
struct Held {
    created: BTreeMap<String, u64>,
    ended: BTreeMap<(String, &'static str), u64>,
    by_status: BTreeMap<&'static str, u64>,
    entries: BTreeMap<&'static str, u64>,
}

async fn held(file: PathBuf) -> Held {
    let store = SqliteStore::open_with(file, Options::default().role(Role::Front)).unwrap();
    let mut held = Held::default();
    let mut after = None;
    loop {
        let page = store.list(Filter::default(), after, 100).await.unwrap();
        for task in page.tasks {
            let (tool, status) = (task.spec.tool.clone(), task.status().as_str());
            *held.created.entry(tool.clone()).or_default() += 1;
            *held.by_status.entry(status).or_default() += 1;
            if task.is_final() {
                *held.ended.entry((tool, status)).or_default() += 1;
            }
            for entry in store.journal(task.id, 0, u64::MAX).await.unwrap().entries {
                *held.entries.entry(entry.kind.as_str()).or_default() += 1;
            }
        }
        after = page.next;
        if after.is_none() {
            return held;
        }
    }
}

/// What `/metrics` says of the same.
fn said(text: &str, held: &Held) -> Held {
    let number = |name: &str, labels: &[(&str, &str)]| {
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        metric(text, name, &labels.iter().map(String::as_str).collect::<Vec<_>>()) as u64
    };
    let created = |tool: &String| number("outlast_tasks_created_total", &[("tool", tool)]);
    let ended =
        |tool: &str, status| number("outlast_tasks_ended_total", &[("tool", tool), ("status", status)]);
    let in_status = |status| number("outlast_tasks", &[("status", status)]);
    let entries = |kind| number("outlast_journal_entries_total", &[("kind", kind)]);
    Held {
        created: held.created.keys().map(|tool| (tool.clone(), created(tool))).collect(),
        ended: held
            .ended
            .keys()
            .map(|(tool, status)| ((tool.clone(), *status), ended(tool, status)))
            .collect(),
        by_status: held.by_status.keys().map(|status| (*status, in_status(status))).collect(),
        entries: held.entries.keys().map(|kind| (*kind, entries(kind))).collect(),
    }
}

/// All counters and buckets, by their whole names.
fn counters(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let counted =
        lines.filter(|line| line.contains("_total") || line.contains("_bucket") || line.contains("_count"));
    counted
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

#[test]
fn what_is_scraped_under_load_only_grows_and_agrees_with_the_store_in_the_end() {
    const CALLERS: usize = 6;
    let place = Place::new(&[]);
    let gateway = Http::run(gateway(&place, &["--admin", "127.0.0.1:0"]));
    let (page, token) = page::of(&gateway);
    let token = token.unwrap();
    let scrape = || {
        let (status, text) = page::ask(&page, "GET", "/metrics", &token, "");
        assert_eq!(status, 200);
        text
    };
    let (over, callers) = (AtomicBool::new(false), gateway.again());
    let scrapes = thread::scope(|threads| {
        let scraping = threads.spawn(|| {
            let (mut scrapes, mut last) = (0, BTreeMap::new());
            while !over.load(Ordering::Relaxed) {
                let now = counters(&scrape());
                for (name, value) in &last {
                    assert!(
                        now.get(name).is_some_and(|now| now >= value),
                        "{name} was {value}: {:?}",
                        now.get(name)
                    );
                }
                last = now;
                scrapes += 1;
            }
            scrapes
        });
        let calling: Vec<_> = (0..CALLERS)
            .map(|_| {
                threads.spawn(|| {
                    let mut caller = callers.clone();
                    for _ in 0..8 {
                        let id = caller.start("quick", json!({}));
                        caller.until_status(&id, "completed");
                    }
                    let slow = caller.start("slow", json!({}));
                    caller.cancel(&slow);
                    caller.until_status(&slow, "cancelled");
                })
            })
            .collect();
        let called: Vec<_> = calling.into_iter().map(thread::ScopedJoinHandle::join).collect();
        // One after the other: a server of 2025 does not say for which call it asks.
        let mut caller = callers.clone();
        let asks = caller.start("asks", json!({}));
        let asked = caller.until_status(&asks, "input_required");
        answer(&mut caller, &asks, &asked);
        caller.until_status(&asks, "completed");
        let open = caller.start("asks", json!({}));
        caller.until_status(&open, "input_required");
        over.store(true, Ordering::Relaxed);
        called.into_iter().for_each(Result::unwrap);
        scraping.join().unwrap()
    });
    assert!(scrapes > 3, "it was scraped {scrapes} times");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = runtime.block_on(held(place.path().join("outlast-gateway.db")));
    let text = scrape();
    assert_eq!(said(&text, &held), held, "in\n{text}");
    let all = CALLERS as u64;
    let kept = |status| held.by_status.get(status).copied().unwrap_or_default();
    assert_eq!((kept("completed"), kept("cancelled"), kept("input_required")), (8 * all + 1, all, 1));
    assert!(held.entries["answered"] == 1 && held.entries["asked"] == 2 && held.entries["step"] > 0);

    // The rest of what an operator asks for is there as well, and every metric says what it is.
    let count = |name: &str, labels: &[&str]| metric(&text, &format!("{name}_count"), labels) as u64;
    assert_eq!(count("outlast_task_seconds", &["status=\"completed\""]), 8 * all + 1);
    assert!(count("outlast_run_seconds", &["outcome=\"completed\""]) > 8 * all);
    assert!(count("outlast_store_seconds", &["operation=\"apply\""]) > 0);
    assert_eq!(count("outlast_step_seconds", &["outcome=\"failed\""]), 0, "every call was answered");
    assert!(metric(&text, "outlast_polls_total", &["answer=\"served\""]) > 0.0);
    assert_eq!(metric(&text, "outlast_calls_total", &["tool=\"quick\"", "answer=\"task\""]) as u64, 8 * all);
    let described: HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name = line.split(['{', ' ']).next().unwrap();
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(described.contains(base) || described.contains(name), "{name} is not described");
    }
    assert!(!text.contains(&token) && !text.contains("Ada"));
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Follows a task until it is completed.
fn followed(gateway: &Http, id: &str) -> thread::JoinHandle<()> {
    let params = with_meta(json!({"notifications": {"taskIds": [id]}}));
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}).to_string();
    let mut stream = TcpStream::connect(&gateway.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\nContent-Length: {}\r\n\r\n{body}",
        gateway.address,
        body.len()
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut until = move |what: &str| while !lines.next().unwrap().unwrap().contains(what) {};
    until("acknowledged");
    thread::spawn(move || until("completed"))
}

#[test]
fn the_whole_way_of_a_task_is_one_trace_that_kill_9_does_not_end() {
    let place = Place::new(&[]);
    let collector = Collector::start();
    let start = || {
        let mut command = gateway(&place, &["--db", "tasks.db"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
        // By default it is every five seconds.
        command.env("OTEL_BSP_SCHEDULE_DELAY", "20").env("OTEL_SERVICE_NAME", "our-gateway");
        command.env("OTEL_RESOURCE_ATTRIBUTES", "service.name=of-all,deployment.environment=test");
        // However much is logged: spans that are in the log alone are no part of a trace.
        command.env("RUST_LOG", "trace").stderr(Stdio::null());
        Http::run(command)
    };
    let mut first = start();
    let mut params = with_meta(json!({"name": "asks_and_is_harmless", "arguments": {}}));
    params["_meta"]["traceparent"] = json!(format!("00-{TRACE}-{CALLER}-01"));
    let created = first.send("tools/call", "asks_and_is_harmless", params);
    let id = created["result"]["taskId"].as_str().unwrap().to_owned();
    first.until_status(&id, "input_required");
    // What is exported when a process is killed stays; what it had in hand is lost with it.
    collector
        .until(|spans| ["create", "step"].iter().all(|name| spans.iter().any(|span| span.name == *name)));
    first.server.kill();

    let mut second = start();
    let asked = second.until(&id, |task| {
        let questions = task["inputRequests"].as_object();
        task["status"] == "input_required" && questions.is_some_and(|questions| !questions.is_empty())
    });
    let following = followed(&second, &id);
    answer(&mut second, &id, &asked);
    second.until_status(&id, "completed");
    following.join().unwrap();
    assert!(second.server.terminate().success(), "and sends what is left before it ends");

    let way = ["create", "claim", "run", "step", "ask", "answer", "push"];
    let spans = collector.until(|spans| way.iter().all(|name| spans.iter().any(|span| span.name == *name)));
    assert!(spans.iter().all(|span| span.trace == TRACE && span.service == "our-gateway"), "{spans:#?}");
    let named = |name: &str| spans.iter().filter(|span| span.name == name).cloned().collect::<Vec<Span>>();
    let create = &named("create")[0];
    assert_eq!((&*create.parent, &*create.fields["outcome"]), (CALLER, "created"));
    for name in ["claim", "run", "answer", "push"] {
        assert!(named(name).iter().all(|span| span.parent == create.id), "{name} is part of the creation");
    }
    let run = named("run").into_iter().find(|run| run.fields["outcome"] == "completed").unwrap();
    assert!(run.fields["attempt"].parse::<u64>().unwrap() > 1, "{run:?}");
    // The upstream could go on with it.
    let told = plain::deeds(&place);
    let told: Vec<_> = told.iter().filter_map(|deed| deed.strip_prefix("traced ")).collect();
    assert_eq!(told.len(), 2, "once for each attempt");
    assert_eq!(told[1], format!("00-{TRACE}-{}-01", run.id));
    let asks = named("ask");
    assert!(asks.iter().any(|ask| ask.parent == run.id && ask.fields["outcome"] == "answered"), "{asks:?}");
    assert_eq!(named("answer")[0].fields["outcome"], "applied");
    assert!(named("push").iter().any(|push| push.fields["status"] == "completed"));
    // An operator finds the trace of a task.
    assert!(works(&place.path(), &["tasks", "show", &id, "--db", "tasks.db"]).contains(TRACE));
    // Each says which tool it is about, and none opens the task.
    assert!(spans.iter().all(|span| !format!("{span:?}").contains(&id)));
    assert_eq!(create.fields["tool"], "asks_and_is_harmless");
    assert!(create.fields["task"].starts_with(&format!("TaskId({}", &id[..4])), "{create:?}");
}

/// Answers what is asked by now.
fn answer(caller: &mut impl Caller, id: &str, asked: &Value) {
    let keys = asked["inputRequests"].as_object().unwrap().keys();
    let answers: Value =
        keys.map(|key| (key.clone(), json!({"action": "accept", "content": {"name": "Ada"}}))).collect();
    caller.update(id, answers);
}

#[test]
fn a_collector_that_is_away_is_told_of_once_and_keeps_nobody_from_stopping() {
    let place = Place::new(&[]);
    let mut command = gateway(&place, &[]);
    // Nobody is there.
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9").env("OTEL_BSP_SCHEDULE_DELAY", "1");
    let log = std::fs::File::create(place.path().join("log")).unwrap();
    command.env("OUTLAST_LOG", "json").stderr(log);
    let mut gateway = Http::run(command);
    for _ in 0..5 {
        let id = gateway.start("quick", json!({}));
        gateway.until_status(&id, "completed");
    }
    assert!(gateway.server.terminate().success());
    let log = std::fs::read_to_string(place.path().join("log")).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let lost = lines
        .iter()
        .filter(|line| line["message"].as_str().unwrap_or_default().contains("collector of spans"));
    assert_eq!(lost.count(), 1, "{log}");
}

#[test]
fn what_is_set_up_wrongly_is_refused_before_anything_begins() {
    let place = Place::new(&[]);
    let refused = |name: &str, value: &str| {
        let mut command = gateway(&place, &[]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318").env(name, value);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "it wrote {}", text(&output.stdout));
        text(&output.stderr)
    };
    let said = refused("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    assert!(said.contains("OTEL_EXPORTER_OTLP_PROTOCOL") && said.contains("http/protobuf"), "{said}");
    let said = refused("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318");
    assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT") && said.contains("http://"), "{said}");
    let said = refused("OUTLAST_LOG", "xml");
    assert!(said.contains("OUTLAST_LOG is neither text nor json"), "{said}");
    assert!(!place.path().join("outlast-gateway.db").exists(), "nothing was made");
}

#[test]
fn what_is_set_and_not_heeded_is_in_the_log() {
    let place = Place::new(&[]);
    let mut command = gateway(&place, &[]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9").env("OTEL_TRACES_SAMPLER", "some");
    command.env("RUST_LOG", "]").stderr(std::fs::File::create(place.path().join("log")).unwrap());
    let gateway = Http::run(command);
    assert!(gateway.server.terminate().success());
    let log = std::fs::read_to_string(place.path().join("log")).unwrap();
    assert!(log.contains("OTEL_TRACES_SAMPLER is none of") && log.contains("RUST_LOG says nothing"), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_gateway_whose_standard_error_is_full_works_and_stops_all_the_same() {
    let place = Place::new(&[]);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = gateway(&place, &[]);
    command.env("RUST_LOG", "trace").stderr(full());
    let mut gateway = Http::run(command);
    let id = gateway.start("quick", json!({}));
    gateway.until_status(&id, "completed");
    assert!(gateway.server.terminate().success());

    // A host that starts its servers itself, and reads nothing of what they say of themselves.
    let mut command = outlast();
    command.current_dir(place.path()).env(plain::FOLDER, place.path()).args(["gateway", "--stdio", "--"]);
    let mut hosted = command
        .args(plain::command("plain_server"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(full())
        .spawn()
        .unwrap();
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": with_meta(json!({}))});
    writeln!(hosted.stdin.as_mut().unwrap(), "{request}").unwrap();
    let mut answer = String::new();
    BufReader::new(hosted.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("quick"), "{answer}");
    drop(hosted.stdin.take());
    assert!(hosted.wait().unwrap().success());
}
