//! What callers and tools send comes back byte for byte, and what is too large changes nothing.

use outlast_core::{
    Applied, Asks, Call, Event, IdempotencyKey, Illegal, Limits, NewTask, Outcome, Payload, Question,
    QuestionKind, Spec, StepKey, TaskError, TaskState,
};
use serde_json::json;

use crate::{Harness, story::*};

/// Texts that encodings, quoting and column types get wrong.
const TEXTS: [&str; 8] = [
    "",
    " ",
    "\u{0}\u{1}\u{1f}",
    "'; drop table tasks; -- \" \\ %s {}",
    "Zoë 東京 🚀 עברית",
    "e\u{301} is not \u{e9}",
    "\u{feff}\u{2028}\u{200d}",
    "line\nline\r\nline\t",
];

pub async fn text_of_every_kind_comes_back_byte_for_byte(on: &dyn Harness) {
    let store = on.open().await;
    for text in TEXTS {
        let spec = Spec { tool: format!("tool {text}"), version: text.into(), ..rerun() };
        let call = Call { params: payload(&json!({text: text})), context: Some(payload(&json!(text))) };
        let idempotency = Some(IdempotencyKey { key: text.into(), request: [0xff; 32] });
        let new =
            NewTask { owner: owner(text), idempotency, ..NewTask::new(fresh_id(), owner(text), spec, call) };
        let (task, token) = store.create_leased(new.clone(), text).await;
        assert_eq!(store.call(task.id).await.unwrap(), Some(new.call));

        let events = vec![
            Event::SetMessage(Some(text.into())),
            finish("value", &json!(text)),
            finish_with("error", Outcome::Error(payload(&json!([text])))),
            ask("question", text),
        ];
        let told = store.worked(task.id, token, events).await;
        assert_eq!(store.task(task.id).await, told);
        assert_eq!(told.status_message.as_deref(), Some(text));
        assert_eq!(told.live().unwrap().questions[&input("question")], question(text));
        let by = outlast_core::By::Owner(owner(text));
        store.tell(task.id, by, vec![answer("question", text)]).await;
        let entries = store.entries(task.id).await;
        let finished = entries[0].finished().unwrap();
        assert_eq!(finished.outcome, Outcome::Value(payload(&json!(text))));
        assert_eq!(entries[3].body, Some(accepted(text)));

        let ended = store.worked(task.id, token, vec![complete(&json!({"text": text}))]).await;
        assert_eq!(ended.state, TaskState::Completed { result: payload(&json!({"text": text})) });
        assert_eq!(store.task(task.id).await, ended);
    }
}

pub async fn json_is_kept_as_it_was_written(on: &dyn Harness) {
    let store = on.open().await;
    // A parser in between would reorder, shorten or round these.
    for text in [
        r#"{"b":1,"a":2,"b":3}"#,
        r#"{ "spaced" : [ 1 , 2 ] }"#,
        "123456789012345678901234567890.000",
        "1e400",
        r#""\u00e9\/""#,
        "null",
        "[]",
        "\"\"",
    ] {
        let raw = Payload::from_json(text).unwrap();
        let call = Call { params: raw.clone(), context: Some(raw.clone()) };
        let (task, token) = store.create_leased(NewTask { call: call.clone(), ..new_task() }, "one").await;
        assert_eq!(store.call(task.id).await.unwrap(), Some(call), "{text}");
        let value = finish_with("a", Outcome::Value(raw.clone()));
        store.worked(task.id, token, vec![value]).await;
        let finished = store.entries(task.id).await[0].finished().unwrap();
        assert_eq!(finished.outcome, Outcome::Value(raw.clone()), "{text}");
        store.worked(task.id, token, vec![Event::Complete(raw.clone())]).await;
        assert_eq!(store.task(task.id).await.state, TaskState::Completed { result: raw }, "{text}");
    }
}

pub async fn an_error_comes_back_whole(on: &dyn Harness) {
    let store = on.open().await;
    for (code, data) in
        [(-32_000, None), (i64::MIN, Some(payload(&json!({"é": [null]})))), (0, Some(Payload::null()))]
    {
        let (task, token) = store.create_leased(new_task(), "one").await;
        let error = TaskError { code, message: "naïve — \"no\"".into(), data };
        store.worked(task.id, token, vec![Event::Fail(error.clone())]).await;
        let ended = store.task(task.id).await;
        assert_eq!(ended.status_message.as_ref(), Some(&error.message));
        assert_eq!(ended.state, TaskState::Failed { error });
    }
}

/// JSON text of exactly this many bytes.
fn text_of(bytes: u64) -> Payload {
    let content = "é".repeat(usize::try_from(bytes).unwrap() / 2 - 1);
    let pad = if bytes.is_multiple_of(2) { "" } else { "x" };
    let text = payload(&json!(format!("{content}{pad}")));
    assert_eq!(text.len() as u64, bytes);
    text
}

