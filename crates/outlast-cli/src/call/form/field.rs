//! One field of a form: what it takes, and what a typed text is in it.

use chrono::{DateTime, NaiveDate};
use rmcp::model::{
    ConstTitle, EnumSchema, MultiSelectEnumSchema, PrimitiveSchemaDefinition, SingleSelectEnumSchema,
    StringFormat,
};
use serde_json::{Number, Value};

use crate::text;

/// The most choices that are listed above a prompt.
const LISTED: usize = 60;

/// What a field holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry {
    Value(Value),
    LeftOut,
}

/// A field, known to be named in the question.
pub(super) struct Field {
    pub(super) name: String,
    title: Option<String>,
    description: Option<String>,
    pub(super) required: bool,
    /// Fits the field.
    default: Option<Value>,
    kind: Kind,
}

enum Kind {
    Text {
        least: Option<u64>,
        most: Option<u64>,
        format: Option<StringFormat>,
    },
    Number {
        least: Option<f64>,
        most: Option<f64>,
    },
    Integer {
        least: Option<i64>,
        most: Option<i64>,
    },
    Boolean,
    One(Vec<Choice>),
    Several {
        of: Vec<Choice>,
        least: Option<u64>,
        most: Option<u64>,
    },
    /// A kind that is newer than this program: what is typed is read as JSON where it is some, and else as text.
    Unknown,
}

struct Choice {
    value: String,
    title: String,
}

impl Field {
    pub(super) fn new(name: &str, schema: &PrimitiveSchemaDefinition, required: bool) -> Self {
        let json = serde_json::to_value(schema).unwrap_or_default();
        let word = |key: &str| json[key].as_str().map(str::to_owned);
        let kind = Kind::of(schema);
        // A default that the field would not take is the server's slip; nobody is offered it.
        let default = Some(json["default"].clone()).filter(|value| kind.check(value).is_ok());
        let (title, description) = (word("title"), word("description"));
        Self { name: name.to_owned(), title, description, required, default, kind }
    }

    /// What it is called, on one line and printable.
    pub(super) fn label(&self) -> String {
        let title = self.title.as_deref().filter(|title| !title.trim().is_empty());
        text::one_line(title.unwrap_or(&self.name), 80)
    }

