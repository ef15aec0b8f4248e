//! Tools that ask by multi-round-trip requests: a call is answered with questions, and comes again with answers.
//!
//! Each tool is a [`Script`], and [`play`] is the one rule by which they all go on: a round whose questions are
//! all answered leads to the next, and after the last comes the text. A sealed script keeps the round that it is
//! in in the `requestState`, so that nobody can skip one.

use std::{fs, io, path::Path, time::Duration};

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, InputRequest,
    InputRequests, InputRequiredResult, InputResponses, RequestStateCodec, SealOptions, Tool,
};
use rmcp::object;
use serde_json::json;

use crate::questions::{ask_completion, ask_form, ask_roots};
use crate::requests::{answer, filled_in, no_arguments};

/// How long a client may take to answer a round.
const STATE_TTL: Duration = Duration::from_secs(600);

pub(crate) fn tools() -> Vec<Tool> {
    let anyone = ClientCapabilities::default();
    scripts(&anyone)
        .into_iter()
        .map(|script| Tool::new(script.tool, script.description, no_arguments()))
        .collect()
}

/// The response of the tool that `request` names, where it is one of these.
pub(crate) fn call(
    request: &CallToolRequestParams,
    declared: &ClientCapabilities,
    states: &States,
) -> Option<Result<CallToolResponse, ErrorData>> {
    let script = scripts(declared).into_iter().find(|script| script.tool == request.name)?;
    Some(play(&script, request, states))
}

/// What a tool asks, round by round, and what it says in the end.
struct Script {
    tool: &'static str,
    description: &'static str,
    rounds: Vec<Questions>,
    /// Whether the round is in a sealed `requestState`, without which the script starts again.
    sealed: bool,
    /// Made of the answers of the last round.
    text: fn(&InputResponses) -> String,
}

/// The questions of a round and their keys.
type Questions = Vec<(&'static str, InputRequest)>;

fn play(
    script: &Script,
    request: &CallToolRequestParams,
    states: &States,
) -> Result<CallToolResponse, ErrorData> {
    let answers = request.input_responses.clone().unwrap_or_default();
    let answered =
        |questions: &Questions| questions.iter().all(|(key, _)| answer(Some(&answers), key).is_some());
    let asked = match (&request.request_state, script.sealed) {
        (Some(state), true) => Some(states.open(request, state)?),
        (None, true) => None,
        (_, false) => Some(0),
    };
    let next = match asked {
        Some(round) if script.rounds.get(round).is_none_or(answered) => round + 1,
        Some(round) => round,
        None => 0,
    };

    let Some(questions) = script.rounds.get(next) else {
        let text = (script.text)(&answers);
        return Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into());
    };
    let questions: InputRequests =
        questions.iter().map(|(key, question)| ((*key).to_owned(), question.clone())).collect();
    let state = script.sealed.then(|| states.seal(request, next));
    Ok(InputRequiredResult::new(Some(questions), state).into())
}

/// Seals and opens the number of a round. In between the client holds it, and must not be able to make one up.
#[derive(Clone)]
pub(crate) struct States(RequestStateCodec);

impl States {
    /// With a key of its own.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut key = [0; RequestStateCodec::MIN_KEY_LENGTH];
        getrandom::fill(&mut key)?;
        Ok(Self(RequestStateCodec::new_unchecked(key)))
    }

    /// With the key that replicas share in a folder: what one sealed comes back to another.
    pub(crate) fn shared(folder: &Path) -> io::Result<Self> {
        let text = fs::read(folder.join("key"))?;
        let key = text.first_chunk::<{ RequestStateCodec::MIN_KEY_LENGTH }>();
        let key = key.ok_or_else(|| io::Error::other("the key that replicas share is too short"))?;
        Ok(Self(RequestStateCodec::new_unchecked(*key)))
    }

    fn seal(&self, request: &CallToolRequestParams, round: usize) -> String {
        let call = bound_to(request);
        let options = SealOptions::new().associated_data(&call).ttl(STATE_TTL);
        self.0.seal_with(round.to_string().as_bytes(), &options)
    }

    fn open(&self, request: &CallToolRequestParams, state: &str) -> Result<usize, ErrorData> {
        // One error for every reason: which check failed is nothing that a forger should learn.
        let refused = || ErrorData::invalid_params("requestState is not one of this server's", None);
        let round = self.0.open_with(state, &bound_to(request)).map_err(|_| refused())?;
        String::from_utf8_lossy(&round).parse().map_err(|_| refused())
    }
}

