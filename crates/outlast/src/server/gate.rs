//! Who may use tasks: the per-request declaration (S1, S5, S6), and which questions a client can be asked (S20a).

use outlast_core::{Asks, QuestionKind};
use rmcp::{
    ErrorData,
    model::{ClientCapabilities, RequestMetaObject},
};

/// What a request declared in its own `_meta`. Nothing else counts: not an `initialize`, not an earlier request (S1).
pub(crate) fn declared(meta: &RequestMetaObject) -> Option<ClientCapabilities> {
    meta.client_capabilities().filter(ClientCapabilities::supports_tasks)
}

/// The refusal of a request that needs the extension and did not declare it.
pub(crate) fn undeclared() -> ErrorData {
    ErrorData::missing_required_client_capability(ClientCapabilities::builder().enable_tasks().build())
}

/// The kinds of question that these capabilities allow.
pub(crate) fn asks(capabilities: &ClientCapabilities) -> Asks {
    // By name, because the whole of sampling and roots is deprecated in the SDK's types and not in the extension.
    let declared = serde_json::to_value(capabilities).unwrap_or_default();
    let elicitation = &declared["elicitation"];
    let url = elicitation["url"].is_object();
    let mut asks = Asks::none();
    if elicitation.is_object() {
        // A bare `elicitation: {}` is the form that it meant before there were two.
        if elicitation["form"].is_object() || !url {
            asks = asks.with(QuestionKind::ElicitForm);
        }
        if url {
            asks = asks.with(QuestionKind::ElicitUrl);
        }
    }
    if declared["sampling"].is_object() {
        asks = asks.with(QuestionKind::Sample);
        if declared["sampling"]["tools"].is_object() {
            asks = asks.with(QuestionKind::SampleWithTools);
        }
    }
    if declared["roots"].is_object() {
        asks = asks.with(QuestionKind::Roots);
    }
    asks
}

/// The capability that a client must declare to be asked this kind of question.
pub(crate) fn capability_of(kind: QuestionKind) -> serde_json::Value {
    use serde_json::json;
    match kind {
        QuestionKind::ElicitForm => json!({"elicitation": {"form": {}}}),
        QuestionKind::ElicitUrl => json!({"elicitation": {"url": {}}}),
        QuestionKind::Sample => json!({"sampling": {}}),
        QuestionKind::SampleWithTools => json!({"sampling": {"tools": {}}}),
        QuestionKind::Roots => json!({"roots": {}}),
        // A kind that a newer core knows and this file does not yet.
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(capabilities: serde_json::Value) -> Asks {
        asks(&serde_json::from_value(capabilities).unwrap())
    }

    #[test]
    fn each_kind_of_question_is_declared_by_itself() {
        assert_eq!(of(json!({})), Asks::none());
        assert_eq!(of(json!({"elicitation": {}})), Asks::none().with(QuestionKind::ElicitForm));
        assert_eq!(of(json!({"elicitation": {"url": {}}})), Asks::none().with(QuestionKind::ElicitUrl));
        let both = Asks::none().with(QuestionKind::ElicitForm).with(QuestionKind::ElicitUrl);
        assert_eq!(of(json!({"elicitation": {"form": {}, "url": {}}})), both);
        assert_eq!(of(json!({"sampling": {}})), Asks::none().with(QuestionKind::Sample));
        let sampling = Asks::none().with(QuestionKind::Sample).with(QuestionKind::SampleWithTools);
        assert_eq!(of(json!({"sampling": {"tools": {}}})), sampling);
        assert_eq!(of(json!({"roots": {}})), Asks::none().with(QuestionKind::Roots));
    }

    #[test]
    fn what_a_kind_requires_allows_exactly_that_kind_and_what_it_includes() {
        for kind in
            [QuestionKind::ElicitForm, QuestionKind::ElicitUrl, QuestionKind::Sample, QuestionKind::Roots]
        {
            assert_eq!(of(capability_of(kind)), Asks::none().with(kind));
        }
        assert!(of(capability_of(QuestionKind::SampleWithTools)).allows(QuestionKind::SampleWithTools));
    }

    #[test]
    fn c01_a_bare_extension_key_in_meta_declares_nothing() {
        let meta = |value: serde_json::Value| serde_json::from_value::<RequestMetaObject>(value).unwrap();
        assert!(declared(&meta(json!({"io.modelcontextprotocol/tasks": {}}))).is_none());
        assert!(declared(&meta(json!({}))).is_none());
        let proper = json!({"io.modelcontextprotocol/clientCapabilities":
            {"extensions": {"io.modelcontextprotocol/tasks": {}}}});
        assert!(declared(&meta(proper)).is_some());
    }
}
