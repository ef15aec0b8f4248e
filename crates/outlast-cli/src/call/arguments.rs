//! What is said on the command line, in other forms than it is used in.

use std::{collections::BTreeMap, fs, io::Read, time::Duration};

use anyhow::{Context, bail};
use serde_json::{Map, Value};

/// The arguments of a call: those in `json`, which is JSON, `@FILE` or `-` for standard input, with each `NAME=VALUE` put in.
///
/// # Errors
/// What is wrong with which of them.
pub(crate) fn arguments(json: Option<&str>, named: &[(String, Value)]) -> anyhow::Result<Map<String, Value>> {
    let mut arguments = match json {
        None => Map::new(),
        Some(json) => match read(json)? {
            Value::Object(arguments) => arguments,
            _ => bail!("the arguments of a tool are a JSON object, such as '{{\"path\": \".\"}}'"),
        },
    };
    for (name, value) in named {
        arguments.insert(name.clone(), value.clone());
    }
    Ok(arguments)
}

fn read(json: &str) -> anyhow::Result<Value> {
    let (text, from) = match (json, json.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            (text, "standard input".to_owned())
        }
        (_, Some(file)) => {
            (fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?, file.to_owned())
        }
        _ => (json.to_owned(), "the arguments".to_owned()),
    };
    serde_json::from_str(&text).with_context(|| format!("{from}: this is not JSON"))
}

/// A `NAME=VALUE`, whose value is JSON where it is some, and text where not.
pub(crate) fn named(text: &str) -> Result<(String, Value), String> {
    let (name, value) = pair(text, '=', "NAME=VALUE")?;
    Ok((name, serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

/// A `KEY=JSON`.
pub(crate) fn answer(text: &str) -> Result<(String, Value), String> {
    let (key, json) = pair(text, '=', "KEY=JSON")?;
    // The words that need no quotes as JSON would need quotes in a shell twice.
    match json {
        "accept" | "decline" | "cancel" => Ok((key, json.into())),
        _ => serde_json::from_str(json)
            .map(|json| (key, json))
            .map_err(|error| format!("'{json}' is not JSON: {error}")),
    }
}

/// The answers by their keys.
///
/// # Errors
/// When a key is given twice.
pub(crate) fn answers(given: Vec<(String, Value)>) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut answers = BTreeMap::new();
    for (key, answer) in given {
        if answers.insert(key.clone(), answer).is_some() {
            bail!("'{key}' is answered twice");
        }
    }
    Ok(answers)
}

/// A `NAME:VALUE`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text, ':', "NAME:VALUE")?;
    let name = name.trim().to_owned();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.bytes().all(is_token) {
        return Err(format!("'{name}' is not the name of a header"));
    }
    if value.chars().any(char::is_control) {
        return Err("a header's value is one line".to_owned());
    }
    Ok((name, value.trim().to_owned()))
}

fn pair<'a>(text: &'a str, between: char, form: &str) -> Result<(String, &'a str), String> {
    match text.split_once(between) {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.to_owned(), value)),
        _ => Err(format!("it is of the form {form}")),
    }
}

/// A time span with its unit, such as `30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let millis = match &text[number.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("it is a number with a unit: 500ms, 30s, 5m, 2h or 1d".to_owned()),
    };
    let number: u64 =
        number.parse().map_err(|_| "it is a whole number with a unit, such as 30s".to_owned())?;
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| "it is longer than can be counted".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_come_from_json_or_a_file_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("arguments.json");
        fs::write(&file, r#"{"a": 1, "b": 2}"#).unwrap();
        let from_file = format!("@{}", file.display());
        let named = [named("b=three").unwrap(), named("c=[4]").unwrap()];

        let read = |json: Option<&str>, named: &[_]| arguments(json, named).map(Value::Object);
        assert_eq!(read(None, &[]).unwrap(), json!({}));
        assert_eq!(read(Some(r#"{"a": 1}"#), &named).unwrap(), json!({"a": 1, "b": "three", "c": [4]}));
        assert_eq!(read(Some(&from_file), &[]).unwrap(), json!({"a": 1, "b": 2}));
        for (wrong, said) in [
            ("[1]", "a JSON object"),
            ("{a}", "this is not JSON"),
            ("@missing.json", "cannot read missing.json"),
        ] {
            assert!(format!("{:#}", read(Some(wrong), &[]).unwrap_err()).contains(said), "{wrong}");
        }
    }

    #[test]
    fn a_named_value_is_json_where_it_is_some() {
        for (text, value) in [
            ("a=1", json!(1)),
            ("a=\"1\"", json!("1")),
            ("a=x y", json!("x y")),
            ("a=", json!("")),
            ("a=b=c", json!("b=c")),
        ] {
            assert_eq!(named(text), Ok(("a".to_owned(), value)));
        }
        assert!(named("a").is_err() && named("=1").is_err());
    }

    #[test]
    fn an_answer_is_json_or_the_word_for_an_action() {
        assert_eq!(answer("k=decline"), Ok(("k".to_owned(), json!("decline"))));
        assert_eq!(answer(r#"k={"a": 1}"#), Ok(("k".to_owned(), json!({"a": 1}))));
        assert!(answer("k=yes").is_err() && answer("k").is_err());
        let twice = vec![("k".to_owned(), json!("decline")), ("k".to_owned(), json!("cancel"))];
        assert!(answers(twice).is_err());
    }

    #[test]
    fn a_header_is_one_line_with_a_name() {
        assert_eq!(header("X-Tenant: a:b"), Ok(("X-Tenant".to_owned(), "a:b".to_owned())));
        for wrong in ["X-Tenant", ": a", "X Tenant: a", "X-Tenant: a\r\nX-Other: b"] {
            assert!(header(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_time_span_has_a_unit() {
        for (text, seconds) in [("30s", 30), ("5m", 300), ("2h", 7_200), ("1d", 86_400), ("0s", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in
            ["", "s", "30", "30 s", "-1s", "1.5s", "1w", "99999999999999999999s", "9999999999999999d"]
        {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