/// The call that a state belongs to; it cannot be used for another.
fn bound_to(request: &CallToolRequestParams) -> Vec<u8> {
    json!([request.name, request.arguments]).to_string().into_bytes()
}

/// All scripts, for a client with these capabilities.
fn scripts(declared: &ClientCapabilities) -> [Script; 9] {
    let name = || ask_form("What is your name?", object!({ "name": { "type": "string" } }), &["name"]);
    let confirm = || ask_form("Please confirm", object!({ "ok": { "type": "boolean" } }), &["ok"]);
    [
        Script {
            tool: "test_streaming_elicitation",
            description: "Asks for a value",
            rounds: vec![vec![(
                "value",
                ask_form("Which value?", object!({ "value": { "type": "string" } }), &["value"]),
            )]],
            sealed: false,
            text: |_| "Thank you.".to_owned(),
        },
        Script {
            tool: "test_input_required_result_elicitation",
            description: "Asks the user",
            rounds: vec![vec![("user_name", name())]],
            sealed: false,
            text: |answers| format!("Hello, {}!", filled_in(&answers["user_name"], "name")),
        },
        Script {
            tool: "test_input_required_result_sampling",
            description: "Asks the client's model",
            rounds: vec![vec![("capital_question", ask_completion("What is the capital of France?", 100))]],
            sealed: false,
            text: |answers| format!("The model says: {}", filled_in(&answers["capital_question"], "text")),
        },
        Script {
            tool: "test_input_required_result_list_roots",
            description: "Asks for the client's roots",
            rounds: vec![vec![("client_roots", ask_roots())]],
            sealed: false,
            text: |answers| {
                let roots = answers["client_roots"]["roots"].as_array();
                format!("The client has {} roots.", roots.map_or(0, Vec::len))
            },
        },
        Script {
            tool: "test_input_required_result_request_state",
            description: "Asks, and wants its state back",
            rounds: vec![vec![("confirm", confirm())]],
            sealed: true,
            text: |_| "state-ok".to_owned(),
        },
        Script {
            tool: "test_input_required_result_multiple_inputs",
            description: "Asks three things at once",
            rounds: vec![vec![
                ("user_name", name()),
                ("greeting", ask_completion("Generate a greeting", 50)),
                ("client_roots", ask_roots()),
            ]],
            sealed: true,
            text: |answers| format!("All answered, {}.", filled_in(&answers["user_name"], "name")),
        },
        Script {
            tool: "test_input_required_result_multi_round",
            description: "Asks one thing after the other",
            rounds: vec![
                vec![("step1", name())],
                vec![(
                    "step2",
                    ask_form(
                        "Step 2: What is your favorite color?",
                        object!({ "color": { "type": "string" } }),
                        &["color"],
                    ),
                )],
            ],
            sealed: true,
            text: |answers| format!("{} it is.", filled_in(&answers["step2"], "color")),
        },
        Script {
            tool: "test_input_required_result_tampered_state",
            description: "Refuses a state that somebody has changed",
            rounds: vec![vec![("confirm", confirm())]],
            sealed: true,
            text: |_| "state-ok".to_owned(),
        },
        Script {
            tool: "test_input_required_result_capabilities",
            description: "Asks only what the client can answer",
            rounds: vec![
                [
                    (declared.elicitation.is_some(), "user_name", name()),
                    (declared.sampling.is_some(), "greeting", ask_completion("Generate a greeting", 50)),
                    (declared.roots.is_some(), "client_roots", ask_roots()),
                ]
                .into_iter()
                .filter(|(can_answer, _, _)| *can_answer)
                .map(|(_, key, question)| (key, question))
                .collect(),
            ],
            sealed: false,
            text: |_| "Nothing more to ask.".to_owned(),
        },
    ]
}
