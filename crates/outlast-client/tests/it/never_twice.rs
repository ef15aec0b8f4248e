//! Whatever happens, and in whatever order: no question is asked twice, no answer is lost, no task's end is told for
//! another's, and every wait ends. Against a server that keeps the truth, loses what can be lost and says what is out of
//! date, and a person who answers, fails, or takes for ever.
//!
//! `OUTLAST_SEED=<seed>,<moves>` runs one case again, twenty times, since the client spreads its own paces, and prints what
//! happened when it fails. `PROPTEST_CASES` sets how many cases are tried.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
};
use outlast_client::{
    CallError, CallErrorKind, ClientOptions, Detail, HandleStore, SavedTask, Task, TaskClient, TaskHandle,
};
use proptest::prelude::*;
use rmcp::model::{CallToolResult, ErrorData};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::support::{
    Asked, Person, Reply, Scripted, accept, ack, error, now, ok, question, said, started, task,
};

const TASKS: usize = 3;
/// Far more than any wait needs once nothing goes wrong any more.
const AGES: Duration = Duration::from_secs(3600);

/// Numbers that follow from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    fn pause(&mut self, most_ms: u64) -> Duration {
        Duration::from_millis(self.roll(most_ms))
    }
}

/// How a task ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Completed,
    Failed,
    Cancelled,
}

/// One life of a task: an id that a server hands out again after a restart is another life.
#[derive(Debug, Default)]
struct Life {
    open: BTreeSet<String>,
    accepted: BTreeMap<String, String>,
    end: Option<End>,
    asked: u32,
    /// The server was asked to end it.
    cancelled: bool,
    /// The server knows it no more.
    gone: bool,
    /// Another task has its id.
    replaced: bool,
    changes: u32,
}

/// The truth.
struct World {
    dice: Dice,
    begun: Instant,
    /// Whether things go wrong.
    is_rough: bool,
    /// Whether `lastUpdatedAt` tells states apart.
    is_exact: bool,
    lives: BTreeMap<(String, u32), Life>,
    /// Which life an id has now.
    now: BTreeMap<String, u32>,
    listeners: Vec<(String, mpsc::UnboundedSender<Value>)>,
    /// Questions, by what they say; with the answers that were given, and those that were refused.
    given: BTreeMap<String, BTreeSet<String>>,
    refused: BTreeMap<String, BTreeSet<String>>,
    showing: BTreeSet<String>,
    /// Tasks of which a handler has failed.
    failed: BTreeSet<String>,
    values: u32,
    wrong: Vec<String>,
    log: Vec<String>,
}

type Shared = Arc<Mutex<World>>;

fn say(task: &str, life: u32, key: &str) -> String {
    format!("{task}/{life}/{key}")
}

impl World {
    fn note(&mut self, what: impl Into<String>) {
        assert!(self.log.len() < 100_000, "it never comes to rest");
        self.log.push(format!("{:>8} ms: {}", self.begun.elapsed().as_millis(), what.into()));
    }

    fn wrong(&mut self, what: String) {
        self.note(format!("WRONG: {what}"));
        self.wrong.push(what);
    }

    fn life(&mut self, id: &str) -> &mut Life {
        let life = self.now[id];
        self.lives.get_mut(&(id.to_owned(), life)).unwrap()
    }

    /// The task on the wire.
    fn state(&mut self, id: &str) -> Value {
        let number = self.now[id];
        let is_exact = self.is_exact;
        let life = self.life(id);
        let mut extra = json!({
            "createdAt": format!("2026-11-29T{:02}:00:00Z", 10 + number), "pollIntervalMs": 500,
            "lastUpdatedAt": format!("2026-11-29T{:02}:00:00.{:03}Z", 10 + number, if is_exact { life.changes } else { 0 }),
        });
        let text = format!("{id}/{number}");
        let status = match life.end {
            Some(End::Completed) => {
                extra["result"] = crate::support::text(&text);
                "completed"
            }
            Some(End::Failed) => {
                extra["error"] = json!({ "code": -32050, "message": text });
                "failed"
            }
            Some(End::Cancelled) => {
                extra["statusMessage"] = text.into();
                "cancelled"
            }
            None if life.open.is_empty() => "working",
            None => {
                let asked = life.open.iter().map(|key| (key.clone(), question(&say(id, number, key))));
                extra["inputRequests"] = asked.collect::<serde_json::Map<_, _>>().into();
                "input_required"
            }
        };
        task(id, status, extra)
    }