    /// What the server says of it, and what there is to choose from.
    pub(super) fn heading(&self) -> String {
        let mut lines = Vec::new();
        if let Some(description) = &self.description {
            lines.push(text::one_line(description, 400));
        }
        if let Some(choices) = self.kind.choices() {
            let numbered = numbered(choices);
            for (at, choice) in choices.iter().enumerate().take(LISTED) {
                let title = text::one_line(&choice.title, 120);
                lines.push(if numbered {
                    format!("  {:>2} {title}", at + 1)
                } else {
                    format!("  - {title}")
                });
            }
            if choices.len() > LISTED {
                lines.push(format!("  ... and {} more", choices.len() - LISTED));
            }
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// One line that asks for it, with what an empty line means in brackets.
    pub(super) fn prompt(&self, proposal: Option<&Entry>) -> String {
        let optional = if self.required { "" } else { "; optional" };
        let brackets = match proposal {
            Some(entry @ Entry::Value(_)) => format!(" [{}]", self.show(entry)),
            // That an optional field is left out needs saying only where it could hold something by itself.
            Some(Entry::LeftOut) if self.default.is_some() => " [left out]".to_owned(),
            Some(Entry::LeftOut) | None => String::new(),
        };
        format!("{} ({}{optional}){brackets}: ", self.label(), self.takes())
    }

    /// What an empty line stands for at first.
    pub(super) fn proposal(&self) -> Option<Entry> {
        let default = self.default.clone().map(Entry::Value);
        default.or_else(|| (!self.required).then_some(Entry::LeftOut))
    }

    /// What it takes, in words.
    pub(super) fn takes(&self) -> String {
        self.kind.takes()
    }

    /// What `text`, which is not empty, is in this field.
    ///
    /// # Errors
    /// What is wrong with it, for whoever typed it.
    pub(super) fn read(&self, text: &str) -> Result<Value, String> {
        let value = self.kind.read(text)?;
        self.kind.check(&value)?;
        Ok(value)
    }

    /// Whether `value` may be sent.
    ///
    /// # Errors
    /// What the field takes instead.
    pub(super) fn check(&self, value: &Value) -> Result<(), String> {
        self.kind.check(value)
    }

    /// A value for a person to see, on one line and printable.
    pub(super) fn show(&self, entry: &Entry) -> String {
        let Entry::Value(value) = entry else { return "left out".to_owned() };
        let words = match (value, &self.kind) {
            (Value::Bool(yes), _) => if *yes { "yes" } else { "no" }.to_owned(),
            (Value::String(text), Kind::One(choices)) => title(choices, text).to_owned(),
            (Value::String(text), _) if text.is_empty() => EMPTY_TEXT.to_owned(),
            (Value::String(text), _) => text.clone(),
            (Value::Array(items), Kind::Several { of, .. }) if !items.is_empty() => {
                let titles = items.iter().filter_map(Value::as_str).map(|value| title(of, value));
                titles.collect::<Vec<_>>().join(", ")
            }
            (Value::Array(items), _) if items.is_empty() => NONE.to_owned(),
            _ => value.to_string(),
        };
        text::one_line(&words, 200)
    }
}

/// By which an empty text is typed, because an empty line means something else.
const EMPTY_TEXT: &str = r#""""#;
/// By which no choice at all is typed.
const NONE: &str = "none";

impl Kind {
    fn of(schema: &PrimitiveSchemaDefinition) -> Self {
        use PrimitiveSchemaDefinition as Schema;
        match schema {
            Schema::String(text) => Self::Text {
                least: text.min_length.map(u64::from),
                most: text.max_length.map(u64::from),
                format: text.format,
            },
            Schema::Number(number) => Self::Number { least: number.minimum, most: number.maximum },
            Schema::Integer(number) => Self::Integer { least: number.minimum, most: number.maximum },
            Schema::Boolean(_) => Self::Boolean,
            Schema::Enum(EnumSchema::Single(SingleSelectEnumSchema::Untitled(one))) => {
                Self::One(plain(&one.enum_))
            }
            Schema::Enum(EnumSchema::Single(SingleSelectEnumSchema::Titled(one))) => {
                Self::One(titled(&one.one_of))
            }
            Schema::Enum(EnumSchema::Legacy(one)) => {
                let mut choices = plain(&one.enum_);
                for (choice, name) in choices.iter_mut().zip(one.enum_names.iter().flatten()) {
                    choice.title.clone_from(name);
                }
                Self::One(choices)
            }
            Schema::Enum(EnumSchema::Multi(MultiSelectEnumSchema::Untitled(several))) => Self::Several {
                of: plain(&several.items.enum_),
                least: several.min_items,
                most: several.max_items,
            },
            Schema::Enum(EnumSchema::Multi(MultiSelectEnumSchema::Titled(several))) => Self::Several {
                of: titled(&several.items.any_of),
                least: several.min_items,
                most: several.max_items,
            },
            _ => Self::Unknown,
        }
    }

    fn choices(&self) -> Option<&[Choice]> {
        match self {
            Self::One(choices) | Self::Several { of: choices, .. } => Some(choices),
            _ => None,
        }
    }

    fn takes(&self) -> String {
        match self {
            Self::Text { least, most, format } => {
                let what = format.map_or("text", of_format);
                match (least.filter(|&least| least > 0), most) {
                    (Some(1), None) => format!("{what}, not empty"),
                    (least, most) => with_bounds(what, bounds(least, *most), " characters"),
                }
            }
            Self::Number { least, most } => with_bounds("a number", bounds(*least, *most), ""),
            Self::Integer { least, most } => with_bounds("a whole number", bounds(*least, *most), ""),
            Self::Boolean => "yes or no".to_owned(),
            Self::One(choices) if numbered(choices) => "one of these, by number or name".to_owned(),
            Self::One(_) => "one of these".to_owned(),
            Self::Several { least, most, .. } => {
                let least = least.filter(|&least| least > 0);
                let what = if least.is_none() { "some of these, or none" } else { "some of these" };
                with_bounds(what, bounds(least, *most), "") + "; commas between"
            }
            Self::Unknown => "JSON or text".to_owned(),
        }
    }

    /// Reads what was typed, of whatever size.
    fn read(&self, text: &str) -> Result<Value, String> {
        let wrong = || Err(format!("'{}' is not {}", text::one_line(text, 60), self.takes()));
        match self {
            Self::Text { .. } if text == EMPTY_TEXT => Ok("".into()),
            Self::Text { .. } => Ok(text.into()),
            Self::Integer { .. } => text.parse::<i64>().map(Value::from).or_else(|_| wrong()),
            // What is written without a fraction is sent without one.
            Self::Number { .. } => match (text.parse::<i64>(), text.parse::<f64>().map(Number::from_f64)) {
                (Ok(whole), _) => Ok(whole.into()),
                (_, Ok(Some(number))) => Ok(number.into()),
                _ => wrong(),
            },
            Self::Boolean => match text.to_lowercase().as_str() {
                "y" | "yes" | "true" => Ok(true.into()),
                "n" | "no" | "false" => Ok(false.into()),
                _ => wrong(),
            },
            Self::One(choices) => choose(choices, text).map(Value::from),
            Self::Several { of, .. } => several(of, text),
            Self::Unknown => Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into())),
        }
    }

