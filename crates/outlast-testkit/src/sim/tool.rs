//! What carries the generated programs out, over the runtime's own interface.

use std::{
    collections::BTreeMap,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::{BoxFuture, join_all};
use outlast_core::{
    Call, InputKey, Payload, Question, StepKey, TaskError, TaskId, TaskState, Timestamp, Token, Wake,
};
use outlast_runtime::{AskRefused, Ended, Raced, Round, Run, Runner, StepFailure, StepOptions};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    program::{
        Body, End, Fact, OnCancel, Op, Program, START, Step, joined, round_key, slept, step_error,
        step_value, timed_out,
    },
    rng::mix,
    world::{Caller, Shared},
};

pub(super) struct Tool {
    pub(super) shared: Shared,
    pub(super) caller: Caller,
}

/// The parameters of a call: which task it is.
pub(super) fn params(id: TaskId) -> Payload {
    Payload::from_value(&json!({ "task": id.to_string() }))
}

#[async_trait]
impl Runner for Tool {
    async fn run(&self, call: Call, round: Option<Round>, run: Run) -> Ended {
        let id = call.params.to_value()["task"].as_str().and_then(|id| id.parse().ok());
        let id: TaskId = id.expect("every call of a simulation names its task");
        let (program, token) = {
            let mut world = self.shared.lock();
            let token = world.doors[self.caller.process].tokens.get(&id).copied();
            world.note(format_args!("{}.{} runs {id:?}", self.caller.process, self.caller.incarnation));
            if round.is_none() {
                world.oracle.begins(id);
            }
            (world.oracle.ledgers[&id].program.clone(), token)
        };
        let attempt = Attempt { tool: self, id, token: OnceLock::new(), run: &run, facts: Mutex::default() };
        if let Some(token) = token {
            let _ = attempt.token.set(token);
        }
        run.attend(attempt.run(&program, round)).await.unwrap_or(Ended::Dropped)
    }
}

/// Why a program does not go on.
#[derive(Debug)]
enum Stop {
    Cancelled,
    /// It ends with this error.
    Error(u64),
    /// The client cannot be asked.
    Undeclared,
}

struct Attempt<'a> {
    tool: &'a Tool,
    id: TaskId,
    /// Of the lease that it runs under, once its process was told of one.
    token: OnceLock<Token>,
    run: &'a Run,
    /// What this attempt saw. What it sees before it is a task is seen by no other.
    facts: Mutex<BTreeMap<String, Fact>>,
}

