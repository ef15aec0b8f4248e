//! A form that a server asks for, filled in line by line: what to show, and what a typed line means.
//!
//! Nothing here reads or writes. Whoever has a terminal shows [`Filling::heading`] and [`Filling::prompt`], and hands each
//! line that was typed to [`Filling::enter`].

mod field;

use rmcp::model::ElicitationSchema;
use serde_json::{Map, Value};

use self::field::{Entry, Field};
use crate::text;

/// What a person may type at each prompt instead of a value.
pub(crate) const COMMANDS: &str =
    ":back goes one back, :skip leaves a field out, :decline says no, :cancel gives no answer";

/// How a form ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Filled {
    /// With these values.
    Accept(Map<String, Value>),
    /// The person says no.
    Decline,
    /// The person says nothing.
    Cancel,
}

/// What came of a line.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// On to the next prompt.
    Next,
    /// The same prompt again, because of this.
    Wrong(String),
    /// The form is over.
    Done(Filled),
}

/// A form that is being filled in.
pub(crate) struct Filling {
    fields: Vec<Field>,
    /// What was entered so far, field by field.
    entries: Vec<Option<Entry>>,
    /// The field that is asked for; past the last one, whether to send it.
    at: usize,
}

impl Filling {
    /// The empty form of a question, with its fields in the order in which the server gave them.
    pub(crate) fn new(schema: &ElicitationSchema) -> Self {
        let required = schema.required.as_deref().unwrap_or_default();
        let ordered =
            schema.property_order.iter().flatten().filter(|name| schema.properties.contains_key(*name));
        let mut names: Vec<_> = ordered.collect();
        names.extend(
            schema
                .properties
                .keys()
                .filter(|name| schema.property_order.as_ref().is_none_or(|order| !order.contains(name))),
        );
        let fields: Vec<_> = names
            .into_iter()
            .map(|name| Field::new(name, &schema.properties[name], required.contains(name)))
            .collect();
        Self { entries: vec![None; fields.len()], fields, at: 0 }
    }

    /// What is to be read before the next prompt: about the field, or all that was entered. Printable, maybe empty.
    pub(crate) fn heading(&self) -> String {
        match self.fields.get(self.at) {
            Some(field) => field.heading(),
            None => {
                let shown = self.fields.iter().zip(&self.entries).map(|(field, entry)| {
                    let value = entry.as_ref().map_or_else(String::new, |entry| field.show(entry));
                    format!("  {}: {value}\n", field.label())
                });
                shown.collect()
            }
        }
    }

    /// The next prompt, on one line and printable.
    pub(crate) fn prompt(&self) -> String {
        match self.fields.get(self.at) {
            Some(field) => field.prompt(self.proposal().as_ref()),
            None if self.fields.is_empty() => "Do you accept? (yes or no): ".to_owned(),
            None => "Send this? (yes, or :back to change it) [yes]: ".to_owned(),
        }
    }

    /// Takes a typed line; `None` is the end of what is typed.
    pub(crate) fn enter(&mut self, line: Option<&str>) -> Step {
        match line.map(Command::of) {
            None | Some(Ok(Command::Cancel)) => Step::Done(Filled::Cancel),
            Some(Ok(Command::Decline)) => Step::Done(Filled::Decline),
            Some(Ok(Command::Back)) => self.back(),
            Some(Ok(Command::Skip)) => self.skip(),
            Some(Ok(Command::Text(text))) => self.text(text),
            Some(Err(wrong)) => Step::Wrong(wrong),
        }
    }

    /// What an empty line stands for.
    fn proposal(&self) -> Option<Entry> {
        self.entries[self.at].clone().or_else(|| self.fields[self.at].proposal())
    }

    fn back(&mut self) -> Step {
        match self.at.checked_sub(1) {
            Some(before) => {
                self.at = before;
                Step::Next
            }
            None => Step::Wrong("there is nothing before this".to_owned()),
        }
    }

    fn skip(&mut self) -> Step {
        match self.fields.get(self.at) {
            Some(field) if field.required => Step::Wrong("this field has to be filled in".to_owned()),
            Some(_) => self.put(Entry::LeftOut),
            None => Step::Wrong("there is no field to leave out here".to_owned()),
        }
    }

    fn text(&mut self, text: &str) -> Step {
        let Some(field) = self.fields.get(self.at) else { return self.send(text) };
        if text.is_empty() {
            return match self.proposal() {
                Some(entry) => self.put(entry),
                None => Step::Wrong(format!("this field has to be filled in, with {}", field.takes())),
            };
        }
        match field.read(text) {
            Ok(value) => self.put(Entry::Value(value)),
            Err(wrong) => Step::Wrong(wrong),
        }
    }

