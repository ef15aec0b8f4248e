//! Requests to `tasks/*` and `tools/call`: right ones, spoiled in a few places, and some that were never right.

use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

use crate::{
    json::{Change, Node, change, node},
    support::Client,
};

/// What is sent.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {:?}", String::from_utf8_lossy(value))?;
        }
        write!(f, "{:.2000} ({} bytes)", String::from_utf8_lossy(&self.body), self.body.len())
    }
}

/// What the requests are made of.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) client: Client,
    /// Tasks that exist, in several states.
    pub(crate) tasks: Vec<String>,
    /// Tools that end by themselves whatever their arguments are.
    pub(crate) tools: Vec<&'static str>,
    /// A session of protocol 2025-11-25.
    pub(crate) session: String,
}

impl World {
    /// Texts that mean something to the server.
    fn words(&self) -> Vec<String> {
        let fixed = [
            "2.0",
            "tasks/get",
            "tasks/update",
            "tasks/cancel",
            "tasks/list",
            "tasks/result",
            "tools/call",
            "jsonrpc",
            "id",
            "method",
            "params",
            "result",
            "error",
            "taskId",
            "name",
            "arguments",
            "inputResponses",
            "requestState",
            "_meta",
            "progressToken",
            "outlast/idempotencyKey",
            "io.modelcontextprotocol/clientCapabilities",
            "io.modelcontextprotocol/clientInfo",
            "io.modelcontextprotocol/protocolVersion",
            "io.modelcontextprotocol/tasks",
            "extensions",
            "elicitation",
            "action",
            "accept",
            "content",
            "who",
            "first",
            "2025-11-25",
            "2026-07-28",
        ];
        let tasks = self.tasks.iter().flat_map(|id| [id.clone(), id.to_uppercase(), format!(" {id}")]);
        let tools = self.tools.iter().map(|tool| (*tool).to_owned());
        fixed.into_iter().map(str::to_owned).chain(tasks).chain(tools).collect()
    }

    /// A method and its parameters, as they should be.
    fn right(&self) -> impl Strategy<Value = (String, Value)> + use<> {
        let answers =
            json!({"who": {"action": "accept", "content": {"name": "ann"}}, "a": {"action": "decline"}});
        let methods = ["tasks/get", "tasks/update", "tasks/cancel", "tasks/list", "tasks/result"];
        let ids = prop::sample::select(self.tasks.clone());
        let task = (prop::sample::select(methods.to_vec()), ids, any::<bool>());
        let (client, answers_of_task) = (self.client.clone(), answers.clone());
        let task = task.prop_map(move |(method, id, declared)| {
            let mut params = json!({"taskId": id});
            if method == "tasks/update" {
                params["inputResponses"] = answers_of_task.clone();
            }
            let client = if declared { client.clone() } else { client.undeclared() };
            (method.to_owned(), client.params(params))
        });
        let call = (prop::sample::select(self.tools.clone()), any::<[bool; 4]>());
        let client = self.client.clone();
        let call = call.prop_map(move |(tool, [declared, keyed, round, talks])| {
            let mut params = json!({"name": tool, "arguments": {}});
            if round {
                params["inputResponses"] = answers.clone();
                params["requestState"] = json!("a=ann");
            }
            if keyed {
                params["_meta"]["outlast/idempotencyKey"] = json!(tool);
            }
            if talks {
                params["_meta"]["progressToken"] = json!(1);
            }
            let client = if declared { client.clone() } else { client.undeclared() };
            ("tools/call".to_owned(), client.params(params))
        });
        prop_oneof![task, call]
    }

    /// A message whose method and headers belong together, spoiled in up to three places.
    fn spoiled(&self) -> impl Strategy<Value = (Node, Vec<(String, String)>)> + use<> {
        let id = prop_oneof![8 => Just(json!(1)), 1 => Just(json!("one")), 1 => Just(Value::Null)];
        let changes = prop::collection::vec((any::<Index>(), change(self.words())), 0..4);
        let (client, session) = (self.client.clone(), self.session.clone());
        let flags = (prop::bool::weighted(0.5), prop::bool::weighted(0.2), prop::bool::weighted(0.8));
        (self.right(), id, changes, flags).prop_map(
            move |((method, mut params), id, changes, (whole, is_old, follows))| {
                if is_old {
                    // Older clients name no version in a request; their session has one.
                    let meta = params["_meta"].as_object_mut().unwrap();
                    meta.remove("io.modelcontextprotocol/protocolVersion");
                }
                let mut headers = client.headers(&method, &params);
                let mut params = Node::of(&params);
                if !whole {
                    apply(&mut params, &changes);
                }
                let envelope = json!({"jsonrpc": "2.0", "id": id, "method": method});
                let Node::Object(mut fields) = Node::of(&envelope) else { unreachable!("it is an object") };
                fields.push((b"\"params\"".to_vec(), params));
                let mut message = Node::Object(fields);
                if whole {
                    apply(&mut message, &changes);
                }
                if follows {
                    headers = headers_of(&message, &client).unwrap_or(headers);
                }
                (message, if is_old { of_session(&headers, &session) } else { headers })
            },
        )
    }

