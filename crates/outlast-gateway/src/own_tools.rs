//! The tools that the gateway adds for callers without tasks, by which they ask for work that goes on after its call was
//! answered.

use std::sync::Arc;

use rmcp::{
    ErrorData, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock,
        DetailedTask, ErrorCode, InputRequests, InputResponses, JsonObject, TaskPayload, Tool,
    },
};
use serde_json::{Value, json};

use crate::{caller::Caller, gateway::Gateway, hold::Held};

const STATUS: &str = "task_status";
const RESULT: &str = "task_result";
const ANSWER: &str = "task_answer";
const CANCEL: &str = "task_cancel";

/// The tools by which work is asked for that goes on after its call was answered.
pub(crate) async fn tools(gateway: &Gateway, caller: &Caller) -> Vec<Tool> {
    let names = OwnNames::of(gateway, caller).await;
    let id = json!({ "type": "string", "description": "The id that the answer to the call named" });
    let schema = |more: Value| {
        let mut properties = json!({ "task": id });
        for (name, field) in more.as_object().into_iter().flatten() {
            properties[name] = field.clone();
        }
        let required: Vec<&String> = properties.as_object().into_iter().flat_map(JsonObject::keys).collect();
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        Arc::new(schema.as_object().cloned().unwrap_or_default())
    };
    let answers = json!({ "answers": {
        "type": "object",
        "description": "By the key of each question, its result, such as {\"action\": \"accept\", \"content\": {...}}"
    }});
    vec![
        Tool::new(
            names.outside(STATUS),
            "How far the work is that an earlier call began, and what it asks",
            schema(json!({})),
        ),
        Tool::new(
            names.outside(RESULT),
            "The result of the work that an earlier call began; waits for it for a while",
            schema(json!({})),
        ),
        Tool::new(
            names.outside(ANSWER),
            "Answers questions of the work that an earlier call began",
            schema(answers),
        ),
        Tool::new(
            names.outside(CANCEL),
            "Asks for the end of the work that an earlier call began",
            schema(json!({})),
        ),
    ]
}

/// The names of the tools that the gateway adds.
pub(crate) struct OwnNames {
    prefix: String,
}

impl OwnNames {
    /// An upstream's own tools keep their names; where it has one that is called like the gateway's, those are called otherwise.
    pub(crate) async fn of(gateway: &Gateway, caller: &Caller) -> Self {
        let mut prefix = String::new();
        // Of several upstreams the tools carry names, which no tool of the gateway begins with.
        if let [upstream] = &*gateway.inner.upstreams
            && upstream.name().is_none()
            && let Ok(upstream) = upstream.for_caller(caller)
        {
            let mut names = [STATUS, RESULT, ANSWER, CANCEL].iter();
            while let Some(name) = names.next() {
                if upstream.find(&format!("{prefix}{name}")).await.is_some() {
                    prefix.push_str("gateway_");
                    names = [STATUS, RESULT, ANSWER, CANCEL].iter();
                }
            }
        }
        Self { prefix }
    }

    fn outside(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn inside<'n>(&self, name: &'n str) -> Option<&'n str> {
        let name = name.strip_prefix(&*self.prefix)?;
        [STATUS, RESULT, ANSWER, CANCEL].contains(&name).then_some(name)
    }

    /// How a caller is told that its work goes on.
    pub(crate) fn goes_on(&self, id: &str, asks: bool) -> String {
        let [status, result, answer, cancel] =
            [STATUS, RESULT, ANSWER, CANCEL].map(|name| self.outside(name));
        let asks = if asks { format!(" It asks something, which {status} shows.") } else { String::new() };
        format!(
            "The work goes on and is not done yet. Its id is {id}.{asks} Ask for it with {result} (waits for the result), \
             {status} (how far it is), {answer} (answers what it asks) or {cancel}, each with {{\"task\": \"{id}\"}}; or make \
             the same call again, which waits for the same work."
        )
    }
}

