//! Names at a gateway with several upstreams: `server__tool`. Pure.

/// What stands between the name of an upstream and that of its tool.
const BETWEEN: &str = "__";

/// The name of an upstream's tool or prompt at the gateway. An upstream without a name keeps its names.
pub(crate) fn outside(upstream: Option<&str>, name: &str) -> String {
    match upstream {
        Some(upstream) => format!("{upstream}{BETWEEN}{name}"),
        None => name.to_owned(),
    }
}

/// The name at the upstream, where a name at the gateway is one of its.
pub(crate) fn inside<'n>(upstream: Option<&str>, name: &'n str) -> Option<&'n str> {
    match upstream {
        Some(upstream) => name.strip_prefix(upstream)?.strip_prefix(BETWEEN),
        None => Some(name),
    }
}

/// What is wrong with the names of a gateway's upstreams, if anything: they have to be told apart, and their tools from the
/// names alone.
pub(crate) fn misnamed(upstreams: &[Option<&str>]) -> Option<String> {
    if upstreams.len() > 1 && upstreams.contains(&None) {
        return Some("where there are several upstreams each needs a name".to_owned());
    }
    for (n, name) in upstreams.iter().flatten().enumerate() {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) {
            return Some(format!("the upstream '{name}' needs a name of letters, digits and -_."));
        }
        if name.contains(BETWEEN) || name.ends_with('_') {
            return Some(format!(
                "the name '{name}' of an upstream cannot be told from those of its tools: it has '{BETWEEN}' in it or ends with '_'"
            ));
        }
        if upstreams[..n].contains(&Some(name)) {
            return Some(format!("two upstreams are named '{name}'"));
        }
    }
    None
}

/// A cursor of a list that goes through several upstreams: which one, and its own cursor there.
pub(crate) fn cursor(upstream: usize, theirs: Option<&str>) -> String {
    format!("{upstream}:{}", theirs.unwrap_or_default())
}

/// Reads a [`cursor`]; none where it is none of ours.
pub(crate) fn read_cursor(cursor: Option<&str>) -> Option<(usize, Option<String>)> {
    let Some(cursor) = cursor else { return Some((0, None)) };
    let (upstream, theirs) = cursor.split_once(':')?;
    let theirs = (!theirs.is_empty()).then(|| theirs.to_owned());
    Some((upstream.parse().ok()?, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_told_apart_are_refused() {
        assert_eq!(misnamed(&[None]), None);
        assert_eq!(misnamed(&[Some("a"), Some("a-b"), Some("a_b"), Some("_a")]), None);
        for bad in [
            &[None, Some("a")][..],
            &[Some("a"), Some("a")],
            &[Some("")],
            &[Some("a__b")],
            &[Some("a_")],
            &[Some("a b")],
        ] {
            assert!(misnamed(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn names_and_cursors_read_back() {
        assert_eq!(outside(Some("files"), "read"), "files__read");
        assert_eq!(inside(Some("files"), "files__read"), Some("read"));
        assert_eq!(inside(Some("files"), "filesread"), None);
        assert_eq!(inside(Some("a"), "ab__read"), None);
        assert_eq!(inside(None, "a__b"), Some("a__b"));
        assert_eq!(read_cursor(None), Some((0, None)));
        assert_eq!(read_cursor(Some(&cursor(2, Some("a:b")))), Some((2, Some("a:b".into()))));
        assert_eq!(read_cursor(Some(&cursor(1, None))), Some((1, None)));
        for bad in ["", "x", "x:", "-1:a"] {
            assert_eq!(read_cursor(Some(bad)), None, "{bad}");
        }
    }
}
