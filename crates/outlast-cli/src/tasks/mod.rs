//! `outlast tasks`: an operator's view of the tasks in a file, and a caller's view of those of a server.

mod answer;
mod cancel;
mod form;
mod history;
mod list;
mod retry;
mod server;
mod show;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use outlast_client::SavedTask;
use outlast_core::{Entry, InputKey, Store, StoreError, Task, TaskId, ToolVersion};
use outlast_sqlite::{Options, Role, SqliteStore};

use crate::{call::exit::Exit, text};

/// See, answer, cancel and retry tasks: those in a file, and those that were called for on a server
///
/// list, show and retry work on a file (--db), and so do answer and cancel when they are given the id of a task. That works
/// beside a running server, which sees an answer or a cancel at once, and without one, when the next server to start does.
/// Whoever may write the file is its operator: they see and answer the tasks of every owner.
///
/// get, watch, resume and handles work on a server, as the caller of its tools, and so do answer and cancel when they are
/// given a handle: the name that `outlast call --detach` writes, the JSON that it writes with --json, or a file of that.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file that the tasks are in, for list, show, retry and ids [default: outlast.db, or
    /// outlast-gateway.db where there is only that]
    #[arg(long, global = true, value_name = "FILE")]
    db: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Get(server::Get),
    Watch(server::Watch),
    Resume(server::Resume),
    Answer(answer::Args),
    Cancel(cancel::Args),
    Retry(retry::Args),
    Handles(server::List),
}

pub(crate) async fn main(Args { db, command }: Args) -> anyhow::Result<Exit> {
    let mut out = io::stdout();
    let path = db.as_deref();
    match command {
        Command::List(args) => stored(path, async |store| list::run(store, args, &mut out).await).await,
        Command::Show(args) => stored(path, async |store| show::run(store, &args, &mut out).await).await,
        Command::Retry(args) => stored(path, async |store| retry::run(store, args, &mut out).await).await,
        Command::Answer(answer::Args { task, key, given, server }) => match named(&task, path, &server)? {
            Named::Stored(id) => {
                let key = InputKey::new(key)?;
                stored(path, async |store| answer::run(store, id, key, given, &mut out).await).await
            }
            Named::Called(saved) => server::answer(saved, &key, given, server, &mut out).await,
        },
        Command::Cancel(cancel::Args { task, server }) => match named(&task, path, &server)? {
            Named::Stored(id) => stored(path, async |store| cancel::run(store, id, &mut out).await).await,
            Named::Called(saved) => server::cancel(saved, server, &mut out).await,
        },
        _ if path.is_some() => bail!("--db names a file; this works on a server, by a handle"),
        Command::Get(args) => server::get(args, &mut out).await,
        Command::Watch(args) => server::watch(args).await,
        Command::Resume(args) => server::resume(args).await,
        Command::Handles(args) => server::list(&args, &mut out),
    }
}

/// What a word on the command line means where both are possible.
enum Named {
    /// A task in a file.
    Stored(TaskId),
    /// A task of a server.
    Called(SavedTask),
}

/// An id is a task in a file, anything else is a handle.
fn named(task: &str, db: Option<&Path>, server: &server::Server) -> anyhow::Result<Named> {
    match (task.parse(), db) {
        (Ok(id), _) => Ok(Named::Stored(id)),
        (Err(_), Some(db)) => {
            bail!("'{}' is not the id of a task in {}", text::one_line(task, 80), db.display())
        }
        (Err(_), None) => Ok(Named::Called(server.handles()?.find(task)?)),
    }
}

/// Does something with the store in a file.
async fn stored(
    db: Option<&Path>,
    work: impl AsyncFnOnce(&SqliteStore) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let db = db.unwrap_or_else(|| usual(Path::exists));
    let store = open(db)?;
    let done = work(&store).await;
    store.close().await;
    match done {
        Ok(()) => Ok(Exit::Done),
        Err(error) if error.is::<StoreError>() => Err(error.context(format!("cannot use {}", db.display()))),
        Err(error) => Err(error),
    }
}

/// The file that a server in this folder keeps its tasks in where it is told nothing else: the gateway's only where there is
/// none of another server, so that the same command means the same file as long as that is there.
fn usual(exists: impl Fn(&Path) -> bool) -> &'static Path {
    let (server, gateway) = (Path::new("outlast.db"), Path::new(crate::gateway::DB));
    if exists(gateway) && !exists(server) { gateway } else { server }
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
    fn the_file_of_the_gateway_is_taken_only_where_there_is_no_other() {
        let with =
            |files: &'static [&str]| usual(move |file| files.iter().any(|name| Path::new(name) == file));
        assert_eq!(with(&[]), Path::new("outlast.db"));
        assert_eq!(with(&["outlast.db"]), Path::new("outlast.db"));
        assert_eq!(with(&["outlast-gateway.db"]), Path::new("outlast-gateway.db"));
        assert_eq!(with(&["outlast.db", "outlast-gateway.db"]), Path::new("outlast.db"));
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