    /// A change of a task, which may be pushed, at once or late.
    fn change(&mut self, id: &str, change: impl FnOnce(&mut Life)) {
        let life = self.life(id);
        if life.end.is_some() || life.gone {
            return;
        }
        life.changes += 1;
        change(life);
        let state = self.state(id);
        self.note(format!(
            "{id} is {} {}",
            state["status"],
            state["inputRequests"].as_object().map_or(0, serde_json::Map::len)
        ));
        if self.dice.chance(70) {
            self.push(id, state);
        }
    }

    fn push(&mut self, id: &str, state: Value) {
        let late = if self.dice.chance(30) { self.dice.pause(4000) } else { Duration::ZERO };
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": state });
        for (of, listener) in &self.listeners {
            if of == id {
                let (listener, message) = (listener.clone(), message.clone());
                tokio::spawn(async move {
                    sleep(late).await;
                    let _ = listener.send(message);
                });
            }
        }
    }

    /// Once nothing goes wrong any more, a task ends when its questions are answered.
    fn settle(&mut self, id: &str) {
        if self.is_rough {
            return;
        }
        let end = [End::Completed, End::Failed, End::Completed][self.dice.roll(3) as usize];
        let life = self.life(id);
        if life.cancelled {
            self.change(id, |life| life.end = Some(End::Cancelled));
        } else if life.open.is_empty() {
            self.change(id, |life| life.end = Some(end));
        }
    }

    /// What a request does to the truth, and its answer.
    fn serve(&mut self, asked: &Asked) -> Reply {
        if asked.method == "tools/call" {
            let id = format!("t{}", self.now.len());
            self.now.insert(id.clone(), 0);
            self.lives.insert((id.clone(), 0), Life::default());
            let mut state = self.state(&id);
            state["resultType"] = "task".into();
            return ok(state);
        }
        let id = asked.params["taskId"].as_str().unwrap_or_default().to_owned();
        if !self.now.contains_key(&id) || self.life(&id).gone {
            return error(-32602, "no such thing");
        }
        match asked.method.as_str() {
            "tasks/get" => {
                self.settle(&id);
                ok(self.state(&id))
            }
            "tasks/update" => {
                let answers = asked.params["inputResponses"].as_object().unwrap().clone();
                self.update(&id, &answers)
            }
            "tasks/cancel" => {
                let at_once = self.dice.chance(50);
                self.life(&id).cancelled = true;
                if at_once {
                    self.change(&id, |life| life.end = Some(End::Cancelled));
                }
                ack()
            }
            _ => error(-32601, "no"),
        }
    }

    fn update(&mut self, id: &str, answers: &serde_json::Map<String, Value>) -> Reply {
        let number = self.now[id];
        let pairs: Vec<(String, String)> = answers
            .iter()
            .map(|(key, answer)| (key.clone(), answer["content"]["name"].as_str().unwrap().to_owned()))
            .collect();
        self.note(format!("{id} is sent {pairs:?}"));
        let mut is_refused = self.is_rough && self.dice.chance(10);
        for (key, value) in &pairs {
            let message = say(id, number, key);
            if !value.starts_with(&format!("{message}#")) {
                self.wrong(format!("{message} got the answer of another question: {value}"));
            }
            let refused = self.refused.entry(message.clone()).or_default();
            is_refused |= refused.contains(value);
            if let Some(accepted) = self.lives[&(id.to_owned(), number)].accepted.get(key)
                && accepted != value
                && !self.refused[&message].contains(accepted)
            {
                self.wrong(format!("{message} has two answers: {accepted} and {value}"));
            }
        }
        if is_refused {
            self.note("which is refused");
            for (key, value) in pairs {
                self.refused.get_mut(&say(id, number, &key)).unwrap().insert(value);
            }
            return error(-32602, "these do not fit");
        }
        for (key, value) in pairs {
            if self.life(id).open.contains(&key) {
                self.change(id, |life| {
                    life.open.remove(&key);
                    life.accepted.insert(key, value);
                });
            }
        }
        self.settle(id);
        ack()
    }

