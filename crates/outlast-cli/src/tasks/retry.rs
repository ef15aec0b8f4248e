//! `outlast tasks retry`.

use std::io::Write;

use outlast_admin::{operate, view};
use outlast_core::{Store, TaskId, ToolVersion};

use crate::text;

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
    let retried = operate::retry(store, args.id, args.tool_version).await.map_err(super::refused)?;
    writeln!(out, "{}", retried.task.id)?;
    if retried.unserved {
        let ToolVersion { tool, version } = view::tool_version(&retried.task);
        let of = if version.is_empty() { String::new() } else { format!(" in version {version}") };
        text::note(format_args!(
            "outlast: it waits for a server that serves '{tool}'{of}; the last one on this file does not"
        ));
    }
    Ok(())
}