impl Attempt<'_> {
    async fn run(&self, program: &Program, round: Option<Round>) -> Ended {
        let ops = match &program.body {
            Body::Straight(ops) => ops,
            Body::Rounds(rounds) => return self.round(program, rounds, round),
        };
        let stop = match self.ops(ops).await {
            Ok(_) if program.misuses.is_some() => return self.misuse(program).await,
            Ok(value) => {
                return self.end(program, if program.fails { End::Error(value) } else { End::Value(value) });
            }
            Err(stop) => stop,
        };
        match stop {
            Stop::Error(error) => self.end(program, End::Error(error)),
            Stop::Undeclared => {
                self.say(Ended::Error(TaskError::new(UNDECLARED, "the client cannot be asked")))
            }
            Stop::Cancelled => self.after_cancel(program.on_cancel).await,
        }
    }

    /// The program came to its own end, which must be the one that is worked out without a runtime.
    fn end(&self, program: &Program, end: End) -> Ended {
        {
            let mut world = self.tool.shared.lock();
            let oracle = &mut world.oracle;
            let mut facts = oracle.ledgers[&self.id].facts.clone();
            facts.extend(self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone());
            let expected = program.evaluate(&facts);
            oracle.expect("a result is what its parts make it", expected == Some(end), || {
                format!("{:?} is {end:?} and not {expected:?}", self.id)
            });
        }
        self.say(match end {
            End::Value(value) => Ended::Result(Payload::from_value(&json!({ "value": value }))),
            End::Error(error) => Ended::Error(TaskError::new(FAILED, format!("error {error:x}"))),
        })
    }

    /// The program uses a key twice. That ends its task, and its code never hears of it.
    async fn misuse(&self, program: &Program) -> Ended {
        let again = step_key(program.misuses.as_deref().unwrap_or_default());
        let _ = self.run.step(again, &StepOptions::new(), || async { Ok(Payload::null()) }).await;
        let mut world = self.tool.shared.lock();
        world.oracle.expect("a key that is used twice ends the task", false, || format!("{:?}", self.id));
        Ended::Dropped
    }

    /// Remembers that the tool said this, so that nothing else may come out of it.
    fn say(&self, ended: Ended) -> Ended {
        let state = match &ended {
            Ended::Result(result) => TaskState::Completed { result: result.clone() },
            Ended::Error(error) => TaskState::Failed { error: error.clone() },
            _ => TaskState::Cancelled,
        };
        self.tool.shared.lock().oracle.ends(self.id, state);
        ended
    }

    async fn after_cancel(&self, what: OnCancel) -> Ended {
        {
            let mut world = self.tool.shared.lock();
            let asked = world.oracle.was_cancelled(self.id);
            world
                .oracle
                .expect("work hears of a cancel only when there was one", asked, || format!("{:?}", self.id));
            world.coverage.count("cancels that work heard");
        }
        match what {
            OnCancel::Exit => self.say(Ended::Cancelled),
            OnCancel::CleanUp => {
                let step =
                    Step { key: "clean up".to_owned(), fails: 0, tries: 1, last_error: false, takes: 5 };
                let _ = self.step(&step).await;
                self.say(Ended::Cancelled)
            }
            OnCancel::Error => self.say(Ended::Error(TaskError::new(FAILED, "interrupted"))),
            OnCancel::Result => self.say(Ended::Result(Payload::from_value(&json!({ "value": "so far" })))),
        }
    }

    /// One round of a multi-round-trip tool. Its state is the number of the round and the value so far.
    fn round(&self, program: &Program, rounds: &[Vec<String>], round: Option<Round>) -> Ended {
        let (number, mut value) = match round.as_ref().and_then(|round| round.state.as_ref()) {
            Some(state) => serde_json::from_str(state).expect("the state is what the round before made it"),
            None => (0, START),
        };
        if let Some(round) = round {
            let answers: BTreeMap<_, _> = round.answers.into_iter().collect();
            for own in &rounds[number - 1] {
                let Some(answer) = answers.get(own) else { continue };
                value = mix(value, self.answered(&round_key(number - 1, own), answer));
            }
        }
        let Some(asked) = rounds.get(number) else {
            return self.end(program, if program.fails { End::Error(value) } else { End::Value(value) });
        };
        Ended::InputRequired {
            questions: asked.iter().map(|own| (own.clone(), question(own))).collect(),
            state: serde_json::to_string(&(number + 1, value)).ok(),
            whole: Payload::null(),
        }
    }

    fn ops<'a>(&'a self, ops: &'a [Op]) -> BoxFuture<'a, Result<u64, Stop>> {
        Box::pin(async move {
            let mut value = START;
            for op in ops {
                if let Some(next) = self.op(op).await? {
                    value = mix(value, next);
                }
            }
            Ok(value)
        })
    }

    async fn op(&self, op: &Op) -> Result<Option<u64>, Stop> {
        Ok(match op {
            Op::Step(step) => Some(self.step(step).await?),
            Op::Ask(keys) => Some(self.ask(keys).await?),
            Op::AskUntil { key, after } => Some(self.ask_until(key, *after).await?),
            Op::Sleep { key, millis, until } => {
                let wake = Duration::from_millis(*millis);
                let wake = if *until { Wake::At(self.store_now() + wake) } else { Wake::After(wake) };
                self.run.sleep(step_key(key), wake).await.map_err(|_| Stop::Cancelled)?;
                let now = self.store_now();
                self.tool.shared.lock().oracle.timer_passed(self.id, key, now);
                Some(slept(key))
            }
            Op::Race { key, first, second } => {
                let raced = self.run.race(step_key(key), self.ops(first), self.ops(second)).await;
                let (winner, value) = match raced {
                    Raced::First(value) => (0, value),
                    Raced::Second(value) => (1, value),
                };
                self.fact(key, Fact::Winner(winner));
                Some(mix(value?, u64::from(winner)))
            }
            Op::Extend(millis) => {
                self.run.extend_ttl(Duration::from_millis(*millis)).await;
                None
            }
            Op::Join(branches) => {
                let ends = join_all(branches.iter().map(|branch| self.ops(branch))).await;
                let mut values = Vec::new();
                for end in ends {
                    match end {
                        Ok(value) => values.push(Ok(value)),
                        Err(Stop::Error(error)) => values.push(Err(error)),
                        Err(stop) => return Err(stop),
                    }
                }
                Some(joined(values).map_err(Stop::Error)?)
            }
            Op::Say(message) => {
                self.run.status(message.clone());
                None
            }
            Op::Work(millis) => {
                sleep(Duration::from_millis(*millis)).await;
                None
            }
        })
    }

    async fn step(&self, step: &Step) -> Result<u64, Stop> {
        let mut tries = 0;
        let options = StepOptions::new().tries(step.tries).backoff(Duration::from_millis(20));
        let done = self.run.step(step_key(&step.key), &options, || {
            tries += 1;
            self.try_step(step, tries)
        });
        match done.await {
            Ok(value) => {
                let value = value.to_value();
                self.fact(&step.key, Fact::Execution(value["execution"].as_u64().unwrap_or_default()));
                Ok(value["value"].as_u64().unwrap_or_default())
            }
            Err(error) if error.code == LAST => {
                self.fact(
                    &step.key,
                    Fact::Execution(error.data.and_then(|data| data.to_value().as_u64()).unwrap_or_default()),
                );
                Ok(step_error(&step.key))
            }
            // A cancel ends the pauses between tries.
            Err(_) if !step.gives_up() && self.run.cancel().is_cancelled() => Err(Stop::Cancelled),
            Err(_) => Err(Stop::Error(step_error(&step.key))),
        }
    }

    /// The code of a step.
    async fn try_step(&self, step: &Step, tries: u32) -> Result<Payload, StepFailure> {
        {
            let mut world = self.tool.shared.lock();
            let door = &world.doors[self.tool.caller.process];
            let (told, worker) = (door.tokens.get(&self.id).copied(), door.worker.clone());
            if let Some(told) = told {
                let _ = self.token.set(told);
            }
            let token = self.token.get().copied();
            world.note(format_args!(
                "  {}.{} does {}",
                self.tool.caller.process, self.tool.caller.incarnation, step.key
            ));
            world.step_begins(self.id, &step.key, token, &worker);
        }
        if step.takes > 0 {
            sleep(Duration::from_millis(step.takes)).await;
        }
        if tries <= step.fails {
            return Err(StepFailure { error: TaskError::new(FAILED, "not yet"), last: false });
        }
        let execution = self.tool.shared.lock().number();
        if step.last_error {
            let error = TaskError {
                data: Some(Payload::from_value(&execution.into())),
                ..TaskError::new(LAST, "never")
            };
            return Err(StepFailure { error, last: true });
        }
        Ok(Payload::from_value(&json!({ "value": step_value(&step.key), "execution": execution })))
    }

    fn store_now(&self) -> Timestamp {
        self.tool.shared.lock().store_now()
    }

    /// Remembers what this attempt sees. Every other attempt must see it too, once it is durable.
    fn fact(&self, key: &str, fact: Fact) {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), fact);
        if self.run.is_task() {
            self.tool.shared.lock().oracle.fact(self.id, key, fact);
        }
    }

    async fn ask_until(&self, key: &str, after: u64) -> Result<u64, Stop> {
        let _wanted = Wanted::new(self, &[key.to_owned()]);
        let wake = Wake::After(Duration::from_millis(after));
        let answer = self.run.ask_until(input(key), question(key), wake).await.map_err(refused)?;
        Ok(match answer {
            Some(answer) => self.answered(key, &answer),
            None => {
                let now = self.store_now();
                self.tool.shared.lock().oracle.timer_passed(self.id, &format!("outlast:limit:{key}"), now);
                self.fact(key, Fact::TimedOut);
                timed_out(key)
            }
        })
    }

    async fn ask(&self, keys: &[String]) -> Result<u64, Stop> {
        let _wanted = Wanted::new(self, keys);
        let since = self.tool.shared.lock().now;
        let questions = keys.iter().map(|key| (input(key), question(key))).collect();
        let answers = self.run.ask(questions).await.map_err(refused)?;
        {
            let asked: Vec<_> = answers.values().map(asked_as).collect();
            let mut world = self.tool.shared.lock();
            let now = world.now;
            world.oracle.heard(self.id, &asked, since, now);
        }
        Ok(keys.iter().fold(0, |value, key| mix(value, self.answered(key, &answers[&input(key)]))))
    }

    /// The value of an answer, which must be the one that was acknowledged.
    fn answered(&self, key: &str, answer: &Payload) -> u64 {
        let value = answer.to_value()["content"]["value"].as_u64().unwrap_or_default();
        let mut world = self.tool.shared.lock();
        world.oracle.answered(self.id, &asked_as(answer), answer);
        world.coverage.count("answers that work was given");
        drop(world);
        self.fact(key, Fact::Answer(value));
        value
    }
}

