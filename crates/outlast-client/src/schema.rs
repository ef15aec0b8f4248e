//! Checks a structured result against the output schema of its tool.
//!
//! Both come from the server, and may be made to keep whoever checks them busy for ever, or to nest without end. So a check
//! has a thread of its own, with room, and is given up after a while; a result that could not be checked counts as one.

use std::{
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use rmcp::model::CallToolResult;
use serde_json::Value;

/// The longest that a check is waited for. One takes microseconds, and milliseconds where the schema is long.
const LONGEST: Duration = Duration::from_secs(2);
/// How many checks may be left running beside the program, which cannot stop them. More are not begun.
const LEFT_RUNNING: usize = 4;
/// A check goes as deep as there are schemas, each within or behind another, once for each level of the content. This many are
/// checked at most.
const DEEPEST: usize = 10_000;
/// The stack that each of them may need, in a build of any kind; and what is needed besides.
const STACK_EACH: usize = 8 << 10;
const STACK: usize = 1 << 20;

/// The checks that were given up and still run.
static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);

/// Where a result does not fit; none where it fits, or where there is nothing to check: no schema, an error of the tool, a
/// schema that is none, or one that takes too long.
pub(crate) async fn misfit(schema: Option<&Value>, result: &CallToolResult) -> Option<String> {
    let schema = schema?;
    if result.is_error == Some(true) {
        return None;
    }
    let Some(content) = &result.structured_content else {
        return Some("the tool declares one, and the result has no structured content".into());
    };
    let depth = schemas(schema).saturating_mul(levels(content));
    if depth > DEEPEST {
        tracing::warn!("the output schema of a tool is too long to be checked");
        return None;
    }
    let (schema, content) = (schema.clone(), content.clone());
    tokio::task::spawn_blocking(move || bounded(stack(depth), LONGEST, move || misfit_of(&schema, &content)))
        .await
        .ok()
        .flatten()
}

/// The stack for a check of this depth.
fn stack(depth: usize) -> usize {
    STACK + depth * STACK_EACH
}

/// What the work gives, if it gives it in time.
fn bounded<T: Send + 'static>(
    stack: usize,
    longest: Duration,
    work: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    if GIVEN_UP.load(Ordering::Relaxed) >= LEFT_RUNNING {
        tracing::warn!("the result of a tool is not checked: too many checks that took too long still run");
        return None;
    }
    let (done, outcome) = mpsc::sync_channel(0);
    let work = move || {
        // Nobody takes what comes too late.
        if done.send(work()).is_err() {
            GIVEN_UP.fetch_sub(1, Ordering::Relaxed);
        }
    };
    if let Err(error) = thread::Builder::new().name("schema".into()).stack_size(stack).spawn(work) {
        tracing::warn!(%error, "the result of a tool is not checked: there is no thread for it");
        return None;
    }
    match outcome.recv_timeout(longest) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => {
            GIVEN_UP.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("the result of a tool is not checked: its output schema takes too long");
            None
        }
        Err(RecvTimeoutError::Disconnected) => {
            tracing::warn!("the result of a tool is not checked: the check failed by a fault of its own");
            None
        }
    }
}

fn misfit_of(schema: &Value, content: &Value) -> Option<String> {
    let validator = match jsonschema::validator_for(schema) {
        Ok(validator) => validator,
        Err(error) => {
            tracing::warn!(%error, "the output schema of a tool is no schema that can be checked");
            return None;
        }
    };
    validator.iter_errors(content).next().map(|error| {
        // The place, and not the value, which may be private.
        format!("at \"{}\", `{}` does not hold", error.instance_path(), error.schema_path())
    })
}

/// How many schemas there are at most in one.
fn schemas(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => 1 + fields.values().map(schemas).sum::<usize>(),
        Value::Array(items) => items.iter().map(schemas).sum(),
        _ => 0,
    }
}

