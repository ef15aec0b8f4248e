//! What a subscriber sees of a task's way. That all of it is one trace is shown with the command, by a collector.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use outlast_core::{By, Event, InputKey, Payload, TraceParent, Wake};
use serde_json::json;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt as _, registry::LookupSpan};

use crate::support::{World, ask, key, step};

#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    name: &'static str,
    within: Option<&'static str>,
    fields: BTreeMap<&'static str, String>,
    is_closed: bool,
}

/// Keeps every span of the runtime, in the order in which they began.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Vec<(u64, Seen)>>>);

impl Watch {
    fn change(&self, id: &span::Id, change: impl FnOnce(&mut Seen)) {
        let mut spans = self.0.lock().unwrap();
        // An id is used again once its span is closed.
        if let Some((_, seen)) = spans.iter_mut().rfind(|(seen, _)| *seen == id.into_u64()) {
            change(seen);
        }
    }

    fn seen(&self) -> Vec<Seen> {
        self.0.lock().unwrap().iter().map(|(_, seen)| seen.clone()).collect()
    }

    fn names(&self) -> Vec<(&'static str, Option<&'static str>)> {
        self.seen().iter().map(|seen| (seen.name, seen.within)).collect()
    }

    fn outcomes(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.seen().into_iter().filter(|seen| seen.name == name);
        seen.map(|seen| seen.fields.get("outcome").cloned()).collect()
    }
}

struct Fields<'a>(&'a mut Seen);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.fields.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Watch {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if !attributes.metadata().target().starts_with("outlast_runtime") {
            return;
        }
        let within = context.span(id).and_then(|span| span.parent()).map(|span| span.name());
        let mut seen = Seen { name: attributes.metadata().name(), within, ..Seen::default() };
        attributes.record(&mut Fields(&mut seen));
        self.0.lock().unwrap().push((id.into_u64(), seen));
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        self.change(id, |seen| values.record(&mut Fields(seen)));
    }

    fn on_close(&self, id: span::Id, _: Context<'_, S>) {
        self.change(&id, |seen| seen.is_closed = true);
    }
}

const SECRET: &str = "what-nobody-is-to-log";

#[tokio::test(start_paused = true)]
async fn each_thing_that_happens_to_a_task_is_a_span_over_the_death_of_its_process() {
    let watch = Watch::default();
    let _watching = tracing::subscriber::set_default(tracing_subscriber::registry().with(watch.clone()));
    let world = World::new();
    let log = world.log.clone();
    let tool = move |run: outlast_runtime::Run| {
        let log = log.clone();
        async move {
            step(&run, &log, "a").await?;
            let name = ask(&run, "name").await?;
            run.sleep(key("rest"), Wake::After(Duration::from_secs(3_600))).await.expect("nobody cancels");
            step(&run, &log, "b").await?;
            Ok(json!([name, SECRET]))
        }
    };
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    world.until_asked(id, "name").await;
    first.abandon();
    let second = world.worker(tool);
    let answer = Payload::from_value(&json!({"action": "accept", "content": {"name": SECRET}}));
    let answers = vec![Event::Answer { key: InputKey::new("name").unwrap(), answer }];
    second.apply(id, By::Operator, answers).await.unwrap();
    world.result(id).await;

    let expected = [
        ("create", None),
        ("run", None),
        ("step", Some("run")),
        ("ask", Some("run")),
        ("answer", None),
        // The second attempt: what is finished is not done, and has no span.
        ("claim", None),
        ("run", None),
        ("ask", Some("run")),
        ("sleep", Some("run")),
    ];
    assert_eq!(watch.names()[..expected.len()], expected);
    // It sleeps for so long that it is unloaded, and what wakes it is a third attempt.
    assert!(
        watch.names().ends_with(&[
            ("claim", None),
            ("run", None),
            ("ask", Some("run")),
            ("sleep", Some("run")),
            ("step", Some("run"))
        ]),
        "{:?}",
        watch.names()
    );
    let some = |outcomes: &[&str]| outcomes.iter().map(|text| Some((*text).to_owned())).collect::<Vec<_>>();
    assert_eq!(watch.outcomes("create"), some(&["created"]));
    assert_eq!(watch.outcomes("run"), some(&["lost", "parked", "completed"]));
    assert_eq!(watch.outcomes("step"), some(&["value", "value"]));
    assert_eq!(watch.outcomes("ask"), [None, Some("answered".into()), Some("answered".into())]);
    assert_eq!(watch.outcomes("answer"), some(&["applied"]));
    for seen in watch.seen() {
        assert!(seen.is_closed, "{seen:?}");
        let shown = format!("{seen:?}");
        assert!(!shown.contains(&id.to_string()) && !shown.contains(SECRET), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_place_in_its_callers_trace_is_kept_with_a_task() {
    let mut world = World::new();
    let parent: TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
    world.spec.trace = Some(parent);
    let worker = world.worker(|_| async { Ok(json!(null)) });
    let id = world.begin(&worker).await;
    world.result(id).await;
    // Nothing exports spans here, so it is the caller's own.
    assert_eq!(world.task(id).await.spec.trace, Some(parent));
}
