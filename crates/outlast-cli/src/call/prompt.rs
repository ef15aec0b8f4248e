//! What a server asks its caller: put to the person at the terminal, or answered from the command line.
#![allow(deprecated, reason = "roots are still a kind of question (S19)")]

use std::{collections::BTreeMap, future};

use rmcp::{
    ClientHandler, ErrorData,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, ElicitationSchema, FormElicitationCapability, Implementation, ListRootsResult,
        RequestId, Root, UrlElicitationCapability,
    },
    service::{RequestContext, RoleClient},
};
use serde_json::Value;
use url::Url;

use super::{
    form::{self, Filled, Filling, Step},
    terminal::{Open, Terminal},
};
use crate::text;

/// The most of a server's message that is shown.
const MESSAGE: usize = 4_000;

/// Answers a server's questions.
pub(crate) struct Prompter {
    /// Without one nothing is answered, and the questions stay open.
    terminal: Option<Terminal>,
    /// Who asks, printable.
    server: String,
    answers: BTreeMap<String, Value>,
    roots: Vec<Root>,
}

impl Prompter {
    /// Asks at `terminal` what `answers` does not answer.
    pub(crate) fn new(
        terminal: Terminal,
        server: &str,
        answers: BTreeMap<String, Value>,
        roots: Vec<String>,
    ) -> Self {
        let roots = roots.into_iter().map(Root::new).collect();
        Self { terminal: Some(terminal), server: text::one_line(server, 200), answers, roots }
    }

    /// Leaves every question to somebody else.
    pub(crate) fn onlooker() -> Self {
        Self { terminal: None, server: String::new(), answers: BTreeMap::new(), roots: Vec::new() }
    }

    async fn form(&self, terminal: &Terminal, message: &str, schema: &ElicitationSchema) -> ElicitResult {
        let open = terminal.question().await;
        open.say(&self.introduction(message));
        open.say(&format!("({})\n", form::COMMANDS));
        let mut filling = Filling::new(schema);
        loop {
            open.say(&filling.heading());
            loop {
                match filling.enter(open.line(&filling.prompt()).await.as_deref()) {
                    Step::Next => break,
                    Step::Wrong(why) => open.say(&format!("! {why}\n")),
                    Step::Done(filled) => return answered(&open, filled),
                }
            }
        }
    }

    async fn url(&self, terminal: &Terminal, message: &str, url: &str) -> ElicitResult {
        let open = terminal.question().await;
        open.say(&self.introduction(message));
        open.say(&describe_url(url));
        open.say("This command opens nothing. Open it yourself if you trust it; what you enter there does not come by here.\n");
        // The rules of a form without fields: to agree is said in a word.
        let mut filling = Filling::new(&ElicitationSchema::new(BTreeMap::new()));
        loop {
            let prompt = "Will you open it? (yes or no; :cancel gives no answer): ";
            match filling.enter(open.line(prompt).await.as_deref()) {
                Step::Done(Filled::Accept(_)) => return ElicitResult::new(ElicitationAction::Accept),
                Step::Done(filled) => return answered(&open, filled),
                Step::Wrong(_) | Step::Next => open.say("! say yes or no\n"),
            }
        }
    }

    fn introduction(&self, message: &str) -> String {
        format!("\n{} asks:\n{}\n", self.server, text::bounded(message, MESSAGE))
    }
}

impl ClientHandler for Prompter {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        let form = FormElicitationCapability::default();
        capabilities.elicitation =
            Some(ElicitationCapability::new().with_form(form).with_url(UrlElicitationCapability::default()));
        if !self.roots.is_empty() {
            capabilities.roots = Some(Default::default());
        }
        ClientConfig::new(capabilities, Implementation::new("outlast", env!("CARGO_PKG_VERSION")))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let Some(terminal) = &self.terminal else { return future::pending().await };
        // The client puts a question of a task under its key; any other has the number of its request.
        let key = match &context.id {
            RequestId::String(key) => key.to_string(),
            RequestId::Number(number) => number.to_string(),
        };
        let refused = |why: String| Err(ErrorData::invalid_request(why, None));
        if let Some(answer) = self.answers.get(&key) {
            return prepared(&request, answer)
                .or_else(|why| refused(format!("the answer given on the command line does not fit: {why}")));
        }
        if !terminal.is_attended() {
            return refused("there is nobody at a terminal to ask, and no --answer for it".to_owned());
        }
        match &request {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                Ok(self.form(terminal, message, requested_schema).await)
            }
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                Ok(self.url(terminal, message, url).await)
            }
            _ => refused("this kind of question is not known here".to_owned()),
        }
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        if self.roots.is_empty() {
            return Err(ErrorData::invalid_request("no roots were given to this client", None));
        }
        Ok(ListRootsResult::new(self.roots.clone()))
    }
}

