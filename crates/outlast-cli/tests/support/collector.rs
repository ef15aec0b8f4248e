//! A collector of spans, as OTLP over HTTP has it: keeps what it is sent.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
};
use prost::Message as _;

use super::PATIENCE;

/// A span that was exported.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) service: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    pub(crate) fields: HashMap<String, String>,
    /// The messages of what was logged inside.
    pub(crate) logged: Vec<String>,
}

#[derive(Default)]
struct Kept {
    spans: Mutex<Vec<Span>>,
    came: Condvar,
}

pub(crate) struct Collector {
    pub(crate) url: String,
    kept: Arc<Kept>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kept = Arc::new(Kept::default());
        let keeping = kept.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = keeping.clone();
                thread::spawn(move || serve(&stream.unwrap(), &kept));
            }
        });
        Self { url, kept }
    }

    /// All spans so far, once there are those that `enough` wants.
    pub(crate) fn until(&self, enough: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        let spans = self.kept.spans.lock().unwrap();
        let (spans, waited) =
            self.kept.came.wait_timeout_while(spans, PATIENCE, |spans| !enough(spans)).unwrap();
        assert!(!waited.timed_out(), "they never came; there are {:#?}", *spans);
        spans.clone()
    }
}

/// Answers request after request.
fn serve(stream: &TcpStream, kept: &Kept) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix("post ") {
                rest.split(' ').next().unwrap().clone_into(&mut path);
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        assert_eq!(path, "/v1/traces");
        let spans = read(&body);
        kept.spans.lock().unwrap().extend(spans);
        kept.came.notify_all();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        (&mut &*stream).write_all(head.as_bytes()).unwrap();
    }
}

fn read(body: &[u8]) -> Vec<Span> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let request = ExportTraceServiceRequest::decode(body).expect("the body is a request");
    let mut read = Vec::new();
    for resource in request.resource_spans {
        let attributes = fields(resource.resource.unwrap().attributes);
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            read.push(Span {
                service: attributes["service.name"].clone(),
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                name: span.name,
                fields: fields(span.attributes),
                logged: span.events.into_iter().map(|event| event.name).collect(),
            });
        }
    }
    read
}

fn fields(attributes: Vec<KeyValue>) -> HashMap<String, String> {
    let text = |value| match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(is) => is.to_string(),
        other => format!("{other:?}"),
    };
    attributes
        .into_iter()
        .filter_map(|attribute| Some((attribute.key, text(attribute.value?.value?))))
        .collect()
}
