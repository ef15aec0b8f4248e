//! `outlast tasks why`.

use std::io::Write;

use outlast_admin::operate;
use outlast_core::{Cause, Filter, Status, Store, Task, TaskId, Timestamp};
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
    let task = operate::find(store, args.id).await.map_err(super::refused)?;
    let workers = store.workers().await?;
    let most = workers.iter().map(|seen| seen.per_owner).max().unwrap_or_default();
    let (running, now) = running(store, &task, most).await?;
    let causes = task.causes(&workers, running, now);
    if args.json {
        let causes: Vec<Value> = causes.iter().map(|cause| as_json(cause, &task, now)).collect();
        writeln!(out, "{}", text::json(&json!({ "taskId": task.id, "waitsFor": causes })))?;
        return Ok(());
    }
    for cause in &causes {
        writeln!(out, "{}", text::printable(&as_text(cause, &task, now)))?;
    }
    Ok(())
}

/// How many tasks of the same owner hold a place, as far as up to `most`, and what time it is.
async fn running(store: &dyn Store, task: &Task, most: u32) -> anyhow::Result<(u32, Timestamp)> {
    const LOOKED_AT: u32 = 500;
    let filter = Filter { owner: Some(task.owner.clone()), status: Some(Status::Working), tool: None };
    let (mut running, mut after) = (0, None);
    loop {
        let page = store.list(filter.clone(), after, LOOKED_AT).await?;
        running += page.tasks.iter().filter(|task| task.holds_slot()).count();
        after = page.next;
        if after.is_none() || running >= most as usize {
            return Ok((u32::try_from(running).unwrap_or(u32::MAX), page.now));
        }
    }
}

/// The name of a cause, for scripts.
fn name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Ended(_) => "ended",
        Cause::Running { .. } => "running",
        Cause::LeaseRanOut { .. } => "lease",
        Cause::Answers(_) => "answers",
        Cause::Timer { .. } => "timer",
        Cause::Pause { .. } => "pause",
        Cause::Unserved { .. } => "version",
        Cause::OwnersLimit { .. } => "limit",
        Cause::Worker { .. } => "worker",
        _ => "other",
    }
}

fn as_json(cause: &Cause, task: &Task, now: Timestamp) -> Value {
    json!({ "cause": name(cause), "says": as_text(cause, task, now) })
}

fn as_text(cause: &Cause, task: &Task, now: Timestamp) -> String {
    let id = task.id;
    let ago = |at: Timestamp| format!("{} ago", text::span(now.since(at)));
    let ahead = |at: Timestamp| format!("in {}, at {at}", text::span(at.since(now)));
    match cause {
        Cause::Ended(status) => format!("It waits for nothing: it is {}.", status.as_str()),
        Cause::Running { worker, until } => {
            format!(
                "A worker has it ({}); its lease ends {} unless it is renewed.",
                worker.as_str(),
                ahead(*until)
            )
        }
        Cause::LeaseRanOut { worker, at } => format!(
            "Its worker ({}) has not been heard of: the lease ran out {}. Another one takes the task over at its next claim; where \
            there is none, start a server on this store.",
            worker.as_str(),
            ago(*at)
        ),
        Cause::Answers(keys) => {
            let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
            format!(
                "It waits for {} to {}; `outlast tasks show {id}` has the whole of it, and `outlast tasks answer {id} KEY` answers.",
                if keys.len() == 1 { "the answer" } else { "answers" },
                keys.join(", ")
            )
        }
        Cause::Timer { key: Some(key), at } => format!("It sleeps: the timer '{key}' is due {}.", ahead(*at)),
        Cause::Timer { key: None, at } => format!("It comes back {}.", ahead(*at)),
        Cause::Pause { until } => {
            format!("Its last attempt was lost, and the next one may begin {}.", ahead(*until))
        }
        Cause::Unserved { needs, served } => {
            let version =
                |version: &str| if version.is_empty() { "none".to_owned() } else { format!("'{version}'") };
            let served: Vec<String> = served.iter().map(|served| version(served)).collect();
            let but = if served.is_empty() {
                "no worker of this store serves that tool".to_owned()
            } else {
                format!("the workers of this store serve the version {}", served.join(", "))
            };
            format!(
                "It needs a worker that serves '{}' in the version {}, and {but}. Start a server that does, or cancel it.",
                needs.tool,
                version(&needs.version)
            )
        }
        Cause::OwnersLimit { running, limit } => format!(
            "Its owner has {running} tasks running, and {limit} are allowed; it begins when one of those ends or asks something."
        ),
        Cause::Worker { since, alone } => format!(
            "It has been ready for {}, and no worker has taken it up{}: all are busy, or no server runs on this store.",
            text::span(now.since(*since)),
            if *alone { " (it was lost with its workers before, and runs alone)" } else { "" }
        ),
        _ => "It waits for something that this program does not know.".to_owned(),
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