    /// A question is put to the person.
    fn show(&mut self, message: &str) {
        self.note(format!("{message} is put"));
        let given = self.given.get(message).map_or(0, BTreeSet::len);
        let refused = self.refused.get(message).map_or(0, BTreeSet::len);
        if given > refused {
            self.wrong(format!("{message} is put again, though it was answered"));
        }
        if !self.showing.insert(message.to_owned()) {
            self.wrong(format!("{message} is put twice at once"));
        }
        let life = message.split('/').nth(1);
        if life != Some("0") {
            self.wrong(format!("{message} is of another task than was called"));
        }
    }

    fn value(&mut self, message: &str) -> String {
        self.values += 1;
        let value = format!("{message}#{}", self.values);
        self.note(format!("{value} is given"));
        self.given.entry(message.to_owned()).or_default().insert(value.clone());
        value
    }

    /// Whether an end that was told of a task is the one that it had.
    fn check(&mut self, id: &str, end: &Result<CallToolResult, CallError>, had_deadline: bool) {
        let text = format!("{id}/0");
        let failed = self.failed.contains(id);
        let life = &self.lives[&(id.to_owned(), 0)];
        let is_right = match end {
            Ok(result) => life.end == Some(End::Completed) && said(result) == text,
            Err(error) => {
                error.handle().is_some_and(|handle| handle.id() == id)
                    && match error.kind() {
                        CallErrorKind::Failed(error) => {
                            life.end == Some(End::Failed) && *error.message == *text
                        }
                        CallErrorKind::Cancelled(said) => {
                            life.end == Some(End::Cancelled) && said.as_ref() == Some(&text)
                        }
                        CallErrorKind::Gone => life.gone,
                        CallErrorKind::AnotherTask => life.replaced,
                        CallErrorKind::Unanswered { .. } => failed,
                        CallErrorKind::Deadline => had_deadline,
                        _ => false,
                    }
            }
        };
        let told = match end {
            Ok(result) => format!("the result {}", said(result)),
            Err(error) => format!("{:?}", error.kind()),
        };
        let life = format!("{life:?}");
        self.note(format!("a wait for {id} ends with {told}"));
        if !is_right {
            self.wrong(format!("a wait for {id} ended with {told}, and the truth is {life}"));
        }
    }
}

/// The server: what becomes of a request on its way, and of its answer.
fn server(world: &Shared) -> Scripted {
    let world = world.clone();
    Scripted::new(move |asked| {
        let mut it = world.lock().unwrap();
        let about = asked.params.get("taskId").and_then(Value::as_str).unwrap_or_default();
        it.note(format!("{} {about}", asked.method));
        if asked.method == "tools/call" {
            return it.serve(&asked);
        }
        if asked.method == "subscriptions/listen" {
            return listen(&mut it, &asked);
        }
        if !asked.method.starts_with("tasks/") {
            return error(-32601, "no");
        }
        if !it.is_rough {
            return it.serve(&asked);
        }
        match it.dice.roll(100) {
            0..6 => Reply::Drop,
            6..9 => Reply::Hang,
            9..14 => error(-32603, "the database is away"),
            14..18 => {
                Reply::Error(json!({ "code": -32000, "message": "later", "data": { "retryAfterMs": 700 } }))
            }
            18..26 => {
                it.serve(&asked);
                it.note(format!("the answer to {} is lost", asked.method));
                Reply::Drop
            }
            26..30 => {
                it.serve(&asked);
                Reply::Hang
            }
            30..60 => {
                let (late, reply) = (it.dice.pause(5000), it.serve(&asked));
                Reply::Later(Box::pin(async move {
                    sleep(late).await;
                    reply
                }))
            }
            _ => it.serve(&asked),
        }
    })
}

