//! Checks a structured result against the output schema of its tool.

use rmcp::model::CallToolResult;
use serde_json::Value;

/// Where a result does not fit; none where it fits, or where there is nothing to check: no schema, an error of the tool, or
/// a schema that is none.
pub(crate) fn misfit(schema: Option<&Value>, result: &CallToolResult) -> Option<String> {
    let schema = schema?;
    if result.is_error == Some(true) {
        return None;
    }
    let Some(content) = &result.structured_content else {
        return Some("the tool declares one, and the result has no structured content".into());
    };
    let validator = match jsonschema::validator_for(schema) {
        Ok(validator) => validator,
        Err(error) => {
            tracing::warn!(%error, "the output schema of a tool is no schema that can be checked");
            return None;
        }
    };
    validator.iter_errors(content).next().map(|error| {
        // The place, and not the value, which may be private.
        format!("at \"{}\", `{}` does not hold", error.instance_path(), error.schema_path())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(value: Value) -> CallToolResult {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_result_is_checked_where_there_is_a_schema_and_no_error() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let fits = result(json!({"content": [], "structuredContent": {"n": 1}}));
        let misfits = result(json!({"content": [], "structuredContent": {"n": "secret"}}));
        let bare = result(json!({"content": []}));
        let error = result(json!({"content": [], "isError": true}));
        assert_eq!(misfit(Some(&schema), &fits), None);
        assert_eq!(misfit(None, &misfits), None);
        assert_eq!(misfit(Some(&schema), &error), None);
        assert!(misfit(Some(&schema), &bare).is_some());
        let why = misfit(Some(&schema), &misfits).unwrap();
        assert!(why.contains("/n") && !why.contains("secret"), "{why}");
    }

    #[test]
    fn a_schema_that_is_none_checks_nothing() {
        let any = result(json!({"content": [], "structuredContent": 5}));
        for schema in [json!({"type": 7}), json!({"$ref": "https://example.com/never-fetched"}), json!("x")] {
            assert_eq!(misfit(Some(&schema), &any), None, "{schema}");
        }
    }
}
