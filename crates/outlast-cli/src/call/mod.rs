//! `outlast call`.

mod arguments;
pub(crate) mod exit;
pub(crate) mod follow;
mod form;
pub(crate) mod handles;
mod output;
mod prompt;
mod reach;
mod terminal;

use std::{ffi::OsString, pin::pin, time::Duration};

use clap::{CommandFactory, error::ErrorKind};
use outlast_client::{CallOptions, Started};
use rmcp::model::CallToolRequestParams;
use serde_json::Value;

pub(crate) use self::{
    arguments::{duration, header},
    output::result as shown,
    prompt::Prompter,
    reach::{Asked, Place, Reach},
    terminal::Terminal,
};
use self::{
    exit::Exit,
    follow::{End, follow, report},
};
use crate::signals::Signals;

/// Call a tool of a server, and follow the task that the call becomes
///
/// The server is a URL, or a command that is started and spoken to over its standard input and output. The result goes to
/// standard output, everything else to standard error. What the server asks is asked here; what it asks when there is no
/// terminal can be answered with --answer.
///
/// A task goes on at the server whatever becomes of this command. Its handle is kept until it has ended, and `outlast tasks`
/// takes it up: get, watch, answer, cancel, resume.
#[derive(clap::Args)]
#[command(
    override_usage = "outlast call [OPTIONS] URL TOOL [JSON]\n       outlast call [OPTIONS] TOOL [JSON] -- COMMAND [ARG]...",
    after_help = exit::EXITS
)]
pub(crate) struct Args {
    /// The URL of the server, unless it is a command; the tool; and its arguments, as a JSON object, @FILE, or - to read
    /// them from standard input
    #[arg(required = true, num_args = 1..=3, value_name = "URL TOOL JSON")]
    words: Vec<String>,
    /// The server, as a command; what is secret belongs into its environment, because the command line is kept with the
    /// handle
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// One argument of the tool: JSON where it is some, text where not; may be repeated
    #[arg(long = "arg", value_name = "NAME=VALUE", value_parser = arguments::named)]
    named: Vec<(String, Value)>,
    /// Do not wait for a task: write the name of its handle and end
    #[arg(long)]
    detach: bool,
    /// Write the result as JSON; with --detach, the handle
    #[arg(long)]
    json: bool,
    /// Wait for at most this long, such as 30s; the task goes on
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deadline: Option<Duration>,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn main(args: Args) -> anyhow::Result<Exit> {
    let Args { words, command, named, detach, json, deadline, asked, reach } = args;
    let (place, tool, json_arguments) = target(words, command);
    let terminal = Terminal::new();
    let mut signals = Signals::new()?;
    let handles = reach.handles()?;
    let mut params = CallToolRequestParams::new(tool.clone());
    params.arguments = Some(arguments::arguments(json_arguments.as_deref(), &named)?);
    let client = place?.client(&reach, &handles, None, |server| asked.prompter(&terminal, server))?;

    let mut passed = pin!(follow::deadline(deadline));
    terminal.progress(&format!("{tool}: calling"));
    let mut options = CallOptions::default();
    options.deadline = deadline;
    let started = tokio::select! {
        started = client.start_tool_with(params, options) => started,
        _ = signals.next() => {
            terminal.clear();
            let exit = report(End::Left, None, json);
            follow::close(&client, &mut signals).await;
            return exit;
        }
    };
    let exit = match started {
        Ok(Started::Task(handle)) if detach => {
            terminal.clear();
            let name = handles::name(&handle.save());
            println!("{}", if json { handle.to_json() } else { name });
            follow::say_how_to_go_on(&handle);
            Exit::Done
        }
        Ok(Started::Task(handle)) => {
            let end = follow(&terminal, &mut signals, &handle, passed.as_mut(), false).await;
            report(end, Some(&handle), json)?
        }
        Ok(Started::Ready(result)) => {
            terminal.clear();
            report(End::Result(result), None, json)?
        }
        Err(error) => {
            terminal.clear();
            report(End::Error(error), None, json)?
        }
    };
    follow::close(&client, &mut signals).await;
    Ok(exit)
}

/// The server, the tool and its arguments. A command line that names none of them ends the process, as others do that are
/// wrong.
fn target(words: Vec<String>, command: Vec<OsString>) -> (anyhow::Result<Place>, String, Option<String>) {
    let mut words = words.into_iter();
    let mut next = || words.next();
    let place = if command.is_empty() {
        Ok(Place::url(&next().unwrap_or_default()).unwrap_or_else(|why| wrong(&why)))
    } else {
        Place::command(command)
    };
    let Some(tool) = next() else {
        wrong("the tool is missing: URL TOOL [JSON], or TOOL [JSON] -- COMMAND [ARG]...")
    };
    let json = next();
    if next().is_some() {
        wrong("there is more than a tool and its arguments before the command");
    }
    (place, tool, json)
}

fn wrong(why: &str) -> ! {
    let mut cli = crate::Cli::command();
    cli.build();
    let error = match cli.find_subcommand_mut("call") {
        Some(call) => call.error(ErrorKind::ValueValidation, why),
        None => cli.error(ErrorKind::ValueValidation, why),
    };
    error.exit()
}