fn listen(world: &mut World, asked: &Asked) -> Reply {
    if world.is_rough && world.dice.chance(30) {
        return if world.dice.chance(50) { Reply::Drop } else { error(-32603, "no pushes now") };
    }
    let id = asked.params["notifications"]["taskIds"][0].as_str().unwrap().to_owned();
    let (sender, receiver) = mpsc::unbounded_channel();
    let acknowledged = json!({
        "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
        "params": { "notifications": { "taskIds": [id] } },
    });
    sender.send(acknowledged).unwrap();
    world.listeners.push((id, sender));
    Reply::Stream(receiver)
}

/// A question in front of the person; however it goes away.
struct Showing {
    world: Shared,
    message: String,
}

impl Drop for Showing {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap();
        world.note(format!("{} is closed", self.message));
        world.showing.remove(&self.message);
    }
}

/// The person, who hurries once `calm` says so.
fn person(world: &Shared, calm: &watch::Sender<bool>) -> Person {
    let (world, calm) = (world.clone(), calm.clone());
    Person::new(move |message| {
        let (world, mut calm) = (world.clone(), calm.subscribe());
        async move {
            let (takes, mood) = {
                let mut it = world.lock().unwrap();
                it.show(&message);
                (it.dice.pause(8000), it.dice.roll(100))
            };
            let showing = Showing { world: world.clone(), message };
            if mood < 15 {
                let _ = calm.wait_for(|calm| *calm).await;
            } else {
                tokio::select! {
                    () = sleep(takes) => {}
                    _ = calm.wait_for(|calm| *calm) => {}
                }
            }
            let mut it = world.lock().unwrap();
            if (15..25).contains(&mood) && it.is_rough {
                let id = showing.message.split('/').next().unwrap().to_owned();
                it.failed.insert(id);
                it.note(format!("{} fails", showing.message));
                drop(it);
                return Err(ErrorData::internal_error("the terminal is gone", None));
            }
            let value = it.value(&showing.message);
            drop(it);
            Ok(accept(&value))
        }
    })
}

/// A store that is written at once, and outlives the client.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<BTreeMap<String, SavedTask>>>);

impl HandleStore for Shelf {
    fn save<'a>(&'a self, task: &'a SavedTask) -> BoxFuture<'a, io::Result<()>> {
        self.0.lock().unwrap().insert(task.task_id.clone(), task.clone());
        async { Ok(()) }.boxed()
    }

    fn remove<'a>(&'a self, _: &'a str, id: &'a str) -> BoxFuture<'a, io::Result<()>> {
        self.0.lock().unwrap().remove(id);
        async { Ok(()) }.boxed()
    }

    fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Vec<SavedTask>>> {
        let all = self.0.lock().unwrap().values().cloned().collect();
        async { Ok(all) }.boxed()
    }
}

/// What runs on behalf of the caller, in one process.
struct Caller {
    client: TaskClient,
    handles: BTreeMap<String, TaskHandle>,
    waits: Vec<JoinHandle<()>>,
}

impl Caller {
    fn wait(&mut self, world: &Shared, id: &str, deadline: Option<Duration>) {
        let Some(handle) = self.handles.get(id).cloned() else { return };
        let (world, id) = (world.clone(), id.to_owned());
        self.waits.push(tokio::spawn(async move {
            let end = handle.wait(deadline).await;
            world.lock().unwrap().check(&id, &end, deadline.is_some());
        }));
    }

    /// Another way to wait; what it tells last is checked the same way.
    fn watch(&mut self, world: &Shared, id: &str) {
        let Some(handle) = self.handles.get(id).cloned() else { return };
        let (world, id) = (world.clone(), id.to_owned());
        self.waits.push(tokio::spawn(async move {
            let mut updates = Box::pin(handle.updates());
            let mut last = None;
            while let Some(update) = updates.next().await {
                last = Some(update);
            }
            let end = match last.unwrap() {
                Ok(Task { detail: Detail::Completed(result), .. }) => {
                    Ok(serde_json::from_value(Value::Object(result)).unwrap())
                }
                // What the end means for the call is what a wait says.
                Ok(_) => handle.wait(None).await,
                Err(error) => Err(error),
            };
            world.lock().unwrap().check(&id, &end, false);
        }));
    }

