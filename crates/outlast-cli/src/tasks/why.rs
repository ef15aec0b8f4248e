//! `outlast tasks why`.

use std::io::Write;

use outlast_admin::{operate, why};
use outlast_core::{Cause, Store, TaskId, Timestamp};
use serde_json::{Value, json};

use crate::text;

/// Say what a task waits for
#[derive(clap::Args)]
pub(super) struct Args {
    /// The task
    id: TaskId,
    /// Write JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(store: &dyn Store, args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let id = args.id;
    // The task first, so that it is not younger than now.
    let task = operate::find(store, id).await.map_err(super::refused)?;
    let now = operate::now(store).await?;
    let causes = why::causes(store, &task, &store.workers().await?, now).await?;
    if args.json {
        let json = |cause| json!({ "cause": why::name(cause), "says": says(cause, id, now) });
        let causes: Vec<Value> = causes.iter().map(json).collect();
        writeln!(out, "{}", text::json(&json!({ "taskId": id, "waitsFor": causes })))?;
        return Ok(());
    }
    for cause in &causes {
        writeln!(out, "{}", text::printable(&says(cause, id, now)))?;
    }
    Ok(())
}

/// A cause in words, and what somebody at a terminal does about it.
fn says(cause: &Cause, id: TaskId, now: Timestamp) -> String {
    let words = why::words(cause, now);
    match cause {
        Cause::Answers(_) => format!(
            "{words} `outlast tasks show {id}` has the whole of it, and `outlast tasks answer {id} KEY` answers."
        ),
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outlast_core::{
        Call, ClaimRequest, ManualClock, MemoryStore, NewTask, Owner, Payload, Spec, ToolVersion, WorkerId,
    };

    use super::*;

    async fn said(store: &MemoryStore, id: TaskId, json: bool) -> String {
        let mut out = Vec::new();
        run(store, &Args { id, json }, &mut out).await.unwrap();
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn what_a_task_waits_for_is_said_from_its_creation_to_its_end() {
        let clock = ManualClock::new(Timestamp::from_millis(0));
        let store = MemoryStore::new(clock.clone());
        let ids = [1, 2].map(|n| TaskId::from_bytes([n; 16]));
        for id in ids {
            let new = NewTask::new(id, Owner::new("ann"), Spec::new("report"), Call::new(Payload::null()));
            store.create(new, None).await.unwrap();
        }
        assert!(said(&store, ids[0], false).await.contains("no worker of this store serves that tool"));

        let claim = |tools: &[&str]| ClaimRequest {
            worker: WorkerId::new("w"),
            serves: tools.iter().map(|tool| ToolVersion::new(*tool, "")).collect(),
            per_owner: 1,
            lease: Duration::from_secs(30),
            max: 1,
        };
        store.claim(ClaimRequest { max: 0, ..claim(&["report"]) }).await.unwrap();
        clock.advance(Duration::from_secs(90));
        assert!(said(&store, ids[0], false).await.contains("ready for 1m, and no worker has taken it up"));
        let claimed = store.claim(claim(&["report"])).await.unwrap().remove(0).task.id;
        let other = ids.into_iter().find(|id| *id != claimed).unwrap();
        assert!(said(&store, claimed, false).await.contains("A worker has it (w)"));
        assert!(said(&store, other, false).await.contains("has 1 tasks running, and 1 are allowed"));
        clock.advance(Duration::from_secs(31));
        let json: Value = serde_json::from_str(&said(&store, claimed, true).await).unwrap();
        assert_eq!(json["waitsFor"][0]["cause"], "lease", "{json}");
    }
}
