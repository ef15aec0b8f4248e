//! Forms of elicitation questions: a flat object of simple fields, each with a schema of its own.

use serde_json::Value;

use crate::Unfit;

/// Whether `form` fits: every field is one of the question's, none that is required is missing, and each value is of its
/// field's type and among its choices. Finer rules (a length, a pattern) are for the tool to judge.
///
/// # Errors
/// What does not fit, in words.
pub fn check(schema: &Value, form: &Value) -> Result<(), Unfit> {
    for name in required(schema) {
        if form.get(name).is_none() {
            return Err(Unfit(format!("the field '{name}' is missing; {}", fields(schema))));
        }
    }
    for (name, value) in form.as_object().into_iter().flatten() {
        let property = property(schema, name)?;
        if !fits(property, value) {
            return Err(Unfit(format!("the field '{name}' takes {}", describe(property))));
        }
    }
    Ok(())
}

/// Each field of the question with what it takes, for a person who is to fill them in.
#[must_use]
pub fn describe_fields(schema: &Value) -> Vec<(String, String)> {
    let required: Vec<_> = required(schema).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, property)| {
            let mut text = describe(property);
            if !required.contains(&name.as_str()) {
                text.push_str(", or nothing");
            }
            if let Some(words) = property["description"].as_str().or(property["title"].as_str()) {
                text = format!("{text} - {words}");
            }
            (name.clone(), text)
        })
        .collect()
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The schema of a field.
///
/// # Errors
/// When the question has no such field.
pub fn property<'a>(schema: &'a Value, name: &str) -> Result<&'a Value, Unfit> {
    let property = schema["properties"].get(name);
    property.ok_or_else(|| Unfit(format!("there is no field '{name}'; {}", fields(schema))))
}

fn fields(schema: &Value) -> String {
    match schema["properties"].as_object() {
        Some(properties) if !properties.is_empty() => {
            let names: Vec<_> = properties.keys().map(String::as_str).collect();
            format!("the fields are {}", names.join(", "))
        }
        _ => "the question has no fields".to_owned(),
    }
}

fn fits(property: &Value, value: &Value) -> bool {
    let choices = choices(property);
    let is_choice =
        |value: &Value| choices.is_empty() || value.as_str().is_some_and(|text| choices.contains(&text));
    match property["type"].as_str() {
        Some("boolean") => value.is_boolean(),
        Some("integer") => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        Some("number") => value.is_number(),
        Some("array") => value.as_array().is_some_and(|items| items.iter().all(is_choice)),
        Some("string") => value.is_string() && is_choice(value),
        // A type of a later protocol is for the tool to judge.
        _ => true,
    }
}

/// What a field lets one choose from, in each of the ways in which the protocol writes it; empty when anything goes.
fn choices(property: &Value) -> Vec<&str> {
    let of = if property["type"] == "array" { &property["items"] } else { property };
    if let Some(plain) = of["enum"].as_array() {
        return plain.iter().filter_map(Value::as_str).collect();
    }
    let titled = of["oneOf"].as_array().or(of["anyOf"].as_array());
    titled.into_iter().flatten().filter_map(|choice| choice["const"].as_str()).collect()
}

/// What a field takes, in words.
#[must_use]
pub fn describe(property: &Value) -> String {
    let choices = choices(property);
    match property["type"].as_str() {
        Some("boolean") => "true or false".to_owned(),
        Some("integer") => "a whole number".to_owned(),
        Some("number") => "a number".to_owned(),
        Some("array") => format!("any of {}, with commas between", choices.join(", ")),
        Some("string") if !choices.is_empty() => format!("one of {}", choices.join(", ")),
        _ => "text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "height": {"type": "number"},
            "member": {"type": "boolean"},
            "size": {"type": "string", "enum": ["small", "large"]},
            "colour": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
            "days": {"type": "array", "items": {"type": "string", "enum": ["mon", "tue"]}},
        }})
    }

    #[test]
    fn what_does_not_fit_is_said() {
        assert!(check(&schema(), &json!({"name": "a", "age": 3.0})).is_ok());
        for (form, said) in [
            (json!({"name": 1}), "the field 'name' takes text"),
            (json!({"name": "a", "size": "medium"}), "the field 'size' takes one of small, large"),
            (json!({"name": "a", "colour": "Red"}), "the field 'colour' takes one of r, g"),
            (
                json!({"name": "a", "days": ["fri"]}),
                "the field 'days' takes any of mon, tue, with commas between",
            ),
            (json!({"name": "a", "age": 1.5}), "the field 'age' takes a whole number"),
            (json!({"nome": "a", "name": "b"}), "there is no field 'nome'; the fields are"),
            (json!({}), "the field 'name' is missing; the fields are age, colour,"),
        ] {
            let unfit = check(&schema(), &form).unwrap_err().to_string();
            assert!(unfit.starts_with(said), "{form} was refused with: {unfit}");
        }
        assert!(check(&json!({"type": "object", "properties": {}}), &Value::Null).is_ok());
    }
}
