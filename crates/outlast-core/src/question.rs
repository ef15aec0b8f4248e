//! What a task may ask of its caller (S19, S20a), and what an answer must look like.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Payload;

/// The kinds of question that a client can be asked (S19), as finely as it declares them (S20a).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionKind {
    /// `elicitation/create` in form mode.
    ElicitForm,
    /// `elicitation/create` in URL mode.
    ElicitUrl,
    /// `sampling/createMessage` without tools.
    Sample,
    /// `sampling/createMessage` that offers tools.
    SampleWithTools,
    /// `roots/list`.
    Roots,
}

/// As a client declares it, for people to read.
impl fmt::Display for QuestionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ElicitForm => "elicitation by form",
            Self::ElicitUrl => "elicitation by URL",
            Self::Sample => "sampling",
            Self::SampleWithTools => "sampling with tools",
            Self::Roots => "roots",
        })
    }
}

impl QuestionKind {
    /// The kind of a wire request `{method, params}`, if it is one that may be asked.
    #[must_use]
    pub fn of(request: &Value) -> Option<Self> {
        let params = &request["params"];
        match request["method"].as_str()? {
            "elicitation/create" if params["mode"] == "url" => Some(Self::ElicitUrl),
            "elicitation/create" => Some(Self::ElicitForm),
            "sampling/createMessage" if params["tools"].as_array().is_some_and(|tools| !tools.is_empty()) => {
                Some(Self::SampleWithTools)
            }
            "sampling/createMessage" => Some(Self::Sample),
            "roots/list" => Some(Self::Roots),
            _ => None,
        }
    }

    /// Whether `answer` has a shape that can belong to this kind of question.
    ///
    /// Only the shape: whether a form's fields fit its schema is for the tool to judge.
    #[must_use]
    pub fn admits(self, answer: &Value) -> bool {
        match self {
            Self::ElicitForm | Self::ElicitUrl => {
                matches!(answer["action"].as_str(), Some("accept" | "decline" | "cancel"))
                    && answer.get("content").is_none_or(|content| content.is_object() || content.is_null())
            }
            Self::Sample | Self::SampleWithTools => {
                answer["role"].is_string()
                    && answer["model"].is_string()
                    && (answer["content"].is_object() || answer["content"].is_array())
            }
            Self::Roots => answer["roots"]
                .as_array()
                .is_some_and(|roots| roots.iter().all(|root| root["uri"].is_string())),
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A question that a task asks: the wire request that the client is to carry out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    kind: QuestionKind,
    request: Payload,
}

impl Question {
    /// A question that asks the client to carry out `request`, a `{method, params}` object; `None` when it is of no
    /// kind that may be asked.
    #[must_use]
    pub fn new(request: &Value) -> Option<Self> {
        Some(Self { kind: QuestionKind::of(request)?, request: Payload::from_value(request) })
    }

    /// The question whose wire request this is, byte for byte.
    pub(crate) fn of(request: &Payload) -> Option<Self> {
        Some(Self { kind: QuestionKind::of(&request.to_value())?, request: request.clone() })
    }

    /// What it asks for.
    #[must_use]
    pub fn kind(&self) -> QuestionKind {
        self.kind
    }

    /// The wire request.
    #[must_use]
    pub fn request(&self) -> &Payload {
        &self.request
    }
}

/// The set of kinds that the creating request's client declared (S20a).
///
/// ```
/// use outlast_core::{Asks, QuestionKind};
/// let asks = Asks::none().with(QuestionKind::ElicitForm);
/// assert!(asks.allows(QuestionKind::ElicitForm) && !asks.allows(QuestionKind::Roots));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Asks(u8);

impl Asks {
    /// No kind at all.
    #[must_use]
    pub const fn none() -> Self {
        Self(0)
    }

    /// Every kind.
    #[must_use]
    pub const fn all() -> Self {
        Self(0b1_1111)
    }

    /// This set and `kind`.
    #[must_use]
    pub const fn with(self, kind: QuestionKind) -> Self {
        Self(self.0 | kind.bit())
    }

    /// Whether `kind` was declared.
    #[must_use]
    pub const fn allows(self, kind: QuestionKind) -> bool {
        self.0 & kind.bit() != 0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_told_apart_by_method_and_mode() {
        let kind = |request: Value| QuestionKind::of(&request);
        assert_eq!(
            kind(json!({"method": "elicitation/create", "params": {}})),
            Some(QuestionKind::ElicitForm)
        );
        assert_eq!(
            kind(json!({"method": "elicitation/create", "params": {"mode": "url"}})),
            Some(QuestionKind::ElicitUrl)
        );
        assert_eq!(
            kind(json!({"method": "sampling/createMessage", "params": {"tools": [{}]}})),
            Some(QuestionKind::SampleWithTools)
        );
        assert_eq!(kind(json!({"method": "sampling/createMessage"})), Some(QuestionKind::Sample));
        assert_eq!(kind(json!({"method": "roots/list"})), Some(QuestionKind::Roots));
        assert_eq!(kind(json!({"method": "ping"})), None);
        assert_eq!(kind(json!("roots/list")), None);
    }

    #[test]
    fn a_kind_is_called_as_a_client_declares_it() {
        assert_eq!(QuestionKind::ElicitForm.to_string(), "elicitation by form");
        assert_eq!(QuestionKind::SampleWithTools.to_string(), "sampling with tools");
    }

    #[test]
    fn an_answer_of_another_shape_is_not_admitted() {
        assert!(QuestionKind::ElicitForm.admits(&json!({"action": "accept", "content": {"ok": true}})));
        assert!(QuestionKind::ElicitForm.admits(&json!({"action": "decline"})));
        for wrong in
            [json!("yes"), json!(null), json!({"action": "maybe"}), json!({"action": "accept", "content": 1})]
        {
            assert!(!QuestionKind::ElicitForm.admits(&wrong), "{wrong}");
        }
        assert!(QuestionKind::Sample.admits(&json!({"role": "assistant", "model": "m", "content": {}})));
        assert!(!QuestionKind::Sample.admits(&json!({"action": "accept"})));
        assert!(QuestionKind::Roots.admits(&json!({"roots": [{"uri": "file:///a"}]})));
        assert!(!QuestionKind::Roots.admits(&json!({"roots": [{}]})));
    }
}
