//! `outlast tasks retry`.

use std::{io::Write, sync::Arc};

use anyhow::{Context, bail};
use outlast_core::{
    Created, IdempotencyKey, NewTask, Spec, Store, TakenUp, Task, TaskId, TaskState, ToolVersion,
};
use sha2::{Digest, Sha256};

use super::{find, journal};

/// Start a failed task again, as a new one
///
/// A failed task stays as it is. The new one carries out the same call for the same owner, and goes on from what is kept
/// of the failed one: finished steps and answered questions are not done again, steps that ended with an error are, and
/// questions that were open are asked again. Its id is printed; whoever follows the failed task has to be told of it.
///
/// A task is started again once. When the new one fails too, start that one again.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The failed task
    id: TaskId,
    /// The version of the tool that is to carry it out, for one that was put right; by default the one that failed
    #[arg(long, value_name = "VERSION")]
    tool_version: Option<String>,
}

pub(super) async fn run(store: &dyn Store, args: Args, out: &mut impl Write) -> anyhow::Result<()> {
    let failed = find(store, args.id).await?;
    if !matches!(failed.state, TaskState::Failed { .. }) {
        bail!("the task is {}; only a failed one can be started again", failed.status().as_str());
    }
    let call = store.call(failed.id).await?.ok_or_else(|| super::no_such(failed.id))?;
    let takes_up = TakenUp::of(&failed, journal(store, failed.id).await?);
    let version = args.tool_version.unwrap_or_else(|| failed.spec.version.clone());
    let spec = Spec { version, ..Spec::clone(&failed.spec) };
    let new = NewTask {
        idempotency: Some(once(failed.id)),
        // It is the operator who asks for it, and not the owner.
        max_open: u32::MAX,
        takes_up,
        ..NewTask::new(random_id()?, failed.owner.clone(), spec, call)
    };
    match store.create(new, None).await? {
        Created::Created { task, .. } => {
            writeln!(out, "{}", task.id)?;
            warn_if_unserved(store, &task).await
        }
        Created::Existing(task) => bail!(
            "the task was started again before, as {}, which is {}{}",
            task.id,
            task.status().as_str(),
            if matches!(task.state, TaskState::Failed { .. }) { "; start that one again" } else { "" }
        ),
        Created::KeySpent => {
            bail!("the task was started again before, and the new one was kept for its time and is gone")
        }
        Created::KeyReused => {
            bail!("the task's owner has used the name under which it would be started again")
        }
        Created::OverQuota => bail!("the task's owner has as many unfinished tasks as a store can count"),
    }
}

/// The key that makes the same task of every further try: work is not to be done in two tasks at once because somebody
/// repeated a command.
fn once(failed: TaskId) -> IdempotencyKey {
    let key = format!("outlast tasks retry {failed}");
    IdempotencyKey { request: Sha256::digest(&key).into(), key: Arc::from(key) }
}

/// 128 fresh random bits (S17).
fn random_id() -> anyhow::Result<TaskId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("the system gives no random bytes for the id of a task")?;
    Ok(TaskId::from_bytes(bytes))
}

async fn warn_if_unserved(store: &dyn Store, task: &Task) -> anyhow::Result<()> {
    if super::unserved(task, &store.served().await?) {
        let ToolVersion { tool, version } = super::tool_version(task);
        let of = if version.is_empty() { String::new() } else { format!(" in version {version}") };
        eprintln!(
            "outlast: it waits for a server that serves '{tool}'{of}; the last one on this file does not"
        );
    }
    Ok(())
}
