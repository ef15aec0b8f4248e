//! `kill -9` in the middle of two hundred mixed tasks, ten times.
//!
//! A round starts a server as a process of its own and puts it under load: tasks that end, run, ask, wait between
//! rounds, queue and are cancelled. The client writes what it is told to a log on disk. At a moment that the seed
//! chooses, counted in lines of that log, the server is killed with SIGKILL and started again on the same file. Then
//! everything that was acknowledged must be true, and every task must come to its end.
//!
//! A round in which some [`State`](ledger::State) was not hit by the kill fails: it would have shown nothing about it.
//! `OUTLAST_KILL_SEED=1234` runs the round of that seed alone.

#![cfg(unix)]
// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod caller;
mod ledger;
mod load;
mod plan;
mod process;
mod tools;
mod verdict;

#[allow(dead_code, unused_imports)]
#[path = "../it/support/mod.rs"]
mod support;

use std::{io::Write, path::Path};

use outlast_testkit::crash;
use tempfile::TempDir;

const ROUNDS: u32 = 10;

/// The process that is killed. Without the variable it is a test that does nothing.
#[test]
fn kill_server() {
    if let Ok(directory) = std::env::var(process::DIRECTORY) {
        process::serve(Path::new(&directory));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_under_load_keeps_all_that_it_acknowledged_and_brings_every_task_to_its_end() {
    let given = std::env::var("OUTLAST_KILL_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let seeds = match given {
        Some(seed) => vec![seed],
        None => (0..ROUNDS).map(|_| crash::seed()).collect(),
    };
    for (number, seed) in (1..).zip(seeds) {
        say(&format!("kill round {number}: OUTLAST_KILL_SEED={seed}"));
        let told = round(seed).await;
        say(&format!("kill round {number}: {told}"));
    }
}

/// One server, its load, its death, its second life. Returns what there is to tell of it.
async fn round(seed: u64) -> String {
    let directory = TempDir::new().unwrap();
    let killed = load::until_killed(directory.path(), seed).await;
    verdict::check(directory.path(), killed).await
}

/// Straight to the terminal: the test harness shows what is printed only when a test fails.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}