pub async fn the_largest_of_everything_that_is_allowed_comes_back(on: &dyn Harness) {
    let store = on.open().await;
    let limits = Limits::default();
    let call = Call::new(text_of(limits.value_bytes));
    let (task, token) = store.create_leased(NewTask { call: call.clone(), ..new_task() }, "one").await;
    assert_eq!(store.call(task.id).await.unwrap(), Some(call));

    let key = StepKey::new("k".repeat(StepKey::MAX_BYTES)).unwrap();
    let value = text_of(limits.value_bytes);
    let finished = finish_with(key.as_str(), Outcome::Value(value.clone()));
    store.worked(task.id, token, vec![finished, ask("q", "Sure?")]).await;
    let shell = accepted("").len() as u64;
    let large = accepted(&"x".repeat(usize::try_from(limits.value_bytes - shell).unwrap()));
    assert_eq!(large.len() as u64, limits.value_bytes);
    store.alice(task.id, vec![Event::Answer { key: input("q"), answer: large.clone() }]).await;

    let entries = store.entries(task.id).await;
    assert_eq!(entries[0].key, Some(key));
    let finished = entries[0].finished().unwrap();
    assert!(finished.outcome == Outcome::Value(value));
    assert!(entries[2].body == Some(large));

    let result = text_of(limits.result_bytes);
    store.worked(task.id, token, vec![Event::Complete(result.clone())]).await;
    assert!(store.task(task.id).await.state == TaskState::Completed { result });
}

pub async fn what_exceeds_a_limit_is_refused_and_changes_nothing(on: &dyn Harness) {
    let store = on.open().await;
    let limits = Limits {
        value_bytes: 200,
        result_bytes: 300,
        message_bytes: 20,
        questions: 2,
        entries: 6,
        journal_bytes: 700,
    };
    let (task, token) =
        store.create_leased(new_with(Spec { limits: limits.clone(), ..rerun() }), "one").await;
    let held = store.worked(task.id, token, vec![ask("q", "Sure?"), finish("a", &json!(1))]).await;

    let step_of = |key: &str, bytes| finish_with(key, Outcome::Value(text_of(bytes)));
    let over = [
        ("step bytes", vec![step_of("b", 201)]),
        ("question bytes", vec![ask("r", &"?".repeat(200))]),
        ("outstanding questions", vec![ask("r", "Two?"), ask("s", "Three?")]),
        ("status message bytes", vec![Event::SetMessage(Some("x".repeat(21)))]),
        ("result bytes", vec![Event::Complete(text_of(301))]),
        ("error bytes", vec![fail(&"x".repeat(301))]),
        ("journal entries", (0..5).map(|number| finish(&format!("b{number}"), &json!(1))).collect()),
        ("journal bytes", (0..4).map(|number| step_of(&format!("b{number}"), 200)).collect()),
    ];
    for (what, events) in over {
        let refused = store.work(task.id, token, events).await;
        assert!(
            matches!(refused, Applied::Illegal(Illegal::Limit { what: told, .. }) if told == what),
            "{what}: {refused:?}"
        );
        assert_eq!(store.task(task.id).await, held, "{what}");
    }
    let refused = store.alice(task.id, vec![answer("q", &"x".repeat(200))]).await;
    assert!(matches!(refused, Applied::Illegal(Illegal::Limit { what: "answer bytes", .. })), "{refused:?}");
    assert_eq!(store.task(task.id).await, held);
    assert_eq!(store.entries(task.id).await.len(), 2);

    // At the limits all of it is fine, and the caller can answer and cancel also when the journal is full.
    let filled = (0..4).map(|number| finish(&format!("b{number}"), &json!(1))).collect();
    store.worked(task.id, token, filled).await;
    store.worked(task.id, token, vec![Event::SetMessage(Some("x".repeat(20)))]).await;
    store.alice(task.id, vec![answer("q", "yes")]).await;
    store.alice(task.id, vec![Event::Cancel]).await;
    store.worked(task.id, token, vec![Event::Complete(text_of(300))]).await;
}

pub async fn a_question_that_the_client_did_not_declare_is_refused(on: &dyn Harness) {
    let store = on.open().await;
    let asks = Asks::none().with(QuestionKind::Roots);
    let (task, token) = store.create_leased(new_with(Spec { asks, ..rerun() }), "one").await;
    let refused = store.work(task.id, token, vec![ask("q", "Sure?")]).await;
    assert_eq!(refused, Applied::Illegal(Illegal::Undeclared { kind: QuestionKind::ElicitForm }));
    let roots = Question::new(&json!({"method": "roots/list"})).unwrap();
    store.worked(task.id, token, vec![Event::Ask { key: input("q"), question: roots }]).await;
}
