//! What a process has counted, as `/metrics` would show it.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// What the recorder of this process shows, in the text format of Prometheus; installed at the first call.
///
/// # Panics
/// When another recorder is installed already.
pub fn metrics_text() -> String {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let handle = HANDLE
        .get_or_init(|| PrometheusBuilder::new().install_recorder().expect("no other recorder is installed"));
    handle.render()
}

/// The value of the one line of `text` that begins with `name` and has all of `labels`, such as `tool="greet"`; 0 where
/// there is none.
///
/// # Panics
/// When there are several, or the value is no number.
#[must_use]
pub fn metric(text: &str, name: &str, labels: &[&str]) -> f64 {
    let mut lines = text.lines().filter(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']));
        rest.is_some_and(|rest| labels.iter().all(|label| rest.contains(label)))
    });
    let Some(line) = lines.next() else { return 0.0 };
    assert_eq!(lines.next(), None, "two lines begin with {name} and have {labels:?}");
    let (_, value) = line.rsplit_once(' ').expect("a line has a value");
    value.parse().expect("a value is a number")
}
