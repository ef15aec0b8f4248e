//! How things are written for a person: for a terminal, and wherever else a text must not act.

use std::{fmt::Write, time::Duration};

use outlast_core::Owner;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Text of a tool or a caller with everything escaped that a terminal would act on, save line ends.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && acts_on_terminals(c) {
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// [Printable](printable) text on one line of at most `width` characters.
#[must_use]
pub fn one_line(text: &str, width: usize) -> String {
    let line = printable(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    if line.chars().count() <= width {
        return line;
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// JSON over several lines, still JSON and still harmless to a terminal: inside it such characters stand in strings
/// alone, where the escape means the character.
#[must_use]
pub fn json(value: &Value) -> String {
    printable(&format!("{value:#}"))
}

/// Control characters begin escape sequences, the separators of lines begin a line, and the marks of writing direction show
/// text in another order.
fn acts_on_terminals(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A duration, in the largest unit that it fills.
#[must_use]
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A duration in two units, for what is compared with another one.
#[must_use]
pub fn lapse(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds}.{} s", duration.subsec_millis() / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// An owner as an operator sees them: told apart from others, and not named.
#[must_use]
pub fn owner(owner: &Owner) -> String {
    Sha256::digest(owner.as_str()).iter().take(4).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_tool_says_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\rc\u{9b}d\ne"), "a\\u001b[2Jb\\u000dc\\u009bd\ne");
        assert_eq!(printable("safe\u{202e}exe.txt"), "safe\\u202eexe.txt");
        assert_eq!(printable("a\u{61c}b\u{2028}c"), "a\\u061cb\\u2028c");
        assert_eq!(printable("naïve 日本語 🙂"), "naïve 日本語 🙂");
    }

    #[test]
    fn json_for_a_terminal_is_still_the_same_json() {
        let value = json!({"a\u{9b}": ["\u{1b}[2J", "\u{202e}", "é"]});
        let shown = json(&value);
        assert!(!shown.contains(|c| c != '\n' && acts_on_terminals(c)));
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }

    #[test]
    fn a_long_message_becomes_one_short_line() {
        assert_eq!(one_line("two\nlines", 20), "two lines");
        assert_eq!(one_line("0123456789", 5), "0123…");
    }

    #[test]
    fn a_lapse_is_written_in_two_units() {
        let lapse = |millis| lapse(Duration::from_millis(millis));
        assert_eq!([lapse(0), lapse(999), lapse(12_399)], ["0 ms", "999 ms", "12.3 s"]);
        assert_eq!([lapse(61_000), lapse(3_600_000)], ["1 min 1 s", "1 h 0 min"]);
        assert_eq!([lapse(86_399_000), lapse(90_000_000)], ["23 h 59 min", "1 d 1 h"]);
    }

    #[test]
    fn a_span_is_written_in_the_largest_unit_that_it_fills() {
        let shown = [0, 59, 60, 3_599, 3_600, 86_399, 86_400].map(|s| span(Duration::from_secs(s)));
        assert_eq!(shown, ["0s", "59s", "1m", "59m", "1h", "23h", "1d"]);
    }
}