    /// Whether a value may be sent, in words where it may not.
    fn check(&self, value: &Value) -> Result<(), String> {
        let fits = match (self, value) {
            (Self::Text { least, most, format }, Value::String(text)) => {
                within(text.chars().count() as u64, *least, *most)
                    && format.is_none_or(|format| is_of_format(format, text))
            }
            (Self::Number { least, most }, Value::Number(number)) => {
                number.as_f64().is_some_and(|number| within(number, *least, *most))
            }
            (Self::Integer { least, most }, Value::Number(number)) => {
                number.as_i64().is_some_and(|number| within(number, *least, *most))
            }
            (Self::Boolean, Value::Bool(_)) => true,
            (Self::One(choices), Value::String(text)) => choices.iter().any(|choice| choice.value == *text),
            (Self::Several { of, least, most }, Value::Array(items)) => {
                let is_choice =
                    |item: &Value| of.iter().any(|choice| Some(choice.value.as_str()) == item.as_str());
                items.iter().all(is_choice) && within(items.len() as u64, *least, *most)
            }
            (Self::Unknown, value) => !value.is_null(),
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("this field takes {}", self.takes())) }
    }
}

fn plain(values: &[String]) -> Vec<Choice> {
    values.iter().map(|value| Choice { value: value.clone(), title: value.clone() }).collect()
}

fn titled(choices: &[ConstTitle]) -> Vec<Choice> {
    choices
        .iter()
        .map(|choice| Choice { value: choice.const_.clone(), title: choice.title.clone() })
        .collect()
}

fn title<'a>(choices: &'a [Choice], value: &'a str) -> &'a str {
    choices.iter().find(|choice| choice.value == value).map_or(value, |choice| &choice.title)
}

/// Whether a choice can be given by its place: not where a number could be meant as a name.
fn numbered(choices: &[Choice]) -> bool {
    let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
    !choices.iter().any(|choice| is_number(&choice.value) || is_number(&choice.title))
}

/// In which way a choice is named.
enum Way {
    Value,
    Title,
    Place,
    Either,
}

