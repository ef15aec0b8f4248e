//! What is counted is what is kept: each creation and each end once, whoever brought it about.

use outlast_core::{Event, NewTask, Recovery, Spec, Status};
use serde_json::json;

use crate::{
    Harness,
    counted::{metric, metrics_text},
    story::*,
};

/// Tasks of a tool that no other test has.
fn tool_of_its_own() -> Spec {
    Spec { tool: format!("counted-{}", fresh_id()), ..rerun() }
}

fn created(tool: &str) -> f64 {
    metric(&metrics_text(), "outlast_tasks_created_total", &[&format!("tool=\"{tool}\"")])
}

fn ended(tool: &str) -> [f64; 3] {
    let text = metrics_text();
    [Status::Completed, Status::Failed, Status::Cancelled].map(|status| {
        let status = format!("status=\"{}\"", status.as_str());
        metric(&text, "outlast_tasks_ended_total", &[&format!("tool=\"{tool}\""), &status])
    })
}

pub async fn a_creation_is_counted_once_and_a_refused_one_never(on: &dyn Harness) {
    metrics_text();
    let store = on.open().await;
    let spec = tool_of_its_own();
    let new = || new_with(spec.clone());
    let task = new();
    store.create(task.clone(), None).await.unwrap();
    store.create(task, None).await.unwrap();
    assert_eq!(created(&spec.tool), 1.0);
    let keyed = || NewTask { spec: spec.clone().into(), ..new_keyed("key", 1) };
    store.create(keyed(), None).await.unwrap();
    store.create(keyed(), None).await.unwrap();
    store.create(NewTask { spec: spec.clone().into(), ..new_keyed("key", 2) }, None).await.unwrap();
    store.create(NewTask { max_open: 0, ..new() }, None).await.unwrap();
    assert_eq!(created(&spec.tool), 2.0);
    assert_eq!(ended(&spec.tool), [0.0; 3]);
}

pub async fn an_end_is_counted_once_whoever_brings_it_about(on: &dyn Harness) {
    metrics_text();
    let store = on.open().await;
    let spec = tool_of_its_own();
    let tool = &*spec.tool;
    let new = || new_with(spec.clone());

    // By its worker, who says it twice.
    let (done, token) = store.create_leased(new(), "one").await;
    for _ in 0..2 {
        store.work(done.id, token, vec![complete(&json!(1))]).await;
    }
    assert_eq!(ended(tool), [1.0, 0.0, 0.0]);
    // By its caller, who is told that there is nothing left to cancel.
    let cancelled = store.create_one(new()).await;
    for _ in 0..2 {
        store.alice(cancelled.id, vec![Event::Cancel]).await;
    }
    assert_eq!(ended(tool), [1.0, 0.0, 1.0]);
    // By a claim of somebody else, which finds that its worker is gone.
    let once = Spec { recovery: Recovery::Fail, ..spec.clone() };
    let (lost, token) = store.create_leased(new_with(once), "one").await;
    on.advance(LEASE * 2).await;
    assert!(store.claim_up_to("two", 1).await.is_empty());
    assert_eq!(store.task(lost.id).await.status(), Status::Failed);
    assert_eq!(ended(tool), [1.0, 1.0, 1.0]);
    // Its worker comes back too late.
    store.work(lost.id, token, vec![complete(&json!(1))]).await;
    // By the sweeper, when its time is over.
    store.create_one(new_with(Spec { deadline: Some(MINUTE), ..spec.clone() })).await;
    on.advance(MINUTE).await;
    assert_eq!(store.sweep(10).await.unwrap().done, 1);
    assert_eq!(ended(tool), [1.0, 2.0, 1.0]);
    assert_eq!(created(tool), 4.0);
}
