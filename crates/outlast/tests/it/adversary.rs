//! What a hostile peer, a careless tool or a bad moment can do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use outlast::{PollLimit, Recovery, Start, Store, TaskTool};
use outlast_core::*;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::support::{TestServer, client::accept, server::config};

/// Looks until `look` says yes. What never comes is ended, and failed, by the test runner: a disk may stall for longer
/// than any bound that could stand here.
async fn within(mut look: impl AsyncFnMut() -> bool) -> bool {
    while !look().await {
        tokio::task::yield_now().await;
    }
    true
}

/// Many round trips, in which whatever is about to happen has time to.
async fn let_others_run(server: &TestServer) {
    for _ in 0..300 {
        server.client.request("server/discover", json!({})).await.result();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_dropped_while_it_is_written_is_withdrawn() {
    let server = TestServer::with(|builder| builder.tool("hasty", TaskTool::required())).await;
    let id = server.client.task("hasty", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    // Whatever was written is taken back soon: nobody waits for the answer.
    let mut seen = 0;
    let gone = within(async || {
        seen = if server.client.state(&id).await["status"] == "working" { seen + 1 } else { 0 };
        seen > 20
    })
    .await;
    assert!(gone, "{:#}", server.client.state(&id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_attempt_that_needs_a_question_that_was_withdrawn_does_not_wait_for_ever() {
    let server = TestServer::with(|builder| builder.tool("fickle", TaskTool::required())).await;
    let id = server.client.task("fickle", json!({})).await;
    server.client.until(&id, "input_required").await;
    server.gates.open("first");
    server.gates.reached("crash", 1).await;
    server.client.until(&id, "working").await;
    give_back(&server, &id).await;
    server.gates.open("second");
    server.gates.reached("second", 1).await;
    let moved = within(async || server.client.state(&id).await["status"] != "working").await;
    assert!(moved, "the second attempt waits for an answer that nobody can give");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_refused_set_of_questions_may_be_asked_alone() {
    let server = TestServer::with(|builder| builder.tool("falls_back", TaskTool::required())).await;
    let forms = server
        .client
        .declaring(json!({"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}));
    let id = forms.task("falls_back", json!({})).await;
    forms.until(&id, "input_required").await;
    forms.update(&id, json!({"form": accept("ann")})).await.result();
    forms.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyed_call_that_asks_first_runs_once_however_often_it_is_repeated() {
    let server =
        TestServer::with(|builder| builder.tool("once", TaskTool::required().start(Start::AfterInput))).await;
    let params = json!({
        "name": "once", "arguments": {"gate": "g"}, "_meta": {"outlast/idempotencyKey": "k1"},
    });
    let first = server.client.request("tools/call", params.clone()).await;
    let again = server.client.request("tools/call", params).await;
    assert_eq!(first.result()["taskId"], again.result()["taskId"]);
    assert_eq!(server.gates.count("g"), 1, "a tool that must not run twice ran twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_runs_no_more_at_once_than_it_may_and_a_quiet_one_is_not_starved() {
    let mut config = config();
    config.max_running = 4;
    config.max_running_per_owner = 2;
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let (alice, bob) = (server.client.with_token("alice@a"), server.client.with_token("bob@b"));
    for _ in 0..10 {
        alice.task("gated", json!({"gate": "alice"})).await;
    }
    bob.task("gated", json!({"gate": "bob"})).await;
    let began = within(async || server.gates.count("bob") == 1).await;
    assert!(began, "bob waits behind {} of alice's", server.gates.count("alice"));
    assert_eq!(server.gates.count("alice"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_the_same_time_do_not_begin_more_than_there_are_slots() {
    let clock = ManualClock::new(Timestamp::from_millis(1_785_283_200_000));
    let slow = Spy(
        Arc::new(MemoryStore::new(clock.clone())),
        Arc::default(),
        Some(Arc::new(Barrier::new(32))),
        Arc::default(),
    );
    let server = TestServer::on_with(Arc::new(slow), clock, |builder| {
        let mut config = config();
        config.max_running = 2;
        builder.config(config)
    })
    .await;
    join_all((0..32).map(|_| server.client.task("gated", json!({"gate": "g"})))).await;
    let_others_run(&server).await;
    assert_eq!(server.gates.count("g"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_cannot_be_shown_is_an_error_inside_the_tool() {
    let server = TestServer::with(|builder| builder.tool("bad_sample", TaskTool::required())).await;
    let id = server.client.task("bad_sample", json!({})).await;
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deeply_nested_result_is_not_lost() {
    let server = TestServer::with(|builder| builder.tool("deep", TaskTool::required())).await;
    let id = server.client.task("deep", json!({})).await;
    let over = within(async || !server.client.get(&id).await.text.contains("\"working\"")).await;
    let text = server.client.get(&id).await.text;
    assert!(over && (text.contains("bottom") || text.contains("\"failed\"")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_what_restores_a_context_ends_its_task() {
    let server = TestServer::with(|builder| {
        builder.carry(|_| Some(1_u8), |_: u8, _| panic!("the restoring panics on purpose"))
    })
    .await;
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    assert!(within(async || server.client.state(&id).await["status"] != "working").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_what_an_author_decides_answers_its_request() {
    let server = TestServer::with(|builder| {
        builder.tool("gated", TaskTool::new().decide(|_, _| panic!("the decision panics on purpose")))
    })
    .await;
    let reply = server.client.call("gated", json!({})).await;
    assert_eq!(reply.code(), -32603);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_who_the_owner_is_answers_its_request() {
    let server = TestServer::with(|builder| builder.owner(|_| panic!("the owner panics on purpose"))).await;
    let id = "00000000000000000000000000000000";
    let reply = server.client.get(id).await;
    assert_eq!(reply.code(), -32603);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_dropped_with_its_server_is_taken_up_again_and_not_failed() {
    let server = TestServer::with(|builder| {
        let mut config = config();
        config.max_running = 1_000;
        config.max_running_per_owner = 1_000;
        builder.config(config).tool("gated", TaskTool::new().start(Start::After(Duration::ZERO)))
    })
    .await;
    let ids = join_all((0..200).map(|_| server.client.task("gated", json!({"gate": "never"})))).await;
    server.gates.reached("never", 200).await;
    let server = server.crash().await;
    let mut failed = Vec::new();
    for id in ids {
        let state = server.client.state(&id).await;
        if state["status"] != "working" {
            failed.push(state);
        }
    }
    assert!(failed.is_empty(), "{} ended, for example {:#}", failed.len(), failed[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_limit_however_slow_panics_nothing() {
    let mut config = config();
    config.poll_limit = Some(PollLimit { burst: 1, per_second: 1e-30 });
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let id = server.client.task("gated", json!({})).await;
    server.client.get(&id).await.result();
    let reply = server.client.get(&id).await;
    assert_eq!(reply.code(), -32000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_call_that_never_ends_does_not_keep_the_server_from_stopping() {
    let server = TestServer::start().await;
    let client = server.client.undeclared();
    let call = tokio::spawn(async move { client.call("deaf", json!({"gate": "never"})).await });
    server.gates.reached("never", 1).await;
    // A server that does not stop hangs here.
    server.stop().await;
    call.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inline_call_that_never_ends_does_not_keep_the_server_from_stopping() {
    let server = TestServer::with(|builder| {
        builder.tool("deaf", TaskTool::new().start(Start::After(Duration::from_secs(600))))
    })
    .await;
    let client = server.client.clone();
    let call = tokio::spawn(async move { client.call("deaf", json!({"gate": "never"})).await });
    server.gates.reached("never", 1).await;
    // A server that does not stop hangs here.
    server.stop().await;
    call.abort();
}

/// Remembers how many tools the last claim named, creates nothing before so many creations have come, and fails as it is
/// told to.
struct Spy(Arc<dyn Store>, Arc<AtomicUsize>, Option<Arc<Barrier>>, Arc<Faults>);

#[derive(Default)]
struct Faults {
    renewals: AtomicBool,
    hanging_renewals: AtomicBool,
    next_claim: AtomicBool,
}

#[async_trait]
impl Store for Spy {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        if let Some(barrier) = &self.2 {
            barrier.wait().await;
        }
        self.0.create(new, lease).await
    }
    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        self.0.apply(id, by, events).await
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.1.store(request.serves.len(), Ordering::Relaxed);
        let claimed = self.0.claim(request).await;
        if self.3.next_claim.swap(false, Ordering::Relaxed) {
            return Err(StoreError::unknown("a lost answer"));
        }
        claimed
    }
    async fn renew(&self, w: WorkerId, held: Vec<Held>, lease: Duration) -> Result<Vec<Renewal>, StoreError> {
        if self.3.hanging_renewals.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.3.renewals.load(Ordering::Relaxed) {
            return Err(StoreError::unavailable("an outage"));
        }
        self.0.renew(w, held, lease).await
    }
    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.0.get(id).await
    }
    async fn journal(&self, id: TaskId, after: u64, max: u64) -> Result<JournalPage, StoreError> {
        self.0.journal(id, after, max).await
    }
    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        self.0.heads(ids).await
    }
    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        self.0.sweep(max).await
    }
    fn watch(&self) -> Hints {
        self.0.watch()
    }
}

#[async_trait]
impl Inspect for Spy {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        self.0.list(filter, after, max).await
    }
    async fn counts(&self) -> Result<Counts, StoreError> {
        self.0.counts().await
    }
    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        self.0.workers().await
    }
    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        self.0.running(owner).await
    }
    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        self.0.call(id).await
    }
    fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }
    fn is_front(&self) -> bool {
        self.0.is_front()
    }
}

/// A task that parks at once is news of a task that nobody has loaded, after which a worker looks for work.
async fn provoke_claims(server: &TestServer) {
    server.client.task("later", json!({})).await;
    let_others_run(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_tools_that_do_not_exist_are_not_remembered() {
    let clock = ManualClock::new(Timestamp::from_millis(1_785_283_200_000));
    let served = Arc::new(AtomicUsize::new(0));
    let spy = Spy(Arc::new(MemoryStore::new(clock.clone())), served.clone(), None, Arc::default());
    let server =
        TestServer::on_with(Arc::new(spy), clock, |builder| builder.default_tool(TaskTool::new())).await;
    provoke_claims(&server).await;
    let before = served.load(Ordering::Relaxed);
    for n in 0..100 {
        server.client.call(&format!("no-such-tool-{n}"), json!({})).await.error();
    }
    provoke_claims(&server).await;
    assert_eq!(served.load(Ordering::Relaxed), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_during_a_slow_begin_is_heard_within_a_second() {
    let server = TestServer::start().await;
    let _ = (Recovery::Rerun, Value::Null);
    for n in 0..50 {
        let gate = format!("g{n}");
        let params =
            json!({"name": "gated", "arguments": {"gate": gate}, "_meta": {"outlast/idempotencyKey": gate}});
        let (first, cancelled) = tokio::join!(server.client.request("tools/call", params.clone()), async {
            let again = server.client.request("tools/call", params.clone()).await;
            let id = again.result()["taskId"].as_str().unwrap().to_owned();
            server.client.cancel(&id).await.result();
            id
        });
        first.result();
        server.gates.open("heard");
        let over = within(async || server.client.state(&cancelled).await["status"] == "cancelled").await;
        assert!(over, "round {n}");
    }
}

/// Takes a task from its worker, which gets it again.
async fn give_back(server: &TestServer, id: &str) {
    let id = id.parse().unwrap();
    let task = server.store.get(id).await.unwrap().unwrap();
    let release = vec![Event::Release { began: true }];
    let released = server.store.apply(id, By::Lease(task.token), release).await.unwrap();
    assert!(matches!(released, Applied::Applied(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_gets_its_own_task_again_drops_the_older_attempt() {
    let server = TestServer::with(|builder| builder.tool("two_gates", TaskTool::required())).await;
    let id = server.client.task("two_gates", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    give_back(&server, &id).await;
    server.gates.reached("g", 2).await;
    server.gates.open("g");
    server.gates.reached("after", 1).await;
    let_others_run(&server).await;
    assert_eq!(server.gates.count("after"), 1, "two attempts do the same work");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inline_call_that_reports_much_progress_is_answered() {
    let server = TestServer::with(|builder| {
        builder.tool("chatty", TaskTool::new().start(Start::After(Duration::from_secs(600))))
    })
    .await;
    let params = json!({"name": "chatty", "arguments": {}, "_meta": {"progressToken": 1}});
    server.client.request("tools/call", params).await.result();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_heard_while_the_server_drains() {
    let server = TestServer::with(|builder| {
        let mut config = config();
        config.drain = Duration::from_secs(8);
        builder.config(config)
    })
    .await;
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    let draining = server.server.clone();
    let drain = tokio::spawn(async move { draining.shutdown().await });
    while !server.server.is_shutting_down() {
        tokio::task::yield_now().await;
    }
    let_others_run(&server).await;
    server.client.cancel(&id).await.result();
    server.gates.open("heard");
    assert!(within(async || server.client.state(&id).await["status"] == "cancelled").await);
    drain.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_too_small_for_any_error_is_refused_at_the_start() {
    let mut config = config();
    config.task.result_bytes = 20;
    let store = MemoryStore::new(outlast::SystemClock);
    let builder = outlast::TaskServer::builder(crate::support::handler::Handler::default());
    assert!(builder.store(store).config(config).build().await.is_err());
}

/// A worker on a store that others may use too, whose `once` was claimed and runs at the gate `g`.
async fn worker_of_many() -> (TestServer, Arc<Faults>, ManualClock, String) {
    let clock = ManualClock::new(Timestamp::from_millis(1_785_283_200_000));
    let own = ManualClock::new(Timestamp::from_millis(0));
    let faults = Arc::new(Faults::default());
    let store = Arc::new(MemoryStore::new(clock.clone()));
    let spy = Spy(store, Arc::default(), None, faults.clone());
    let worker = own.clone();
    let server = TestServer::on_with(Arc::new(spy), clock, move |builder| {
        let mut config = config();
        config.max_running = 1;
        config.lease = Duration::from_secs(1);
        config.poll_every = Duration::from_millis(100);
        config.clock = Arc::new(worker.clone());
        builder.config(config)
    })
    .await;
    let first = server.client.task("gated", json!({"gate": "first"})).await;
    let id = server.client.task("once", json!({"gate": "g"})).await;
    server.gates.open("first");
    server.client.until(&first, "completed").await;
    server.gates.reached("g", 1).await;
    (server, faults, own, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_dropped_is_not_taken_for_a_claim_that_was_not_delivered() {
    let (server, faults, clock, _id) = worker_of_many().await;
    faults.renewals.store(true, Ordering::Relaxed);
    clock.advance(Duration::from_secs(2));
    server.until_unloaded().await;
    faults.next_claim.store(true, Ordering::Relaxed);
    provoke_claims(&server).await;
    assert_eq!(server.gates.count("g"), 1, "a tool that must not run twice ran twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_hangs_does_not_keep_work_running_past_its_lease() {
    let (server, faults, clock, _id) = worker_of_many().await;
    faults.hanging_renewals.store(true, Ordering::Relaxed);
    let_others_run(&server).await;
    clock.advance(Duration::from_secs(2));
    let dropped = within(async || server.server.load().await.unwrap().loaded == 0).await;
    assert!(dropped, "another worker may run it by now");
}
