//! Tools that use what outlasts their process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
    time::Duration,
};

use outlast::{Raced, StepError, TaskContext};
use rmcp::{
    ErrorData,
    model::{CallToolResponse, CallToolResult, ContentBlock, ErrorCode},
};
use serde_json::{Value, json};

use super::{gates::Gates, handler::form};

/// Every tool, and what it does.
pub(crate) const TOOLS: &[(&str, bool, &str)] = &[
    ("grows", true, "keeps a number at first, and wants a text there later"),
    ("reserved", true, "uses a key that is not its own"),
    ("unwritable", true, "has a step whose value is no JSON"),
    ("refused", true, "has a step that ends with an error of its own, for good"),
    ("chapters", true, "does a step in each turn of a loop, and waits at a gate"),
    ("stages", true, "waits at a gate, asks, and waits at another"),
    ("chatters", true, "waits at a gate, and says much"),
    ("patient", true, "does a bit of everything that a synchronous call can do too"),
];

/// How often a tool began for this task, in this and every other attempt of the test's process.
fn attempt(ctx: &TaskContext) -> u32 {
    static ATTEMPTS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let mut attempts = ATTEMPTS.lock().unwrap();
    let count = attempts.entry(ctx.step_id("attempts")).or_default();
    *count += 1;
    *count
}

pub(crate) async fn call(
    tool: &str,
    arguments: &Value,
    ctx: &TaskContext,
    gates: &Gates,
) -> Result<CallToolResponse, ErrorData> {
    let text = match tool {
        "grows" if attempt(ctx) == 1 => {
            let number: u32 = ctx.step("value", || async { Ok(5) }).await?;
            gates.wait("grown").await;
            number.to_string()
        }
        "grows" => ctx.step::<String, _, _>("value", || async { Ok("five".to_owned()) }).await?,
        "reserved" => ctx.step("outlast:mine", || async { Ok(String::new()) }).await?,
        "unwritable" => {
            let odd = HashMap::from([((1u8, 2u8), 3u8)]);
            let kept: Result<Value, _> = ctx
                .step("odd", || async { Ok(odd) })
                .await
                .map(|odd: HashMap<(u8, u8), u8>| json!(odd.len()));
            kept?.to_string()
        }
        "refused" => {
            let refused: Result<(), StepError> = ctx
                .step("pay", || async {
                    gates.reach("paying");
                    let error =
                        ErrorData::new(ErrorCode(-7), "the card was refused", Some(json!({"card": 3})));
                    Err(StepError::from(error).into_last())
                })
                .await;
            ctx.ask([("seen", form("Seen?"))]).await?;
            return Err(refused.unwrap_err().into());
        }
        "chapters" => {
            let mut texts = Vec::new();
            for chapter in 0..3 {
                let scope = ctx.scope("chapter", chapter);
                texts.push(scope.step("write", || async { Ok(scope.step_id("write")) }).await?);
                let answer = scope.ask([("ok", form("All right?"))]).await?;
                texts.push(answer["ok"]["content"]["name"].to_string());
            }
            texts.join(" ")
        }
        "stages" => {
            gates.wait("begin").await;
            let answers = ctx.ask([("who", form("Who?"))]).await?;
            gates.wait("end").await;
            format!("hello {}", answers["who"]["content"]["name"].as_str().unwrap_or_default())
        }
        "chatters" => {
            gates.wait("begin").await;
            for n in 0..20 {
                ctx.status(format!("{n} {}", arguments["text"].as_str().unwrap_or_default()));
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            "said enough".to_owned()
        }
        "patient" => {
            let options = outlast::StepOptions::new().tries(3).backoff(Duration::ZERO);
            let mut tries = 0;
            let third = || {
                tries += 1;
                let tries = tries;
                async move { if tries < 3 { Err(StepError::new("not yet")) } else { Ok(tries) } }
            };
            let third: u32 = ctx.step_with("third", options, third).await?;
            ctx.sleep("nap", Duration::from_millis(1)).await?;
            let raced = ctx.race("race", std::future::ready(1), std::future::pending::<()>()).await;
            let asked = ctx.ask_or_timeout("q", form("Q?"), Duration::ZERO).await;
            let asked = asked.map_or_else(|error| error.to_string(), |answer| format!("{answer:?}"));
            format!("{third} {} {asked}", raced == Raced::First(1))
        }
        other => return Err(ErrorData::invalid_params(format!("there is no tool '{other}'"), None)),
    };
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}