/// Questions that the work wants answered, until it is dropped. What is unloaded leaves them to the next attempt.
struct Wanted<'a> {
    attempt: &'a Attempt<'a>,
    keys: Vec<String>,
}

impl<'a> Wanted<'a> {
    fn new(attempt: &'a Attempt<'a>, keys: &[String]) -> Self {
        let mut world = attempt.tool.shared.lock();
        keys.iter().for_each(|key| world.oracle.wants(attempt.id, key, true));
        Self { attempt, keys: keys.to_vec() }
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut world = self.attempt.tool.shared.lock();
        // Nothing is taken back by a process that dies.
        if world.lives(self.attempt.tool.caller) && !self.attempt.run.unload().is_cancelled() {
            self.keys.iter().for_each(|key| world.oracle.wants(self.attempt.id, key, false));
        }
    }
}

/// The code of the errors that programs end with.
const FAILED: i64 = -32_000;
const LAST: i64 = -32_001;
const UNDECLARED: i64 = -32_021;

fn refused(refused: AskRefused) -> Stop {
    match refused {
        AskRefused::Cancelled => Stop::Cancelled,
        AskRefused::Undeclared(_) => Stop::Undeclared,
        other => unreachable!("programs ask as they should: {other}"),
    }
}

fn step_key(key: &str) -> StepKey {
    StepKey::new(key).expect("generated keys are well formed")
}

pub(super) fn input(key: &str) -> InputKey {
    InputKey::new(key).expect("generated keys are well formed")
}

fn question(key: &str) -> Question {
    let request = json!({"method": "elicitation/create", "params": {"message": key, "requestedSchema": {"type": "object", "properties": {}}}});
    Question::new(&request).expect("that may be asked")
}

/// An answer of a client. Each variant is another one.
pub(super) fn answer(id: TaskId, key: &InputKey, variant: u64) -> Payload {
    let value = mix(super::rng::digest(key.as_str()), mix(u64::from(id.as_bytes()[0]), variant));
    Payload::from_value(&json!({"action": "accept", "content": {"key": key.as_str(), "value": value}}))
}

/// The key that the question of this answer was asked under.
fn asked_as(answer: &Payload) -> String {
    answer.to_value()["content"]["key"].as_str().unwrap_or_default().to_owned()
}

/// Something that is no answer to any question.
pub(super) fn nonsense() -> Payload {
    Payload::from_value(&Value::from("yes"))
}
