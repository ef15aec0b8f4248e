//! Where a task belongs in the traces of those who ask for it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A place in a trace, as W3C Trace Context writes it in `traceparent`: callers send one in the `_meta` of a request
/// (SEP-414), and every attempt at the task goes on from the one that is kept with it, in whatever process that is.
///
/// ```
/// use outlast_core::TraceParent;
/// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let parent: TraceParent = text.parse().unwrap();
/// assert_eq!(parent.to_string(), text);
/// assert!("00-00000000000000000000000000000000-b7ad6b7169203331-01".parse::<TraceParent>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The trace; not all zero.
    pub trace: [u8; 16],
    /// The span that others are part of; not all zero.
    pub span: [u8; 8],
    /// The flags; the lowest bit says that the trace is recorded.
    pub flags: u8,
}

/// A text is no `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a traceparent is 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, in lower case, and neither id is zero"
)]
pub struct InvalidTraceParent;

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    /// Reads version 00, and of a later version what it has in common with that, as the standard asks.
    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(InvalidTraceParent);
        let [version] = hex::<1>(next()?)?;
        let (trace, span, [flags]) = (hex::<16>(next()?)?, hex::<8>(next()?)?, hex::<1>(next()?)?);
        let is_known = version != 0xff && (version > 0 || parts.next().is_none());
        let is_set = trace != [0; 16] && span != [0; 8];
        if is_known && is_set { Ok(Self { trace, span, flags }) } else { Err(InvalidTraceParent) }
    }
}

fn hex<const N: usize>(text: &str) -> Result<[u8; N], InvalidTraceParent> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(InvalidTraceParent);
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(InvalidTraceParent),
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceParent({self})")
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceParent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_read_back() {
        let parent: TraceParent = GOOD.parse().unwrap();
        assert_eq!((parent.trace[0], parent.span[7], parent.flags), (0x0a, 0x31, 1));
        let kept = serde_json::to_string(&parent).unwrap();
        assert_eq!(serde_json::from_str::<TraceParent>(&kept).unwrap(), parent);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known_and_everything_else_is_none() {
        let later = format!("cc{}-what-else", &GOOD[2..]);
        assert_eq!(later.parse::<TraceParent>().unwrap().to_string(), GOOD);
        let bad = [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &format!("ff{}", &GOOD[2..]),
            &GOOD.replace("b7ad6b7169203331", "0000000000000000"),
            &GOOD.replace("0af7", "0ag7"),
            &GOOD.replace("0af7", "é7"),
        ];
        for text in bad {
            assert_eq!(text.parse::<TraceParent>(), Err(InvalidTraceParent), "{text}");
        }
    }
}
