//! The two files that the fixtures show, in base64.

use rmcp::model::ContentBlock;

/// One pixel.
pub(crate) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8/5+hHgAHggJ/PchI7wAAAABJRU5ErkJggg==";
/// A header, and not one sample.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=";

pub(crate) fn image() -> ContentBlock {
    ContentBlock::image(PNG, "image/png")
}

pub(crate) fn audio() -> ContentBlock {
    ContentBlock::audio(WAV, "audio/wav")
}
