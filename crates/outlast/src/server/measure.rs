//! What is measured of a server: calls, polls, pushes.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use outlast_core::tool_label;

/// Calls of tools that may become tasks, by `tool` and `answer`.
const CALLS: &str = "outlast_calls_total";
/// `tasks/get` requests, by `answer`.
const POLLS: &str = "outlast_polls_total";
/// How long after it was durable a change was sent to who listens.
const PUSH_SECONDS: &str = "outlast_push_seconds";

/// Describes what a server, its runtime and its store measure to the recorder of the facade `metrics` that is installed: units
/// and help texts. What is measured is listed under [Metrics](crate#metrics).
pub fn describe_metrics() {
    outlast_runtime::describe_metrics();
    describe_counter!(CALLS, "Calls of tools that may become tasks, by tool and how they were answered.");
    describe_counter!(POLLS, "tasks/get requests, by whether they were served or told to slow down.");
    describe_histogram!(
        PUSH_SECONDS,
        Unit::Seconds,
        "From a change of a task to its notification, by the clocks of the store and of this process."
    );
}

pub(super) fn called(tool: &str, answer: &'static str) {
    counter!(CALLS, "tool" => tool_label(tool), "answer" => answer).increment(1);
}

pub(super) fn polled(answer: &'static str) {
    counter!(POLLS, "answer" => answer).increment(1);
}

pub(super) fn pushed(lag: Duration) {
    histogram!(PUSH_SECONDS).record(lag);
}