fn answered(open: &Open<'_>, filled: Filled) -> ElicitResult {
    match filled {
        Filled::Accept(values) => {
            ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(values))
        }
        Filled::Decline => {
            open.say("declined\n");
            ElicitResult::new(ElicitationAction::Decline)
        }
        Filled::Cancel => {
            open.say("no answer is given\n");
            ElicitResult::new(ElicitationAction::Cancel)
        }
    }
}

/// An answer from the command line: a whole result, or the values of the form alone, or the word for another action.
fn prepared(request: &ElicitRequestParams, answer: &Value) -> Result<ElicitResult, String> {
    let action = |word: &str| match word {
        "accept" => Some(ElicitationAction::Accept),
        "decline" => Some(ElicitationAction::Decline),
        "cancel" => Some(ElicitationAction::Cancel),
        _ => None,
    };
    let said = answer.as_str().or(answer["action"].as_str()).and_then(action);
    let content = match said {
        Some(ElicitationAction::Accept) => answer.get("content"),
        Some(other) => return Ok(ElicitResult::new(other)),
        None if answer.is_object() => Some(answer),
        None => {
            return Err(r#"it is "accept", "decline", "cancel", an object with the form's values, or {"action": ..., "content": {...}}"#.to_owned());
        }
    };
    let ElicitRequestParams::FormElicitationParams { requested_schema, .. } = request else {
        return Ok(ElicitResult::new(ElicitationAction::Accept));
    };
    let content = content.cloned().unwrap_or_else(|| Value::Object(Default::default()));
    form::check(requested_schema, &content)?;
    Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
}

/// The whole address, and by itself the host that it leads to, as it is looked up: letters of other alphabets can look
/// like those of a host that one knows.
fn describe_url(url: &str) -> String {
    let shown = text::printable(url).replace('\n', "\\u000a");
    let parsed = Url::parse(url).ok();
    let host = parsed.as_ref().and_then(Url::host_str).map_or_else(|| "none".to_owned(), text::printable);
    let mut lines = format!("  address: {shown}\n  host:    {host}\n");
    match parsed {
        Some(url) if url.scheme() == "https" => {}
        Some(url) if url.scheme() == "http" => {
            lines.push_str("  careful: what is sent there is not encrypted\n");
        }
        _ => lines.push_str("  careful: this is not the address of a web page\n"),
    }
    if Url::parse(url).is_ok_and(|url| !url.username().is_empty() || url.password().is_some()) {
        lines.push_str("  careful: what stands before the @ is not the host\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form_question() -> ElicitRequestParams {
        serde_json::from_value(json!({"mode": "form", "message": "?", "requestedSchema": {
            "type": "object", "required": ["size"], "properties": {"size": {"type": "string", "enum": ["s", "l"]}},
        }}))
        .unwrap()
    }

    #[test]
    fn an_answer_can_be_given_whole_or_as_the_forms_values() {
        let accepted = json!({"action": "accept", "content": {"size": "s"}});
        for (given, sent) in [
            (json!({"size": "s"}), accepted.clone()),
            (accepted.clone(), accepted),
            (json!("decline"), json!({"action": "decline"})),
            (json!({"action": "cancel"}), json!({"action": "cancel"})),
        ] {
            let answer = prepared(&form_question(), &given).unwrap();
            assert_eq!(serde_json::to_value(answer).unwrap(), sent, "{given}");
        }
        for wrong in [
            json!({"size": "m"}),
            json!({}),
            json!("accept"),
            json!("perhaps"),
            json!({"size": "s", "more": 1}),
        ] {
            assert!(prepared(&form_question(), &wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_needs_no_values() {
        let question =
            serde_json::from_value(json!({"mode": "url", "message": "?", "url": "https://a.example/"}))
                .unwrap();
        let answer = prepared(&question, &json!("accept")).unwrap();
        assert_eq!(serde_json::to_value(answer).unwrap(), json!({"action": "accept"}));
    }

    #[test]
    fn an_address_is_shown_whole_with_the_host_it_leads_to() {
        for (url, host, careful) in [
            ("https://example.com/a?b=c", "example.com", None),
            ("https://exаmple.com/", "xn--exmple-4nf.com", None),
            ("http://example.com/", "example.com", Some("not encrypted")),
            ("https://example.com@evil.example/", "evil.example", Some("before the @")),
            ("javascript:alert(1)", "none", Some("not the address of a web page")),
        ] {
            let shown = describe_url(url);
            assert!(shown.contains(&format!("address: {url}\n")), "{shown}");
            assert!(shown.contains(&format!("host:    {host}\n")), "{shown}");
            assert_eq!(shown.contains("careful"), careful.is_some(), "{shown}");
            assert!(careful.is_none_or(|careful| shown.contains(careful)), "{shown}");
        }
        assert!(!describe_url("https://a\u{1b}[2J\n\u{202e}").trim().contains(['\u{1b}', '\u{202e}']));
    }
}