    fn answer(&mut self, world: &Shared, id: &str) {
        let Some(handle) = self.handles.get(id).cloned() else { return };
        let (world, id) = (world.clone(), id.to_owned());
        self.waits.push(tokio::spawn(async move {
            let answer = {
                let mut it = world.lock().unwrap();
                let open: Vec<String> = it.life(&id).open.iter().cloned().collect();
                let free = open
                    .into_iter()
                    .map(|key| (say(&id, 0, &key), key))
                    .find(|(message, _)| !it.showing.contains(message) && !it.given.contains_key(message));
                if it.now[&id] != 0 || it.life(&id).gone {
                    return;
                }
                free.map(|(message, key)| (key, it.value(&message)))
            };
            if let Some((key, value)) = answer {
                // Whether or not it can be delivered now, it is kept.
                let _ =
                    handle.answer(&key, json!({ "action": "accept", "content": { "name": value } })).await;
            }
        }));
    }

    fn end(&mut self) {
        for wait in self.waits.drain(..) {
            wait.abort();
        }
        self.handles.clear();
    }
}

fn caller(scripted: &Scripted, person: &Person, shelf: &Shelf) -> TaskClient {
    let mut options = ClientOptions::default();
    options.max_rounds = 10_000;
    options.poll_beside_push = Duration::from_secs(5);
    TaskClient::builder(scripted.streams())
        .options(options)
        .handler(person.clone())
        .store(shelf.clone())
        .build()
}

