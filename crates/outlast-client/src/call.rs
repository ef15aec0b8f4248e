//! One `tools/call`, from the first request to its result or its task.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use rmcp::{
    RoleClient,
    model::{CallToolRequestParams, CallToolResult, ClientCapabilities, ErrorCode, ErrorData},
    service::RequestHandle,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    authorization::AuthorizationSource,
    book::Book,
    calls::{Behind, During},
    client::{Inner, Started},
    clock,
    connection::{Connection, Failure, is_missing_capability, keyed, left, random_text},
    error::{CallError, CallErrorKind},
    follow::Origin,
    handle::{TaskHandle, read_result},
    options::CallOptions,
    pace, pump,
    registry::Created,
    saved::{Generation, SavedTask},
    schema,
    tap::{User, with_tasks},
    task::{Invalid, Question, Task, read_seed},
    tools::Tool,
};

/// The code for headers that do not agree with the body (S29): the tool's definition has changed.
const HEADER_MISMATCH: ErrorCode = ErrorCode(-32020);
/// How often a call is repeated that a server turns away for now.
const BUSY_TRIES: u32 = 5;
/// The longest wait for such a server where no deadline bounds it.
const BUSY_WAIT: Duration = Duration::from_secs(60);

/// Makes a call; sees it through the questions that a server asks before it has a task (S16).
pub(crate) async fn start(
    client: &Arc<Inner>,
    params: CallToolRequestParams,
    options: CallOptions,
    until: Option<Instant>,
) -> Result<Started, CallError> {
    let mut call = Call::prepare(client, params, options, until).await?;
    let max_rounds = client.link.options().max_rounds;
    let mut waits = 0;
    for _ in 0..=max_rounds {
        let value = call.answer().await?;
        match call.read(value).await? {
            Answer::Result(result) => return Ok(Started::Ready(result)),
            Answer::Task(seed) => return call.follow(seed).await.map(Started::Task),
            Answer::Asks { questions, state } => {
                if questions.is_empty() {
                    // S20b: no more than "come back later".
                    waits += 1;
                    call.pause(pace::next_retry(waits, None, pace::random())).await?;
                }
                let answers = call.ask(questions).await?;
                call.next_round(&answers, state);
            }
        }
    }
    Err(CallErrorKind::TooManyQuestions.into())
}

enum Answer {
    Result(CallToolResult),
    Task(Value),
    Asks { questions: BTreeMap<String, Question>, state: Option<String> },
}

struct Call<'c> {
    client: &'c Arc<Inner>,
    /// The call is made on one connection, session and all, or not at all.
    connection: Arc<Connection>,
    name: String,
    params: Value,
    tool: Tool,
    key: String,
    /// Whether the caller gave the key, and so may have made this call before.
    is_under_given_key: bool,
    round: u32,
    /// Whether a task of 2025-11-25 was asked for.
    asks_for_task: bool,
    until: Option<Instant>,
    handler: Option<User>,
    person: Option<Arc<str>>,
    authorization: Option<AuthorizationSource>,
}

impl<'c> Call<'c> {
    async fn prepare(
        client: &'c Arc<Inner>,
        params: CallToolRequestParams,
        options: CallOptions,
        until: Option<Instant>,
    ) -> Result<Self, CallError> {
        let name = params.name.to_string();
        let mut params = serde_json::to_value(params).map_err(|_| {
            CallError::new(CallErrorKind::InvalidResponse("the arguments are no JSON".into()))
        })?;
        in_time(until)?;
        let request = client.link.options().request_timeout;
        let mut is_first = true;
        let (connection, tool) = loop {
            let connection = bounded(until, client.link.connection()).await?;
            match within(until, connection.tools.get(&connection, &name, false, request)).await? {
                Ok(tool) => break (connection, tool),
                // It had gone, and nobody had noticed; nothing has been called yet.
                Err(Failure::Lost(_)) if is_first && connection.is_closed() => is_first = false,
                Err(failure) => return Err(failure.into_kind().into()),
            }
        };
        let asks_for_task =
            connection.generation == Generation::Experimental && tool.takes_task && connection.offers_tasks();
        if asks_for_task {
            params["task"] = options.ttl_ms.map_or_else(|| json!({}), |ttl| json!({ "ttl": ttl }));
        }
        let is_under_given_key = options.idempotency_key.is_some();
        let key = options.idempotency_key.unwrap_or_else(random_text);
        Ok(Self {
            client,
            connection,
            name,
            params,
            tool,
            key,
            is_under_given_key,
            round: 0,
            asks_for_task,
            until,
            handler: options.handler,
            person: options.person,
            authorization: options.authorization,
        })
    }