    fn body(&self) -> impl Strategy<Value = (Vec<u8>, Vec<(String, String)>)> + use<> {
        let spoiled = self.spoiled().prop_map(|(message, headers)| (message.written(), headers));
        let cut = (self.spoiled(), any::<Index>()).prop_map(|((message, headers), at)| {
            let mut body = message.written();
            body.truncate(at.index(body.len().max(1)));
            (body, headers)
        });
        let flipped =
            (self.spoiled(), any::<Index>(), any::<u8>()).prop_map(|((message, headers), at, byte)| {
                let mut body = message.written();
                if !body.is_empty() {
                    let at = at.index(body.len());
                    body[at] = byte;
                }
                (body, headers)
            });
        let batch = prop::collection::vec(self.spoiled(), 0..4).prop_map(|messages| {
            let headers = messages.first().map(|(_, headers)| headers.clone()).unwrap_or_default();
            (Node::Array(messages.into_iter().map(|(message, _)| message).collect()).written(), headers)
        });
        let usual = self.client.headers("tasks/get", &json!({"taskId": self.tasks[0]}));
        let headers = usual.clone();
        let bytes =
            prop::collection::vec(any::<u8>(), 0..2_000).prop_map(move |body| (body, headers.clone()));
        let any_json = node(self.words()).prop_map(move |node| (node.written(), usual.clone()));
        prop_oneof![20 => spoiled, 1 => cut, 1 => flipped, 1 => batch, 1 => bytes, 2 => any_json]
    }

    /// Whole requests.
    pub(crate) fn requests(&self) -> impl Strategy<Value = Sent> + use<> {
        let changes = prop_oneof![
            2 => Just(Vec::new()),
            1 => prop::collection::vec((any::<Index>(), header_change()), 1..4),
        ];
        (self.body(), changes).prop_map(|((body, headers), changes)| {
            let mut headers: Vec<_> =
                headers.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
            for (at, change) in changes {
                change.apply(&mut headers, &at);
            }
            Sent { headers, body }
        })
    }
}

/// The headers that belong to a message as it became, so that it is not refused for them alone.
fn headers_of(message: &Node, client: &Client) -> Option<Vec<(String, String)>> {
    let message: Value = serde_json::from_slice(&message.written()).ok()?;
    let method =
        message["method"].as_str().filter(|method| method.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    Some(client.headers(method?, &message["params"]))
}

fn of_session(headers: &[(String, String)], session: &str) -> Vec<(String, String)> {
    let session = [("mcp-session-id", session), ("mcp-protocol-version", "2025-11-25")];
    let session = session.map(|(name, value)| (name.to_owned(), value.to_owned()));
    headers.iter().filter(|(name, _)| !name.starts_with("mcp-")).cloned().chain(session).collect()
}

fn apply(node: &mut Node, changes: &[(Index, Change)]) {
    for (at, change) in changes {
        node.spoil(at, change);
    }
}

/// One way to spoil headers.
#[derive(Debug, Clone)]
enum HeaderChange {
    Remove,
    Twice,
    Garble(Vec<u8>),
    Set(&'static str, Vec<u8>),
}

fn header_change() -> impl Strategy<Value = HeaderChange> {
    // Whatever may stand in a header at all.
    let garbage = prop::collection::vec(prop_oneof![0x20u8..=0x7e, 0x80u8..=0xff], 0..60);
    let names = [
        "mcp-name",
        "mcp-method",
        "mcp-protocol-version",
        "mcp-session-id",
        "content-type",
        "accept",
        "origin",
        "mcp-param-x",
    ];
    let values = [
        "",
        "tasks/get",
        "tools/call",
        "quick",
        "=?base64?",
        "=?base64?cXVpY2s=?=",
        "=?base64?!?=",
        "2025-03-26",
        "2025-06-18",
        "2025-11-25",
        "2026-07-28",
        "9999-99-99",
        "application/json; charset=utf-16",
        "text/event-stream",
        "*/*",
        "null",
    ];
    let value = prop_oneof![
        2 => prop::sample::select(values.to_vec()).prop_map(|value| value.as_bytes().to_vec()),
        1 => garbage.clone(),
    ];
    prop_oneof![
        2 => Just(HeaderChange::Remove),
        1 => Just(HeaderChange::Twice),
        1 => garbage.prop_map(HeaderChange::Garble),
        3 => (prop::sample::select(names.to_vec()), value).prop_map(|(name, value)| HeaderChange::Set(name, value)),
    ]
}

impl HeaderChange {
    fn apply(self, headers: &mut Vec<(String, Vec<u8>)>, at: &Index) {
        match self {
            Self::Set(name, value) => {
                headers.retain(|(taken, _)| taken != name);
                headers.push((name.to_owned(), value));
            }
            _ if headers.is_empty() => {}
            Self::Remove => drop(headers.remove(at.index(headers.len()))),
            Self::Twice => headers.push(headers[at.index(headers.len())].clone()),
            Self::Garble(value) => {
                let at = at.index(headers.len());
                headers[at].1 = value;
            }
        }
    }
}
