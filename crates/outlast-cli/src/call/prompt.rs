//! What a server asks its caller: put to the person at the terminal, or answered from the command line.

use std::{collections::BTreeMap, sync::Arc};

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
use tokio::sync::watch;
use url::Url;

use super::{
    form::{self, Filled, Filling, Step},
    terminal::{Open, Terminal},
};
use crate::text;

/// The most of a server's message that is shown.
const MESSAGE: usize = 4_000;

/// Answers a server's questions. A clone is the same one.
#[derive(Clone)]
pub(crate) struct Prompter {
    terminal: Terminal,
    /// Who asks, printable.
    server: Arc<str>,
    answers: Arc<BTreeMap<String, Value>>,
    roots: Arc<[Root]>,
    /// Why the call cannot go on without a person, once it cannot.
    stuck: watch::Sender<Option<String>>,
}

impl Prompter {
    /// Asks at `terminal` what `answers` does not answer.
    pub(crate) fn new(
        terminal: Terminal,
        server: &str,
        answers: BTreeMap<String, Value>,
        roots: Vec<Root>,
    ) -> Self {
        let stuck = watch::Sender::new(None);
        let server = text::one_line(server, 200).into();
        Self { terminal, server, answers: Arc::new(answers), roots: roots.into(), stuck }
    }

    /// Resolves when a question can be answered by nobody here, with what to say of it.
    pub(crate) async fn stuck(&self) -> String {
        let mut stuck = self.stuck.subscribe();
        let why = stuck.wait_for(Option::is_some).await;
        // Its sender is in what this borrows.
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }

    /// Never answers, and lets it be known why.
    async fn give_up<T>(&self, why: String) -> T {
        self.stuck.send_if_modified(|stuck| {
            let first = stuck.is_none();
            stuck.get_or_insert(why);
            first
        });
        std::future::pending().await
    }

    async fn form(&self, message: &str, schema: &ElicitationSchema) -> ElicitResult {
        let open = self.terminal.question().await;
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

    async fn url(&self, message: &str, url: &str) -> ElicitResult {
        let open = self.terminal.question().await;
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
        let key = match &context.id {
            RequestId::String(key) => key.to_string(),
            RequestId::Number(number) => number.to_string(),
        };
        if let Some(answer) = self.answers.get(&key) {
            return match prepared(&request, answer) {
                Ok(answer) => Ok(answer),
                Err(why) => self.give_up(format!("the answer given to '{key}' does not fit: {why}")).await,
            };
        }
        let (message, url, schema) = match &request {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                (message, None, Some(requested_schema))
            }
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => (message, Some(url), None),
            _ => return Err(ErrorData::invalid_params("this kind of question is not known here", None)),
        };
        if !self.terminal.is_attended() {
            return self.give_up(format!("it asks under '{key}': {}", text::one_line(message, 200))).await;
        }
        Ok(match (url, schema) {
            (Some(url), _) => self.url(message, url).await,
            (None, Some(schema)) => self.form(message, schema).await,
            (None, None) => ElicitResult::new(ElicitationAction::Cancel),
        })
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        if self.roots.is_empty() {
            return Err(ErrorData::invalid_request("no roots were given to this client", None));
        }
        Ok(ListRootsResult::new(self.roots.to_vec()))
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
            lines.push_str("  careful: what is sent there is not encrypted\n")
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
