//! The `outlast` command: a gateway that gives durable MCP tasks to any server, tools to try them with, and an operator's view
//! of the tasks of a store.

// Standard error may be full or gone, and then it panics: `text::note` does not.
#![deny(clippy::print_stderr)]

mod call;
mod demo;
mod gateway;
mod pages;
mod signals;
mod store;
mod tasks;
mod telemetry;
mod text;

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::call::exit::Exit;

/// Durable MCP tasks at a terminal.
///
/// Outlast makes tool calls of the Model Context Protocol outlast the connection: a slow call becomes a task that is
/// kept in a file, can ask its caller, and is still there after a crash.
///
/// `outlast gateway` stands in front of any MCP server and does so for its tools.
///
/// Begin with `outlast demo`, which serves tools that do real work, call one of them with `outlast call`, and look at what
/// became of the call with `outlast tasks list`.
#[derive(Parser)]
#[command(name = "outlast", version, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit status: 0 when it was done, 1 when it failed, 2 when the command line is wrong; `outlast call --help` tells those of calls.
RUST_LOG says what is logged, on standard error: RUST_LOG=outlast=debug, for example. OUTLAST_LOG=json makes each line an object.
Servers send spans to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.";

#[derive(Subcommand)]
enum Command {
    Call(call::Args),
    Demo(demo::Args),
    Gateway(gateway::Args),
    Store(store::Args),
    Tasks(tasks::Args),
    Completions(pages::Completions),
    Man(pages::Man),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    match run(command) {
        Ok(exit) => exit.into(),
        // Whoever read the output has seen enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            text::note(format_args!("outlast: {}", text::printable(&format!("{error:#}"))));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let is_server = matches!(command, Command::Demo(_) | Command::Gateway(_));
    let export = {
        let _inside = runtime.enter();
        telemetry::begin(is_server)?
    };
    let done = runtime.block_on(async {
        match command {
            Command::Call(args) => call::main(args).await,
            Command::Demo(args) => demo::main(args).await.map(|()| Exit::Done),
            Command::Gateway(args) => gateway::main(args).await,
            Command::Store(args) => store::main(args).await,
            Command::Tasks(args) => tasks::main(args).await,
            Command::Completions(args) => pages::completions(&args),
            Command::Man(args) => pages::man(&args),
        }
    });
    export.end();
    // A read of standard input cannot be called off, and must not keep the process.
    runtime.shutdown_background();
    done
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
