//! The published schema of the extension: every task message of a test is held against it.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex},
};

use jsonschema::Validator;
use serde_json::{Value, json};

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../schema/tasks-extension.schema.json")).unwrap());

fn validator(definition: &str) -> Validator {
    let mut schema = SCHEMA.clone();
    schema["$ref"] = json!(format!("#/$defs/{definition}"));
    jsonschema::validator_for(&schema).unwrap()
}

/// A validator takes long to make, and a test may poll thousands of times.
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// Holds `value` against a definition of the schema.
pub(crate) fn check(definition: &str, value: &Value) {
    let validator = VALIDATORS
        .lock()
        .unwrap()
        .entry(definition.to_owned())
        .or_insert_with(|| Arc::new(validator(definition)))
        .clone();
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "not a {definition}: {errors:#?}\n{value:#}");
}