/// The choice that a person means by `text`: by what is sent, else by its title, else by its place, else by either
/// without regard to case.
fn choose(choices: &[Choice], text: &str) -> Result<String, String> {
    let place = text.parse::<usize>().ok().filter(|_| numbered(choices));
    let lower = text.to_lowercase();
    let shown = text::one_line(text, 60);
    for way in [Way::Value, Way::Title, Way::Place, Way::Either] {
        let is_meant = |(at, choice): &(usize, &Choice)| match way {
            Way::Value => choice.value == text,
            Way::Title => choice.title == text,
            Way::Place => Some(at + 1) == place,
            Way::Either => choice.value.to_lowercase() == lower || choice.title.to_lowercase() == lower,
        };
        let mut meant = choices.iter().enumerate().filter(is_meant);
        match (meant.next(), meant.next()) {
            (Some((_, choice)), None) => return Ok(choice.value.clone()),
            (Some(_), Some(_)) => return Err(format!("'{shown}' could be more than one of these")),
            (None, _) => {}
        }
    }
    Err(format!("'{shown}' is none of these"))
}

fn several(choices: &[Choice], text: &str) -> Result<Value, String> {
    // One that has a comma in it, or is called none, is found before the text is taken apart.
    if let Ok(one) = choose(choices, text) {
        return Ok(vec![one].into());
    }
    if text.to_lowercase() == NONE {
        return Ok(Value::Array(Vec::new()));
    }
    let mut chosen: Vec<String> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let choice = choose(choices, part)?;
        if chosen.contains(&choice) {
            return Err(format!("'{}' is named twice", text::one_line(part, 60)));
        }
        chosen.push(choice);
    }
    Ok(chosen.into())
}

fn of_format(format: StringFormat) -> &'static str {
    match format {
        StringFormat::Email => "an e-mail address",
        StringFormat::Uri => "a URI such as https://example.com/",
        StringFormat::Date => "a date such as 2026-07-28",
        StringFormat::DateTime => "a date and time such as 2026-07-28T09:30:00Z",
        _ => "text",
    }
}

/// Whether it has the form at all: what it stands for is the server's to judge.
fn is_of_format(format: StringFormat, text: &str) -> bool {
    let spaced = text.chars().any(|c| c.is_whitespace() || c.is_control());
    match format {
        StringFormat::Email => {
            !spaced && text.rsplit_once('@').is_some_and(|(who, at)| !who.is_empty() && !at.is_empty())
        }
        StringFormat::Uri => {
            let scheme = |scheme: &str| {
                scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                    && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
            };
            !spaced && text.split_once(':').is_some_and(|(name, rest)| scheme(name) && !rest.is_empty())
        }
        // The parser would take a year, month or day with fewer digits, too.
        StringFormat::Date => text.len() == 10 && NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok(),
        StringFormat::DateTime => DateTime::parse_from_rfc3339(text).is_ok(),
        _ => true,
    }
}

fn within<T: PartialOrd>(value: T, least: Option<T>, most: Option<T>) -> bool {
    least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most)
}

fn bounds<T: std::fmt::Display + PartialEq>(least: Option<T>, most: Option<T>) -> Option<String> {
    match (least, most) {
        (Some(least), Some(most)) if least == most => Some(format!("exactly {least}")),
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("at least {least}")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    }
}

