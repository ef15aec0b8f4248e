//! `outlast demo`: a server whose tools do real work.

mod banner;
mod every_field;
mod files;
mod own;
mod report;
mod tools;

use std::{
    io::{self, Write},
    net::Ipv6Addr,
    time::Duration,
};

use anyhow::{Context, bail};
use outlast::{Config, TaskServer, TaskTool, http};
use outlast_sqlite::Role;
use tokio::net::TcpListener;

use self::{own::OwnFiles, tools::DemoTools};
use crate::{
    signals,
    store::{Named, Opened, Place},
    text,
};

/// Serve tools that do real work, to try durable tasks with
///
/// Serves MCP over Streamable HTTP at /mcp, and prints commands that start a task. The tools hash the files of
/// a folder, delete files once that is confirmed, write a report after two questions, ask for a form with a field of
/// each kind, count, fail and panic; each says in its description what it does. They work on the files of this machine,
/// so by default only this machine may call them.
///
/// Tasks are kept in a file, outlast.db unless another is named, or in a database. Stop the server in any way, start it again, and they are there: finished ones with their
/// results, questions still open, and work that may safely run again running again.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8808", conflicts_with = "stdio")]
    listen: String,
    #[command(flatten)]
    store: Named,
    /// Serve on standard input and output instead, for a host that starts its servers itself
    #[arg(long)]
    stdio: bool,
    /// Serve requests to this host name too; needed to listen where other machines can call. There is no password:
    /// whoever can call may read and delete the files that this user may
    #[arg(long, value_name = "NAME", value_parser = host, conflicts_with = "stdio")]
    allow_host: Vec<String>,
}

/// The file that tasks are kept in unless another store is named.
const DB: &str = "outlast.db";

/// Wires: opens, binds, serves.
pub(crate) async fn main(args: Args) -> anyhow::Result<()> {
    // Before anyone is told that there is a server, so that whoever stops it is heard.
    let stop = signals::asked_to_stop()?;
    let place = args.store.place()?.unwrap_or_else(|| Place::File(DB.into()));
    let own = OwnFiles::of(&place)?;
    if args.stdio {
        // A host may start one server for each of its windows, all on one file.
        let store = Opened::open(&place, Role::Auto).await?;
        text::note(format_args!("outlast: serving on standard input and output, with tasks in {place}"));
        return serve_stdio(store, own, stop).await;
    }
    let listener = TcpListener::bind(&args.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another place with --listen", args.listen))?;
    let address = listener.local_addr()?;
    let url = match args.allow_host.first() {
        Some(host) => format!("http://{host}:{}/mcp", address.port()),
        None if address.ip().is_loopback() => format!("http://{address}/mcp"),
        None => bail!(
            "{address} can be reached from other machines, and whoever reaches it may delete files here; \
            to do that all the same, name the host that they call with --allow-host"
        ),
    };
    let store = Opened::open(&place, Role::Runtime).await?;
    let mut stdout = io::stdout();
    stdout.write_all(banner::banner(&url, &place).as_bytes())?;
    stdout.flush()?;
    run(listener, store, own, &args.allow_host, stop).await
}

/// A host as it stands in an address: a name, or an IP address.
fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<Ipv6Addr>() {
        return Ok(format!("[{address}]"));
    }
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if text.len() <= 253 && text.split('.').all(is_label) {
        Ok(text.to_owned())
    } else {
        Err("a host is a name such as mcp.example.com or an IP address, without a port".to_owned())
    }
}

/// Serves the demo's tools at `/mcp` on `listener`, with tasks in `store`, until `shutdown` resolves. The tools leave the
/// store's `own` files alone.
async fn run(
    listener: TcpListener,
    store: Opened,
    own: OwnFiles,
    allowed_hosts: &[String],
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let server = server(store.clone(), own).await?;
    let mut options = http::Options::default();
    for host in allowed_hosts {
        options.allowed_hosts.push(host.clone());
        for scheme in ["http", "https"] {
            options.allowed_origins.push(format!("{scheme}://{host}:*"));
        }
    }
    let router = http::router(&server, &options);
    let served = http::serve_router(listener, router, server, &options, shutdown).await;
    store.close().await;
    Ok(served?)
}

async fn serve_stdio(store: Opened, own: OwnFiles, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let server = server(store.clone(), own).await?;
    let served = outlast::stdio::serve(server, shutdown).await;
    store.close().await;
    Ok(served?)
}

/// What makes the tools' calls tasks. The tools that ask have to be tasks; the others are where the caller can follow
/// one. Which of them may run again after a crash follows from their annotations.
async fn server(store: Opened, own: OwnFiles) -> anyhow::Result<TaskServer<DemoTools>> {
    let mut config = Config::default();
    // Short enough for the patience of those who stop it: a host, a container's runtime, a person.
    config.drain = Duration::from_secs(5);
    let server = TaskServer::builder(DemoTools::new(own))
        .shared_store(store.shared())
        .config(config)
        .tool("hash_folder", TaskTool::optional())
        .tool("delete_files", TaskTool::required())
        .tool("make_report", TaskTool::required())
        .tool("fill_form", TaskTool::required())
        .tool("count", TaskTool::optional())
        .tool("failing_job", TaskTool::optional())
        .tool("panic_job", TaskTool::optional());
    Ok(server.build().await?)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        sync::oneshot,
    };

    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address() {
        for good in ["localhost", "mcp.example.com", "my_box-1", "192.168.1.5", "[::1]"] {
            assert_eq!(host(good), Ok(good.to_owned()));
        }
        assert_eq!(host("fe80::1"), Ok("[fe80::1]".to_owned()), "as an address has it");
        for odd in [
            "",
            " ",
            ".",
            "a..b",
            "a b",
            "*",
            "http://a",
            "a/b",
            "a:80",
            "[::1]:80",
            "a@b",
            "é",
            &"a".repeat(254),
        ] {
            assert!(host(odd).is_err(), "{odd:?}");
        }
    }

    #[tokio::test]
    async fn it_serves_until_it_is_told_to_stop_and_leaves_the_file_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("tasks.db");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let place = Place::File(db.clone());
        let (store, own) =
            (Opened::open(&place, Role::Runtime).await.unwrap(), OwnFiles::of(&place).unwrap());
        let running =
            tokio::spawn(async move { run(listener, store, own, &[], async { drop(stopped.await) }).await });

        let mut caller = TcpStream::connect(address).await.unwrap();
        caller
            .write_all(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");

        stop.send(()).unwrap();
        running.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
        outlast_sqlite::SqliteStore::open(&db).expect("the runtime's lock is free");
    }

    #[tokio::test]
    async fn every_tool_has_its_terms() {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("tasks.db");
        let place = Place::File(db.clone());
        let (store, own) =
            (Opened::open(&place, Role::Runtime).await.unwrap(), OwnFiles::of(&place).unwrap());
        let server = server(store, own).await.expect("each name given is a tool's");
        assert_eq!(DemoTools::names().len(), 7, "and there is no tool besides");
        server.shutdown().await;
    }
}
