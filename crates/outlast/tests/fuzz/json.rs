//! JSON that need not be any: a tree whose leaves are bytes, and the ways to spoil it.

use proptest::{prelude::*, sample::Index};
use serde_json::Value;

/// A value as it is written. Keys and leaves are whatever bytes they are, and a key may stand twice.
#[derive(Clone, PartialEq)]
pub(crate) enum Node {
    Leaf(Vec<u8>),
    Array(Vec<Node>),
    Object(Vec<(Vec<u8>, Node)>),
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.written()).into_owned();
        write!(f, "{:.300} ({} bytes)", text, text.len())
    }
}

impl Node {
    pub(crate) fn of(value: &Value) -> Self {
        match value {
            Value::Array(items) => Self::Array(items.iter().map(Self::of).collect()),
            Value::Object(fields) => {
                Self::Object(fields.iter().map(|(key, value)| (quoted(key), Self::of(value))).collect())
            }
            leaf => Self::Leaf(leaf.to_string().into_bytes()),
        }
    }

    pub(crate) fn written(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Leaf(bytes) => out.extend(bytes),
            Self::Array(items) => {
                out.push(b'[');
                for (n, item) in items.iter().enumerate() {
                    out.extend(if n > 0 { &b","[..] } else { b"" });
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Object(fields) => {
                out.push(b'{');
                for (n, (key, value)) in fields.iter().enumerate() {
                    out.extend(if n > 0 { &b","[..] } else { b"" });
                    out.extend(key);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }

    /// Changes the node that `at` falls on.
    pub(crate) fn spoil(&mut self, at: &Index, change: &Change) {
        let mut left = at.index(self.size());
        self.spoil_nth(&mut left, change);
    }

    /// How many nodes it has, itself included.
    fn size(&self) -> usize {
        1 + match self {
            Self::Leaf(_) => 0,
            Self::Array(items) => items.iter().map(Self::size).sum(),
            Self::Object(fields) => fields.iter().map(|(_, value)| value.size()).sum(),
        }
    }

    /// Whether the node was in this part of the tree.
    fn spoil_nth(&mut self, left: &mut usize, change: &Change) -> bool {
        if *left == 0 {
            match change {
                Change::Replace(node) => *self = node.clone(),
                Change::Wrap => *self = Self::Array(vec![self.clone()]),
                // Of the root there is only one.
                _ => {}
            }
            return true;
        }
        *left -= 1;
        let is_here = *left == 0;
        match self {
            Self::Leaf(_) => false,
            Self::Array(items) => items.iter_mut().any(|item| item.spoil_nth(left, change)),
            Self::Object(fields) => {
                if is_here && let Change::Add(key, node) = change {
                    fields.push((key.clone(), node.clone()));
                    return true;
                }
                for n in 0..fields.len() {
                    if *left == 0 {
                        match change {
                            Change::Remove => drop(fields.remove(n)),
                            Change::Twice => fields.push(fields[n].clone()),
                            Change::Rename(key) => fields[n].0.clone_from(key),
                            _ => return fields[n].1.spoil_nth(left, change),
                        }
                        return true;
                    }
                    if fields[n].1.spoil_nth(left, change) {
                        return true;
                    }
                }
                false
            }
        }
    }
}

/// One way to spoil a tree.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Replace(Node),
    Wrap,
    Remove,
    Twice,
    Rename(Vec<u8>),
    Add(Vec<u8>, Node),
}

pub(crate) fn change(words: Vec<String>) -> impl Strategy<Value = Change> {
    let key = word(words.clone()).prop_map(|word| quoted(&word));
    prop_oneof![
        6 => node(words.clone()).prop_map(Change::Replace),
        1 => Just(Change::Wrap),
        2 => Just(Change::Remove),
        1 => Just(Change::Twice),
        1 => key.clone().prop_map(Change::Rename),
        2 => (key, node(words)).prop_map(|(key, node)| Change::Add(key, node)),
    ]
}

/// A value of any kind, some of which are no JSON.
pub(crate) fn node(words: Vec<String>) -> impl Strategy<Value = Node> {
    let text = |text: String| Node::Leaf(quoted(&text));
    let keys = words.clone();
    let json = prop_oneof![
        3 => word(words).prop_map(text),
        2 => any::<String>().prop_map(text),
        1 => any::<i64>().prop_map(|number| Node::Leaf(number.to_string().into_bytes())),
        1 => any::<f64>().prop_map(|number| Node::Leaf(number.to_string().into_bytes())),
        6 => prop::sample::select(ODD.to_vec()).prop_map(|odd| Node::Leaf(odd.as_bytes().to_vec())),
        1 => (1usize..120, any::<bool>()).prop_map(|(depth, list)| deep(list, depth, true)),
        1 => (1usize..400).prop_map(|digits| Node::Leaf("9".repeat(digits).into_bytes())),
        1 => (1usize..200_000).prop_map(|length| Node::Leaf(quoted(&"x".repeat(length)))),
    ];
    let no_json = prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Node::Leaf),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Node::Leaf([b"\"", &bytes[..], b"\""].concat())),
        2 => prop::sample::select(NO_JSON.to_vec()).prop_map(|bad| Node::Leaf(bad.as_bytes().to_vec())),
        3 => (1usize..10_000, any::<[bool; 2]>()).prop_map(|(depth, [list, closed])| deep(list, depth, closed)),
    ];
    let leaf = prop_oneof![9 => json, 1 => no_json];
    leaf.prop_recursive(3, 20, 4, move |inner| {
        let field = (word(keys.clone()).prop_map(|word| quoted(&word)), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Node::Array),
            prop::collection::vec(field, 0..4).prop_map(Node::Object),
        ]
    })
}

/// Leaves that readers stumble over.
const ODD: [&str; 16] = [
    "null",
    "true",
    "false",
    "0",
    "-0",
    "-1",
    "1.5",
    "60000.0",
    "1e2",
    "9007199254740993",
    "18446744073709551616",
    "-9223372036854775809",
    "\"\"",
    "\"\\u0000\"",
    "{}",
    "[]",
];

/// Leaves that are no JSON, or that no number or text can hold.
const NO_JSON: [&str; 9] =
    ["1e999", "-1e999", "1e-999", "NaN", "-Infinity", "\"\\ud800\"", "\"\\udc00\\ud800\"", "undefined", ""];

fn word(words: Vec<String>) -> impl Strategy<Value = String> + Clone {
    prop_oneof![4 => prop::sample::select(words), 1 => "[a-z/:]{0,12}"]
}

/// Lists in lists, or objects in objects. Those deeper than a reader goes are no JSON to it.
fn deep(list: bool, depth: usize, closed: bool) -> Node {
    let (open, middle, close) = if list { ("[", "", "]") } else { ("{\"a\":", "1", "}") };
    let close = close.repeat(if closed { depth } else { 0 });
    Node::Leaf(format!("{}{middle}{close}", open.repeat(depth)).into_bytes())
}

fn quoted(text: &str) -> Vec<u8> {
    Value::from(text).to_string().into_bytes()
}
