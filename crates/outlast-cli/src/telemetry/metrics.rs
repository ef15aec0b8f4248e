//! The numbers of this process, for `/metrics`.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use outlast_admin::Measured;

/// For what a machine does: from a tenth of a millisecond.
const SHORT: [f64; 17] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 60.0,
];
/// For what tools do, and people: up to a week.
const LONG: [f64; 15] =
    [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0];
/// How often what was recorded is put together: nothing may grow because nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Counts from now on, and gives what was counted in the text format of Prometheus.
///
/// # Errors
/// When something else counts already.
pub(crate) fn begin() -> anyhow::Result<Measured> {
    let mut builder = PrometheusBuilder::new();
    for name in ["outlast_store_seconds", "outlast_push_seconds", "outlast_queue_seconds"] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &SHORT)?;
    }
    for name in ["outlast_task_seconds", "outlast_run_seconds", "outlast_step_seconds"] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &LONG)?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).context("metrics are counted already")?;
    outlast::describe_metrics();
    metrics::describe_gauge!("outlast_build_info", "1, with the version of this process.");
    gauge!("outlast_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(Arc::new(move || handle.render()))
}