    fn put(&mut self, entry: Entry) -> Step {
        self.entries[self.at] = Some(entry);
        self.at += 1;
        Step::Next
    }

    fn send(&self, text: &str) -> Step {
        match text.to_lowercase().as_str() {
            // Whoever saw no field has not agreed to anything yet by typing.
            "" if self.fields.is_empty() => Step::Wrong("say yes or no".to_owned()),
            "" | "y" | "yes" => Step::Done(Filled::Accept(self.values())),
            "n" | "no" if self.fields.is_empty() => Step::Done(Filled::Decline),
            _ if self.fields.is_empty() => Step::Wrong("say yes or no".to_owned()),
            _ => Step::Wrong(
                "say yes to send it; :back changes it, :decline and :cancel do not send it".to_owned(),
            ),
        }
    }

    fn values(&self) -> Map<String, Value> {
        let entered = self.fields.iter().zip(&self.entries);
        entered
            .filter_map(|(field, entry)| match entry {
                Some(Entry::Value(value)) => Some((field.name.clone(), value.clone())),
                Some(Entry::LeftOut) | None => None,
            })
            .collect()
    }
}

/// Whether these values may be sent for a form.
///
/// # Errors
/// What is wrong with the first that may not.
pub(crate) fn check(schema: &ElicitationSchema, content: &Value) -> Result<(), String> {
    let Some(values) = content.as_object() else { return Err("the form's values are an object".to_owned()) };
    let fields = Filling::new(schema).fields;
    for (name, value) in values {
        let shown = text::one_line(name, 80);
        match fields.iter().find(|field| field.name == *name) {
            Some(field) => field.check(value).map_err(|why| format!("'{shown}': {why}"))?,
            None => return Err(format!("there is no field '{shown}'")),
        }
    }
    match fields.iter().find(|field| field.required && !values.contains_key(&field.name)) {
        Some(missing) => Err(format!("the field '{}' is missing", text::one_line(&missing.name, 80))),
        None => Ok(()),
    }
}

/// A line as it was meant.
#[derive(Debug, PartialEq)]
enum Command<'a> {
    Text(&'a str),
    Back,
    Skip,
    Decline,
    Cancel,
}

