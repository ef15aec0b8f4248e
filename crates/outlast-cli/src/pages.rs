//! `outlast completions` and `outlast man`: what a shell and a reader of manuals want to have.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::{Cli, call::exit::Exit};

/// Write the completions of a shell to standard output
///
/// For bash, for example: outlast completions bash > ~/.local/share/bash-completion/completions/outlast
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the pages of the manual into a folder, one for each command
#[derive(clap::Args)]
pub(crate) struct Man {
    /// The folder, such as ~/.local/share/man/man1; created when there is none
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn completions(Completions { shell }: &Completions) -> anyhow::Result<Exit> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut Cli::command(), "outlast", &mut script);
    let mut out = io::stdout();
    out.write_all(&script)?;
    out.flush()?;
    Ok(Exit::Done)
}

pub(crate) fn man(Man { folder }: &Man) -> anyhow::Result<Exit> {
    let named = || format!("cannot write the pages into {}", folder.display());
    fs::create_dir_all(folder).with_context(named)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    pages(&command, &mut |name, page| fs::write(folder.join(format!("{name}.1")), page))
        .with_context(named)?;
    Ok(Exit::Done)
}

/// The page of a command, and those of the commands below it.
fn pages(command: &Command, write: &mut impl FnMut(&str, Vec<u8>) -> io::Result<()>) -> io::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    // Of a command below another one, with the names of those above it.
    write(command.get_display_name().unwrap_or(command.get_name()), page)?;
    let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    below.into_iter().try_for_each(|below| pages(below, write))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let mut written = Vec::new();
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        pages(&command, &mut |name, page| {
            written.push((name.to_owned(), String::from_utf8(page).unwrap()));
            Ok(())
        })
        .unwrap();
        let page = |name: &str| &written.iter().find(|(written, _)| written == name).unwrap().1;
        assert!(page("outlast-gateway").contains("\\-\\-auth"), "{}", page("outlast-gateway"));
        assert!(page("outlast-tasks-why").contains("waits for"));
        assert!(page("outlast").contains("outlast\\-gateway(1)"), "{}", page("outlast"));
    }
}
