//! For which tools a repeated call is recognised by its key, as the capabilities tell a client.

use std::collections::HashMap;

use rmcp::model::JsonObject;

use super::{Mode, TaskTool};

/// The extension that says so: of every tool, unless `tools` names those.
pub(crate) const EXTENSION: &str = "outlast/idempotency";

/// The settings of the extension; none where no tool's repeat is recognised.
pub(crate) fn declared(default: &TaskTool, tools: &HashMap<String, TaskTool>) -> Option<JsonObject> {
    // A call that may run synchronously leaves no trace to recognise it by.
    let recognises = |tool: &TaskTool| tool.mode != Mode::Never && tool.decide.is_none();
    if recognises(default) && tools.values().all(recognises) {
        return Some(JsonObject::new());
    }
    let named = tools.iter().filter(|(_, tool)| recognises(tool));
    let mut named: Vec<&str> = named.map(|(name, _)| name.as_str()).collect();
    named.sort_unstable();
    (!named.is_empty()).then(|| JsonObject::from_iter([("tools".to_owned(), named.into())]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Decision;

    fn of(default: TaskTool, tools: &[(&str, TaskTool)]) -> Option<serde_json::Value> {
        let tools = tools.iter().map(|(name, tool)| ((*name).to_owned(), tool.clone())).collect();
        declared(&default, &tools).map(Into::into)
    }

    #[test]
    fn only_tools_whose_calls_are_always_kept_are_named() {
        let (task, never) = (TaskTool::optional(), TaskTool::never());
        let sometimes = TaskTool::optional().decide(|_, _| Decision::Sync);
        assert_eq!(of(task.clone(), &[("a", TaskTool::required())]), Some(json!({})));
        assert_eq!(
            of(never.clone(), &[("b", task.clone()), ("a", task.clone()), ("c", sometimes)]),
            Some(json!({"tools": ["a", "b"]}))
        );
        assert_eq!(of(task.clone(), &[("a", never.clone()), ("b", task)]), Some(json!({"tools": ["b"]})));
        assert_eq!(of(never.clone(), &[("a", never)]), None);
    }
}