    /// Sends the call, again where that is safe, and gives the answer.
    async fn answer(&mut self) -> Result<Value, CallError> {
        let mut lost = None;
        let answer = self.answer_or_lose(&mut lost).await;
        match (answer, lost) {
            // No more than a deadline only for those who may call again.
            (Err(error), Some(why)) if *error.kind() == CallErrorKind::Deadline && !self.may_call_again() => {
                Err(CallErrorKind::OutcomeUnknown(why).into())
            }
            (answer, _) => answer,
        }
    }

    /// As [`answer`](Self::answer). How the call was `lost` is kept, once it was: the tool may have run, whatever becomes of
    /// the repeat.
    async fn answer_or_lose(&mut self, lost: &mut Option<String>) -> Result<Value, CallError> {
        let (mut turned_away, mut refreshed) = (0, false);
        loop {
            let failure = match self.send().await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if let Err(late) = in_time(self.until) {
                match failure {
                    Failure::Lost(why) => _ = lost.get_or_insert(why),
                    Failure::Overdue => _ = lost.get_or_insert_with(|| "no answer came in time".into()),
                    _ => {}
                }
                return Err(late);
            }
            match failure {
                // The server may be starting again; a repeat that does not reach it is none.
                Failure::Unreached(_) if lost.is_some() && turned_away < BUSY_TRIES => {
                    turned_away += 1;
                    self.pause(pace::next_retry(turned_away, None, pace::random())).await?;
                    self.connect_for_repeat(lost.as_deref()).await?;
                }
                Failure::Busy(delay) if turned_away < BUSY_TRIES => {
                    turned_away += 1;
                    let wait = pace::next_retry(turned_away, delay, pace::random());
                    if self.until.is_none() && wait > BUSY_WAIT {
                        return Err(CallErrorKind::Busy(delay).into());
                    }
                    self.pause(wait).await?;
                }
                Failure::Refused(error) if error.code == HEADER_MISMATCH && !refreshed => {
                    refreshed = true;
                    let bound = self.client.link.options().request_timeout;
                    let listed = self.connection.tools.get(&self.connection, &self.name, true, bound);
                    self.tool = bounded(self.until, listed).await?;
                }
                Failure::Refused(error) if is_missing_capability(error.code) => {
                    let why = format!(
                        "the server says that the tool needs what this client does not declare ({})",
                        error.message
                    );
                    return Err(CallError::new(CallErrorKind::Unsupported(why)).with_answer(error));
                }
                Failure::SessionEnded => {
                    self.client.link.drop_connection(&self.connection);
                    let end = lost.take().map_or(CallErrorKind::SessionEnded, CallErrorKind::OutcomeUnknown);
                    return Err(end.into());
                }
                Failure::Lost(why) => {
                    if lost.is_some() || !self.may_repeat() {
                        return Err(CallErrorKind::OutcomeUnknown(lost.take().unwrap_or(why)).into());
                    }
                    *lost = Some(why);
                    self.connect_for_repeat(lost.as_deref()).await?;
                }
                // An answer to the repeat is the answer.
                Failure::Refused(error) => return Err(CallErrorKind::Failed(error).into()),
                other => {
                    let end = lost.take().map_or_else(|| other.into_kind(), CallErrorKind::OutcomeUnknown);
                    return Err(end.into());
                }
            }
        }
    }

    /// Whether a call that may have run can be made again: the server recognises it, or the tool does no more by it. Never in
    /// another session than the first.
    fn may_repeat(&self) -> bool {
        self.connection.session.is_none()
            && (self.connection.recognises_repeats(&self.name) || self.tool.is_repeatable)
    }

    /// Whether the caller can make the call again, by a call of its own: that has another key, if the caller gave none.
    fn may_call_again(&self) -> bool {
        self.tool.is_repeatable || (self.is_under_given_key && self.connection.recognises_repeats(&self.name))
    }

