//! `kill -9` of a gateway in the middle of two hundred mixed calls.
//!
//! A round starts the real `outlast gateway` in front of three upstreams: a server that knows nothing of tasks and lives on when
//! the gateway dies, the same as a command that dies with it, and a server with tasks of its own. The client writes what it is
//! told to a log on disk, and each upstream writes every call that it carries out to another, before it does anything. At a
//! moment that the seed chooses, counted in lines of the client's log, the gateway is killed with SIGKILL and started again on
//! the same file. Then everything that was acknowledged must be true, no call that may not be repeated was carried out
//! twice, and every task must come to its end.
//!
//! A round in which some [`State`](ledger::State) was not hit by the kill fails: it would have shown nothing about it.
//! `OUTLAST_KILL_ROUNDS=20` runs more rounds, `OUTLAST_KILL_SEED=1234` the round of that seed alone.

#![cfg(unix)]
// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod caller;
mod clock;
mod ledger;
mod load;
mod plan;
mod process;
mod upstream;
mod verdict;

use std::{io::Write, path::Path};

use process::Site;

const ROUNDS: u32 = 3;

/// A process behind the gateway.
#[test]
#[ignore = "a process of the other test here"]
fn upstream_process() {
    if let Some(directory) = std::env::var_os(process::DIRECTORY) {
        upstream::serve(Path::new(&directory), &std::env::var(process::KIND).unwrap());
    }
}

#[test]
fn a_gateway_killed_under_load_keeps_all_that_it_acknowledged_and_makes_no_call_twice_that_it_may_not() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("it is a number"));
    let seeds: Vec<u64> = match number("OUTLAST_KILL_SEED") {
        Some(seed) => vec![seed],
        None => {
            let rounds = number("OUTLAST_KILL_ROUNDS").unwrap_or(ROUNDS.into());
            (0..rounds).map(|_| u64::from(getrandom::u32().unwrap())).collect()
        }
    };
    for (number, seed) in (1..).zip(seeds) {
        say(&format!("gateway kill round {number}: OUTLAST_KILL_SEED={seed}"));
        let told = round(seed);
        say(&format!("gateway kill round {number}: {told}"));
    }
}

/// One gateway, its load, its death, its second life. Returns what there is to tell of it.
fn round(seed: u64) -> String {
    let site = Site::new();
    let killed = load::until_killed(&site, seed);
    verdict::check(&site, &killed)
}

/// Straight to the terminal: the test harness shows what is printed only when a test fails.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}
