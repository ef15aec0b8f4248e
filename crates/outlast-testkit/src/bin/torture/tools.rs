//! The tools of the server that is killed: one that carries out programs, under several names and terms.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt, join_all};
use outlast::{AskError, Elicited, Raced, Recovery, Start, StepError, StepOptions, TaskContext, TaskTool};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult,
        JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
        Tool as Listed,
    },
    schemars::JsonSchema,
    service::RequestContext,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

use crate::{
    plan::{self, End, Op, Program, Signature, Tool},
    side::{Side, What},
};

pub(crate) fn policies() -> impl Iterator<Item = (&'static str, TaskTool)> {
    Tool::ALL.into_iter().map(|tool| {
        let terms = match tool {
            Tool::Works | Tool::Rounds => TaskTool::required().recovery(Recovery::Rerun),
            Tool::Once => TaskTool::required().recovery(Recovery::Fail),
            Tool::Later => {
                TaskTool::new().start(Start::After(Duration::from_millis(20))).recovery(Recovery::Rerun)
            }
        };
        // Nobody is to be given up: a task may be at work at every kill of its store.
        (tool.name(), terms.max_attempts(u32::MAX))
    })
}

/// The handler of the server.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) side: Arc<Side>,
}

#[derive(Deserialize)]
struct Arguments {
    marker: String,
    program: Program,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = JsonObject::from_iter([("type".into(), "object".into())]);
        let listed = Tool::ALL.map(|tool| Listed::new(tool.name(), "carries out a program", schema.clone()));
        Ok(ListToolsResult::with_all_items(listed.into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let task = TaskContext::from_request(&context);
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let unfit = |error: serde_json::Error| ErrorData::invalid_params(error.to_string(), None);
        let Arguments { marker, program } = serde_json::from_value(arguments).map_err(unfit)?;
        // What earlier rounds were answered travels in the request state.
        let mut told: BTreeMap<String, String> = match &request.request_state {
            Some(state) => serde_json::from_str(state).map_err(unfit)?,
            None => BTreeMap::new(),
        };
        for (key, answer) in request.input_responses.unwrap_or_default() {
            let answer = serde_json::to_value(answer).map_err(unfit)?;
            told.insert(key, answer["content"]["name"].as_str().unwrap_or_default().to_owned());
        }
        let (over, is_over) = watch::channel(());
        let attempt =
            Attempt { side: self.side.clone(), number: self.side.next_attempt(), marker, told, is_over };
        attempt.note(What::Attempt);
        let ended = attempt.carry_out(&task, &program).await;
        drop(over);
        ended
    }
}

/// One attempt at a program.
#[derive(Clone)]
struct Attempt {
    side: Arc<Side>,
    number: u64,
    marker: String,
    told: BTreeMap<String, String>,
    /// Its sender goes with the attempt, however that ends.
    is_over: watch::Receiver<()>,
}

/// Why a program does not go on.
enum Stop {
    Cancelled,
    /// It asks by ending its round.
    Round(String),
    Error(ErrorData),
}

type Told = Result<Vec<String>, Stop>;

impl Attempt {
    fn signature(&self) -> Signature {
        Signature { process: self.side.process(), attempt: self.number }
    }

    fn note(&self, what: What) {
        self.side.write(self.number, &self.marker, what);
    }

    async fn carry_out(&self, task: &TaskContext, program: &Program) -> Result<CallToolResponse, ErrorData> {
        let told = match self.all(task.clone(), String::new(), &program.ops).await {
            Ok(told) => told,
            Err(Stop::Cancelled) => {
                return match self.all(task.clone(), String::new(), &program.cleanup).await {
                    Err(Stop::Error(error)) => Err(error),
                    _ => Err(task.cancel_error()),
                };
            }
            Err(Stop::Round(key)) => return self.ask_round(&key),
            Err(Stop::Error(error)) => return Err(error),
        };
        match program.end {
            End::Value { pad } => {
                let pad = plan::padding(&self.marker, pad);
                let text = json!({"told": told, "pad": pad, "by": self.signature().bits()}).to_string();
                Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
            }
            End::ToolError => {
                let text = json!({"told": told, "pad": "", "by": self.signature().bits()}).to_string();
                Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
            }
            End::Error => Err(ErrorData::internal_error(
                "ends with an error",
                Some(json!({"marker": self.marker, "told": told, "by": self.signature().bits()})),
            )),
            End::Panic => panic!("{} {ON_PURPOSE}", self.marker),
        }
    }

