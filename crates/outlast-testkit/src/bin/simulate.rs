//! Runs seeds of the simulation, or one of them to read what happened, or plants bugs and says after how many seeds each
//! is found.
//!
//! Ends with 1 when a run found something, when a planted bug was not found, or when the runs together did not reach all
//! that they should.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use outlast_testkit::sim::{Bug, Coverage, Outcome, Setup, Violation, simulate};

const USAGE: &str = "\
simulate [--seeds N] [--from SEED] [--jobs N] [--twice]   runs N seeds (10,000) and says what they found and reached
simulate --seed SEED [--trace] [--bug NAME]               runs one seed, with all that happened
simulate --planted [--seeds N]                            finds each planted bug within N seeds (10,000)";

struct Args {
    seeds: u64,
    from: u64,
    jobs: usize,
    one: bool,
    trace: bool,
    twice: bool,
    planted: bool,
    bug: Option<Bug>,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let sound = if args.planted {
        find_planted(&args)
    } else if args.one {
        run_one(&args)
    } else {
        run_many(&args)
    };
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        seeds: 10_000,
        from: 0,
        jobs: 1,
        one: false,
        trace: false,
        twice: false,
        planted: false,
        bug: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number =
            |text: String| text.replace(['_', ','], "").parse().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--seeds" => args.seeds = number(value()?)?,
            "--from" => args.from = number(value()?)?,
            "--jobs" => args.jobs = number(value()?)?.clamp(1, 256) as usize,
            "--seed" => (args.from, args.one) = (number(value()?)?, true),
            "--trace" => args.trace = true,
            "--twice" => args.twice = true,
            "--planted" => args.planted = true,
            "--bug" => {
                let name = value()?;
                let known = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
                args.bug = Some(known.ok_or_else(|| format!("{name} is none of {:?}", Bug::ALL))?);
            }
            _ => return Err(format!("what is {word}?")),
        }
    }
    Ok(args)
}

/// Runs one seed and shows it.
fn run_one(args: &Args) -> bool {
    let outcome = simulate(args.from, &Setup { bug: args.bug, trace: true });
    let shown = if args.trace { outcome.trace.len() } else { 40 };
    tell(args.from, &outcome, shown);
    outcome.violation.is_none()
}

/// The end of what happened, and what was found.
fn tell(seed: u64, outcome: &Outcome, lines: usize) {
    let skipped = outcome.trace.len().saturating_sub(lines);
    outcome.trace.iter().skip(skipped).for_each(|line| println!("{line}"));
    match &outcome.violation {
        Some(violation) => println!("seed {seed}: {violation}"),
        None => println!("seed {seed}: nothing found in {} simulated seconds", outcome.millis / 1_000),
    }
}

#[derive(Default)]
struct Total {
    coverage: Coverage,
    seeds: u64,
    millis: u64,
    found: Vec<(u64, Violation)>,
    /// Seeds that did not repeat themselves.
    unlike: Vec<u64>,
}

fn run_many(args: &Args) -> bool {
    /// More are of no help.
    const ENOUGH: usize = 10;
    let start = clock();
    let next = AtomicU64::new(args.from);
    let total = Mutex::new(Total::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= args.from.saturating_add(args.seeds) {
                return;
            }
            let setup = Setup { bug: args.bug, trace: false };
            let outcome = simulate(seed, &setup);
            let unlike = args.twice && simulate(seed, &setup).hash != outcome.hash;
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            total.seeds += 1;
            total.millis += outcome.millis;
            total.coverage.add(&outcome.coverage);
            total.unlike.extend(unlike.then_some(seed));
            total.found.extend(outcome.violation.map(|violation| (seed, violation)));
            if total.found.len() + total.unlike.len() >= ENOUGH {
                next.store(u64::MAX / 2, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..args.jobs {
            scope.spawn(work);
        }
        work();
    });
    let took = clock().saturating_sub(start);
    report(&total.into_inner().unwrap_or_else(PoisonError::into_inner), args, took)
}

fn report(total: &Total, args: &Args, took: Duration) -> bool {
    println!("{}", total.coverage);
    let missing = total.coverage.missing();
    missing.iter().for_each(|what| println!("never reached: {what}"));
    total.unlike.iter().for_each(|seed| println!("seed {seed}: ran differently the second time"));
    if let Some((seed, _)) = total.found.first() {
        println!("the end of seed {seed}:");
        tell(*seed, &simulate(*seed, &Setup { bug: args.bug, trace: true }), 40);
    }
    total.found.iter().skip(1).for_each(|(seed, violation)| println!("seed {seed}: {violation}"));
    let rate = total.seeds as f64 / took.as_secs_f64();
    println!(
        "{} seeds, {} simulated seconds, in {:.1} s ({rate:.0} seeds/s): {} found something, {} pairs never reached",
        total.seeds,
        total.millis / 1_000,
        took.as_secs_f64(),
        total.found.len(),
        missing.len(),
    );
    total.found.is_empty() && total.unlike.is_empty() && missing.is_empty()
}

fn find_planted(args: &Args) -> bool {
    let mut all = true;
    for bug in Bug::ALL {
        let seeds = args.from..args.from.saturating_add(args.seeds);
        let found = seeds.enumerate().find_map(|(n, seed)| {
            let violation = simulate(seed, &Setup { bug: Some(bug), trace: false }).violation?;
            Some((n + 1, violation))
        });
        all &= found.is_some();
        match found {
            Some((n, violation)) => println!("{bug:?}: found after {n} seeds: {violation}"),
            None => println!("{bug:?}: NOT found in {} seeds", args.seeds),
        }
    }
    all
}

#[allow(clippy::disallowed_methods, reason = "how long the runs really take")]
fn clock() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}
