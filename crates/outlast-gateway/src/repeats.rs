//! Calls that are made again by callers without tasks: which are the same, and what an earlier process left of them.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use outlast::{Owner, Status, Store, StoreError, Timestamp, default_owner};
use outlast_core::{Filter, TaskId};
use rmcp::{
    RoleServer,
    model::{CallToolRequestParams, JsonObject},
    service::RequestContext,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{
    gateway::Gateway,
    hold::HELD,
    remembered::{Digest, Remembered},
};

/// So long before the start of a gateway the one before it may have ended in the middle of an answer.
const JUST_NOW: Duration = Duration::from_secs(60);
/// How many finished tasks are looked at, of each way to end; the rest is too old for a call that is made again.
const LOOKED_AT: usize = 5_000;
/// How many tasks are read at once. Those that are finished have their results with them.
const PAGE: u32 = 100;

/// What makes two calls the same: who makes them, and what is asked.
fn digest(owner: &Owner, name: &str, arguments: Option<&JsonObject>) -> Digest {
    let mut digest = Sha256::new();
    for part in [owner.as_str(), name] {
        // With its length, so that no two calls have the same bytes.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.update(json!(arguments).to_string());
    digest.finalize().into()
}

pub(crate) fn digest_of(context: &RequestContext<RoleServer>, request: &CallToolRequestParams) -> Digest {
    digest(&default_owner(&context.extensions), &request.name, request.arguments.as_ref())
}

/// What is known of a held call after a restart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Its work goes on.
    Live,
    /// Its work has ended, and the caller may not know how.
    Untold,
    /// Its work has ended while the caller waited.
    Told,
}

/// A task, without what it brought.
struct Seen {
    id: TaskId,
    owner: Owner,
    tool: String,
    created_at: Timestamp,
    left: Left,
}

/// The calls whose work an earlier process left, so that the same call finds it again: what still runs, and what has ended
/// without its caller knowing, where it may not be done twice. Of equal calls the last one counts.
pub(crate) async fn left_by_earlier(
    gateway: &Gateway,
    store: &dyn Store,
    now: Timestamp,
) -> Result<Remembered, StoreError> {
    let mut seen = Vec::new();
    for status in [Status::Working, Status::InputRequired] {
        all(store, status, usize::MAX, |_, _, _| Left::Live, &mut seen).await?;
    }
    let ended = |tool: &str, began: Timestamp, ended: Timestamp| {
        // One that took longer than its call was held had been told that it goes on; any other was told in the end, unless the
        // process ended with it.
        let is_told = ended.since(began) < gateway.hold(tool) && ended + JUST_NOW < now;
        if is_told { Left::Told } else { Left::Untold }
    };
    for status in [Status::Completed, Status::Failed] {
        all(store, status, LOOKED_AT, ended, &mut seen).await?;
    }
    let mut again = HashMap::new();
    for task in &mut seen {
        if task.left == Left::Untold {
            let may_be_done_again = match again.entry(task.tool.clone()) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => *unknown.insert(is_harmless(gateway, &task.tool).await),
            };
            if may_be_done_again {
                task.left = Left::Told;
            }
        }
    }
    // What was told matters only where it hides what was not.
    let matters: Vec<(Owner, String)> = seen
        .iter()
        .filter(|task| task.left != Left::Told)
        .map(|task| (task.owner.clone(), task.tool.clone()))
        .collect();
    let matters: std::collections::HashSet<_> = matters.into_iter().collect();
    seen.retain(|task| matters.contains(&(task.owner.clone(), task.tool.clone())));
    seen.sort_by_key(|task| task.created_at);
    let mut last = HashMap::new();
    for task in seen {
        let Some(call) = store.call(task.id).await? else { continue };
        let Ok(request) = call.params.decode::<CallToolRequestParams>() else { continue };
        if request.meta.is_some_and(|meta| meta.0.0.contains_key(HELD)) {
            let digest = digest(&task.owner, &request.name, request.arguments.as_ref());
            last.insert(digest, (task.id.to_string(), task.left));
        }
    }
    let mut remembered = Remembered::default();
    for (digest, (id, left)) in last {
        match left {
            Left::Live => remembered.insert(digest, id),
            Left::Untold => remembered.insert_ended(digest, id),
            Left::Told => {}
        }
    }
    Ok(remembered)
}

/// Whether the work of a tool may be done twice, as the operator or the tool says. That an upstream recognises a repeated call
/// does not count: for it another task's call is another one.
async fn is_harmless(gateway: &Gateway, tool: &str) -> bool {
    match gateway.named(tool) {
        Some((upstream, tool)) => upstream.is_harmless(tool).await,
        None => false,
    }
}

/// Notes the newest tasks in a status, `most` at the most.
async fn all(
    store: &dyn Store,
    status: Status,
    most: usize,
    left: impl Fn(&str, Timestamp, Timestamp) -> Left,
    seen: &mut Vec<Seen>,
) -> Result<(), StoreError> {
    let until = seen.len().saturating_add(most);
    let mut after = None;
    loop {
        let filter = Filter { status: Some(status), ..Filter::default() };
        let page = store.list(filter, after, PAGE).await?;
        seen.extend(page.tasks.into_iter().map(|task| Seen {
            id: task.id,
            left: left(&task.spec.tool, task.created_at, task.updated_at),
            tool: task.spec.tool.clone(),
            owner: task.owner,
            created_at: task.created_at,
        }));
        after = page.next;
        if after.is_none() || seen.len() >= until {
            return Ok(());
        }
    }
}