impl<'a> Command<'a> {
    fn of(line: &'a str) -> Result<Self, String> {
        let line = line.trim();
        let Some(word) = line.strip_prefix(':') else { return Ok(Self::Text(line)) };
        match word {
            // A second colon is for text that begins with one.
            text if text.starts_with(':') => Ok(Self::Text(text)),
            "back" => Ok(Self::Back),
            "skip" => Ok(Self::Skip),
            "decline" => Ok(Self::Decline),
            "cancel" => Ok(Self::Cancel),
            _ => Err(format!(
                "'{}' is none of :back, :skip, :decline, :cancel; text that begins with a colon begins with two here",
                text::one_line(line, 40)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// From text, because a `Value` would sort the fields.
    fn form(schema: &str) -> Filling {
        Filling::new(&serde_json::from_str(schema).expect("it is a schema of the protocol"))
    }

    fn order() -> Filling {
        form(
            r#"{"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string", "title": "Your name"},
                "age": {"type": "integer", "minimum": 0},
                "gift": {"type": "boolean", "default": true}
            }}"#,
        )
    }

    /// Types these lines, and returns what came of the last one.
    fn type_in(filling: &mut Filling, lines: &[&str]) -> Step {
        let mut last = Step::Next;
        for line in lines {
            assert_eq!(last, Step::Next, "before {line:?}");
            last = filling.enter(Some(line));
        }
        last
    }

    fn accepted(values: Value) -> Step {
        let Value::Object(values) = values else { unreachable!("a form is an object") };
        Step::Done(Filled::Accept(values))
    }

    #[test]
    fn fields_are_asked_in_the_servers_order_and_sent_after_a_look() {
        let mut filling = order();
        assert_eq!(filling.prompt(), "Your name (text): ");
        assert_eq!(type_in(&mut filling, &["Ada", "36", "no"]), Step::Next);
        assert_eq!(filling.heading(), "  Your name: Ada\n  age: 36\n  gift: no\n");
        assert_eq!(filling.prompt(), "Send this? (yes, or :back to change it) [yes]: ");
        assert_eq!(filling.enter(Some("")), accepted(json!({"name": "Ada", "age": 36, "gift": false})));
    }

    #[test]
    fn an_empty_line_takes_the_default_or_leaves_an_optional_field_out() {
        let mut filling = order();
        assert_eq!(
            filling.enter(Some("")),
            Step::Wrong("this field has to be filled in, with text".to_owned())
        );
        assert_eq!(
            type_in(&mut filling, &["Ada", "", "", "yes"]),
            accepted(json!({"name": "Ada", "gift": true}))
        );
    }

    #[test]
    fn a_field_with_a_default_can_be_left_out_and_a_required_one_cannot() {
        let mut filling = order();
        assert_eq!(filling.enter(Some(":skip")), Step::Wrong("this field has to be filled in".to_owned()));
        let sent = type_in(&mut filling, &["Ada", ":skip", ":skip", "y"]);
        assert_eq!(sent, accepted(json!({"name": "Ada"})));
    }

    #[test]
    fn a_wrong_entry_is_asked_again_and_an_old_one_can_be_changed() {
        let mut filling = order();
        assert_eq!(type_in(&mut filling, &["Ada"]), Step::Next);
        assert!(matches!(filling.enter(Some("old")), Step::Wrong(_)));
        assert_eq!(type_in(&mut filling, &["36", "", ":back", ":back"]), Step::Next);
        assert_eq!(filling.prompt(), "age (a whole number, at least 0; optional) [36]: ");
        assert_eq!(
            type_in(&mut filling, &["37", "", ""]),
            accepted(json!({"name": "Ada", "age": 37, "gift": true}))
        );
    }

    #[test]
    fn nothing_comes_before_the_first_field() {
        assert!(matches!(order().enter(Some(":back")), Step::Wrong(_)));
    }

    #[test]
    fn no_and_no_answer_can_be_said_at_every_prompt() {
        for typed in 0..=3 {
            for (said, meant) in [
                (Some(":decline"), Filled::Decline),
                (Some(" :cancel "), Filled::Cancel),
                (None, Filled::Cancel),
            ] {
                let mut filling = order();
                assert_eq!(type_in(&mut filling, &["Ada", "36", "yes"][..typed]), Step::Next);
                assert_eq!(filling.enter(said), Step::Done(meant), "after {typed} fields");
            }
        }
    }

    #[test]
    fn an_unknown_command_is_no_text_and_two_colons_are_one() {
        let mut filling = order();
        let Step::Wrong(said) = filling.enter(Some(":declien")) else { panic!("it was taken") };
        assert!(said.starts_with("':declien' is none of"), "{said}");
        let sent = type_in(&mut filling, &["::-)", "", "", ""]);
        assert_eq!(sent, accepted(json!({"name": ":-)", "gift": true})));
    }

    #[test]
    fn a_question_without_fields_is_agreed_to_in_words() {
        let none = || form(r#"{"type": "object", "properties": {}}"#);
        assert_eq!(none().prompt(), "Do you accept? (yes or no): ");
        assert_eq!(none().enter(Some("yes")), accepted(json!({})));
        assert_eq!(none().enter(Some("no")), Step::Done(Filled::Decline));
        assert!(matches!(none().enter(Some("")), Step::Wrong(_)));
        assert!(matches!(none().enter(Some("perhaps")), Step::Wrong(_)));
        assert!(matches!(none().enter(Some(":skip")), Step::Wrong(_)));
    }

    #[test]
    fn only_yes_sends() {
        let mut filling = order();
        assert_eq!(type_in(&mut filling, &["Ada", "", ""]), Step::Next);
        assert!(matches!(filling.enter(Some("no")), Step::Wrong(_)));
        assert!(matches!(filling.enter(Some("yes")), Step::Done(Filled::Accept(_))));
    }

    #[test]
    fn a_servers_words_cannot_steer_the_terminal() {
        let mut filling = form(
            r#"{"type": "object", "properties": {"a\u001b[2J": {
                "type": "string", "title": "b\u001b[1A", "description": "c\nd\u009b", "default": "e\u0007"
            }}}"#,
        );
        let mut seen = filling.heading() + &filling.prompt();
        assert_eq!(filling.enter(Some("")), Step::Next);
        seen += &(filling.heading() + &filling.prompt());
        assert!(!seen.chars().any(|c| c.is_control() && c != '\n'), "{seen:?}");
        assert!(seen.contains("b\\u001b[1A") && seen.contains("c d\\u009b") && seen.contains("e\\u0007"));
    }
}
