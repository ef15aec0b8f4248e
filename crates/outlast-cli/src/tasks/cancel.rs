//! `outlast tasks cancel`.

use std::io::Write;

use outlast_admin::operate;
use outlast_core::{Store, TaskId};

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
    let cancelled = operate::cancel(store, id).await.map_err(super::refused)?;
    writeln!(out, "{cancelled}")?;
    Ok(())
}