fn with_bounds(what: &str, bounds: Option<String>, unit: &str) -> String {
    bounds.map_or_else(|| what.to_owned(), |bounds| format!("{what}, {bounds}{unit}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(schema: &Value) -> Field {
        let schema = serde_json::from_value(schema.clone()).expect("it is a schema of the protocol");
        Field::new("field", &schema, true)
    }

    /// Reads each text, and compares with what is sent; `None` stands for a refusal.
    fn reads(schema: Value, takes: &str, texts: &[(&str, Option<Value>)]) {
        let field = field(&schema);
        assert_eq!(field.takes(), takes);
        for (text, expected) in texts {
            assert_eq!(field.read(text).ok(), *expected, "{text:?} in {schema}");
        }
    }

    #[test]
    fn text_is_what_was_typed_within_its_length_in_characters() {
        reads(
            json!({"type": "string"}),
            "text",
            &[("a, b", Some(json!("a, b"))), ("12", Some(json!("12"))), (r#""""#, Some(json!("")))],
        );
        reads(
            json!({"type": "string", "minLength": 2, "maxLength": 4}),
            "text, 2 to 4 characters",
            &[("äö", Some(json!("äö"))), ("日本語字", Some(json!("日本語字"))), ("a", None), ("abcde", None)],
        );
        reads(json!({"type": "string", "minLength": 1}), "text, not empty", &[(r#""""#, None)]);
    }

    #[test]
    fn text_of_a_format_has_to_have_it() {
        let of = |format: &str| json!({"type": "string", "format": format});
        let same = |text: &'static str| (text, Some(json!(text)));
        reads(
            of("email"),
            "an e-mail address",
            &[
                same("ada@example.com"),
                ("ada", None),
                ("@example.com", None),
                ("ada@", None),
                ("a b@c.d", None),
            ],
        );
        reads(
            of("uri"),
            "a URI such as https://example.com/",
            &[
                same("https://example.com/a?b"),
                same("mailto:ada@example.com"),
                ("example.com", None),
                ("1a:b", None),
                ("a: b", None),
            ],
        );
        reads(
            of("date"),
            "a date such as 2026-07-28",
            &[same("2024-02-29"), ("2026-02-29", None), ("2026-7-28", None), ("28.7.2026", None)],
        );
        reads(
            of("date-time"),
            "a date and time such as 2026-07-28T09:30:00Z",
            &[
                same("2026-07-28T09:30:00Z"),
                same("2026-07-28T09:30:00.5+02:00"),
                ("2026-07-28", None),
                ("2026-07-28T25:00:00Z", None),
            ],
        );
    }

    #[test]
    fn a_number_is_within_its_bounds_and_keeps_how_it_was_written() {
        reads(
            json!({"type": "number", "minimum": -0.5, "maximum": 100}),
            "a number, -0.5 to 100",
            &[
                ("1.5", Some(json!(1.5))),
                ("2", Some(json!(2))),
                ("1e1", Some(json!(10.0))),
                ("-0.5", Some(json!(-0.5))),
                ("-0.6", None),
                ("101", None),
                ("NaN", None),
                ("inf", None),
                ("1,5", None),
            ],
        );
    }

    #[test]
    fn a_whole_number_has_no_fraction() {
        reads(
            json!({"type": "integer", "minimum": 1}),
            "a whole number, at least 1",
            &[
                ("1", Some(json!(1))),
                ("9223372036854775807", Some(json!(i64::MAX))),
                ("0", None),
                ("1.0", None),
                ("9223372036854775808", None),
                ("two", None),
            ],
        );
        reads(
            json!({"type": "integer", "maximum": 3}),
            "a whole number, at most 3",
            &[("-7", Some(json!(-7))), ("4", None)],
        );
        reads(
            json!({"type": "integer", "minimum": 3, "maximum": 3}),
            "a whole number, exactly 3",
            &[("3", Some(json!(3)))],
        );
    }

    #[test]
    fn yes_and_no_can_be_said_in_several_ways() {
        reads(
            json!({"type": "boolean"}),
            "yes or no",
            &[
                ("y", Some(json!(true))),
                ("YES", Some(json!(true))),
                ("false", Some(json!(false))),
                ("1", None),
                ("maybe", None),
            ],
        );
    }

    #[test]
    fn a_choice_is_made_by_number_or_name() {
        let small = Some(json!("small"));
        reads(
            json!({"type": "string", "enum": ["small", "large"]}),
            "one of these, by number or name",
            &[
                ("small", small.clone()),
                ("1", small.clone()),
                ("SMALL", small),
                ("0", None),
                ("3", None),
                ("medium", None),
            ],
        );
        let colours = json!({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]});
        reads(
            colours.clone(),
            "one of these, by number or name",
            &[("Green", Some(json!("g"))), ("g", Some(json!("g"))), ("2", Some(json!("g"))), ("blue", None)],
        );
        assert_eq!(field(&colours).heading(), "   1 Red\n   2 Green\n");
        reads(
            json!({"type": "string", "enum": ["a", "b"], "enumNames": ["Ay", "Bee"]}),
            "one of these, by number or name",
            &[("bee", Some(json!("b")))],
        );
    }

    #[test]
    fn a_choice_that_is_a_number_is_meant_by_its_name_alone() {
        let years = json!({"type": "string", "enum": ["2", "1"]});
        reads(years.clone(), "one of these", &[("2", Some(json!("2"))), ("1", Some(json!("1")))]);
        assert_eq!(field(&years).heading(), "  - 2\n  - 1\n");
    }

    #[test]
    fn a_name_that_several_choices_have_is_refused() {
        let schema = json!({"type": "string", "oneOf": [{"const": "x", "title": "Same"}, {"const": "y", "title": "Same"}]});
        assert_eq!(field(&schema).read("Same").unwrap_err(), "'Same' could be more than one of these");
        assert_eq!(field(&schema).read("2"), Ok(json!("y")));
    }

    #[test]
    fn several_choices_have_commas_between_and_a_least_and_a_most() {
        let days = json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "enum": ["mon", "tue", "wed"]}});
        reads(
            days,
            "some of these, 1 to 2; commas between",
            &[
                ("tue", Some(json!(["tue"]))),
                ("3, Mon", Some(json!(["wed", "mon"]))),
                ("none", None),
                ("mon,tue,wed", None),
                ("mon,1", None),
                ("mon,fri", None),
            ],
        );
        let titled = json!({"type": "array", "items": {"anyOf": [{"const": "a", "title": "Ay, yes"}, {"const": "b", "title": "Bee"}]}});
        reads(
            titled,
            "some of these, or none; commas between",
            &[("Ay, yes", Some(json!(["a"]))), ("none", Some(json!([]))), ("a,Bee", Some(json!(["a", "b"])))],
        );
    }

    #[test]
    fn a_default_is_offered_only_where_the_field_would_take_it() {
        for (schema, shown) in [
            (json!({"type": "string", "default": "x"}), Some("field (text) [x]: ")),
            (json!({"type": "string", "default": ""}), Some("field (text) [\"\"]: ")),
            (json!({"type": "string", "maxLength": 1, "default": "xy"}), None),
            (json!({"type": "number", "default": 1.5}), Some("field (a number) [1.5]: ")),
            (json!({"type": "integer", "minimum": 5, "default": 4}), None),
            (json!({"type": "boolean", "default": false}), Some("field (yes or no) [no]: ")),
            (
                json!({"type": "string", "enum": ["a"], "default": "a"}),
                Some("field (one of these, by number or name) [a]: "),
            ),
            (json!({"type": "string", "enum": ["a"], "default": "b"}), None),
            (
                json!({"type": "array", "items": {"anyOf": [{"const": "a", "title": "Ay"}]}, "default": ["a"]}),
                Some("field (some of these, or none; commas between) [Ay]: "),
            ),
        ] {
            let field = field(&schema);
            let proposal = field.proposal();
            assert_eq!(
                proposal.as_ref().map(|entry| field.prompt(Some(entry))).as_deref(),
                shown,
                "{schema}"
            );
        }
    }

    #[test]
    fn a_long_list_of_choices_is_cut() {
        let many: Vec<_> = (0..100).map(|n| format!("choice-{n}")).collect();
        let heading = field(&json!({"type": "string", "enum": many})).heading();
        assert_eq!(heading.lines().count(), LISTED + 1);
        assert!(heading.ends_with("  ... and 40 more\n"), "{heading}");
    }
}
