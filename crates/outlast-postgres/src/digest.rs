//! Names as digests: of one short length, whatever a caller sent, and without what PostgreSQL refuses in a text.

use outlast_core::{Owner, WorkerId};
use sha2::{Digest, Sha256};

/// An owner, as the column `owner` has it.
pub(crate) type OwnerKey = [u8; 16];

/// An owner's idempotency key, as the column `key` has it.
pub(crate) type CallerKey = [u8; 32];

/// What an advisory lock is about. Locks are shared by everything in a database.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lock {
    /// Bringing the schema to a version.
    Schema,
    /// How many unfinished tasks an owner has.
    Open,
    /// How many running tasks an owner has.
    Running,
}

pub(crate) fn owner(owner: &Owner) -> OwnerKey {
    half(&[owner.as_str().as_bytes()])
}

pub(crate) fn worker(worker: &WorkerId) -> OwnerKey {
    half(&[worker.as_str().as_bytes()])
}

/// A tool's name alone: the first half of the column `tool`.
pub(crate) fn tool_name(name: &str) -> [u8; 16] {
    half(&[name.as_bytes()])
}

pub(crate) fn tool(name: &str, version: &str) -> [u8; 32] {
    let mut both = [0; 32];
    both[..16].copy_from_slice(&tool_name(name));
    both[16..].copy_from_slice(&half(&[version.as_bytes()]));
    both
}

pub(crate) fn caller_key(owner: &Owner, key: &str) -> CallerKey {
    whole(&[owner.as_str().as_bytes(), key.as_bytes()])
}

/// The number of an advisory lock.
pub(crate) fn lock(schema: &str, what: Lock, owner: &[u8]) -> i64 {
    let kind = [what as u8];
    let digest = whole(&[b"outlast", schema.as_bytes(), &kind, owner]);
    let mut number = [0; 8];
    number.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(number)
}

/// The channel that the changes of a schema are told on.
pub(crate) fn channel(schema: &str) -> String {
    format!("outlast_{}", hex(&whole(&[schema.as_bytes()])[..8]))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What [`hex`] wrote; what nobody wrote so is empty.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(byte).collect::<Option<_>>().unwrap_or_default()
}

fn half(parts: &[&[u8]]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&whole(parts)[..16]);
    half
}

/// Each part with its length before it, so that no two lists of parts are one text.
fn whole(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_its_owner_alone() {
        let key = |name: &str, key| caller_key(&Owner::new(name), key);
        assert_eq!(key("ab", "c"), key("ab", "c"));
        assert_ne!(key("ab", "c"), key("a", "bc"));
    }

    #[test]
    fn a_lock_is_of_one_schema_and_one_kind() {
        let of = |schema, what| lock(schema, what, &[1; 16]);
        assert_ne!(of("a", Lock::Open), of("b", Lock::Open));
        assert_ne!(of("a", Lock::Open), of("a", Lock::Running));
        assert_ne!(channel("a"), channel("b"));
    }
}