    /// The connection for a repeat, which is another one where the first was lost altogether; a server that is not what it
    /// was gets none.
    async fn connect_for_repeat(&mut self, lost: Option<&str>) -> Result<(), CallError> {
        let unknown = || CallErrorKind::OutcomeUnknown(lost.unwrap_or_default().to_owned());
        let generation = self.connection.generation;
        self.connection = within(self.until, self.client.link.connection()).await?.map_err(|_| unknown())?;
        if self.connection.generation != generation || !self.may_repeat() {
            return Err(unknown().into());
        }
        Ok(())
    }

    async fn send(&self) -> Result<Value, Failure> {
        let bound = match self.until {
            Some(_) => left(self.until, Duration::MAX),
            None => self.client.link.options().call_timeout,
        };
        // Each round is a request of its own, and so has a key of its own.
        let key = match self.round {
            0 => self.key.clone(),
            round => format!("{}/{round}", self.key),
        };
        let sending = self.connection.calls.sending().await;
        let params = keyed(self.params.clone(), &key);
        let authorization = self.authorization.as_ref().and_then(|source| source());
        let handle = self.connection.send_as("tools/call", params, self.declared(), authorization).await?;
        let behind = self.handler.clone().map(|handler| Behind { handler, person: self.person.clone() });
        let mut during = behind.map(|behind| self.connection.calls.during(&handle, behind, None));
        drop(sending);
        let mut sent = Sent(Some(handle));
        let Some(handle) = &mut sent.0 else { unreachable!("it has just been put there") };
        match tokio::time::timeout(bound, &mut handle.rx).await {
            Ok(answer) => {
                sent.0 = None;
                during.iter_mut().for_each(During::answered);
                self.connection.outcome(answer)
            }
            // Nothing was lost: the server has it, and takes longer than the caller waits.
            Err(_) => Err(Failure::Overdue),
        }
    }

    /// What the one declares who made the call, where that is not the client (S1: each request says for itself).
    fn declared(&self) -> Option<ClientCapabilities> {
        self.handler.as_ref().map(|handler| with_tasks(handler.get_info()).capabilities)
    }

    /// What an answer is, by its `resultType` (S8).
    async fn read(&self, value: Value) -> Result<Answer, CallError> {
        let invalid = |why: &str| Err(CallErrorKind::InvalidResponse(why.into()).into());
        let Value::Object(fields) = value else {
            return invalid("the answer to `tools/call` is no object");
        };
        match fields.get("resultType") {
            None => {}
            Some(Value::String(kind)) => match kind.as_str() {
                "complete" => {}
                // C26, S31: never an empty success.
                "task" => {
                    let may =
                        self.connection.generation == Generation::Extension && self.connection.offers_tasks();
                    return if may {
                        Ok(Answer::Task(Value::Object(fields)))
                    } else {
                        invalid("the server answered with a task, and offers none")
                    };
                }
                "input_required" => return read_questions(&fields),
                _ => return invalid("`resultType` of the answer to `tools/call` is unknown"),
            },
            Some(_) => return invalid("`resultType` of the answer to `tools/call` is no string"),
        }
        let is_result =
            ["content", "structuredContent", "isError"].iter().any(|field| fields.contains_key(*field));
        if let Some(task) = fields.get("task").filter(|_| !is_result) {
            return match self.asks_for_task {
                true => Ok(Answer::Task(task.clone())),
                false => invalid("the server answered with a task that was not asked for"),
            };
        }
        let result = read_result(fields)?;
        match schema::misfit(self.schema(), &result).await {
            None => Ok(Answer::Result(result)),
            Some(why) => Err(CallErrorKind::OutputSchema(why).into()),
        }
    }

    fn schema(&self) -> Option<&Value> {
        self.tool.output_schema.as_ref().filter(|_| self.client.link.options().validate_output)
    }

    /// Puts questions that were asked before there is a task. All are put; the first that fails ends the call.
    async fn ask(&self, questions: BTreeMap<String, Question>) -> Result<BTreeMap<String, Value>, CallError> {
        let put = questions.iter().map(|(key, question)| async move {
            pump::put(&self.connection, self.handler.clone(), question, key)
                .await
                .map(|answer| (key.clone(), answer))
                .map_err(|error: ErrorData| CallErrorKind::Unanswered { key: key.clone(), error })
        });
        let answers = within(self.until, join_all(put)).await?;
        Ok(answers.into_iter().collect::<Result<_, _>>()?)
    }

