//! What goes wrong around a wait: servers that are killed, runtimes that end, requests that nobody answers.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_client::{Server, TaskClient, TaskHandle};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::support::{
    LONG, Person, Reply, Scripted, ack, asks, completed, created, error, ok, polling, said, started, task,
    text,
};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[tokio::test]
async fn a_server_that_is_killed_and_restarted_in_the_middle_of_a_wait_is_found_again() {
    let restarted = Arc::new(AtomicUsize::new(0));
    let is_new = restarted.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" if is_new.load(Ordering::SeqCst) > 0 => completed("t1", "after the restart"),
        "tasks/get" => asks("t1", &["who"]),
        "tasks/update" => ack(),
        "subscriptions/listen" => {
            let (pushes, stream) = mpsc::unbounded_channel();
            let agreed = json!({ "notifications": { "taskIds": ["t1"] } });
            let method = "notifications/subscriptions/acknowledged";
            pushes.send(json!({ "jsonrpc": "2.0", "method": method, "params": agreed })).unwrap();
            // Open for as long as the server lives.
            std::mem::forget(pushes);
            Reply::Stream(stream)
        }
        _ => error(-32601, "no"),
    });
    let server = scripted.killable("127.0.0.1:0").await;
    let address = server.address.to_string();
    let person = Person::silent();
    let client = TaskClient::new(server.server(), person.clone());
    let handle = started(&client).await;
    let waiting = tokio::spawn(async move { handle.wait(LONG).await });
    person.until_asked(1).await;
    scripted.until_asked("subscriptions/listen", 1).await;

    drop(server);
    restarted.store(1, Ordering::SeqCst);
    let _again = scripted.killable(&address).await;

    assert_eq!(said(&waiting.await.unwrap().unwrap()), "after the restart");
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test]
async fn a_request_that_is_given_up_is_closed_so_that_none_pile_up_at_the_server() {
    struct Open(watch::Sender<usize>);
    impl Drop for Open {
        fn drop(&mut self) {
            self.0.send_modify(|open| *open -= 1);
        }
    }
    let open = watch::channel(0).0;
    let counted = open.clone();
    let hang = move || {
        counted.send_modify(|open| *open += 1);
        let held = Open(counted.clone());
        Reply::Later(Box::pin(async move {
            let _held = held;
            std::future::pending().await
        }))
    };
    for legacy in [false, true] {
        let hang = hang.clone();
        let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
            ("tools/list", _) if legacy => ok(json!({ "tools": [{
                "name": "tool", "inputSchema": { "type": "object" }, "execution": { "taskSupport": "optional" }
            }] })),
            ("tools/call", _) if legacy => ok(json!({ "task": {
                "taskId": "t1", "status": "working", "ttl": null, "pollInterval": 100,
                "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
            } })),
            ("tools/call", _) => created("t1"),
            ("tasks/get", 0..=2) => hang(),
            ("tasks/get", _) => error(-32602, "Task not found"),
            _ => error(-32601, "no"),
        });
        let scripted = if legacy { scripted.legacy() } else { scripted };
        let running = scripted.http().await;
        let mut options = polling();
        options.request_timeout = Duration::from_millis(50);
        let client = TaskClient::builder(running.server()).options(options).build();

        client.call_tool(CallToolRequestParams::new("tool")).await.unwrap_err();

        let mut closed = open.subscribe();
        let none = closed.wait_for(|open| *open == 0);
        assert!(tokio::time::timeout(Duration::from_secs(20), none).await.is_ok(), "{} open", *open.borrow());
    }
}

/// A task that is done when the test says so.
fn patient() -> (Scripted, Arc<AtomicUsize>) {
    let done = Arc::new(AtomicUsize::new(0));
    let is_done = done.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" if is_done.load(Ordering::SeqCst) > 0 => completed("t1", "done"),
        "tasks/get" => ok(task("t1", "working", json!({}))),
        _ => error(-32601, "no"),
    });
    (scripted, done)
}

#[tokio::test]
async fn a_wait_outlives_the_runtime_of_another_that_began_it() {
    let (scripted, done) = patient();
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let other = runtime();
    let handle: TaskHandle = {
        let client = client.clone();
        other.spawn(async move { started(&client).await }).await.unwrap()
    };
    other.spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    scripted.until_asked("tasks/get", 1).await;
    let waiting = tokio::spawn(async move { handle.wait(LONG).await });
    let polls = scripted.asked("tasks/get").len();
    scripted.until_asked("tasks/get", polls + 1).await;

    // The pump, and the connection, go with it.
    other.shutdown_background();
    done.store(1, Ordering::SeqCst);

    let result = tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the wait goes on");
    assert_eq!(said(&result.unwrap().unwrap()), "done");
}