    /// A round that asks one question.
    fn ask_round(&self, key: &str) -> Result<CallToolResponse, ErrorData> {
        let request = json!({"method": "elicitation/create", "params": {
            "mode": "form",
            "message": plan::question(&self.marker, key),
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        }});
        let unfit = |error: serde_json::Error| ErrorData::internal_error(error.to_string(), None);
        let request = serde_json::from_value(request).map_err(unfit)?;
        let state = serde_json::to_string(&self.told).map_err(unfit)?;
        self.note(What::Asking { key: key.to_owned() });
        Ok(InputRequiredResult::new(Some(BTreeMap::from([(key.to_owned(), request)])), Some(state)).into())
    }

    /// Carries out `ops` one after the other; `path` is what `task` puts before their keys.
    fn all<'a>(&'a self, task: TaskContext, path: String, ops: &'a [Op]) -> BoxFuture<'a, Told> {
        async move {
            let mut told = Vec::new();
            for op in ops {
                told.extend(self.one(&task, &path, op).await?);
            }
            Ok(told)
        }
        .boxed()
    }

    async fn one(&self, task: &TaskContext, path: &str, op: &Op) -> Told {
        match op {
            Op::Step { key, millis, fails } => {
                let full = format!("{path}{key}");
                let step_id = task.step_id(key);
                let tries = AtomicU32::new(0);
                let options = StepOptions::new().tries(fails + 1).backoff(Duration::from_millis(1));
                let work = || {
                    let nth = tries.fetch_add(1, Ordering::Relaxed);
                    self.work(full.clone(), step_id.clone(), *millis, nth < *fails)
                };
                let value: u64 = match task.step_with(key, options, work).await {
                    Ok(value) => value,
                    // A cancel ends the pauses between the tries.
                    Err(_) if *fails > 0 && task.is_cancelled() => return Err(Stop::Cancelled),
                    Err(error) => return Err(self.failed(&full, &error)),
                };
                self.note(What::Got { key: full.clone(), value });
                Ok(vec![format!("{full}={}", plan::unsigned(value))])
            }
            Op::Fails { key, millis } => {
                let full = format!("{path}{key}");
                let step_id = task.step_id(key);
                let work = || {
                    let work = self.work(full.clone(), step_id.clone(), *millis, false);
                    async move {
                        let value = plan::unsigned(work.await?);
                        Err(StepError::last(format!("final {value}")))
                    }
                };
                let ended: Result<u64, StepError> = task.step(key, work).await;
                let expected = format!("final {}", plan::value(&self.marker, &full));
                match ended {
                    Err(error) if error.to_string() == expected => {
                        self.note(What::GotError { key: full.clone() });
                        Ok(vec![format!("{full} failed")])
                    }
                    Err(error) => Err(self.failed(&full, &error)),
                    Ok(value) => Err(self.wrong(&format!("{full} returned {value}"))),
                }
            }
            Op::Ask { keys } => self.ask(task, path, keys).await,
            Op::AskUntil { key, millis } => {
                let full = format!("{path}{key}");
                self.note(What::Asking { key: full.clone() });
                let text = plan::question(&self.marker, &full);
                let patience = Duration::from_millis(*millis);
                match task.elicit_or_timeout::<Name>(key, &text, patience).await.map_err(stop)? {
                    Some(elicited) => self.heard(full, elicited),
                    None => {
                        self.note(What::TimedOut { key: full.clone() });
                        Ok(vec![format!("{full} timed out")])
                    }
                }
            }
            Op::Sleep { key, millis } => {
                let full = format!("{path}{key}");
                self.note(What::Sleeping { key: full.clone() });
                task.sleep(key, Duration::from_millis(*millis)).await.map_err(|_| Stop::Cancelled)?;
                self.note(What::Slept { key: full.clone() });
                Ok(vec![format!("{full} slept")])
            }
            Op::Race { key, first, second } => {
                let full = format!("{path}{key}");
                let [first, second] = [first, second].map(|ops| self.all(task.clone(), path.to_owned(), ops));
                let (is_first, told) = match task.race(key, first, second).await {
                    Raced::First(told) => (true, told),
                    Raced::Second(told) => (false, told),
                };
                self.note(What::Won { key: full.clone(), first: is_first });
                let mut all = vec![format!("{full} {}", if is_first { "first" } else { "second" })];
                all.extend(told?);
                Ok(all)
            }
            Op::Join { scope, rows } => {
                let rows = rows.iter().enumerate().map(|(number, ops)| {
                    self.all(task.scope(scope, number), plan::row(path, scope, number), ops)
                });
                // Each to its end, also when another one was cancelled.
                let told: Result<Vec<_>, _> = join_all(rows).await.into_iter().collect();
                Ok(told?.concat())
            }
            Op::Round { key } => match self.told.get(key) {
                Some(name) => {
                    self.note(What::Heard { key: key.clone(), name: name.clone() });
                    Ok(vec![format!("{key}<{name}")])
                }
                None => Err(Stop::Round(key.clone())),
            },
            Op::Leak { key } => {
                self.leak(task, key);
                Ok(Vec::new())
            }
        }
    }