/// One case; what went wrong, and what happened.
async fn play(seed: u64, moves: usize) -> (Vec<String>, Vec<String>) {
    let mut dice = Dice(seed);
    let is_exact = dice.chance(60);
    let world: Shared = Arc::new(Mutex::new(World {
        dice: Dice(dice.roll(u64::MAX)),
        begun: now(),
        is_rough: true,
        is_exact,
        lives: BTreeMap::new(),
        now: BTreeMap::new(),
        listeners: Vec::new(),
        given: BTreeMap::new(),
        refused: BTreeMap::new(),
        showing: BTreeSet::new(),
        failed: BTreeSet::new(),
        values: 0,
        wrong: Vec::new(),
        log: Vec::new(),
    }));
    let (calm, shelf) = (watch::channel(false).0, Shelf::default());
    let (scripted, person) = (server(&world), person(&world, &calm));
    let client = caller(&scripted, &person, &shelf);
    let mut caller_now = Caller { client, handles: BTreeMap::new(), waits: Vec::new() };
    for _ in 0..TASKS {
        let handle = started(&caller_now.client).await;
        caller_now.handles.insert(handle.id().to_owned(), handle);
    }
    for _ in 0..moves {
        let id = format!("t{}", dice.roll(TASKS as u64));
        let it = || world.lock().unwrap();
        match dice.roll(100) {
            0..22 => {
                let keys = 1 + dice.roll(3);
                it().change(&id, |life| {
                    for _ in 0..keys {
                        life.open.insert(format!("k{}", life.asked));
                        life.asked += 1;
                    }
                });
            }
            22..27 => {
                let key = it().life(&id).open.first().cloned();
                if let Some(key) = key {
                    it().note(format!("{id} withdraws {key}"));
                    it().change(&id, |life| {
                        life.open.remove(&key);
                    });
                }
            }
            27..50 => {
                let deadline = dice.chance(40).then(|| dice.pause(20_000));
                caller_now.wait(&world, &id, deadline);
            }
            50..56 => caller_now.watch(&world, &id),
            56..64 if !caller_now.waits.is_empty() => {
                let which = dice.roll(caller_now.waits.len() as u64) as usize;
                caller_now.waits.swap_remove(which).abort();
            }
            64..70 => scripted.hang_up(),
            70..76 => {
                it().note("the caller starts again");
                caller_now.end();
                // What is being written down when a process ends is written down or not; here it is.
                sleep(Duration::from_millis(1)).await;
                let client = caller(&scripted, &person, &shelf);
                let handles = client.resume_all().await.unwrap();
                let handles = handles.into_iter().map(|handle| (handle.id().to_owned(), handle)).collect();
                caller_now = Caller { client, handles, waits: Vec::new() };
            }
            76..82 => caller_now.answer(&world, &id),
            82..85 => {
                let end = [End::Completed, End::Failed, End::Cancelled][dice.roll(3) as usize];
                it().change(&id, |life| life.end = Some(end));
            }
            85..87 => {
                if let Some(handle) = caller_now.handles.get(&id).cloned() {
                    caller_now.waits.push(tokio::spawn(async move { drop(handle.cancel().await) }));
                }
            }
            87..89 => {
                it().note(format!("{id} is forgotten"));
                it().life(&id).gone = true;
            }
            89..91 => {
                // A restart of a server that remembers nothing: what has the id now is somebody else's.
                let mut it = it();
                if it.now[&id] == 0 {
                    it.note(format!("{id} is another task"));
                    let life = it.life(&id);
                    (life.replaced, life.gone) = (true, true);
                    it.now.insert(id.clone(), 1);
                    it.lives.insert((id.clone(), 1), Life::default());
                    drop(it);
                    scripted.hang_up();
                }
            }
            91..96 => {
                let state = it().state(&id);
                it().push(&id, state);
            }
            _ => it().push(&id, json!({ "taskId": id, "status": ["paused"] })),
        }
        sleep(dice.pause(3000)).await;
    }
    // From now on nothing goes wrong.
    {
        let mut it = world.lock().unwrap();
        it.note("all is calm");
        it.is_rough = false;
    }
    calm.send_replace(true);
    let ids: Vec<String> = caller_now.handles.keys().cloned().collect();
    for id in ids {
        // A handler that failed earlier may end one more wait.
        for _ in 0..2 {
            caller_now.wait(&world, &id, None);
            let wait = caller_now.waits.pop().unwrap();
            if tokio::time::timeout(AGES, wait).await.is_err() {
                let life = format!("{:?}", world.lock().unwrap().life(&id));
                world.lock().unwrap().wrong(format!("a wait for {id} does not end: {life}"));
            }
        }
    }
    for wait in caller_now.waits.drain(..) {
        match tokio::time::timeout(AGES, wait).await {
            Ok(Err(panic)) if panic.is_panic() => world.lock().unwrap().wrong(format!("{panic}")),
            Ok(_) => {}
            Err(_) => world.lock().unwrap().wrong("an earlier wait does not end".to_owned()),
        }
    }
    let left: Vec<String> = shelf.0.lock().unwrap().keys().cloned().collect();
    let mut it = world.lock().unwrap();
    if !left.is_empty() {
        it.wrong(format!("{left:?} have ended, and are kept"));
    }
    (it.wrong.clone(), it.log.clone())
}

fn run(seed: u64, moves: usize) -> (Vec<String>, Vec<String>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(play(seed, moves))
}

#[test]
fn no_question_twice_no_answer_lost_and_every_wait_ends_with_its_own_end() {
    if let Ok(one) = std::env::var("OUTLAST_SEED") {
        let (seed, moves) = one.split_once(',').expect("OUTLAST_SEED is <seed>,<moves>");
        let (seed, moves) = (seed.trim().parse().unwrap(), moves.trim().parse().unwrap());
        for _ in 0..20 {
            let (wrong, log) = run(seed, moves);
            assert!(wrong.is_empty(), "{}\n{wrong:#?}", log.join("\n"));
        }
        return;
    }
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400);
    proptest!(ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() },
        |(seed in any::<u64>(), moves in 1..80_usize)| {
            let (wrong, log) = run(seed, moves);
            let last = log.len().saturating_sub(60);
            prop_assert!(
                wrong.is_empty(),
                "OUTLAST_SEED={},{}\n{}\n{:#?}", seed, moves, log[last..].join("\n"), wrong
            );
        }
    );
}
