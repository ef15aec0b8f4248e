//! Kill torture: a server under mixed load is killed with SIGKILL at random moments, started again, and checked against
//! a model of its own.
//!
//! `torture --rounds 20 [--seed N] [--dir D]` does so many rounds and says what it counted; it fails when anything is
//! wrong, and says what. Its stores are in a folder of its own, which goes when all is well, or in one that is named.
//! `torture --self-check` shows that the verdict can fail: doctored histories, each of which it must refuse.
//! `torture serve` is the server.
//!
//! A store lives through several rounds. In each a server ([`process`]) is loaded by callers ([`load`]) with tasks that
//! run programs ([`plan`], [`tools`]): steps with effects outside ([`side`]), questions, timers, races, cancels. At a
//! moment that the seed decides it is killed. What the callers were told ([`ledger`]), what the tools did and what the
//! store's file holds ([`snapshot`]) must fit together ([`verdict`]). One round in four the server's writes are traced,
//! and the store goes on with what a power cut would have left ([`disk`]).

mod caller;
mod clock;
mod disk;
mod ledger;
mod load;
mod plan;
mod process;
mod run;
mod side;
mod snapshot;
mod tools;
mod verdict;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;

/// What is asked for on the command line.
struct Arguments {
    rounds: u32,
    seed: u64,
    directory: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    match given.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", setup] => {
            process::serve(serde_json::from_str(setup).context("the set-up is JSON")?)?;
            Ok(ExitCode::SUCCESS)
        }
        ["--self-check"] => Ok(self_check()),
        _ => torture(&arguments(given)?),
    }
}

fn arguments(given: Vec<String>) -> anyhow::Result<Arguments> {
    let mut arguments = Arguments { rounds: 20, seed: clock::now(), directory: None };
    let mut given = given.into_iter();
    while let Some(name) = given.next() {
        let mut value = || given.next().with_context(|| format!("{name} needs a value"));
        match &*name {
            "--rounds" => arguments.rounds = value()?.parse().context("--rounds is a number")?,
            "--seed" => arguments.seed = value()?.parse().context("--seed is a number")?,
            "--dir" => arguments.directory = Some(value()?.into()),
            other => anyhow::bail!(
                "unknown argument {other}; usage: torture [--rounds N] [--seed N] [--dir D] | --self-check"
            ),
        }
    }
    Ok(arguments)
}

fn torture(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let seed = arguments.seed;
    let directory = arguments.directory.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("outlast-torture-{seed}-{}", std::process::id()))
    });
    println!("torture: {} rounds, seed {seed}, in {}", arguments.rounds, directory.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut torture = run::Torture::new(directory.clone(), seed)?;
    let wrong = runtime.block_on(torture.rounds(arguments.rounds));
    for what in wrong.iter().take(40) {
        println!("torture: VIOLATION {what}");
    }
    println!(
        "torture: {} rounds, seed {seed}, {}, {} violations",
        torture.counts.rounds,
        torture.counts.tell(),
        wrong.len()
    );
    if !wrong.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if arguments.directory.is_none() {
        std::fs::remove_dir_all(directory)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The verdict passes an honest history and refuses each doctored one.
fn self_check() -> ExitCode {
    let wrong = verdict::doctored::failures();
    for what in &wrong {
        println!("torture: {what}");
    }
    println!(
        "torture: self-check of {} doctored histories, {} failures",
        verdict::doctored::count(),
        wrong.len()
    );
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
