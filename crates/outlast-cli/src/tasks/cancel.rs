//! `outlast tasks cancel`.

use std::io::Write;

use anyhow::bail;
use outlast_core::{Applied, By, Event, Status, Store, TaskId};

use super::server::Server;

/// Ask a task to end
///
/// Work that has not begun ends at once. Work that runs is told, and decides itself how it ends: it may clean up, and
/// it may still complete. A task that has ended stays as it is.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The task: its id, or the handle of a call
    pub(super) task: String,
    #[command(flatten)]
    pub(super) server: Server,
}

pub(super) async fn run(store: &dyn Store, id: TaskId, out: &mut impl Write) -> anyhow::Result<()> {
    match store.apply(id, By::Operator, vec![Event::Cancel]).await? {
        Applied::Applied(task) if task.status() == Status::Cancelled => writeln!(out, "cancelled")?,
        Applied::Applied(_) => writeln!(out, "the task is asked to end")?,
        Applied::Absorbed(task) if task.is_final() => {
            writeln!(out, "the task had ended: it is {}", task.status().as_str())?;
        }
        Applied::Absorbed(_) => writeln!(out, "the task was asked to end before")?,
        Applied::NotFound | Applied::Fenced => return Err(super::no_such(id)),
        Applied::Illegal(illegal) => bail!("the task cannot be cancelled: {illegal}"),
    }
    Ok(())
}
