//! Forms of elicitation questions: a flat object of simple fields, each with a schema of its own.

use anyhow::{anyhow, bail, ensure};
use serde_json::{Map, Value};

/// The form that `fields`, each `NAME=VALUE`, fill in. What a value's text means follows from its field.
pub(super) fn fill(schema: &Value, fields: &[String]) -> anyhow::Result<Value> {
    let mut form = Map::new();
    for field in fields {
        let (name, text) =
            field.split_once('=').ok_or_else(|| anyhow!("'{field}' is not of the form FIELD=VALUE"))?;
        ensure!(!form.contains_key(name), "the field '{name}' is given twice");
        form.insert(name.to_owned(), read(property(schema, name)?, name, text)?);
    }
    let form = Value::Object(form);
    check(schema, &form)?;
    Ok(form)
}

/// Whether `form` fits: every field is one of the question's, none that is required is missing, and each value is of its
/// field's type and among its choices. Finer rules (a length, a pattern) are for the tool to judge.
pub(super) fn check(schema: &Value, form: &Value) -> anyhow::Result<()> {
    for name in required(schema) {
        ensure!(form.get(name).is_some(), "the field '{name}' is missing; {}", fields(schema));
    }
    for (name, value) in form.as_object().into_iter().flatten() {
        let property = property(schema, name)?;
        ensure!(fits(property, value), "the field '{name}' takes {}", describe(property));
    }
    Ok(())
}

/// Each field of the question with what it takes, for a person who is to fill them in.
pub(super) fn describe_fields(schema: &Value) -> Vec<(String, String)> {
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

fn property<'a>(schema: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    schema["properties"].get(name).ok_or_else(|| anyhow!("there is no field '{name}'; {}", fields(schema)))
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

fn read(property: &Value, name: &str, text: &str) -> anyhow::Result<Value> {
    let value = match property["type"].as_str() {
        Some("boolean") => match text {
            "true" | "yes" => Some(true.into()),
            "false" | "no" => Some(false.into()),
            _ => None,
        },
        Some("integer") => text.parse::<i64>().ok().map(Value::from),
        Some("number") => text.parse::<f64>().ok().and_then(|number| {
            // What is written without a fraction is sent without one.
            text.parse::<i64>()
                .ok()
                .map(Value::from)
                .or_else(|| serde_json::Number::from_f64(number).map(Value::from))
        }),
        Some("array") if text.is_empty() => Some(Value::Array(Vec::new())),
        Some("array") => Some(text.split(',').map(Value::from).collect()),
        _ => Some(text.into()),
    };
    let Some(value) = value else { bail!("the field '{name}' takes {}, not '{text}'", describe(property)) };
    Ok(value)
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

fn describe(property: &Value) -> String {
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

    fn filled(fields: &[&str]) -> anyhow::Result<Value> {
        fill(&schema(), &fields.iter().map(|&field| field.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_text_of_a_field_is_read_as_its_type() {
        let all =
            ["name=a=b c", "age=-3", "height=1.5", "member=yes", "size=small", "colour=g", "days=mon,tue"];
        let expected = json!({
            "name": "a=b c", "age": -3, "height": 1.5, "member": true, "size": "small", "colour": "g", "days": ["mon", "tue"],
        });
        assert_eq!(filled(&all).unwrap(), expected);
        assert_eq!(
            filled(&["name=", "days=", "height=2"]).unwrap(),
            json!({"name": "", "days": [], "height": 2})
        );
    }

    #[test]
    fn what_does_not_fit_is_said() {
        for (fields, said) in [
            (&["name"][..], "'name' is not of the form FIELD=VALUE"),
            (&["age=1"], "the field 'name' is missing; the fields are age, colour,"),
            (&["name=a", "name=b"], "the field 'name' is given twice"),
            (&["nome=a"], "there is no field 'nome'; the fields are"),
            (&["name=a", "age=1.5"], "the field 'age' takes a whole number, not '1.5'"),
            (&["name=a", "height=tall"], "the field 'height' takes a number, not 'tall'"),
            (&["name=a", "member=maybe"], "the field 'member' takes true or false, not 'maybe'"),
            (&["name=a", "size=medium"], "the field 'size' takes one of small, large"),
            (&["name=a", "colour=Red"], "the field 'colour' takes one of r, g"),
            (&["name=a", "days=mon,fri"], "the field 'days' takes any of mon, tue, with commas between"),
        ] {
            let error = filled(fields).unwrap_err().to_string();
            assert!(error.starts_with(said), "{fields:?} was refused with: {error}");
        }
    }

    #[test]
    fn json_is_checked_in_the_same_way() {
        assert!(check(&schema(), &json!({"name": "a", "age": 3.0})).is_ok());
        assert!(check(&schema(), &json!({"name": 1})).is_err());
        assert!(check(&schema(), &json!({"name": "a", "size": "medium"})).is_err());
        assert!(check(&schema(), &json!({})).is_err());
        assert!(check(&json!({"type": "object", "properties": {}}), &Value::Null).is_ok());
    }
}
