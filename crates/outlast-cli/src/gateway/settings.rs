//! What is set, and where: in a file, in the environment, on the command line. Pure.
//!
//! The three become one tree, later ones over earlier ones, whose leaves know where they were said. A [`Section`] of it is
//! read key by key; what nobody read is unknown, and the keys that were read are those that are known.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::{self, Display},
    ops::RangeInclusive,
    path::PathBuf,
    rc::Rc,
};

use toml::Value;

use crate::text::one_line;

/// What the names of the gateway's environment variables begin with.
pub(super) const PREFIX: &str = "OUTLAST_GATEWAY_";
/// What stands between the parts of a key in the name of an environment variable.
const BETWEEN: &str = "__";

/// Where something was said.
#[derive(Debug, Clone)]
enum Source {
    File(Rc<PathBuf>),
    Variable(String),
    Option(&'static str),
}

#[derive(Debug, Clone)]
enum Node {
    Leaf(Value, Source),
    Table(Table, Source),
}

type Table = BTreeMap<String, Node>;

/// Everything that is set.
#[derive(Debug, Default)]
pub(super) struct Settings(Table);

impl Settings {
    /// What a file sets.
    ///
    /// # Errors
    /// When it is not TOML, in a sentence that repeats nothing of it: it may hold a secret.
    pub(super) fn of_file(path: PathBuf, text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
            let line = before.matches('\n').count() + 1;
            format!("{}: line {line} is not TOML: {}", path.display(), one_line(error.message(), 120))
        })?;
        let source = Source::File(Rc::new(path));
        Ok(Self(table.into_iter().map(|(key, value)| (key, node(value, &source))).collect()))
    }

    /// Sets what a variable of the environment sets, if it is one of the gateway's. An empty one sets nothing.
    ///
    /// The parts of its name are by turns keys, in whatever case, and names of upstreams, tools, variables or headers: one that
    /// is there already, in whatever case and with `_` for what a name of a variable cannot have, or else a new one. That of an
    /// upstream or a tool in capitals alone is meant in small letters.
    pub(super) fn set_variable(&mut self, name: &str, value: &str) {
        let Some(rest) = name.strip_prefix(PREFIX).filter(|rest| !rest.is_empty() && *rest != "CONFIG")
        else {
            return;
        };
        if value.is_empty() {
            return;
        }
        let source = Source::Variable(name.to_owned());
        let mut table = &mut self.0;
        let parts: Vec<&str> = rest.split(BETWEEN).collect();
        for (n, part) in parts.iter().enumerate() {
            let key = match n % 2 {
                0 => part.to_ascii_lowercase(),
                _ => match table.keys().find(|key| is_named(key, part)) {
                    Some(there) => there.clone(),
                    None if is_loud(parts[n - 1], part) => part.to_ascii_lowercase(),
                    None => (*part).to_owned(),
                },
            };
            if n + 1 == parts.len() {
                table.insert(key, Node::Leaf(Value::String(value.to_owned()), source));
                return;
            }
            let inner = table.entry(key).or_insert_with(|| Node::Table(Table::new(), source.clone()));
            if let Node::Leaf(..) = inner {
                *inner = Node::Table(Table::new(), source.clone());
            }
            let Node::Table(inner, _) = inner else { return };
            table = inner;
        }
    }

    /// Sets what an option of the command line sets.
    pub(super) fn set_option(&mut self, key: &str, option: &'static str, value: Value) {
        self.0.insert(key.to_owned(), Node::Leaf(value, Source::Option(option)));
    }

    /// Whether an option of the command line set it.
    pub(super) fn is_option(&self, key: &str) -> bool {
        matches!(self.0.get(key), Some(Node::Leaf(_, Source::Option(_))))
    }

    /// Takes back what was set.
    pub(super) fn unset(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// All of it, to be read.
    pub(super) fn read(self, problems: &Problems) -> Section<'_> {
        Section { path: String::new(), left: self.0, source: None, known: BTreeMap::new(), problems }
    }
}

fn node(value: Value, source: &Source) -> Node {
    match value {
        Value::Table(table) => {
            let table = table.into_iter().map(|(key, value)| (key, node(value, source))).collect();
            Node::Table(table, source.clone())
        }
        value => Node::Leaf(value, source.clone()),
    }
}

/// Whether `part` of a variable's name means `name`.
fn is_named(name: &str, part: &str) -> bool {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(plain).eq(part.chars().map(plain))
}

