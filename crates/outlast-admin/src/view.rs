//! A task as it is told to an operator: for a program, and in words.

use std::time::Duration;

use outlast_core::{Live, Recovery, Run, Task, TaskState, Timestamp, ToolVersion};
use serde_json::{Value, json};

use crate::text;

/// A task in short, under the names that the protocol has for it. `served` is what the workers of its store serve.
#[must_use]
pub fn summary(task: &Task, served: &[ToolVersion]) -> Value {
    json!({
        "taskId": task.id,
        "tool": task.spec.tool,
        "toolVersion": task.spec.version,
        "status": task.status(),
        "statusMessage": task.status_message,
        "owner": text::owner(&task.owner),
        "createdAt": task.created_at.to_string(),
        "lastUpdatedAt": task.updated_at.to_string(),
        "unserved": unserved(task, served),
    })
}

/// The same with what one wants to know of a single task, save its call, its questions, its history and how it ended.
#[must_use]
pub fn detail(task: &Task, served: &[ToolVersion]) -> Value {
    let mut detail = summary(task, served);
    detail["recovery"] = json!(task.spec.recovery);
    detail["ttlMs"] = json!(task.ttl.map(millis));
    detail["trace"] = json!(trace(task));
    detail["claims"] = task.token.0.into();
    detail["lostLeases"] = task.lost.iter().map(Timestamp::to_string).collect();
    if let TaskState::Live(live) = &task.state {
        detail["run"] = json!(live.run);
        detail["cancelRequestedAt"] = json!(live.cancel.map(|at| at.to_string()));
    }
    detail
}

/// The trace that a task is part of, as a collector knows it.
#[must_use]
pub fn trace(task: &Task) -> Option<String> {
    task.spec.trace.map(|place| place.trace.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A time for a program.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether `task` waits for a worker that is not there: it is unfinished, nobody has it, and none of those that last
/// claimed from its store serves its tool in its version.
#[must_use]
pub fn unserved(task: &Task, served: &[ToolVersion]) -> bool {
    !task.is_final() && task.lease().is_none() && !served.contains(&tool_version(task))
}

/// The tool that a task is for, in its version.
#[must_use]
pub fn tool_version(task: &Task) -> ToolVersion {
    ToolVersion::new(task.spec.tool.clone(), task.spec.version.clone())
}

/// Until when a task is kept.
#[must_use]
pub fn retention(task: &Task) -> String {
    match (task.expires_at(), task.ttl) {
        (Some(expires), _) => format!("until {expires}"),
        (None, Some(ttl)) => format!("while it lives, and after its end for at least {}", text::span(ttl)),
        (None, None) => "for ever".to_owned(),
    }
}

/// Where unfinished work is.
#[must_use]
pub fn work(live: &Live, now: Timestamp) -> String {
    match &live.run {
        Run::Queued { not_before } if *not_before > now => format!("waits until {not_before}"),
        Run::Queued { .. } => "waits for a server to take it up".to_owned(),
        Run::Leased(lease) if lease.until <= now => {
            format!("was held by {}, whose lease is over", lease.worker.as_str())
        }
        Run::Leased(lease) => {
            let left = lease.until.since(now);
            format!(
                "held by {}, whose lease lasts {} more unless it is renewed",
                lease.worker.as_str(),
                text::span(left)
            )
        }
        Run::Parked { wake: Some(wake), .. } => format!("parked until {wake}, or an answer"),
        Run::Parked { wake: None, .. } => "parked until an answer or a timer".to_owned(),
    }
}

/// How often a task was begun and lost, and what becomes of it after a crash.
#[must_use]
pub fn attempts(task: &Task) -> String {
    let after_a_crash = match task.spec.recovery {
        Recovery::Rerun => "is taken up again after a crash",
        Recovery::Fail => "fails after a crash, because running twice might do harm",
    };
    let lost = match task.lost.len() {
        0 => String::new(),
        lost => format!(", {lost} of them lost in a row (at most {})", task.spec.max_attempts),
    };
    format!("{}{lost}; {after_a_crash}", task.token.0)
}

#[cfg(test)]
mod tests {
    use outlast_core::{Call, Event, NewTask, Owner, Payload, Spec, TaskId, WorkerId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(0);

    fn task() -> Task {
        let id = TaskId::from_bytes([7; 16]);
        let new = NewTask::new(id, Owner::new("alice"), Spec::new("count"), Call::new(Payload::null()));
        Task::create(&new, NOW)
    }

    fn after(task: &Task, event: Event) -> Task {
        task.apply(&event, None, NOW).unwrap().task().unwrap().clone()
    }

    #[test]
    fn a_summary_names_no_owner() {
        let summary = summary(&after(&task(), Event::Cancel), &[]);
        assert_eq!(summary["status"], "cancelled");
        assert!(!summary.to_string().contains("alice"), "{summary}");
    }

    #[test]
    fn a_task_that_nobody_can_take_up_is_told_as_such_while_nobody_has_it() {
        let (other, own) = ([ToolVersion::new("count", "2")], [ToolVersion::new("count", "")]);
        assert!(unserved(&task(), &other) && !unserved(&task(), &own));
        let claim = Event::Claim { worker: WorkerId::new("w"), lease: Duration::from_secs(30) };
        assert!(!unserved(&after(&task(), claim), &other), "somebody has it");
        assert!(!unserved(&after(&task(), Event::Cancel), &other), "it has ended");
    }
}
