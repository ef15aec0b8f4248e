//! Probes and metrics, with a store that works and one that does not.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use outlast_admin::{Admin, AdminToken, Options};
use outlast_core::MemoryStore;
use outlast_testkit::{Fault, FaultStore};

use crate::support::{Answer, LEASE, Place, TOKEN, request};

#[tokio::test]
async fn metrics_have_what_others_measured_and_the_gauges_of_the_store() {
    let place = Place::with(|options| options.measured = Some(Arc::new(|| "creates_total 7".to_owned())));
    place.asks(1, "alice").await;
    place.task(2, "alice", "slow").await;
    let answer = place.get("/metrics").await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let lines: Vec<&str> = answer.body.lines().collect();
    for line in [
        "creates_total 7",
        "outlast_store_up 1",
        "# TYPE outlast_tasks gauge",
        "outlast_tasks{status=\"working\"} 1",
        "outlast_tasks{status=\"input_required\"} 1",
        "outlast_tasks{status=\"completed\"} 0",
        "outlast_tasks_leased 2",
        "outlast_tasks_ready 0",
        "outlast_queue_oldest_seconds 0",
    ] {
        assert!(lines.contains(&line), "{line} is not in\n{}", answer.body);
    }

    place.clock.advance(LEASE + Duration::from_secs(9));
    let answer = place.get("/metrics").await;
    let lines: Vec<&str> = answer.body.lines().collect();
    for line in ["outlast_tasks_ready 2", "outlast_queue_oldest_seconds 9"] {
        assert!(lines.contains(&line), "{line} is not in\n{}", answer.body);
    }
}

#[tokio::test]
async fn a_process_that_is_to_end_lives_and_is_ready_no_more() {
    let place = Place::new();
    let probe = async |path| {
        Answer::of(place.send(request("GET", path, None).body(Body::empty()).unwrap()).await).await
    };
    assert_eq!(probe("/readyz").await.body, "ready\n");
    place.admin.stop();
    let answer = probe("/readyz").await;
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (503, "the process is about to end\n"));
    assert_eq!(probe("/healthz").await.status, 200);
}

/// The operator's side of a store that may fail.
fn in_front(store: FaultStore<MemoryStore>) -> (Arc<FaultStore<MemoryStore>>, Place) {
    let store = Arc::new(store);
    let admin = Admin::new(store.clone(), AdminToken::new(TOKEN).unwrap(), Options::default());
    (store, Place { admin, ..Place::new() })
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_hangs_is_not_ready_and_the_process_lives() {
    let inner = Place::new().store;
    let (store, place) = in_front(FaultStore::sound(inner.clone()));
    let probe = async |place: &Place, path| {
        Answer::of(place.send(request("GET", path, None).body(Body::empty()).unwrap()).await).await
    };
    store.set_down(true);
    let answer = probe(&place, "/readyz").await;
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (503, "the store fails\n"));
    assert_eq!(probe(&place, "/healthz").await.status, 200);
    store.set_down(false);
    assert_eq!(probe(&place, "/readyz").await.status, 200);

    let (_, place) = in_front(FaultStore::failing(inner, 1, Fault::Held));
    let answer = tokio::time::timeout(Duration::from_millis(1_500), probe(&place, "/readyz")).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (503, "the store does not answer\n"));
}

#[tokio::test]
async fn an_outage_of_the_store_is_said_without_its_cause_and_shows_in_the_metrics() {
    let (store, place) = in_front(FaultStore::sound(Place::new().store));
    store.set_down(true);
    for path in ["/api/tasks", "/api/counts", "/api/tasks/07070707070707070707070707070707"] {
        let refusal = place.get(path).await.refusal(503);
        assert_eq!(refusal, "the store cannot take this now; nothing was changed");
    }
    place.post("/api/tasks/07070707070707070707070707070707/cancel", "").await.refusal(503);
    let answer = place.get("/metrics").await;
    assert!(answer.status == 200 && answer.body.contains("\noutlast_store_up 0\n"), "{}", answer.body);
    assert!(!answer.body.contains("outlast_tasks{"), "what is not known is not told");
}
