//! Work whose token has expired, or was lost with an earlier process, waits for its owner.

use std::{path::Path, sync::Arc};

use outlast::{Config, MemoryStore, Store, SystemClock, TaskServer};
use outlast_client::Server;
use outlast_gateway::{Gateway, Upstream};
use outlast_sqlite::SqliteStore;
use serde_json::json;

use super::stub::{Caller, LONG, PACE, Stub, gateway, gateway_with, in_front, is_final, serve, waits};

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_token_expires_waits_for_its_owner() {
    for legacy in [false, true] {
        let stub = Stub::new(legacy);
        let [ann, bob] = in_front(&stub).await;
        let id = ann.start("slow").await;
        stub.until_seen("tasks/get", "ann-1", 1).await;

        stub.lets_in(&["ann-2", "bob-1"]);
        let waiting = ann.until(&id, |task| waits(task) || is_final(task)).await;
        assert_eq!(waiting["status"], "working", "{waiting}");
        // Neither the same token again nor another owner's is of use.
        bob.ask("tools/list", json!({})).await.unwrap();
        assert!(!is_final(&ann.get(&id).await));
        stub.ends();
        // Any request of the owner brings the new one.
        ann.with("ann-2").ask("prompts/list", json!({})).await.unwrap();
        assert_eq!(ann.with("ann-2").ended(&id).await, "ann-2");
        assert!(!stub.tokens("tasks/get").contains(&"bob-1".to_owned()));
    }
}

struct Site(tempfile::TempDir, String);

impl Site {
    async fn new(stub: &Stub) -> Self {
        Self(tempfile::tempdir().unwrap(), stub.serve().await)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("store.db")
    }

    /// A gateway on the file; it ends when the runtime that it was started on does.
    async fn start(&self) -> TaskServer<Gateway> {
        self.start_on(self.store().await).await
    }

    async fn store(&self) -> Arc<dyn Store> {
        loop {
            match SqliteStore::open(self.file()) {
                Ok(store) => break Arc::new(store),
                // The gateway before this one may still be on its way out.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Runs a gateway in which ann has a task that goes on at the upstream, and ends the gateway. Gives the task.
    async fn left_by_earlier(&self, stub: &Stub) -> String {
        // A runtime of its own, with which all of the gateway ends at once.
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let runtime = tokio::runtime::Runtime::new().unwrap();
                    runtime.block_on(async {
                        let ann = Caller { address: serve(self.start().await).await, token: "ann-1" };
                        let id = ann.start("slow").await;
                        stub.until_seen("tasks/get", "ann-1", 1).await;
                        id
                    })
                })
                .join()
                .unwrap()
        })
    }

    async fn start_on(&self, store: Arc<dyn Store>) -> TaskServer<Gateway> {
        let upstream = Upstream::only(Server::http(self.1.clone())).forward_authorization();
        gateway(vec![upstream], store).await
    }
}