/// Whether the name under a key is in capitals because that of the variable is.
fn is_loud(key: &str, name: &str) -> bool {
    let is_key = |other| key.eq_ignore_ascii_case(other);
    (is_key("upstream") || is_key("tools")) && !name.contains(|c: char| c.is_ascii_lowercase())
}

/// What is wrong with the settings, a sentence each.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<Vec<String>>);

impl Problems {
    pub(super) fn add(&self, problem: impl Into<String>) {
        self.0.borrow_mut().push(problem.into());
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        self.0.into_inner()
    }
}

/// Whether what was found may be repeated to whoever reads the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Shown,
    /// It may be, or hold, a secret.
    Hidden,
}

/// A table of the settings, to be read key by key and then [finished](Section::finish).
pub(super) struct Section<'p> {
    path: String,
    left: Table,
    /// Where it begins; the top begins nowhere.
    source: Option<Source>,
    /// The keys that were asked for, and where they were set.
    known: BTreeMap<&'static str, Option<Source>>,
    problems: &'p Problems,
}

impl<'p> Section<'p> {
    /// What `key` is set to, as `parse` makes it of a text.
    pub(super) fn text<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        found: Found,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let node = self.take(key)?;
        if let Node::Leaf(Value::String(text), _) = &node
            && let Some(parsed) = parse(text)
        {
            return Some(parsed);
        }
        self.refuse(key, &node, expected, found);
        None
    }

    /// One of a few words, or of a few days, which a file may have without quotes.
    pub(super) fn one_of(&mut self, key: &'static str, words: &[&'static str]) -> Option<&'static str> {
        let node = self.take(key)?;
        let text = match &node {
            Node::Leaf(Value::String(text), _) => text.clone(),
            Node::Leaf(Value::Datetime(day), _) => day.to_string(),
            _ => String::new(),
        };
        if let Some(word) = words.iter().find(|word| **word == text) {
            return Some(word);
        }
        let near = nearest(&text, words).map(|near| format!("; the nearest known one is '{near}'"));
        let expected = format!("one of {}", words.join(", "));
        self.refuse_with(key, &node, &expected, Found::Shown, &near.unwrap_or_default());
        None
    }

    /// A yes or no.
    pub(super) fn yes_or_no(&mut self, key: &'static str) -> Option<bool> {
        let node = self.take(key)?;
        match &node {
            Node::Leaf(Value::Boolean(value), _) => return Some(*value),
            Node::Leaf(Value::String(text), Source::Variable(_)) if text == "true" => return Some(true),
            Node::Leaf(Value::String(text), Source::Variable(_)) if text == "false" => return Some(false),
            _ => self.refuse(key, &node, "true or false", Found::Shown),
        }
        None
    }

    /// A number.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        expected: &str,
        range: RangeInclusive<u32>,
    ) -> Option<u32> {
        let node = self.take(key)?;
        let number = match &node {
            Node::Leaf(Value::Integer(number), _) => u32::try_from(*number).ok(),
            Node::Leaf(Value::String(text), Source::Variable(_) | Source::Option(_)) => text.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.refuse(key, &node, expected, Found::Shown);
        }
        number
    }

    /// A list of texts; in the environment it is written as in the file.
    pub(super) fn texts(&mut self, key: &'static str, expected: &str) -> Option<Vec<String>> {
        let node = self.take(key)?;
        let list = match &node {
            Node::Leaf(Value::String(text), Source::Variable(_)) => {
                format!("list = {text}").parse().ok().and_then(|mut table: toml::Table| table.remove("list"))
            }
            Node::Leaf(value, _) => Some(value.clone()),
            Node::Table(..) => None,
        };
        let text = |value: Value| if let Value::String(text) = value { Some(text) } else { None };
        let texts = match list {
            Some(Value::Array(list)) => list.into_iter().map(text).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        match texts {
            Some(texts) if !texts.is_empty() => Some(texts),
            _ => {
                self.refuse(key, &node, expected, Found::Hidden);
                None
            }
        }
    }

    /// A table of texts by name.
    pub(super) fn named_texts(&mut self, key: &'static str, expected: &str) -> BTreeMap<String, String> {
        let mut named = BTreeMap::new();
        for (name, node) in self.take_table(key, expected) {
            match &node {
                Node::Leaf(Value::String(text), _) => drop(named.insert(name, text.clone())),
                _ => self.refuse(&format!("{key}.{}", bare(&name)), &node, "a text", Found::Hidden),
            }
        }
        named
    }

    /// A table of tables by name.
    pub(super) fn sections(&mut self, key: &'static str, expected: &str) -> Vec<(String, Section<'p>)> {
        let mut sections = Vec::new();
        for (name, node) in self.take_table(key, expected) {
            let path = format!("{key}.{}", bare(&name));
            match node {
                Node::Table(left, source) => {
                    let (path, source) = (self.whole(&path), Some(source));
                    let section =
                        Section { path, left, source, known: BTreeMap::new(), problems: self.problems };
                    sections.push((name, section));
                }
                Node::Leaf(..) => self.refuse(&path, &node, "a table", Found::Hidden),
            }
        }
        sections
    }

    /// Whether something is set under `key`, which was not read yet.
    pub(super) fn has(&self, key: &str) -> bool {
        self.left.contains_key(key)
    }

    /// A problem with `key`, which was read, or with the section where it is not set.
    pub(super) fn problem(&self, key: &str, what: impl Display) {
        let (source, whole) = match self.known.get(key) {
            Some(Some(source)) => (Some(source), self.whole(key)),
            _ => (self.source.as_ref(), self.path.clone()),
        };
        self.problems.add(match source {
            Some(source) => format!("{}: {what}", Place(source, &whole)),
            None => what.to_string(),
        });
    }

    /// The path of `key` from the top.
    fn whole(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// Refuses what was not read.
    pub(super) fn finish(self) {
        for (key, node) in &self.left {
            let known: Vec<&str> = self.known.keys().copied().collect();
            let hint = match nearest(key, &known) {
                Some(nearest) => format!("the nearest known one is '{nearest}'"),
                None => format!("known are {}", known.join(", ")),
            };
            let place = Place(node.source(), &self.whole(&bare(key)));
            self.problems.add(format!("{place}: there is no key '{}'; {hint}", one_line(key, 60)));
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Node> {
        let node = self.left.remove(key);
        self.known.insert(key, node.as_ref().map(|node| node.source().clone()));
        node
    }

    fn take_table(&mut self, key: &'static str, expected: &str) -> Table {
        match self.take(key) {
            Some(Node::Table(table, _)) => table,
            Some(node) => {
                self.refuse(key, &node, expected, Found::Hidden);
                Table::new()
            }
            None => Table::new(),
        }
    }

    fn refuse(&self, key: &str, node: &Node, expected: &str, found: Found) {
        self.refuse_with(key, node, expected, found, "");
    }

    fn refuse_with(&self, key: &str, node: &Node, expected: &str, found: Found, hint: &str) {
        let whole = self.whole(key);
        let place = Place(node.source(), &whole);
        self.problems.add(format!("{place}: expected {expected}, and found {}{hint}", node.shown(found)));
    }
}

impl Node {
    fn source(&self) -> &Source {
        match self {
            Self::Leaf(_, source) | Self::Table(_, source) => source,
        }
    }

    fn shown(&self, found: Found) -> String {
        let Self::Leaf(value, _) = self else { return "a table".to_owned() };
        let (kind, shown) = match value {
            Value::String(text) => ("another text", format!("'{}'", one_line(text, 60))),
            Value::Integer(number) => ("a number", number.to_string()),
            Value::Float(number) => ("a number", number.to_string()),
            Value::Boolean(value) => ("true or false", value.to_string()),
            Value::Datetime(time) => ("a date", time.to_string()),
            Value::Array(_) => return "another list".to_owned(),
            Value::Table(_) => return "a table".to_owned(),
        };
        if found == Found::Shown { shown } else { kind.to_owned() }
    }
}

/// Where a key was set, as whoever set it would look for it.
struct Place<'a>(&'a Source, &'a str);

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Source::File(path) => write!(f, "{}: {}", path.display(), self.1),
            Source::Variable(name) => f.write_str(&one_line(name, 120)),
            Source::Option(name) => f.write_str(name),
        }
    }
}

/// A name as it stands in the path of a key.
fn bare(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { format!("{name:?}") }
}

/// The one of `known` that `name` most likely was to be.
pub(super) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    const ALIKE: f64 = 0.7;
    let alike = |known: &&'k str| (strsim::jaro_winkler(&name.to_ascii_lowercase(), known), *known);
    let best = known.iter().map(alike).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(alike, _)| *alike >= ALIKE).map(|(_, known)| known)
}
