//! Two resources and a template.

use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::json;

use crate::media::PNG;

const TEXT: &str = "test://static-text";
const BINARY: &str = "test://static-binary";
const TEMPLATE: &str = "test://template/{id}/data";

pub(crate) fn list() -> Vec<Resource> {
    vec![
        Resource::new(TEXT, "Static Text Resource")
            .with_description("A text that never changes")
            .with_mime_type("text/plain"),
        Resource::new(BINARY, "Static Binary Resource")
            .with_description("An image that never changes")
            .with_mime_type("image/png"),
    ]
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(TEMPLATE, "Template Resource")
            .with_description("Data that depends on the id")
            .with_mime_type("application/json"),
    ]
}

pub(crate) fn read(uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let contents = match uri {
        TEXT => ResourceContents::text("This is the content of the static text resource.", uri)
            .with_mime_type("text/plain"),
        BINARY => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        _ => {
            let id = template_id(uri).ok_or_else(|| {
                ErrorData::resource_not_found("no such resource", Some(json!({ "uri": uri })))
            })?;
            let data = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
            ResourceContents::text(data.to_string(), uri).with_mime_type("application/json")
        }
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

/// The `{id}` of [`TEMPLATE`] in `uri`, where it fits.
fn template_id(uri: &str) -> Option<&str> {
    let (before, after) = TEMPLATE.split_once("{id}")?;
    uri.strip_prefix(before)?.strip_suffix(after).filter(|id| !id.is_empty() && !id.contains('/'))
}