#[tokio::test]
async fn a_client_is_used_from_two_runtimes_one_after_the_other() {
    let (scripted, done) = patient();
    done.store(1, Ordering::SeqCst);
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    for _ in 0..3 {
        let (own, client) = (runtime(), client.clone());
        let result = own.spawn(async move { client.call_tool(CallToolRequestParams::new("tool")).await });
        assert_eq!(said(&result.await.unwrap().unwrap()), "done");
        // All of it is gone when this returns, the connection too.
        tokio::task::spawn_blocking(move || own.shutdown_timeout(Duration::from_secs(30))).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_is_used_while_the_runtime_of_its_connection_goes_down() {
    let (scripted, done) = patient();
    done.store(1, Ordering::SeqCst);
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    for _ in 0..20 {
        let (own, client) = (runtime(), client.clone());
        let result = own.spawn(async move { client.call_tool(CallToolRequestParams::new("tool")).await });
        assert_eq!(said(&result.await.unwrap().unwrap()), "done");
        // Its tasks end in any order, while the next call is made.
        own.shutdown_background();
    }
}

#[test]
fn everything_can_be_dropped_outside_a_runtime() {
    let (scripted, _) = patient();
    let own = runtime();
    let person = Person::silent();
    let (running, client, handle, wait, updates, call) = own.block_on(async {
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).handler(person.clone()).build();
        let handle = started(&client).await;
        let mut updates = Box::pin(handle.updates());
        futures::StreamExt::next(&mut updates).await.unwrap().unwrap();
        let mut wait = Box::pin({
            let handle = handle.clone();
            async move { handle.wait(LONG).await }
        });
        let polled = futures::poll!(&mut wait);
        assert!(polled.is_pending());
        let mut call = Box::pin({
            let client = client.clone();
            async move { client.call_tool(CallToolRequestParams::new("tool")).await }
        });
        let polled = futures::poll!(&mut call);
        assert!(polled.is_pending());
        (running, client, handle, wait, updates, call)
    });

    drop((wait, updates, call, handle, client));
    drop(running);
    own.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_anywhere_leaves_a_task_that_the_next_one_brings_to_its_end() {
    for steps in 0..40 {
        let answered = Arc::new(Mutex::new(None::<Value>));
        let given = answered.clone();
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/get" if given.lock().unwrap().is_some() => completed("t1", "done"),
            "tasks/get" => asks("t1", &["who"]),
            "tasks/update" => {
                let sent = asked.params["inputResponses"]["who"].clone();
                let mut given = given.lock().unwrap();
                assert!(given.as_ref().is_none_or(|given| *given == sent), "one answer");
                *given = Some(sent);
                ack()
            }
            _ => error(-32601, "no"),
        });
        let person = Person::prompt();
        let client =
            TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();
        let handle = started(&client).await;

        // Dropped after so many turns of everything else that runs.
        {
            let mut wait = Box::pin(handle.wait(LONG));
            for step in 0..steps {
                if futures::poll!(&mut wait).is_ready() {
                    break;
                }
                if step % 4 == 0 {
                    tokio::time::sleep(Duration::from_millis(40)).await;
                } else {
                    tokio::task::yield_now().await;
                }
            }
        }

        assert_eq!(said(&handle.wait(LONG).await.unwrap()), "done", "after {steps}");
        assert!(!person.asked().is_empty());
        assert_eq!(person.open(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_in_the_middle_of_a_handshake_stays_closed() {
    let scripted = Scripted::new(|_| created("t1"));
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let mut call = Box::pin(client.start_tool(CallToolRequestParams::new("tool")));
    assert!(futures::poll!(&mut call).is_pending());

    client.close().await;

    // The call that wanted the handshake has it; nobody else does.
    call.await.unwrap();
    assert_eq!(scripted.connections(), 1);
    started(&client).await;
    assert_eq!(scripted.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hung_up_between_two_calls_is_connected_again_by_the_next() {
    // The streams of a connection end with the answer to its first call, as those of a process do that exits.
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => ok(text("done")),
        _ => error(-32601, "no"),
    });
    let server = Server::streams("short-lived", move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let connect = scripted.connect_for(3);
        async move { Ok(connect) }
    });
    let client = TaskClient::builder(server).options(polling()).build();

    for calls in 1..=3 {
        assert_eq!(said(&client.call_tool(CallToolRequestParams::new("tool")).await.unwrap()), "done");
        assert_eq!(connections.load(Ordering::SeqCst), calls);
        // The end of the streams is seen.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_handshake_that_ended_with_its_runtime_is_begun_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let scripted = Scripted::new(|_| ok(text("done")));
    let server = Server::streams("slow at first", move || {
        let (first, scripted) = (counted.fetch_add(1, Ordering::SeqCst) == 0, scripted.clone());
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            Ok(scripted.connect_for(usize::MAX))
        }
    });
    let client = TaskClient::builder(server).options(polling()).build();
    let other = runtime();
    let (began, begun) = tokio::sync::oneshot::channel();
    other.spawn({
        let client = client.clone();
        async move {
            let mut call = Box::pin(client.call_tool(CallToolRequestParams::new("tool")));
            assert!(futures::poll!(&mut call).is_pending());
            // Its handshake runs beside this.
            while connections.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            let _ = began.send(());
            call.await
        }
    });
    begun.await.unwrap();

    // All of it is gone when this returns.
    tokio::task::spawn_blocking(move || other.shutdown_timeout(Duration::from_secs(30))).await.unwrap();

    let call = client.call_tool(CallToolRequestParams::new("tool"));
    let result = tokio::time::timeout(Duration::from_secs(20), call).await.expect("it is begun again");
    assert_eq!(said(&result.unwrap()), "done");
}
