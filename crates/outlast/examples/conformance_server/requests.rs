//! What a client sends: the schemas of arguments, and the reading of arguments and answers.

use rmcp::ErrorData;
use rmcp::model::{InputResponses, JsonObject};
use rmcp::object;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The schema of a tool that takes nothing.
pub(crate) fn no_arguments() -> JsonObject {
    object!({ "type": "object", "properties": {} })
}

/// The schema of a tool that takes the text `name`.
pub(crate) fn one_text(name: &str) -> JsonObject {
    object!({ "type": "object", "properties": { name: { "type": "string" } }, "required": [name] })
}

/// The arguments of a call, as the type that its tool wants.
pub(crate) fn arguments<T: DeserializeOwned>(given: Option<JsonObject>) -> Result<T, ErrorData> {
    serde_json::from_value(Value::Object(given.unwrap_or_default()))
        .map_err(|error| ErrorData::invalid_params(format!("arguments: {error}"), None))
}

/// The argument `name`, where a text is all that is wanted.
pub(crate) fn text_argument(given: Option<&JsonObject>, name: &str) -> Result<String, ErrorData> {
    let value = given.and_then(|arguments| arguments.get(name)).and_then(Value::as_str);
    value
        .map(str::to_owned)
        .ok_or_else(|| ErrorData::invalid_params(format!("arguments: {name} must be a text"), None))
}

/// The answer to the question `key`. Anything but an object is none.
pub(crate) fn answer<'a>(answers: Option<&'a InputResponses>, key: &str) -> Option<&'a Value> {
    answers?.get(key).filter(|answer| answer.is_object())
}

/// The text in `field` of an answer's content. There may be none: a user can decline.
pub(crate) fn filled_in<'a>(answer: &'a Value, field: &str) -> &'a str {
    answer["content"][field].as_str().unwrap_or("(nothing)")
}
