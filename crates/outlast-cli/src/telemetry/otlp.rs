//! Spans for a collector of OpenTelemetry, set up by the variables that its specification names.

use std::{
    env,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use opentelemetry::{Key, trace::TracerProvider as _};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    resource::{EnvResourceDetector, ResourceDetector as _},
    trace::SdkTracerProvider,
};
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_subscriber::{EnvFilter, Layer, registry::LookupSpan};

use super::settings::{self, Settings};

/// What is exported: what happens to tasks, and nothing that the export itself does.
const EXPORTED: &str = "off,outlast=info,outlast_runtime=info,outlast_gateway=info";
/// How long a collector may take over all that is left at the end.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// No answer of a collector is larger.
const LARGEST: usize = 64 << 10;

/// An export that goes on until it is ended.
pub(crate) struct Export {
    provider: Option<SdkTracerProvider>,
    unheeded: Vec<String>,
}

impl Export {
    pub(crate) fn none() -> Self {
        Self { provider: None, unheeded: Vec::new() }
    }

    /// Tells the log what was set and is not done.
    pub(super) fn announce(&self) {
        for what in &self.unheeded {
            tracing::warn!("a variable of the export of spans is not heeded: {what}");
        }
    }

    /// Sends what is left. Blocks the thread, which must be none of the runtime's.
    pub(crate) fn end(self) {
        if let Some(provider) = self.provider {
            // Whoever collects is gone, or slow; the process ends all the same.
            let _ = provider.shutdown_with_timeout(LAST_WORDS);
        }
    }
}

/// The export, where the environment asks for one, and what hands it the spans.
pub(super) fn begin<S>() -> anyhow::Result<(Export, Option<impl Layer<S>>)>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let Some(Settings { patience, unheeded }) = settings::read(|name| env::var(name).ok())? else {
        return Ok((Export::none(), None));
    };
    let what = "the collector of spans that OTEL_EXPORTER_OTLP_ENDPOINT names cannot be used";
    let client = Client {
        runtime: Handle::current(),
        client: outlast_auth::https_client(patience).map_err(anyhow::Error::from_boxed).context(what)?,
        is_away: AtomicBool::new(false),
    };
    // The cause may have the URL in it.
    let exporter = SpanExporter::builder().with_http().with_http_client(client).build();
    let Ok(exporter) = exporter else { bail!("{what}") };
    let resource = Resource::builder().with_service_name(service()).build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("outlast"));
    Ok((Export { provider: Some(provider), unheeded }, Some(spans.with_filter(EnvFilter::new(EXPORTED)))))
}

/// What the spans are said to come from. `OTEL_SERVICE_NAME` goes before an attribute, which the SDK takes the other way round.
fn service() -> String {
    let named = env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    let of_attributes = || EnvResourceDetector::new().detect().get(&Key::new("service.name"));
    named.or_else(|| Some(of_attributes()?.to_string())).unwrap_or_else(|| "outlast".to_owned())
}

/// Sends batches over the runtime's own connections: the thread that exports has none.
#[derive(Debug)]
struct Client {
    runtime: Handle,
    client: reqwest::Client,
    /// Whether the last batch was lost, which is said once.
    is_away: AtomicBool,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let client = self.client.clone();
        // All of it: a request begins to look at the time when it is made.
        let sent = self.runtime.spawn(async move {
            let request = client.request(parts.method, parts.uri.to_string()).headers(parts.headers);
            let sending = request.body(reqwest::Body::from(body)).send();
            // The error's own text has the URL.
            let mut response = sending.await.map_err(reqwest::Error::without_url)?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                if body.len() + chunk.len() <= LARGEST {
                    body.extend_from_slice(&chunk);
                }
            }
            Ok::<_, reqwest::Error>((response.status(), body))
        });
        let sent = sent.await.map_err(HttpError::from).and_then(|sent| sent.map_err(HttpError::from));
        let why = match &sent {
            Ok((status, _)) if status.is_success() => None,
            Ok((status, _)) => Some(format!("it answers {status}")),
            Err(error) => Some(error.to_string()),
        };
        let was_away = self.is_away.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(why) if !was_away => {
                tracing::warn!(why, "the collector of spans takes none; they are lost until it does");
            }
            None if was_away => tracing::info!("the collector takes spans again"),
            _ => {}
        }
        let (status, body) = sent?;
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        Ok(response)
    }
}