/// How many levels of arrays and objects there are in a value, itself among them.
fn levels(content: &Value) -> usize {
    1 + match content {
        Value::Object(fields) => fields.values().map(levels).max().unwrap_or_default(),
        Value::Array(items) => items.iter().map(levels).max().unwrap_or_default(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(value: Value) -> CallToolResult {
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test]
    async fn a_result_is_checked_where_there_is_a_schema_and_no_error() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let fits = result(json!({"content": [], "structuredContent": {"n": 1}}));
        let misfits = result(json!({"content": [], "structuredContent": {"n": "secret"}}));
        let bare = result(json!({"content": []}));
        let error = result(json!({"content": [], "isError": true}));
        assert_eq!(misfit(Some(&schema), &fits).await, None);
        assert_eq!(misfit(None, &misfits).await, None);
        assert_eq!(misfit(Some(&schema), &error).await, None);
        assert!(misfit(Some(&schema), &bare).await.is_some());
        let why = misfit(Some(&schema), &misfits).await.unwrap();
        assert!(why.contains("/n") && !why.contains("secret"), "{why}");
    }

    #[tokio::test]
    async fn a_schema_that_is_none_checks_nothing() {
        let any = result(json!({"content": [], "structuredContent": 5}));
        for schema in [json!({"type": 7}), json!({"$ref": "https://example.com/never-fetched"}), json!("x")] {
            assert_eq!(misfit(Some(&schema), &any).await, None, "{schema}");
        }
    }

    /// Definitions `a0` to `a{last}`, each by `next` of the reference to the one after it.
    fn definitions(last: usize, next: impl Fn(Value) -> Value) -> Value {
        let defined = |at: usize| next(json!({ "$ref": format!("#/$defs/a{}", at + 1) }));
        let mut all: serde_json::Map<String, Value> =
            (0..last).map(|at| (format!("a{at}"), defined(at))).collect();
        all.insert(format!("a{last}"), json!({ "type": "string" }));
        json!({ "$ref": "#/$defs/a0", "$defs": all })
    }

    #[tokio::test]
    async fn a_schema_that_takes_for_ever_is_given_up_and_holds_up_neither_the_runtime_nor_its_end() {
        let any = result(json!({"content": [], "structuredContent": 5}));
        let bomb = definitions(60, |next| json!({ "allOf": [next, next] }));

        // The one thread of this runtime does other work meanwhile.
        let mut turns = 0;
        let mut check = std::pin::pin!(misfit(Some(&bomb), &any));
        let outcome = loop {
            tokio::select! {
                outcome = &mut check => break outcome,
                () = tokio::time::sleep(Duration::from_millis(10)) => turns += 1,
            }
        };

        assert_eq!(outcome, None);
        assert!(turns > 10, "{turns}");
        for _ in 1..LEFT_RUNNING {
            let bomb = bomb.clone();
            bounded(stack(100), Duration::from_millis(10), move || misfit_of(&bomb, &json!(5)));
        }
        assert_eq!(GIVEN_UP.load(Ordering::Relaxed), LEFT_RUNNING);
        misfit(Some(&bomb), &any).await;
        assert_eq!(GIVEN_UP.load(Ordering::Relaxed), LEFT_RUNNING, "no more are begun");
    }

    #[tokio::test]
    async fn a_schema_that_nests_without_end_does_not_end_the_process() {
        // However slow the machine is.
        let check = |schema: Value, content: Value| {
            let depth = schemas(&schema) * levels(&content);
            assert!(depth > DEEPEST * 9 / 10 && depth <= DEEPEST, "{depth}");
            bounded(stack(depth), Duration::from_secs(300), move || misfit_of(&schema, &content))
        };
        assert!(
            check(definitions(DEEPEST / 2 * 95 / 100, |next| json!({ "allOf": [next] })), json!(5)).is_some()
        );

        // All of the schema again at each level of the content.
        let deep = (0..10).fold(json!(5), |within, _| json!({ "a": within }));
        let mut again = definitions(850, |next| next);
        again["$defs"]["a850"] = json!({ "type": "object", "properties": { "a": { "$ref": "#" } } });
        assert!(check(again, deep).is_some());

        // What is longer is not checked.
        let any = result(json!({"content": [], "structuredContent": 5}));
        assert_eq!(misfit(Some(&definitions(200_000, |next| next)), &any).await, None);
    }
}
