//! What a tool gave back, for a person to read.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use crate::text;

/// A result as text: what is text as it is, structured content as JSON, and of everything else what it is and how large.
pub(crate) fn result(result: &CallToolResult) -> String {
    let structured = result.structured_content.as_ref();
    // Tools repeat their structured content as text for clients that do not know it.
    let repeats = |block: &ContentBlock| match block {
        ContentBlock::Text(block) => {
            structured.is_some() && serde_json::from_str::<Value>(&block.text).ok().as_ref() == structured
        }
        _ => false,
    };
    let mut parts: Vec<_> = result.content.iter().filter(|block| !repeats(block)).map(content).collect();
    parts.extend(structured.map(text::json));
    let mut shown = parts.join("\n");
    if !shown.is_empty() && !shown.ends_with('\n') {
        shown.push('\n');
    }
    shown
}

fn content(block: &ContentBlock) -> String {
    let line = |text: &str| text::one_line(text, 400);
    match block {
        ContentBlock::Text(block) => text::body(&block.text),
        ContentBlock::Image(block) => {
            format!("[image, {}, {}]", line(&block.mime_type), decoded(&block.data))
        }
        ContentBlock::Audio(block) => {
            format!("[audio, {}, {}]", line(&block.mime_type), decoded(&block.data))
        }
        ContentBlock::Resource(block) => match &block.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                format!("[{}]\n{}", line(uri), text::body(text))
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let kind = mime_type.as_deref().unwrap_or("of no stated kind");
                format!("[{}, {}, {}]", line(uri), line(kind), decoded(blob))
            }
            _ => "[a resource of a kind that is not known here]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[{}: {}]", line(&link.name), line(&link.uri)),
        _ => "[content of a kind that is not known here]".to_owned(),
    }
}

/// The size of what is base64.
fn decoded(base64: &str) -> String {
    let bytes = base64.trim_end_matches('=').len() * 3 / 4;
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(json: Value) -> String {
        result(&serde_json::from_value(json).unwrap())
    }

    #[test]
    fn text_is_written_as_it_is_but_for_what_steers_a_terminal() {
        let content =
            json!([{"type": "text", "text": "a\tb\r\nc"}, {"type": "text", "text": "d\u{1b}[2J\n"}]);
        assert_eq!(shown(json!({"content": content})), "a\tb\nc\nd\\u001b[2J\n");
        assert_eq!(shown(json!({"content": []})), "");
    }

    #[test]
    fn structured_content_is_written_once() {
        let structured = json!({"counted": 3});
        let content =
            json!([{"type": "text", "text": structured.to_string()}, {"type": "text", "text": "Done."}]);
        let both = shown(json!({"content": content, "structuredContent": structured}));
        assert_eq!(both, "Done.\n{\n  \"counted\": 3\n}\n");
    }

    #[test]
    fn what_is_no_text_is_named_with_its_size() {
        let content = json!([
            {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
            {"type": "audio", "data": "A".repeat(40_000), "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a", "blob": "aGVsbG8=", "mimeType": "x/y"}},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "words"}},
            {"type": "resource_link", "uri": "file:///c", "name": "see"},
        ]);
        assert_eq!(
            shown(json!({"content": content})),
            "[image, image/png, 5 bytes]\n[audio, audio/wav, 30 kB]\n[file:///a, x/y, 5 bytes]\n[file:///b]\nwords\n[see: file:///c]\n"
        );
    }
}