impl Held<'_> {
    /// The answer of one of the gateway's own tools; none where the call is of another.
    pub(crate) async fn own_tool(
        &self,
        request: &CallToolRequestParams,
    ) -> Option<Result<CallToolResponse, ErrorData>> {
        let name = self.names.inside(&request.name)?;
        let argument = |name: &str| request.arguments.as_ref().and_then(|arguments| arguments.get(name));
        let Some(id) = argument("task").and_then(Value::as_str) else {
            let message = "`task` is missing: the id that the answer to the call named, as a text";
            return Some(Err(ErrorData::invalid_params(message, None)));
        };
        Some(match name {
            RESULT => match self.work(id).await {
                Ok(_) => self.wait(id, None, true).await,
                Err(error) => Err(error),
            },
            STATUS => self.status(id).await,
            CANCEL => self.cancel(id).await,
            _ => self.answer(id, argument("answers")).await,
        })
    }

    /// The work that a caller asks for by its id.
    async fn work(&self, id: &str) -> Result<DetailedTask, ErrorData> {
        self.look(id).await.map_err(|error| match error.code {
            ErrorCode::INVALID_PARAMS => {
                let message =
                    "there is no work with this id; the answer to the call that began it named the right one";
                ErrorData::invalid_params(message, None)
            }
            _ => error,
        })
    }

    async fn status(&self, id: &str) -> Result<CallToolResponse, ErrorData> {
        let task = self.work(id).await?;
        let mut status = json!({ "status": task.task.status, "message": task.task.status_message });
        if let TaskPayload::InputRequired { input_requests } = task.payload {
            status["questions"] = json!(input_requests);
        }
        Ok(say(&status.to_string()))
    }

    async fn cancel(&self, id: &str) -> Result<CallToolResponse, ErrorData> {
        let task = self.work(id).await?;
        if !is_live(&task.payload) {
            return Ok(say(&format!("The work has ended before: it is {}.", state(&task))));
        }
        self.server.cancel_task(CancelTaskParams::new(id), self.context.clone()).await?;
        Ok(say("The work was asked to end."))
    }

    /// Gives the work answers that somebody found out. Whoever writes them may err, and has to be told; a program that repeats
    /// itself does not come this way.
    async fn answer(&self, id: &str, answers: Option<&Value>) -> Result<CallToolResponse, ErrorData> {
        let Some(answers) = answers.and_then(Value::as_object).filter(|answers| !answers.is_empty()) else {
            let message =
                "`answers` is missing: an object with an answer by the key of each question that is answered";
            return Err(ErrorData::invalid_params(message, None));
        };
        let task = self.work(id).await?;
        let TaskPayload::InputRequired { input_requests } = &task.payload else {
            let message = format!("the work asks nothing now: it is {}", state(&task));
            return Err(ErrorData::invalid_params(message, None));
        };
        if let Some(unknown) = answers.keys().find(|key| !input_requests.contains_key(*key)) {
            return Err(not_asked(unknown, input_requests));
        }
        let answers: InputResponses =
            answers.iter().map(|(key, answer)| (key.clone(), answer.clone())).collect();
        self.update(id, answers).await?;
        Ok(say("The answers were given to the work."))
    }
}

fn not_asked(key: &str, asked: &InputRequests) -> ErrorData {
    const SHOWN: usize = 60;
    let key: String = key.chars().take(SHOWN).collect();
    let keys: Vec<String> = asked.keys().map(|key| format!("'{key}'")).collect();
    let message = format!(
        "the work does not ask '{key}'; what it asks has the keys {}, and no answer was taken",
        keys.join(", ")
    );
    ErrorData::invalid_params(message, None)
}

fn is_live(payload: &TaskPayload) -> bool {
    !matches!(payload, TaskPayload::Completed { .. } | TaskPayload::Failed { .. } | TaskPayload::Cancelled)
}

/// The state of the work as the protocol calls it.
fn state(task: &DetailedTask) -> String {
    json!(task.task.status).as_str().unwrap_or_default().to_owned()
}

fn say(text: &str) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}
