//! What several servers can, as one server says it. Pure.

use rmcp::model::{PromptsCapability, ResourcesCapability, ServerCapabilities, ToolsCapability};

/// What those can together that declare `theirs`. Lists change by themselves: an upstream that comes or goes takes what it has
/// along.
pub(crate) fn capabilities<'c>(theirs: impl Iterator<Item = &'c ServerCapabilities>) -> ServerCapabilities {
    let mut tools = ToolsCapability::default();
    tools.list_changed = Some(true);
    let mut all = ServerCapabilities::default();
    all.tools = Some(tools);
    for one in theirs {
        if one.prompts.is_some() {
            all.prompts.get_or_insert_with(PromptsCapability::default).list_changed = Some(true);
        }
        if let Some(resources) = &one.resources {
            let both = all.resources.get_or_insert_with(ResourcesCapability::default);
            both.list_changed = Some(true);
            if resources.subscribe == Some(true) {
                both.subscribe = Some(true);
            }
        }
        all.completions = all.completions.or_else(|| one.completions.clone());
        all.logging = all.logging.or_else(|| one.logging.clone());
    }
    all
}

/// What an upstream may be able to do of which nothing is known yet.
#[allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]
pub(crate) fn anything() -> ServerCapabilities {
    let mut all = ServerCapabilities::builder()
        .enable_tools()
        .enable_prompts()
        .enable_resources()
        .enable_completions()
        .enable_logging()
        .build();
    if let Some(resources) = &mut all.resources {
        resources.subscribe = Some(true);
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn together(theirs: &[serde_json::Value]) -> serde_json::Value {
        let theirs: Vec<ServerCapabilities> =
            theirs.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect();
        json!(capabilities(theirs.iter()))
    }

    #[test]
    fn what_one_upstream_can_is_not_taken_back_by_another() {
        let can = json!({ "resources": { "subscribe": true }, "prompts": {}, "completions": {} });
        let cannot = json!({ "resources": {}, "logging": {}, "tools": {} });
        for order in [[&can, &cannot], [&cannot, &can]] {
            assert_eq!(
                together(&order.map(Clone::clone)),
                json!({
                    "tools": { "listChanged": true }, "prompts": { "listChanged": true },
                    "resources": { "subscribe": true, "listChanged": true }, "completions": {}, "logging": {},
                })
            );
        }
    }

    #[test]
    fn an_upstream_that_is_not_known_yet_may_have_tools() {
        assert_eq!(together(&[]), json!({ "tools": { "listChanged": true } }));
    }
}
