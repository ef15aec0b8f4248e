//! What is measured is what the crate page says.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Keeps the names that are described to it.
#[derive(Default)]
struct Described(Arc<Mutex<BTreeSet<String>>>);

impl Described {
    fn keep(&self, key: &KeyName, help: &SharedString) {
        assert!(!help.is_empty());
        assert!(
            self.0.lock().unwrap().insert(key.as_str().to_owned()),
            "{} is described twice",
            key.as_str()
        );
    }
}

impl Recorder for Described {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        assert!(key.as_str().ends_with("_total"), "{} counts", key.as_str());
        self.keep(&key, &help);
    }
    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.keep(&key, &help);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        assert!(key.as_str().ends_with("_seconds") && unit == Some(Unit::Seconds), "{}", key.as_str());
        self.keep(&key, &help);
    }
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn each_metric_is_in_the_table_of_the_crate_page_and_no_other() {
    let described = Described::default();
    metrics::with_local_recorder(&described, outlast::describe_metrics);
    let table = include_str!("../../src/lib.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
    let listed: BTreeSet<String> = table.filter_map(|row| row.split('`').next()).map(str::to_owned).collect();
    assert_eq!(*described.0.lock().unwrap(), listed);
}
