//! The published schema of the extension: every task message of a test is held against it.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../schema/tasks-extension.schema.json")).unwrap());

fn validator(definition: &str) -> Validator {
    let mut schema = SCHEMA.clone();
    schema["$ref"] = json!(format!("#/$defs/{definition}"));
    jsonschema::validator_for(&schema).unwrap()
}

/// Holds `value` against a definition of the schema.
pub(crate) fn check(definition: &str, value: &Value) {
    let errors: Vec<String> = validator(definition)
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "not a {definition}: {errors:#?}\n{value:#}");
}
