//! `outlast tasks answer`.

use std::io::{Read, Write};

use anyhow::{Context, bail};
use outlast_admin::{
    answer::{check, outstanding, shape},
    operate,
};
use outlast_core::{InputKey, Payload, Question, QuestionKind, Store, TaskId};
use serde_json::{Value, json};

use super::{form, server::Server};

/// Answer a question of a task
///
/// `outlast tasks show ID`, or `outlast tasks get HANDLE` for a task of a server, shows the questions, their keys and their
/// fields.
#[derive(clap::Args)]
#[command(
    override_usage = "outlast tasks answer [OPTIONS] ID|HANDLE KEY <JSON | --accept [FIELD=VALUE]... | --decline>",
    after_help = EXAMPLES
)]
pub(super) struct Args {
    /// The task: its id, or the handle of a call
    pub(super) task: String,
    /// The question's key
    pub(super) key: String,
    #[command(flatten)]
    pub(super) given: Given,
    #[command(flatten)]
    pub(super) server: Server,
}

const EXAMPLES: &str = r#"Examples:
  outlast tasks answer ID confirm --accept confirm=true
  outlast tasks answer ID title --accept title='Q3 in short'
  outlast tasks answer ID confirm --decline
  outlast tasks answer ID confirm '{"action": "accept", "content": {"confirm": true}}'
  outlast tasks answer ID summary - < answer.json"#;

/// One of three ways to say it.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Given {
    /// The client's whole result as JSON, or - to read it from standard input
    json: Option<String>,
    /// Fill in the form, with these fields; without any where there is none to fill in
    #[arg(long, num_args = 0.., value_name = "FIELD=VALUE")]
    accept: Option<Vec<String>>,
    /// Say no
    #[arg(long)]
    decline: bool,
}

pub(super) async fn run(
    store: &dyn Store,
    id: TaskId,
    key: InputKey,
    given: Given,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let task = operate::find(store, id).await.map_err(super::refused)?;
    let question = outstanding(&task, &key).map_err(super::refused)?;
    let answer = compose(question, given).with_context(|| format!("no answer to '{key}' was given"))?;
    let answers = vec![(key.clone(), Payload::from_value(&answer))];
    let task = operate::answer(store, id, answers).await.map_err(super::refused)?;
    writeln!(out, "'{key}' is answered; the task is {}", task.status().as_str())?;
    Ok(())
}

/// The answer that is to be sent, known to fit its question.
pub(super) fn compose(question: &Question, given: Given) -> anyhow::Result<Value> {
    let kind = question.kind();
    let request = question.request().to_value();
    let schema = &request["params"]["requestedSchema"];
    let elicits = matches!(kind, QuestionKind::ElicitForm | QuestionKind::ElicitUrl);
    let answer = match given {
        Given { json: Some(text), .. } => parse(text)?,
        _ if !elicits => bail!("this question is answered with JSON alone: {}", shape(kind)),
        Given { accept: Some(fields), .. } if kind == QuestionKind::ElicitForm => {
            json!({"action": "accept", "content": form::fill(schema, &fields)?})
        }
        Given { accept: Some(fields), .. } if fields.is_empty() => json!({"action": "accept"}),
        Given { accept: Some(_), .. } => {
            bail!("this question asks to open a page and has no fields; say --accept alone")
        }
        Given { .. } => json!({"action": "decline"}),
    };
    check(question, &answer)?;
    Ok(answer)
}

fn parse(mut text: String) -> anyhow::Result<Value> {
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    }
    serde_json::from_str(&text).context("this is not JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(request: Value) -> Question {
        Question::new(&request).unwrap()
    }

    fn confirm() -> Question {
        let schema = json!({"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]});
        question(
            json!({"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}),
        )
    }

    fn json(text: &str) -> Given {
        Given { json: Some(text.to_owned()), accept: None, decline: false }
    }

    fn accept(fields: &[&str]) -> Given {
        Given {
            json: None,
            accept: Some(fields.iter().map(|&field| field.to_owned()).collect()),
            decline: false,
        }
    }

    fn decline() -> Given {
        Given { json: None, accept: None, decline: true }
    }

    fn refusal(question: &Question, given: Given) -> String {
        compose(question, given).unwrap_err().to_string()
    }

    #[test]
    fn a_form_is_filled_in_by_fields_or_by_json() {
        let filled = json!({"action": "accept", "content": {"confirm": true}});
        assert_eq!(compose(&confirm(), accept(&["confirm=true"])).unwrap(), filled);
        assert_eq!(compose(&confirm(), json(&filled.to_string())).unwrap(), filled);
        assert_eq!(compose(&confirm(), decline()).unwrap(), json!({"action": "decline"}));
    }

    #[test]
    fn an_answer_that_cannot_fit_says_what_would() {
        assert!(refusal(&confirm(), json("yes")).contains("not JSON"));
        assert!(refusal(&confirm(), json("true")).contains(r#"{"action": "accept""#));
        assert!(refusal(&confirm(), json(r#"{"action": "accept"}"#)).contains("'confirm'"));
        assert!(refusal(&confirm(), accept(&[])).contains("'confirm'"));
    }

    #[test]
    fn a_page_is_accepted_without_fields() {
        let page = question(
            json!({"method": "elicitation/create", "params": {"mode": "url", "message": "?", "url": "u"}}),
        );
        assert_eq!(compose(&page, accept(&[])).unwrap(), json!({"action": "accept"}));
        assert!(refusal(&page, accept(&["a=b"])).contains("has no fields"));
    }

    #[test]
    fn what_is_no_form_is_answered_with_json() {
        let roots = question(json!({"method": "roots/list"}));
        assert!(refusal(&roots, accept(&[])).contains(r#"{"roots""#));
        assert!(refusal(&roots, decline()).contains(r#"{"roots""#));
        assert!(compose(&roots, json(r#"{"roots": [{"uri": "file:///a"}]}"#)).is_ok());
    }
}
