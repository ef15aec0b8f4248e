//! The spans of a task's way, and how they find their trace in whatever process they are.
//!
//! A task keeps its [`TraceParent`]. With the feature `opentelemetry` each span that belongs to a task is made part of that
//! trace; without it the spans are there for every other subscriber, and what a caller sent is kept all the same.

use outlast_core::{Created, Event, NewTask, Task, TraceParent};
use tracing::{Span, field::Empty, info_span};

/// A caller may name any tool, and no longer a name than this goes into each line and to a collector.
const MAX_TOOL: usize = 128;

/// Makes `span` part of the trace that a task keeps. It has to be new: neither entered nor anybody's parent. Where what goes
/// on around it is of another trace, that is linked.
#[cfg(feature = "opentelemetry")]
pub fn join_trace(span: &Span, parent: Option<TraceParent>) {
    use opentelemetry::{
        Context,
        trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
    };
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    let Some(TraceParent { trace, span: id, flags }) = parent else { return };
    let (trace, id) = (TraceId::from_bytes(trace), SpanId::from_bytes(id));
    let around = Span::current().context();
    let around = around.span().span_context().clone();
    if around.is_valid() && around.trace_id() != trace {
        span.add_link(around);
    }
    let remote = SpanContext::new(trace, id, TraceFlags::new(flags), true, TraceState::default());
    // Fails where nothing exports spans, and where one is no longer new.
    let _ = span.set_parent(Context::new().with_remote_span_context(remote));
}

/// Makes `span` part of the trace that a task keeps, with the feature `opentelemetry`; without it, nothing.
#[cfg(not(feature = "opentelemetry"))]
pub fn join_trace(_span: &Span, _parent: Option<TraceParent>) {}

/// Where in a trace `span` is, for what is to be part of it elsewhere; `None` where nothing exports spans.
#[cfg(feature = "opentelemetry")]
#[must_use]
pub fn place_in_trace(span: &Span) -> Option<TraceParent> {
    use opentelemetry::trace::TraceContextExt as _;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then(|| TraceParent {
        trace: context.trace_id().to_bytes(),
        span: context.span_id().to_bytes(),
        flags: context.trace_flags().to_u8(),
    })
}

/// Where in a trace `span` is; never known without the feature `opentelemetry`.
#[cfg(not(feature = "opentelemetry"))]
#[must_use]
pub fn place_in_trace(_span: &Span) -> Option<TraceParent> {
    None
}

/// A task is created: the span that all others of it are part of, by what `new` then keeps.
///
/// `within` is the span of the call that becomes a task, where that runs already; its trace is the task's.
pub(crate) fn create(new: &mut NewTask, within: Option<&Span>) -> Span {
    let (tool, id) = (tool_in_span(&new.spec.tool), new.id);
    let span = match within {
        Some(within) => info_span!(parent: within, "create", tool, task = ?id, outcome = Empty),
        None => {
            let span = info_span!("create", tool, task = ?id, outcome = Empty);
            join_trace(&span, new.spec.trace);
            span
        }
    };
    if let Some(place) = place_in_trace(&span) {
        std::sync::Arc::make_mut(&mut new.spec).trace = Some(place);
    }
    span
}

pub(crate) fn created(span: &Span, created: &Created) {
    let outcome = match created {
        Created::Created { .. } => "created",
        Created::Existing(_) => "existing",
        Created::KeyReused => "key_reused",
        Created::KeySpent => "key_spent",
        Created::OverQuota => "over_quota",
    };
    span.record("outcome", outcome);
}

/// A worker takes a task up, as an attempt of this number.
pub(crate) fn claim(task: &Task) -> Span {
    let tool = tool_in_span(&task.spec.tool);
    let span = info_span!(parent: None, "claim", tool, task = ?task.id, attempt = task.token.0);
    join_trace(&span, task.spec.trace);
    span
}

/// An attempt at a task that exists.
pub(crate) fn run(task: &Task) -> Span {
    let (tool, attempt) = (tool_in_span(&task.spec.tool), task.token.0);
    let span = info_span!(parent: None, "run", tool, task = ?task.id, attempt, outcome = Empty);
    join_trace(&span, task.spec.trace);
    span
}

/// A call that begins before it is a task, and may never be one.
pub(crate) fn run_inline(new: &NewTask) -> Span {
    let tool = tool_in_span(&new.spec.tool);
    let span = info_span!("run", tool, task = Empty, attempt = Empty, outcome = Empty);
    join_trace(&span, new.spec.trace);
    span
}

/// Somebody else than the worker says something to a task; `None` where that is nothing that is worth a span.
pub(crate) fn told(events: &[Event]) -> Option<Span> {
    let is_answer = |event: &Event| matches!(event, Event::Answer { .. });
    if events.iter().any(is_answer) {
        Some(info_span!("answer", tool = Empty, task = Empty, outcome = Empty))
    } else if events.contains(&Event::Cancel) {
        Some(info_span!("cancel", tool = Empty, task = Empty, outcome = Empty))
    } else {
        None
    }
}

/// The task that was spoken to is known now.
pub(crate) fn told_to(span: &Span, task: &Task, outcome: &'static str) {
    join_trace(span, task.spec.trace);
    span.record("tool", tool_in_span(&task.spec.tool));
    span.record("task", tracing::field::debug(task.id));
    span.record("outcome", outcome);
}

/// The name of a tool as a span has it: cut where it is longer than a name is.
#[must_use]
pub fn tool_in_span(tool: &str) -> &str {
    let end = (0..=MAX_TOOL.min(tool.len())).rev().find(|end| tool.is_char_boundary(*end));
    &tool[..end.unwrap_or_default()]
}

/// The span that something in an attempt belongs to: what its author opened, or the attempt's own.
pub(crate) fn inner(attempt: Span) -> Span {
    let current = Span::current();
    if current.is_none() || is_elsewhere(&current, &attempt) { attempt } else { current }
}

/// Whether `span` leads out of the trace of the attempt: it is a connection's, or one that is logged and not exported, and
/// what is made part of it would begin a trace of its own.
fn is_elsewhere(span: &Span, attempt: &Span) -> bool {
    let Some(own) = place_in_trace(attempt) else { return false };
    place_in_trace(span).is_none_or(|place| place.trace != own.trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_end_is_cut_between_two_characters() {
        assert_eq!(tool_in_span("report"), "report");
        assert_eq!(tool_in_span(&"n".repeat(1 << 20)), "n".repeat(128));
        assert_eq!(tool_in_span(&format!("{}é", "n".repeat(127))), "n".repeat(127));
    }
}
