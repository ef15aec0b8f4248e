//! JSON that passes through without being read.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

/// A piece of JSON kept as text: a result, an answer, a question, the parameters of a call.
///
/// It is cheap to clone, is always valid JSON, and is parsed only where somebody looks inside. `Debug` shows its
/// size alone, because an answer may be a secret.
///
/// ```
/// use outlast_core::Payload;
/// let payload = Payload::from_value(&serde_json::json!({"name": "zoë"}));
/// assert_eq!(payload.to_value()["name"], "zoë");
/// assert_eq!(payload.len(), 15);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload(Arc<str>);

impl Payload {
    /// The JSON of `value`.
    #[must_use]
    pub fn from_value(value: &Value) -> Self {
        Self(value.to_string().into())
    }

    /// The JSON of anything that serialises.
    ///
    /// # Errors
    /// When `value` refuses to be serialised, for example a map whose keys are not text.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self(serde_json::to_string(value)?.into()))
    }

    /// Text that is already JSON.
    ///
    /// # Errors
    /// When `text` is not one JSON value.
    pub fn from_json(text: impl Into<Arc<str>>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        // White space around the value is not part of it, and would be lost on the way through another encoding.
        let raw = serde_json::from_str::<&RawValue>(&text)?.get();
        if raw.len() == text.len() { Ok(Self(text)) } else { Ok(Self(raw.into())) }
    }

    /// JSON `null`.
    #[must_use]
    pub fn null() -> Self {
        Self("null".into())
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no text, which valid JSON never is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parsed value.
    #[must_use]
    pub fn to_value(&self) -> Value {
        // Deeply nested text passes the raw check of `from_json` and not the parser's depth limit.
        serde_json::from_str(&self.0).unwrap_or(Value::Null)
    }

    /// The value as a `T`.
    ///
    /// # Errors
    /// When the JSON has another shape.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(&self.0))
            .map_err(serde::ser::Error::custom)?
            .serialize(serializer)
    }
}

/// Reads a field that is there as `Some`, JSON `null` too, which an `Option` would take for a field that is not.
///
/// For fields with `default` and `skip_serializing_if`.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Payload>, D::Error> {
    Payload::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(Box::<str>::from(raw).into()))
    }
}
