//! `outlast tasks`: an operator's view of the tasks in a file.

mod answer;
mod cancel;
mod form;
mod history;
mod list;
mod retry;
mod show;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use outlast_core::{Entry, Store, StoreError, Task, TaskId, ToolVersion};
use outlast_sqlite::{Options, Role, SqliteStore};

/// See, answer, cancel and retry the tasks in a file
///
/// Works beside a running server, which sees an answer or a cancel at once, and without one, when the next server to
/// start does. Whoever may write the file is its operator: they see and answer the tasks of every owner.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file that the tasks are in
    #[arg(long, global = true, value_name = "FILE", default_value = "outlast.db")]
    db: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Answer(answer::Args),
    Cancel(cancel::Args),
    Retry(retry::Args),
}

pub(crate) async fn main(Args { db, command }: Args) -> anyhow::Result<()> {
    let store = open(&db)?;
    let mut out = io::stdout().lock();
    let done = match command {
        Command::List(args) => list::run(&store, args, &mut out).await,
        Command::Show(args) => show::run(&store, &args, &mut out).await,
        Command::Answer(args) => answer::run(&store, args, &mut out).await,
        Command::Cancel(args) => cancel::run(&store, &args, &mut out).await,
        Command::Retry(args) => retry::run(&store, args, &mut out).await,
    };
    store.close().await;
    done.map_err(|error| match error.is::<StoreError>() {
        true => error.context(format!("cannot use {}", db.display())),
        false => error,
    })
}

/// Opens a store that is there, beside the server that may be running on it.
fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    // The store would make a new file of what is not there or empty.
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            bail!("{} is a folder; name the file of a server with --db", path.display())
        }
        Ok(found) if found.len() == 0 => bail!("{} is empty: it holds no tasks", path.display()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("there is no file {}; name the file of a server with --db", path.display());
        }
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    }
    Ok(SqliteStore::open_with(path, Options::default().role(Role::Front))?)
}

/// A task that was named on the command line.
async fn find(store: &dyn Store, id: TaskId) -> anyhow::Result<Task> {
    store.get(id).await?.ok_or_else(|| no_such(id))
}

/// The whole journal of a task.
async fn journal(store: &dyn Store, id: TaskId) -> anyhow::Result<Vec<Entry>> {
    const PAGE_BYTES: u64 = 1 << 20;
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let after = entries.last().map_or(0, |entry| entry.seq);
        let page = store.journal(id, after, PAGE_BYTES).await?;
        entries.extend(page.entries);
        if !page.more {
            return Ok(entries);
        }
    }
}

/// Whether `task` waits for a worker that is not there: it is unfinished, nobody has it, and none of those that last
/// claimed from its store serves its tool in its version.
fn unserved(task: &Task, served: &[ToolVersion]) -> bool {
    !task.is_final() && task.lease().is_none() && !served.contains(&tool_version(task))
}

fn tool_version(task: &Task) -> ToolVersion {
    ToolVersion::new(task.spec.tool.clone(), task.spec.version.clone())
}

fn no_such(id: TaskId) -> anyhow::Error {
    anyhow!("there is no task {id} in this file; `outlast tasks list` shows those that there are")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        open(path).err().expect("it is refused").to_string()
    }

    #[test]
    fn a_file_that_is_not_there_or_is_no_store_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("empty.db"), "").unwrap();
        fs::write(
            file("text.db"),
            "not a database, but long enough to be read as the head of one".repeat(20),
        )
        .unwrap();

        assert!(refusal(&file("missing.db")).contains("there is no file"));
        assert!(refusal(&file("empty.db")).contains("is empty"));
        assert!(refusal(&file("text.db")).contains("is not an SQLite database"));
        assert!(refusal(folder.path()).contains("is a folder"));

        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["empty.db", "text.db"], "nothing was made");
        assert_eq!(fs::metadata(file("empty.db")).unwrap().len(), 0);
    }
}
