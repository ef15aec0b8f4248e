//! What is known of the tools of a server, which a call needs before it is made: the output schema in force, and whether a
//! repeat is safe.

use std::{collections::HashMap, time::Duration};

use rmcp::model::{ClientRequest, ListToolsRequest, PaginatedRequestParams, ServerResult};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    clock,
    connection::{Connection, Failure},
    saved::Generation,
};

/// How long a list is taken as it is, where the server names no time.
const FRESH: Duration = Duration::from_secs(300);
/// The longest that a list is taken as it is.
const FRESH_AT_MOST: Duration = Duration::from_secs(3600);
/// More pages than any list has.
const MAX_PAGES: usize = 100;

/// What is known of one tool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tool {
    pub(crate) output_schema: Option<Value>,
    /// Whether calling twice does no more than calling once, as its annotations say.
    pub(crate) is_repeatable: bool,
    /// Of 2025-11-25: whether a call may be a task.
    pub(crate) takes_task: bool,
}

/// The list of a connection, as long as it is fresh.
#[derive(Default)]
pub(crate) struct Tools(tokio::sync::Mutex<Option<(Instant, HashMap<String, Tool>)>>);

impl Tools {
    /// What the list says of a tool; nothing, where the server has no list or it does not name the tool. `afresh` asks for
    /// the list again, whatever is known.
    pub(crate) async fn get(
        &self,
        connection: &Connection,
        name: &str,
        afresh: bool,
        bound: Duration,
    ) -> Result<Tool, Failure> {
        // The bound is on the wait for the list of another call, too: of many at once, none fails later than the first.
        tokio::time::timeout(bound, self.known(connection, name, afresh))
            .await
            .unwrap_or_else(|_| Err(Failure::Lost("no answer to `tools/list` came in time".into())))
    }

    async fn known(&self, connection: &Connection, name: &str, afresh: bool) -> Result<Tool, Failure> {
        let mut known = self.0.lock().await;
        let is_fresh = matches!(&*known, Some((until, _)) if clock::now() < *until);
        if afresh || !is_fresh {
            let (fresh, tools) = match list(connection).await {
                // A server that refuses to list its tools may still let them be called.
                Err(Failure::Refused(_)) => (FRESH, HashMap::new()),
                listed => listed?,
            };
            *known = Some((clock::now() + fresh, tools));
        }
        Ok(known.as_ref().and_then(|(_, tools)| tools.get(name)).cloned().unwrap_or_default())
    }
}

async fn list(connection: &Connection) -> Result<(Duration, HashMap<String, Tool>), Failure> {
    let mut tools = HashMap::new();
    let mut fresh = FRESH_AT_MOST;
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let page = page(connection, cursor.take()).await?;
        fresh = fresh.min(page.get("ttlMs").and_then(Value::as_u64).map_or(FRESH, Duration::from_millis));
        for tool in page.get("tools").and_then(Value::as_array).into_iter().flatten() {
            if let Some(name) = tool.get("name").and_then(Value::as_str) {
                tools.insert(name.to_owned(), read(tool));
            }
        }
        match page.get("nextCursor").and_then(Value::as_str) {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    Ok((fresh, tools))
}

/// One page. Of 2026-07-28 it is asked for by the SDK's own request, from whose answer its transport learns which
/// arguments have to be repeated as headers; of 2025-11-25 raw, since the SDK drops what that says of tasks.
async fn page(connection: &Connection, cursor: Option<String>) -> Result<Value, Failure> {
    match connection.generation {
        Generation::Extension => {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let request = ListToolsRequest { params: Some(params), ..ListToolsRequest::default() };
            let answer = connection.peer().send_request(ClientRequest::ListToolsRequest(request)).await;
            match answer {
                Ok(listed @ ServerResult::ListToolsResult(_)) => connection.outcome(Ok(Ok(listed))),
                // Whatever it is, it is no list.
                Ok(_) => Ok(json!({})),
                Err(error) => connection.outcome(Ok(Err(error))),
            }
        }
        Generation::Experimental => {
            let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            connection.request("tools/list", params, FRESH_AT_MOST, None).await
        }
    }
}

fn read(tool: &Value) -> Tool {
    let hint =
        |name: &str| tool.pointer(&format!("/annotations/{name}")).and_then(Value::as_bool) == Some(true);
    let support = tool.pointer("/execution/taskSupport").and_then(Value::as_str);
    Tool {
        output_schema: tool.get("outputSchema").filter(|schema| schema.is_object()).cloned(),
        is_repeatable: hint("readOnlyHint") || hint("idempotentHint"),
        takes_task: matches!(support, Some("optional" | "required")),
    }
}
