//! Tools whose answer is always the same.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ResourceContents, Tool};
use rmcp::object;

use crate::media;
use crate::requests::no_arguments;

pub(crate) fn tools() -> Vec<Tool> {
    table().into_iter().map(|(name, description, schema, _)| Tool::new(name, description, schema)).collect()
}

/// The answer of the tool `name`, where it is one of these.
pub(crate) fn call(name: &str) -> Option<CallToolResult> {
    table().into_iter().find(|row| row.0 == name).map(|(_, _, _, result)| result)
}

fn table() -> [(&'static str, &'static str, JsonObject, CallToolResult); 7] {
    let text = ContentBlock::text;
    let ok = CallToolResult::success;
    [
        (
            "test_simple_text",
            "Answers with a text",
            no_arguments(),
            ok(vec![text("This is a simple text response for testing.")]),
        ),
        ("test_image_content", "Answers with an image", no_arguments(), ok(vec![media::image()])),
        ("test_audio_content", "Answers with a sound", no_arguments(), ok(vec![media::audio()])),
        (
            "test_embedded_resource",
            "Answers with an embedded resource",
            no_arguments(),
            ok(vec![ContentBlock::embedded_text(
                "test://embedded-resource",
                "This is an embedded resource content.",
            )]),
        ),
        (
            "test_multiple_content_types",
            "Answers with a text, an image and a resource",
            no_arguments(),
            ok(vec![
                text("Multiple content types test:"),
                media::image(),
                ContentBlock::resource(
                    ResourceContents::text(r#"{"test":"data","value":123}"#, "test://mixed-content-resource")
                        .with_mime_type("application/json"),
                ),
            ]),
        ),
        (
            "test_error_handling",
            "Answers that it failed",
            no_arguments(),
            CallToolResult::error(vec![text("This tool intentionally returns an error for testing")]),
        ),
        (
            "json_schema_2020_12_tool",
            "Has an input schema that uses most of JSON Schema 2020-12",
            contact_schema(),
            ok(vec![text("The schema is what counts.")]),
        ),
    ]
}

/// A contact with a phone number or a mail address, in the keywords that the suite looks for in `tools/list`.
fn contact_schema() -> JsonObject {
    object!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": { "street": { "type": "string" }, "city": { "type": "string" } }
            }
        },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" }
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false
    })
}
