//! Why a task is where it is, as it is told to an operator: at a terminal, and on the page.

use outlast_core::{Cause, Store, StoreError, Task, Timestamp, WorkerSeen};

use crate::text;

/// What `task` waits for at `now`, the first thing first; `workers` are those of its store.
///
/// # Errors
/// When the store cannot answer.
pub async fn causes(
    store: &dyn Store,
    task: &Task,
    workers: &[WorkerSeen],
    now: Timestamp,
) -> Result<Vec<Cause>, StoreError> {
    let running = store.running(task.owner.clone()).await?;
    Ok(task.causes(workers, running, now))
}

/// The name of a cause, for programs.
#[must_use]
pub fn name(cause: &Cause) -> &'static str {
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

/// A cause in sentences, and what to do about it where an operator can do something.
#[must_use]
pub fn words(cause: &Cause, now: Timestamp) -> String {
    let ago = |at: Timestamp| format!("{} ago", text::span(now.since(at)));
    let ahead = |at: Timestamp| format!("in {}, at {at}", text::span(at.since(now)));
    match cause {
        Cause::Ended(status) => format!("It waits for nothing: it is {}.", status.as_str()),
        Cause::Running { worker, until } => format!(
            "A worker has it ({}); its lease ends {} unless it is renewed.",
            worker.as_str(),
            ahead(*until)
        ),
        Cause::LeaseRanOut { worker, at } => format!(
            "Its worker ({}) has not been heard of: the lease ran out {}. Another one takes the task over at its next claim; where \
            there is none, start a server on this store.",
            worker.as_str(),
            ago(*at)
        ),
        Cause::Answers(keys) => {
            let what = if keys.len() == 1 { "the answer" } else { "answers" };
            let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
            format!("It waits for {what} to {}.", keys.join(", "))
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
