//! Forms of elicitation questions as they are filled in on a command line.

use anyhow::{anyhow, bail, ensure};
use outlast_admin::form::{check, describe, property};
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
}
