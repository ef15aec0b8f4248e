//! The page: one file, with everything in it.

use std::sync::LazyLock;

use axum::response::{Html, IntoResponse as _, Response};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::header;
use sha2::{Digest as _, Sha256};

const PAGE: &str = include_str!("page.html");

/// What the page may do: run its own script and style, known by their digests, and talk to where it came from. No text becomes
/// markup or script, because the browser refuses every place where one could.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (script, style) = (digest("script"), digest("style"));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; connect-src 'self'; base-uri 'none'; \
        form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
});

pub(crate) fn page() -> Response {
    ([(header::CONTENT_SECURITY_POLICY, POLICY.as_str())], Html(PAGE)).into_response()
}

/// The digest of what stands in the page's only element of this name.
fn digest(name: &str) -> String {
    let inside =
        PAGE.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    let inside = inside.map_or("", |(inside, _)| inside);
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(inside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_and_one_style_and_asks_nobody_for_more() {
        for element in ["<script", "</script>", "<style", "</style>"] {
            assert_eq!(PAGE.matches(element).count(), 1, "{element}");
        }
        for foreign in ["src=", "@import", "url(", "http://", "https://", " style=", " onclick="] {
            let found = PAGE.find(foreign).map(|at| &PAGE[at..(at + 60).min(PAGE.len())]);
            assert_eq!(found, None);
        }
    }

    #[test]
    fn nothing_in_the_script_makes_markup_of_text() {
        for way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"]
        {
            assert!(!PAGE.contains(way), "{way}");
        }
    }

    #[test]
    fn the_policy_names_the_script_and_the_style() {
        let empty = BASE64_STANDARD.encode(Sha256::digest(""));
        assert_eq!(POLICY.matches("'sha256-").count(), 2);
        assert!(!POLICY.contains(&empty), "both were found");
    }
}