fn holds(folder: &Path, secret: &str) -> bool {
    let files = std::fs::read_dir(folder).unwrap();
    files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .any(|bytes| bytes.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_a_task_waits_for_its_owners_next_request_and_goes_on() {
    let stub = Stub::new(false);
    // An answer of this upstream would bring the token into the store by itself.
    stub.lets_in(&["ann-1", "ann-2"]);
    let site = Site::new(&stub).await;
    let first = site.left_by_earlier(&stub).await;
    assert!(holds(site.0.path(), "theirs"), "the task is in the file");
    assert!(!holds(site.0.path(), "ann-1"), "and the token is not");

    let ann = Caller { address: serve(site.start().await).await, token: "ann-2" };
    stub.ends();
    let bob = ann.with("bob-1");
    bob.ask("tools/list", json!({})).await.unwrap_err();
    assert!(!stub.tokens("tasks/get").contains(&"bob-1".to_owned()));
    // The owner's look at the task, or any other request.
    assert_eq!(ann.ended(&first).await, "ann-2");
    assert_eq!(stub.tokens("tools/call"), ["ann-1"], "it was called once");
}

/// The status message of a task once it is so, as the store has it.
async fn stored_message(store: &dyn Store, id: &str, is_so: impl Fn(&str) -> bool) -> String {
    let is_said = async {
        loop {
            let task = store.get(id.parse().unwrap()).await.unwrap().unwrap();
            let message = task.status_message.as_deref().unwrap_or_default().to_owned();
            if task.status().is_final() || is_so(&message) {
                return message;
            }
            tokio::time::sleep(PACE).await;
        }
    };
    tokio::time::timeout(LONG, is_said).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_whose_token_was_lost_asks_nothing_as_somebody_else() {
    // It lets in everybody, and who comes without a token is somebody else.
    let stub = Stub::new(false);
    stub.knows_owners();
    let site = Site::new(&stub).await;
    let id = site.left_by_earlier(&stub).await;
    let before = stub.seen().len();

    let store = site.store().await;
    let ann = Caller { address: serve(site.start_on(store.clone()).await).await, token: "ann-2" };
    let said = stored_message(&*store, &id, |message| message.contains("waits for the caller's")).await;
    assert!(said.contains("waits for the caller's next request"), "{said}");
    assert_eq!(stub.seen().len(), before, "{:?}", stub.seen());
    stub.ends();
    assert_eq!(ann.ended(&id).await, "ann-2");
    assert!(!stub.seen().iter().any(|(_, token, _)| token == "nobody"), "{:?}", stub.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn work_of_another_gateway_goes_on_where_its_owner_comes() {
    let stub = Stub::new(false);
    let url = stub.serve().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(SystemClock));
    let start =
        || gateway(vec![Upstream::only(Server::http(url.clone())).forward_authorization()], store.clone());
    // The second has looked at what there is before the first begins anything.
    let (first, second) = (start().await, start().await);
    let ann = Caller { address: serve(first.clone()).await, token: "ann-1" };
    let id = ann.start("slow").await;
    stub.until_seen("tasks/get", "ann-1", 1).await;
    first.shutdown().await;
    stub.ends();
    let ann = Caller { address: serve(second).await, token: "ann-2" };
    assert_eq!(ann.ended(&id).await, "ann-2");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_whose_token_was_lost_can_be_cancelled_at_the_upstream() {
    let stub = Stub::new(false);
    let site = Site::new(&stub).await;
    let id = site.left_by_earlier(&stub).await;
    let store = site.store().await;
    let ann = Caller { address: serve(site.start_on(store.clone()).await).await, token: "ann-2" };
    stored_message(&*store, &id, |message| message.contains("waits for the caller's")).await;
    ann.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    stub.until_seen("tasks/cancel", "ann-2", 1).await;
    stub.ends();
    ann.until(&id, is_final).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_two_headers_is_made_with_none_although_its_owner_had_one_before() {
    let stub = Stub::new(false);
    let [ann, _] = in_front(&stub).await;
    ann.ask("tools/list", json!({})).await.unwrap();
    let caller = ann.with("ann-1\r\nAuthorization: Bearer ann-2");
    let id = caller.start("tool").await;
    assert_eq!(caller.ended(&id).await, "nobody");
    assert_eq!(stub.tokens("tools/call"), ["nobody"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_a_token_can_be_cancelled() {
    let stub = Stub::new(false);
    let [ann, _] = in_front(&stub).await;
    let id = ann.start("slow").await;
    stub.until_seen("tasks/get", "ann-1", 1).await;
    stub.lets_in(&["ann-2"]);
    ann.until(&id, waits).await;
    ann.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    let ended = ann.until(&id, is_final).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_its_turn_is_made_with_the_token_of_its_caller() {
    let stub = Stub::new(false);
    let upstream = Upstream::only(Server::http(stub.serve().await)).forward_authorization();
    let mut config = Config::default();
    config.max_running = 1;
    let server = gateway_with(config, vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let ann = Caller { address: serve(server.clone()).await, token: "ann-1" };
    let running = ann.start("held").await;
    stub.until_seen("tools/call", "ann-1", 1).await;
    let waiting = ann.with("bob-1").start("tool").await;
    assert_eq!(server.load().await.unwrap().retained.ready, 1, "it waits");
    stub.ends();
    assert_eq!(ann.ended(&running).await, "ann-1");
    assert_eq!(ann.with("bob-1").ended(&waiting).await, "bob-1");
    assert_eq!(stub.tokens("tools/call"), ["ann-1", "bob-1"]);
}
