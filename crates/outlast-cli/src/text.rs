//! How things are written for a person at a terminal.

use std::{
    fmt::{self, Write},
    io,
};

pub(crate) use outlast_admin::text::{json, one_line, owner, printable, span};

/// Writes a line to standard error. Where that is a full disk, or nobody reads it any more, the work goes on all the same:
/// `eprintln!` would panic.
pub(crate) fn note(line: fmt::Arguments<'_>) {
    let _ = io::Write::write_fmt(&mut io::stderr().lock(), format_args!("{line}\n"));
}

/// [Printable](printable) text as several lines, cut after `most` characters. A tab and the line ends of Windows do no harm.
pub(crate) fn bounded(text: &str, most: usize) -> String {
    let mut shown = body(&text.chars().take(most).collect::<String>());
    let left = text.chars().skip(most).count();
    if left > 0 {
        let _ = write!(shown, "... ({left} more characters)");
    }
    shown
}

/// A whole text, in which a tab and the line ends of Windows do no harm.
pub(crate) fn body(text: &str) -> String {
    text.replace("\r\n", "\n").split('\t').map(printable).collect::<Vec<_>>().join("\t")
}

/// A word for a shell's command line.
pub(crate) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_and_line_ends_stay_in_a_text() {
        assert_eq!(body("a\tb\r\nc\rd\u{7}"), "a\tb\nc\\u000dd\\u0007");
        assert_eq!(bounded("abcdef", 4), "abcd... (2 more characters)");
        assert_eq!(bounded("abcd", 4), "abcd");
    }

    #[test]
    fn a_word_survives_the_shell() {
        assert_eq!(shell_word("outlast.db"), "outlast.db");
        assert_eq!(shell_word("it's here.db"), r"'it'\''s here.db'");
    }
}