    async fn ask(&self, task: &TaskContext, path: &str, keys: &[String]) -> Told {
        let full = |key: &String| format!("{path}{key}");
        for key in keys {
            self.note(What::Asking { key: full(key) });
        }
        if let [key] = keys {
            let text = plan::question(&self.marker, &full(key));
            let elicited = task.elicit::<Name>(key, &text).await.map_err(stop)?;
            return self.heard(full(key), elicited);
        }
        let questions = keys.iter().map(|key| {
            let question = json!({"method": "elicitation/create", "params": {
                "mode": "form",
                "message": plan::question(&self.marker, &full(key)),
                "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
            }});
            (key.clone(), question)
        });
        let answers = task.ask(questions).await.map_err(stop)?;
        let mut told = Vec::new();
        for key in keys {
            let name = answers[key]["content"]["name"].as_str().unwrap_or_default().to_owned();
            told.extend(self.heard(full(key), Elicited::Accept(Name { name }))?);
        }
        Ok(told)
    }

    fn heard(&self, key: String, elicited: Elicited<Name>) -> Told {
        let Elicited::Accept(Name { name }) = elicited else {
            return Err(self.wrong(&format!("{key} was declined, and everybody answers here")));
        };
        self.note(What::Heard { key: key.clone(), name: name.clone() });
        Ok(vec![format!("{key}<{name}")])
    }

    /// The work of a step: an effect outside, and some time.
    async fn work(&self, key: String, step_id: String, millis: u64, fails: bool) -> Result<u64, StepError> {
        let mut begun = Begun { attempt: self, key: &key, closed: false };
        self.note(What::Begin { key: key.clone(), step_id: step_id.clone() });
        self.side.effect(&step_id, &self.marker, &key);
        sleep(Duration::from_millis(millis)).await;
        begun.closed = true;
        if fails {
            self.note(What::Failed { key: key.clone() });
            return Err(std::io::Error::other("fails as its program says").into());
        }
        self.note(What::End { key: key.clone() });
        Ok(plan::signed(&self.marker, &key, self.signature()))
    }

    /// Leaves a child behind that keeps the context, and tries whatever writes when the attempt is over.
    fn leak(&self, task: &TaskContext, key: &str) {
        let (attempt, task, key) = (self.clone(), task.clone(), key.to_owned());
        tokio::spawn(async move {
            let mut is_over = attempt.is_over.clone();
            // An error is the news: the sender went with the attempt.
            while is_over.changed().await.is_ok() {}
            sleep(Duration::from_millis(15)).await;
            task.status(STALE);
            let step = task.step(&key, || async {
                attempt.note(What::Stale { key: key.clone() });
                Ok(0)
            });
            let [timer, question] = ["timer", "question"].map(|name| format!("{key}-{name}"));
            let all = async {
                tokio::join!(step, task.sleep(&timer, Duration::ZERO), task.elicit::<Name>(&question, STALE),)
            };
            // None of them resolves, and nobody waits for this child.
            let _ = tokio::time::timeout(Duration::from_millis(500), all).await;
        });
    }

    fn failed(&self, key: &str, error: &StepError) -> Stop {
        self.wrong(&format!("{key} failed: {error}"))
    }

    /// What no program does; the verdict finds it in the task's end.
    fn wrong(&self, what: &str) -> Stop {
        Stop::Error(ErrorData::internal_error(format!("wrong: {what}"), Some(json!({"marker": self.marker}))))
    }
}

/// What a panic says that is its program's end.
pub(crate) const ON_PURPOSE: &str = "panics on purpose";

/// What a context that was kept too long tries to say.
pub(crate) const STALE: &str = "said by a context that was kept too long";

fn stop(error: AskError) -> Stop {
    match error {
        AskError::Cancelled => Stop::Cancelled,
        other => Stop::Error(ErrorData::internal_error(format!("wrong: {other}"), None)),
    }
}

/// A step's work that is under way.
struct Begun<'a> {
    attempt: &'a Attempt,
    key: &'a str,
    closed: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.closed {
            self.attempt.note(What::Dropped { key: self.key.to_owned() });
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Name {
    name: String,
}
