//! `outlast tasks`: an operator's view of the tasks in a store, and a caller's view of those of a server.

mod answer;
mod cancel;
mod form;
mod list;
mod live;
mod retry;
mod server;
mod show;
mod why;

use std::{io, path::Path};

use anyhow::{anyhow, bail};
use clap::Subcommand;
use outlast_admin::Refusal;
use outlast_client::SavedTask;
use outlast_core::{InputKey, Store, StoreError, TaskId};

use crate::{
    call::exit::Exit,
    store::{Named, Opened, Place, of_environment},
    text,
};

/// See, answer, cancel and retry tasks: those in a store, and those that were called for on a server
///
/// list, show and retry work on a store: a file (--db) or a database (--store); where none is named, on outlast.db, or
/// outlast-gateway.db where there is only that. So do answer and cancel when they are given the id of a task. That works
/// beside a running server, which sees an answer or a cancel at once, and without one, when the next server to start does.
/// Whoever may write the store is its operator: they see and answer the tasks of every owner.
///
/// get, watch, resume and handles work on a server, as the caller of its tools, and so do answer and cancel when they are
/// given a handle: the name that `outlast call --detach` writes, the JSON that it writes with --json, or a file of that.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: Named,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Why(why::Args),
    Get(server::Get),
    Watch(server::Watching),
    Resume(server::Resume),
    Answer(answer::Args),
    Cancel(cancel::Args),
    Retry(retry::Args),
    Handles(server::List),
}

pub(crate) async fn main(Args { store: named_store, command }: Args) -> anyhow::Result<Exit> {
    let mut out = io::stdout();
    // The environment's is looked at where a store is used: it is no business of the commands that go to a server.
    let place = named_store.on_command_line();
    let place = place.as_ref();
    match command {
        Command::List(args) => stored(place, async |store| list::run(store, args, &mut out).await).await,
        Command::Show(args) => stored(place, async |store| show::run(store, &args, &mut out).await).await,
        Command::Why(args) => stored(place, async |store| why::run(store, &args, &mut out).await).await,
        Command::Retry(args) => stored(place, async |store| retry::run(store, args, &mut out).await).await,
        Command::Answer(answer::Args { task, key, given, server }) => match named(&task, place, &server)? {
            Meant::Stored(id) => {
                let key = InputKey::new(key)?;
                stored(place, async |store| answer::run(store, id, key, given, &mut out).await).await
            }
            Meant::Called(saved) => server::answer(saved, &key, given, server, &mut out).await,
        },
        Command::Cancel(cancel::Args { task, server }) => match named(&task, place, &server)? {
            Meant::Stored(id) => stored(place, async |store| cancel::run(store, id, &mut out).await).await,
            Meant::Called(saved) => server::cancel(saved, server, &mut out).await,
        },
        Command::Watch(args) if args.is_of_store() => {
            args.names_no_server()?;
            stored(place, async |store| live::run(store, &mut out).await).await
        }
        _ if place.is_some() => {
            bail!("--db and --store name where tasks are kept; this works on a server, by a handle")
        }
        Command::Get(args) => server::get(args, &mut out).await,
        Command::Watch(args) => server::watch(args.into()).await,
        Command::Resume(args) => server::resume(args).await,
        Command::Handles(args) => server::list(&args, &mut out),
    }
}

/// What a word on the command line means where both are possible.
enum Meant {
    /// A task in a store.
    Stored(TaskId),
    /// A task of a server.
    Called(SavedTask),
}

/// An id is a task in a store, anything else is a handle.
fn named(task: &str, place: Option<&Place>, server: &server::Server) -> anyhow::Result<Meant> {
    match (task.parse(), place) {
        (Ok(id), _) => Ok(Meant::Stored(id)),
        (Err(_), Some(place)) => bail!("'{}' is not the id of a task in {place}", text::one_line(task, 80)),
        (Err(_), None) => Ok(Meant::Called(server.handles()?.find(task)?)),
    }
}

/// Does something with a store: the one that the command line names, or the environment, or else the usual one.
async fn stored(
    place: Option<&Place>,
    work: impl AsyncFnOnce(&dyn Store) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let place = match place {
        Some(place) => place.clone(),
        None => of_environment()?.unwrap_or_else(|| Place::File(usual(Path::exists).to_owned())),
    };
    let store = Opened::open_beside(&place).await?;
    let done = work(&*store.shared()).await;
    store.close().await;
    match done {
        Ok(()) => Ok(Exit::Done),
        Err(error) if error.is::<StoreError>() => Err(error.context(format!("cannot use {place}"))),
        Err(error) => Err(error),
    }
}

/// The file that a server in this folder keeps its tasks in where it is told nothing else: the gateway's only where there is
/// none of another server, so that the same command means the same file as long as that is there.
fn usual(exists: impl Fn(&Path) -> bool) -> &'static Path {
    let (server, gateway) = (Path::new("outlast.db"), Path::new(crate::gateway::DB));
    if exists(gateway) && !exists(server) { gateway } else { server }
}

/// A refusal, for whoever named the task on the command line.
fn refused(refusal: Refusal) -> anyhow::Error {
    match refusal {
        Refusal::NoSuchTask(id) => no_such(id),
        Refusal::Store(error) => error.into(),
        other => other.into(),
    }
}

fn no_such(id: TaskId) -> anyhow::Error {
    anyhow!("there is no task {id} in this store; `outlast tasks list` shows those that there are")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_gateway_is_taken_only_where_there_is_no_other() {
        let with =
            |files: &'static [&str]| usual(move |file| files.iter().any(|name| Path::new(name) == file));
        assert_eq!(with(&[]), Path::new("outlast.db"));
        assert_eq!(with(&["outlast.db"]), Path::new("outlast.db"));
        assert_eq!(with(&["outlast-gateway.db"]), Path::new("outlast-gateway.db"));
        assert_eq!(with(&["outlast.db", "outlast-gateway.db"]), Path::new("outlast.db"));
    }
}
