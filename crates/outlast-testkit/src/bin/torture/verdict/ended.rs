//! How a task ended: as its program does when its callers answer what they answered.

use std::time::Duration;

use serde_json::Value;

use super::Case;
use crate::{
    ledger::Shown,
    plan::{self, End, Op, Tool},
    side::What,
};

/// What a task that must not run twice says when its server died under it.
const UNKNOWN: &str = "its outcome is unknown";

impl Case<'_> {
    pub(super) fn ended(&self) -> Vec<String> {
        let ended = match (self.task.ended_inline(), self.task.end()) {
            (Some((is_error, body)), _) => self.ended_inline(is_error, body),
            (None, Some((_, shown))) => self.ended_as(shown),
            (None, None) if self.task.is_lost() => Ok(()),
            (None, None) => Err(match self.task.last_shown() {
                Some(shown) => format!("is stuck: {}", shown.0),
                None => "was never seen".to_owned(),
            }),
        };
        ended.err().into_iter().collect()
    }

    fn ended_inline(&self, is_error: bool, body: &Value) -> Result<(), String> {
        if is_error { self.is_own_error(body) } else { self.is_own_result(body) }
    }

    fn ended_as(&self, shown: &Shown) -> Result<(), String> {
        let is_once = self.task.plan.tool == Tool::Once;
        let died_at_work = is_once && self.was_lost_at_work();
        // A worker that let it go, because it did not hear from the store for a lease, says so too.
        let may_have_died = died_at_work || is_once && self.history.replicas.is_some();
        match shown.status() {
            "failed" if died_at_work || may_have_died && says(&shown.0["error"]["message"]) => {
                let honest = says(&shown.0["statusMessage"]) && says(&shown.0["error"]["message"]);
                if honest {
                    Ok(())
                } else {
                    Err(format!("was at work at a kill, and does not say so: {}", shown.0))
                }
            }
            status if died_at_work => {
                Err(format!("must not run twice, was at work at a kill, and is {status}"))
            }
            "completed" => self.is_own_result(&shown.0["result"]),
            "failed" => self.is_own_error(&shown.0["error"]),
            "cancelled" if self.task.cancel().0.is_some() => Ok(()),
            _ => Err(format!("ended otherwise than its program: {}", shown.0)),
        }
    }

    /// Whether its worker was lost while it had the task: of one server that was killed the store's file says so, and of
    /// several the journal.
    fn was_lost_at_work(&self) -> bool {
        if self.history.replicas.is_some() {
            return self.journal.iter().any(|entry| entry.kind == "lease_lost");
        }
        let left = self.history.kills.iter().filter_map(|kill| kill.left.tasks.get(self.marker));
        left.flatten().any(|kept| kept.place.is_leased())
    }

    fn is_own_result(&self, result: &Value) -> Result<(), String> {
        let (is_error, pad) = match self.task.plan.program.end {
            End::Value { pad } => (false, pad),
            End::ToolError => (true, 0),
            End::Error | End::Panic => return Err(format!("has a result, and its program none: {result}")),
        };
        if result["isError"].as_bool().unwrap_or_default() != is_error {
            return Err(format!("is a tool's error where it should not, or the other way: {result}"));
        }
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        let text: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {result}"))?;
        if text["pad"] != plan::padding(self.marker, pad) {
            return Err("its padding was damaged".to_owned());
        }
        self.is_explained(&text["told"])
    }

    fn is_own_error(&self, error: &Value) -> Result<(), String> {
        match self.task.plan.program.end {
            End::Error
                if error["data"]["marker"] == self.marker && error["message"] == "ends with an error" =>
            {
                self.is_explained(&error["data"]["told"])
            }
            End::Panic if error["message"].as_str().is_some_and(|message| message.contains("panicked")) => {
                Ok(())
            }
            _ => Err(format!("has an error that its program does not end with: {error}")),
        }
    }

    /// Whether this is what the program tells.
    fn is_explained(&self, told: &Value) -> Result<(), String> {
        let told: Vec<&str> = told.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let rest = self.explain(&self.task.plan.program.ops, "", &told)?;
        if rest.is_empty() { Ok(()) } else { Err(format!("tells more than its program: {rest:?}")) }
    }

    /// Takes what `ops` tell off the front of `told`, and returns the rest.
    fn explain<'t>(&self, ops: &[Op], path: &str, mut told: &'t [&'t str]) -> Result<&'t [&'t str], String> {
        for op in ops {
            told = match op {
                Op::Step { key, .. } => {
                    let full = format!("{path}{key}");
                    is_next(told, &format!("{full}={}", plan::value(self.marker, &full)))?
                }
                Op::Fails { key, .. } => is_next(told, &format!("{path}{key} failed"))?,
                Op::Sleep { key, .. } => is_next(told, &format!("{path}{key} slept"))?,
                Op::Ask { keys } => {
                    let mut told = told;
                    for key in keys {
                        told = self.is_answer(told, &format!("{path}{key}"))?;
                    }
                    told
                }
                Op::Round { key } => self.is_answer(told, key)?,
                Op::AskUntil { key, millis } => {
                    let full = format!("{path}{key}");
                    match is_next(told, &format!("{full} timed out")) {
                        Ok(rest) => {
                            self.may_time_out(&full, Duration::from_millis(*millis))?;
                            rest
                        }
                        Err(_) => self.is_answer(told, &full)?,
                    }
                }
                Op::Race { key, first, second } => {
                    let full = format!("{path}{key}");
                    match is_next(told, &format!("{full} first")) {
                        Ok(rest) => self.explain(first, path, rest)?,
                        Err(_) => self.explain(second, path, is_next(told, &format!("{full} second"))?)?,
                    }
                }
                Op::Join { scope, rows } => {
                    let mut told = told;
                    for (number, ops) in rows.iter().enumerate() {
                        told = self.explain(ops, &plan::row(path, scope, number), told)?;
                    }
                    told
                }
                Op::Leak { .. } => told,
            };
        }
        Ok(told)
    }

    /// The answer to a question is one that was sent, and the acknowledged one if there is one.
    fn is_answer<'t>(&self, told: &'t [&'t str], key: &str) -> Result<&'t [&'t str], String> {
        let (told, rest) = told.split_first().ok_or_else(|| format!("tells nothing of {key}"))?;
        let name = told.strip_prefix(key).and_then(|told| told.strip_prefix('<'));
        let name = name.ok_or_else(|| format!("tells {told} where the answer to {key} belongs"))?;
        let of_key = |shown: &str| plan::own_key(shown) == key;
        let acknowledged = self.task.acknowledged();
        let right: Vec<&str> =
            acknowledged.iter().filter(|(shown, _)| of_key(shown)).map(|(_, (name, _))| *name).collect();
        let sent: Vec<&str> =
            self.task.sent().iter().filter(|(shown, _)| of_key(shown)).map(|(_, name)| *name).collect();
        match (right.is_empty(), right.contains(&name), sent.contains(&name)) {
            (false, true, _) | (true, _, true) => Ok(rest),
            (false, ..) => Err(format!("{key} was answered {right:?}, and the work was told {name}")),
            (true, ..) => Err(format!("{key} was answered {sent:?} if at all, and the work was told {name}")),
        }
    }

    /// A question whose answer was acknowledged before its time was over does not time out.
    fn may_time_out(&self, key: &str, patience: Duration) -> Result<(), String> {
        let asking = |what: &What| matches!(what, What::Asking { key: asked } if asked == key);
        let Some((_, asked)) = self.lines.iter().find(|(_, line)| asking(&line.what)) else {
            return Err(format!("{key} timed out and was never asked"));
        };
        let due = asked.at + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let in_time = |(shown, (_, at)): (&&str, &(&str, u64))| plan::own_key(shown) == key && *at < due;
        if self.task.acknowledged().iter().any(in_time) {
            return Err(format!("{key} timed out, though its answer was acknowledged in time"));
        }
        Ok(())
    }
}

fn says(text: &Value) -> bool {
    text.as_str().is_some_and(|text| text.contains(UNKNOWN))
}

fn is_next<'t>(told: &'t [&'t str], expected: &str) -> Result<&'t [&'t str], String> {
    match told.split_first() {
        Some((first, rest)) if *first == expected => Ok(rest),
        Some((first, _)) => Err(format!("tells {first} where {expected} belongs")),
        None => Err(format!("does not tell {expected}")),
    }
}
