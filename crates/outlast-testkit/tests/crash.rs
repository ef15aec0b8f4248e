//! The crash test finds what is missing and what is torn, and its process really is killed in mid-write.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

use std::{
    process::Command,
    sync::{Arc, Mutex},
};

use outlast_core::{Status, Store};
use outlast_testkit::{
    Harness, MemoryHarness,
    crash::{self, Ack, Effect},
    run,
};

const CHILD: &str = "OUTLAST_CRASH_CHILD";

#[test]
fn crash_child() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    run(async { crash::child_main(MemoryHarness::new().open().await).await });
}

async fn worked() -> (Arc<dyn Store>, Vec<Ack>) {
    let store = MemoryHarness::new().open().await;
    let acks = Arc::new(Mutex::new(Vec::new()));
    let say = {
        let acks = acks.clone();
        Arc::new(move |ack| acks.lock().unwrap().push(ack))
    };
    crash::work(store.clone(), 12, say).await;
    let acks = std::mem::take(&mut *acks.lock().unwrap());
    (store, acks)
}

#[test]
fn what_a_store_kept_is_found_in_every_state() {
    run(async {
        let (store, acks) = worked().await;
        let checked = crash::check(&acks, &*store).await;
        assert_eq!(checked.acks, acks.len());
        for status in Status::ALL {
            assert!(checked.tasks.contains_key(&status), "none is {}: {checked:?}", status.as_str());
        }
        // Every kind of effect occurs, and reads as it is written.
        for kind in
            ["created", "claimed", "step", "asked", "answered", "parked", "completed", "failed", "cancelled"]
        {
            assert!(acks.iter().any(|ack| ack.to_string().contains(&format!(" {kind}"))), "{kind}");
        }
        assert!(acks.iter().all(|ack| ack.to_string().parse() == Ok(*ack)));
    });
}

#[test]
fn what_is_not_an_acknowledgement_is_not_read_as_one() {
    let id = "0123456789abcdef0123456789abcdef";
    assert!(format!("acked {id} step 3").parse::<Ack>().is_ok());
    for line in [
        "running 1 test".to_owned(),
        String::new(),
        format!("acked {id}"),
        format!("acked {id} step"),
        format!("acked {id} step x"),
        format!("acked {id} exploded"),
        format!("acked {} created", &id[1..]),
    ] {
        assert_eq!(line.parse::<Ack>(), Err(()), "{line}");
    }
}

#[test]
#[should_panic(expected = "was acknowledged and is gone")]
fn a_lost_task_is_found_out() {
    run(async {
        let (_, acks) = worked().await;
        let empty = MemoryHarness::new().open().await;
        crash::check(&acks, &*empty).await;
    });
}

#[test]
#[should_panic(expected = "was acknowledged, and the task is")]
fn a_lost_effect_is_found_out() {
    run(async {
        let (store, mut acks) = worked().await;
        let Some(open) = acks.iter().find(|ack| ack.what == Effect::Parked) else { return };
        acks.push(Ack { id: open.id, what: Effect::Step(1_000) });
        crash::check(&acks, &*store).await;
    });
}

#[test]
fn the_process_is_killed_in_the_middle_of_its_work() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "crash_child", "--nocapture"]).env(CHILD, "1");
    let acks = crash::run_and_kill(child, 450);
    assert!(acks.len() >= 500);
    assert!(acks.iter().any(|ack| ack.what == Effect::Completed));
}

#[test]
#[should_panic(expected = "the process ended by itself")]
fn a_process_that_ends_by_itself_is_found_out() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "no such test"]);
    let _ = crash::run_and_kill(child, 0);
}
