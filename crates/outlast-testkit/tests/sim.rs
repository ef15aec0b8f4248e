//! The simulation repeats itself, finds nothing in what is sound, and finds what is not.
#![cfg(feature = "sim")]

use outlast_testkit::sim::{Bug, Coverage, Setup, simulate};

/// The command `simulate` runs many more.
const SEEDS: u64 = 500;

#[test]
fn a_seed_runs_the_same_way_each_time_and_another_one_differently() {
    let hashes: Vec<_> = (0..20).map(|seed| simulate(seed, &Setup::default()).hash).collect();
    let again: Vec<_> = (0..20).map(|seed| simulate(seed, &Setup::default()).hash).collect();
    assert_eq!(hashes, again);
    assert!(hashes.windows(2).all(|two| two[0] != two[1]));
}

#[test]
fn nothing_is_found_in_what_is_sound() {
    for seed in 0..SEEDS {
        let found = simulate(seed, &Setup::default()).violation;
        assert!(found.is_none(), "seed {seed}: {}", found.unwrap());
    }
}

#[test]
fn planted_bugs_are_found() {
    // Those that nearly every run shows; the others take more seeds than a test has time for.
    for bug in
        [Bug::ClaimTwice, Bug::TokenReused, Bug::StepForgotten, Bug::TimerLostOnPark, Bug::UnfinishedPurged]
    {
        let setup = Setup { bug: Some(bug), ..Setup::default() };
        let found = (0..SEEDS).any(|seed| simulate(seed, &setup).violation.is_some());
        assert!(found, "{bug:?}");
    }
}

#[test]
fn what_happened_is_kept_where_it_is_asked_for() {
    let kept = simulate(1, &Setup { trace: true, ..Setup::default() });
    let not = simulate(1, &Setup::default());
    assert!(kept.trace.iter().any(|line| line.contains("calls TaskId")));
    assert!(not.trace.is_empty());
    assert_eq!(kept.hash, not.hash);
}

#[test]
fn coverage_names_what_no_run_reached() {
    let mut coverage = Coverage::default();
    let all = coverage.missing();
    assert!(all.contains(&"answer in Parked".to_owned()) && all.contains(&"lost at Claim".to_owned()));
    for seed in 0..20 {
        coverage.add(&simulate(seed, &Setup::default()).coverage);
    }
    let left = coverage.missing();
    assert!(left.len() < all.len() && left.iter().all(|what| all.contains(what)));
    assert!(!left.contains(&"claim in Queued".to_owned()));
}
