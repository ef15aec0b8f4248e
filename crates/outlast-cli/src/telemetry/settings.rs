//! What the variables of OpenTelemetry ask for, and which of it is not done here.

use std::time::Duration;

use anyhow::bail;
use opentelemetry_http::Request;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const COMPRESSIONS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"];
const CERTIFICATES: [&str; 6] = [
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
];
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
/// How long a collector may take over one batch, where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(10);

/// An export that is asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Settings {
    /// How long a collector may take over one batch.
    pub(super) patience: Duration,
    /// What else is set and is not done, in words for the log. No value is in it: it may be a secret.
    pub(super) unheeded: Vec<String>,
}

/// What the variables ask for; `None` where that is no export.
///
/// # Errors
/// When the spans would go nowhere.
pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<Settings>> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let is = |name: &str, value: &str| set(name).is_some_and(|set| set.eq_ignore_ascii_case(value));
    // The one for traces alone comes first.
    let first = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, set(name)?)));

    let Some((name, endpoint)) = first(ENDPOINTS) else { return Ok(None) };
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return Ok(None);
    }
    if !is_url(&endpoint) {
        bail!(
            "{name} is not the URL of a collector of spans, with http:// or https:// in front, such as \
             http://127.0.0.1:4318; correct it or leave it out"
        );
    }
    if let Some((name, protocol)) = first(PROTOCOLS)
        && !protocol.eq_ignore_ascii_case("http/protobuf")
    {
        bail!(
            "{name} names a protocol that is not spoken here: spans are sent as http/protobuf; leave it out, and name the \
             collector's port for that, which is 4318 as a rule"
        );
    }

    let mut unheeded = Vec::new();
    let mut patience = PATIENCE;
    if let Some((name, timeout)) = first(TIMEOUTS) {
        match timeout.parse() {
            Ok(millis) if millis > 0 => patience = Duration::from_millis(millis),
            _ => unheeded.push(format!("{name} is no number of milliseconds: a batch has ten seconds")),
        }
    }
    if let Some((name, compression)) = first(COMPRESSIONS)
        && !compression.eq_ignore_ascii_case("none")
    {
        unheeded.push(format!("{name}: spans are sent uncompressed"));
    }
    for name in CERTIFICATES.into_iter().filter(|name| set(name).is_some()) {
        unheeded.push(format!(
            "{name}: the certificates of the system are good, or those in the file that SSL_CERT_FILE names, and none is shown"
        ));
    }
    for name in HEADERS {
        let headers = set(name).unwrap_or_default();
        let wrong = |pair: &str| !pair.trim().is_empty() && !pair.contains('=');
        if let Some(at) = headers.split(',').position(wrong) {
            unheeded.push(format!("{name}: part {} is no NAME=VALUE", at + 1));
        }
    }
    if let Some(sampler) = set("OTEL_TRACES_SAMPLER") {
        let ratio = || set("OTEL_TRACES_SAMPLER_ARG").and_then(|ratio| ratio.parse::<f64>().ok());
        if !SAMPLERS.contains(&&*sampler) {
            unheeded.push(format!(
                "OTEL_TRACES_SAMPLER is none of {}: all traces are sent whose callers do not say otherwise",
                SAMPLERS.join(", ")
            ));
        } else if sampler.ends_with("traceidratio")
            && !ratio().is_some_and(|ratio| (0.0..=1.0).contains(&ratio))
        {
            unheeded.push("OTEL_TRACES_SAMPLER_ARG is no number from 0 to 1: all traces are sent".to_owned());
        }
    }
    if set("OTEL_TRACES_EXPORTER").is_some() && !is("OTEL_TRACES_EXPORTER", "otlp") {
        unheeded.push("OTEL_TRACES_EXPORTER is neither otlp nor none: spans are sent by otlp".to_owned());
    }
    Ok(Some(Settings { patience, unheeded }))
}

/// Whether it is one for those who send to it, which read it in this way.
fn is_url(text: &str) -> bool {
    Request::builder().uri(text).body(()).is_ok_and(|request| {
        let uri = request.uri();
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

    fn reading(set: &[(&str, &str)]) -> anyhow::Result<Option<Settings>> {
        read(|name| set.iter().find(|(there, _)| *there == name).map(|(_, value)| (*value).to_owned()))
    }

    fn unheeded(name: &str, value: &str) -> Vec<String> {
        reading(&[HERE, (name, value)]).unwrap().unwrap().unheeded
    }

    #[test]
    fn nothing_is_exported_that_nobody_asks_for() {
        assert_eq!(reading(&[]).unwrap(), None);
        assert_eq!(reading(&[(HERE.0, "")]).unwrap(), None);
        assert_eq!(reading(&[HERE, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap(), None);
        assert_eq!(reading(&[HERE, ("OTEL_TRACES_EXPORTER", "none")]).unwrap(), None);
    }

    #[test]
    fn what_is_no_url_is_refused_and_not_repeated() {
        for endpoint in
            ["127.0.0.1:4318", "localhost:4318", "grpc://secret@x", "secret", "http://u:sec ret@x", " "]
        {
            let said =
                format!("{:#}", reading(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)]).unwrap_err());
            assert!(
                said.contains("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") && said.contains("http://"),
                "{said}"
            );
            assert!(!said.contains("secret") && !said.contains("sec ret"), "{said}");
        }
        for endpoint in [HERE.1, "https://u:p@collector.example.com/otlp/", "http://[::1]:4318"] {
            assert!(reading(&[(HERE.0, endpoint)]).unwrap().is_some(), "{endpoint}");
        }
    }

    #[test]
    fn a_collector_has_the_time_that_is_set() {
        let patience = |value| reading(&[HERE, (TIMEOUTS[1], value)]).unwrap().unwrap().patience;
        assert_eq!(patience("1500"), Duration::from_millis(1500));
        assert_eq!((patience("abc"), patience("-5"), patience("0")), (PATIENCE, PATIENCE, PATIENCE));
        assert_eq!(unheeded(TIMEOUTS[1], "abc").len(), 1);
    }

    #[test]
    fn what_is_set_and_not_done_is_said_without_its_value() {
        for (name, value) in [
            (COMPRESSIONS[1], "gzip"),
            (CERTIFICATES[1], "/etc/secret.pem"),
            (HEADERS[1], "a=b,secret"),
            ("OTEL_TRACES_SAMPLER", "secret"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_EXPORTER", "console"),
        ] {
            let said = unheeded(name, value);
            assert!(said.len() == 1 && said[0].contains("OTEL_") && !said[0].contains("secret"), "{said:?}");
        }
        for (name, value) in [
            (COMPRESSIONS[1], "none"),
            (HEADERS[1], "authorization=Bearer%20x, a=b,"),
            ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
            ("OTEL_TRACES_EXPORTER", "otlp"),
        ] {
            assert_eq!(unheeded(name, value), [""; 0]);
        }
        let ratio = [HERE, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.25")];
        assert_eq!(reading(&ratio).unwrap().unwrap().unheeded, [""; 0]);
    }
}
