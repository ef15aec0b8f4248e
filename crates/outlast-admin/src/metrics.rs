//! `/metrics`, and whether the process can do its work.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};
use outlast_core::{Counts, Status, TaskId};
use tokio::time::timeout;

use crate::admin::Inner;

/// How long a store may take over its counts: less than a scrape usually waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take over a read before it is called not ready.
const READY: Duration = Duration::from_secs(1);

/// What was measured, and what the store holds.
pub(crate) async fn scrape(State(inner): State<Arc<Inner>>) -> Response {
    let counts = match timeout(PATIENCE, inner.store.counts()).await {
        Ok(Ok(counts)) => Some(counts),
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the store gave no counts");
            None
        }
        Err(_) => None,
    };
    let mut text = inner.options.measured.as_ref().map(|measured| measured()).unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&gauges(counts));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// The gauges of a store; where it gave no counts, that alone.
fn gauges(counts: Option<Counts>) -> String {
    let mut text = format!(
        "# HELP outlast_store_up Whether the store answered (1) or not (0).\n# TYPE outlast_store_up gauge\noutlast_store_up {}\n",
        u8::from(counts.is_some())
    );
    let Some(counts) = counts else { return text };
    text.push_str("# HELP outlast_tasks Tasks in the store, by status.\n# TYPE outlast_tasks gauge\n");
    for status in Status::ALL {
        let _ = writeln!(text, "outlast_tasks{{status=\"{}\"}} {}", status.as_str(), counts.of(status));
    }
    text.push_str("# HELP outlast_tasks_leased Unfinished tasks that a worker holds.\n");
    let _ = writeln!(text, "# TYPE outlast_tasks_leased gauge\noutlast_tasks_leased {}", counts.leased);
    text.push_str(
        "# HELP outlast_tasks_ready Tasks that a worker is to take up now and none has, lost leases too.\n",
    );
    let _ = writeln!(text, "# TYPE outlast_tasks_ready gauge\noutlast_tasks_ready {}", counts.ready);
    let oldest = counts.oldest_ready.unwrap_or_default().as_secs_f64();
    text.push_str("# HELP outlast_queue_oldest_seconds For how long the first of those is ready; 0 where there is none.\n");
    let _ =
        writeln!(text, "# TYPE outlast_queue_oldest_seconds gauge\noutlast_queue_oldest_seconds {oldest}");
    text
}

/// Whether the store answers, and the process is to go on.
pub(crate) async fn ready(State(inner): State<Arc<Inner>>) -> Response {
    let why = if *inner.stops.borrow() {
        "the process is about to end\n"
    } else {
        // No task has this id; that it is not there has to be looked up all the same.
        match timeout(READY, inner.store.get(TaskId::from_bytes([0; 16]))).await {
            Ok(Ok(_)) => return "ready\n".into_response(),
            Ok(Err(_)) => "the store fails\n",
            Err(_) => "the store does not answer\n",
        }
    };
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_gives_no_counts_is_down_and_has_no_tasks_to_tell_of() {
        assert!(gauges(None).ends_with("\noutlast_store_up 0\n"));
        let oldest_ready = Some(Duration::from_millis(90_500));
        let counts = Counts { by_status: [1, 2, 3, 4, 5], leased: 6, ready: 7, oldest_ready };
        let text = gauges(Some(counts));
        for line in [
            "outlast_store_up 1",
            "outlast_tasks{status=\"input_required\"} 2",
            "outlast_tasks_leased 6",
            "outlast_tasks_ready 7",
            "outlast_queue_oldest_seconds 90.5",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} is not in\n{text}");
        }
    }
}
