//! Kill torture: a server under mixed load is killed with SIGKILL at random moments, started again, and checked against
//! a model of its own.
//!
//! `torture --rounds 20 [--seed N] [--dir D]` does so many rounds and says what it counted; it fails when anything is
//! wrong, and says what. Its stores are in a folder of its own, which goes when all is well, or in one that is named.
//! `torture --postgres [URL] --replicas 2` does the same to several servers that share one PostgreSQL, of which one after
//! the other is killed, or stopped past its lease and continued ([`replicas`]). Without a URL it starts a database of its
//! own, which it kills as well; one that is named must keep this machine's time.
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
mod database;
mod disk;
mod ledger;
mod load;
mod plan;
mod process;
mod replicas;
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
    postgres: Option<Postgres>,
    replicas: Option<usize>,
}

/// Which PostgreSQL.
enum Postgres {
    Own,
    At(String),
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
    let mut arguments =
        Arguments { rounds: 20, seed: clock::now(), directory: None, postgres: None, replicas: None };
    let mut given = given.into_iter().peekable();
    while let Some(name) = given.next() {
        if name == "--postgres" {
            let url = given.next_if(|next| !next.starts_with("--"));
            arguments.postgres = Some(url.map_or(Postgres::Own, Postgres::At));
            continue;
        }
        let mut value = || given.next().with_context(|| format!("{name} needs a value"));
        match &*name {
            "--rounds" => arguments.rounds = value()?.parse().context("--rounds is a number")?,
            "--seed" => arguments.seed = value()?.parse().context("--seed is a number")?,
            "--dir" => arguments.directory = Some(value()?.into()),
            "--replicas" => arguments.replicas = Some(value()?.parse().context("--replicas is a number")?),
            other => anyhow::bail!(
                "unknown argument {other}; usage: torture [--rounds N] [--seed N] [--dir D] \
                 [--postgres [URL] --replicas N] | --self-check"
            ),
        }
    }
    match (&arguments.postgres, arguments.replicas) {
        (None, Some(_)) => anyhow::bail!("replicas share a PostgreSQL: --replicas needs --postgres"),
        (Some(_), Some(0 | 1)) => {
            anyhow::bail!("one replica has nobody who takes over: --replicas is 2 or more")
        }
        _ => {}
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
    let (rounds, told, wrong) = runtime.block_on(async {
        let Some(postgres) = &arguments.postgres else {
            let mut torture = run::Torture::new(directory.clone(), seed)?;
            let wrong = torture.rounds(arguments.rounds).await;
            return anyhow::Ok((torture.counts.rounds, torture.counts.tell(), wrong));
        };
        let url = if let Postgres::At(url) = postgres { Some(url.clone()) } else { None };
        let (database, count) = (database::Database::new(url)?, arguments.replicas.unwrap_or(2));
        let mut torture = replicas::Replicas::new(directory.clone(), seed, database, count).await?;
        let wrong = torture.rounds(arguments.rounds).await;
        Ok((torture.counts.rounds, torture.tell(), wrong))
    })?;
    for what in wrong.iter().take(40) {
        println!("torture: VIOLATION {what}");
    }
    println!("torture: {rounds} rounds, seed {seed}, {told}, {} violations", wrong.len());
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
