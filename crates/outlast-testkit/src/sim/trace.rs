//! What happened in a run, line by line: as a hash, by which two runs of one seed are compared, and as text where
//! somebody wants to read it.

use std::fmt::{Arguments, Write as _};

use super::rng::mix;

#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    /// The lines, if they are kept.
    lines: Option<Vec<String>>,
    line: String,
}

impl Trace {
    pub(super) fn new(keep: bool) -> Self {
        Self { lines: keep.then(Vec::new), ..Self::default() }
    }

    /// `at` is in simulated milliseconds.
    pub(super) fn note(&mut self, at: u64, what: Arguments<'_>) {
        self.line.clear();
        let _ = write!(self.line, "{at:>7} {what}");
        for chunk in self.line.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.hash = mix(self.hash, u64::from_le_bytes(bytes));
        }
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