    fn next_round(&mut self, answers: &BTreeMap<String, Value>, state: Option<String>) {
        self.round += 1;
        if let Some(params) = self.params.as_object_mut() {
            params.remove("inputResponses");
            params.remove("requestState");
            if !answers.is_empty() {
                params.insert("inputResponses".into(), json!(answers));
            }
            if let Some(state) = state {
                params.insert("requestState".into(), state.into());
            }
        }
    }

    /// The call has become a task: it is written down before the caller has it (S26).
    async fn follow(self, seed: Value) -> Result<TaskHandle, CallError> {
        let (task, wants_a_look) =
            read_seed(&seed).map_err(|Invalid(why)| CallError::new(CallErrorKind::InvalidResponse(why)))?;
        let written = self.written_down(&task).await;
        let origin = Origin {
            id: task.id.clone(),
            tool: self.name.clone(),
            created_at: task.created_at,
            first_seen: written.as_ref().map_or_else(clock::wall, |written| written.first_seen),
            generation: self.connection.generation,
            session: self.connection.session.clone(),
            output_schema: self.schema().cloned(),
        };
        let Inner { link, registry, store } = &**self.client;
        let created = Created {
            task,
            wants_a_look,
            connection: &self.connection,
            may_be_known: self.is_under_given_key,
            book: written
                .map(|written| Book::resumed(written.answers, written.delivered))
                .unwrap_or_default(),
        };
        let followed = registry.created(link, store.clone(), origin, created);
        if let Some(handler) = self.handler {
            followed.set_handler(handler);
        }
        if let Some(authorization) = self.authorization {
            followed.set_authorization(authorization);
        }
        let handle = TaskHandle::new(followed);
        // The task is there: whoever gives up on the store has its handle.
        within(self.until, handle.keep())
            .await
            .unwrap_or_else(|late| Err(late.with_handle(handle.clone())))?;
        Ok(handle)
    }

    /// What an earlier call under the same key has written down of the task, in this process or another.
    async fn written_down(&self, task: &Task) -> Option<SavedTask> {
        let store = self.client.store.as_ref().filter(|_| self.is_under_given_key)?;
        let server = self.client.link.server().name();
        let saved = store.list(server).await.inspect_err(|error| {
            tracing::warn!(%error, "the handles could not be read; questions that were answered may be asked again");
        });
        saved.ok()?.into_iter().find(|saved| {
            saved.task_id == task.id
                && saved.created_at == task.created_at
                && saved.session == self.connection.session
        })
    }

    async fn pause(&self, wait: Duration) -> Result<(), CallError> {
        within(self.until, tokio::time::sleep(wait)).await
    }
}

fn read_questions(fields: &serde_json::Map<String, Value>) -> Result<Answer, CallError> {
    let invalid = |why: &str| Err(CallErrorKind::InvalidResponse(why.into()).into());
    let questions = match fields.get("inputRequests") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(Value::Object(questions)) => {
            questions.iter().map(|(key, question)| (key.clone(), Question::new(question.clone()))).collect()
        }
        Some(_) => return invalid("`inputRequests` is no object"),
    };
    let state = match fields.get("requestState") {
        None | Some(Value::Null) => None,
        Some(Value::String(state)) => Some(state.clone()),
        Some(_) => return invalid("`requestState` is no string"),
    };
    if questions.is_empty() && state.is_none() {
        return invalid("the server asks for input and names none");
    }
    Ok(Answer::Asks { questions, state })
}

/// A call that has been sent. Given up before its answer, it is cancelled as a request (S22: which is no task).
struct Sent(Option<RequestHandle<RoleClient>>);

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(request) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(request.cancel(Some("the caller has given up".into())));
        }
    }
}

/// A budget that is spent does no I/O.
fn in_time(until: Option<Instant>) -> Result<(), CallError> {
    match until {
        Some(until) if until <= clock::now() => Err(CallErrorKind::Deadline.into()),
        _ => Ok(()),
    }
}

async fn within<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Result<T, CallError> {
    match until {
        Some(until) => tokio::time::timeout_at(until, work).await.map_err(|_| CallErrorKind::Deadline.into()),
        None => Ok(work.await),
    }
}

async fn bounded<T>(
    until: Option<Instant>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, CallError> {
    within(until, work).await?.map_err(|failure| failure.into_kind().into())
}
