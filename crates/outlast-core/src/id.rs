//! Identifiers, each a type of its own so that one is never passed for another.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The public id of a task: 128 bits, written as 32 lower-case hex digits.
///
/// The bits come from the caller and must be random (S17): whoever knows an id of an anonymous owner may use it,
/// so `Debug` shows only the first four digits.
///
/// ```
/// use outlast_core::TaskId;
/// let id = TaskId::from_bytes([0xab; 16]);
/// assert_eq!(id.to_string(), "abababababababababababababababab");
/// assert_eq!(id.to_string().parse::<TaskId>().unwrap(), id);
/// assert_eq!(format!("{id:?}"), "TaskId(abab..)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId([u8; 16]);

impl TaskId {
    /// An id of these bits.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bits of this id.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

impl FromStr for TaskId {
    type Err = InvalidKey;

    /// Reads exactly what `Display` writes; everything else is an id that nobody was given (S25).
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return Err(InvalidKey::TaskId);
        }
        let digit = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(InvalidKey::TaskId),
        };
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Who a task belongs to: an opaque name that the server derives from the verified caller (S30).
///
/// `Debug` hides it: it may hold a person's name or a digest of a token.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(Arc<str>);

impl Owner {
    /// An owner of this name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The owner of tasks whose caller is not known; the task's id is then their only protection (S17).
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new("anonymous")
    }

    /// The name, for a store to keep.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(..)")
    }
}

/// Why a text is no id or key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// Not 32 lower-case hex digits.
    #[error("a task id is 32 lower-case hex digits")]
    TaskId,
    /// Empty, longer than [`InputKey::MAX_BYTES`], or with a control character.
    #[error("a key is 1 to 256 bytes of text without control characters")]
    Key,
}

fn check_key(text: &str) -> Result<(), InvalidKey> {
    let fits = (1..=InputKey::MAX_BYTES).contains(&text.len());
    if fits && !text.chars().any(char::is_control) { Ok(()) } else { Err(InvalidKey::Key) }
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest key, in bytes of UTF-8.
            pub const MAX_BYTES: usize = 256;

            /// A key of this text.
            ///
            /// # Errors
            /// [`InvalidKey::Key`] when it is empty, too long, or has a control character.
            pub fn new(text: impl Into<Arc<str>>) -> Result<Self, InvalidKey> {
                let text = text.into();
                check_key(&text)?;
                Ok(Self(text))
            }

            /// The key as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

key! {
    /// The key of a question, unique over the life of its task and never used again (S18).
    InputKey
}
key! {
    /// The key of a step or a timer, unique over the life of its task.
    ///
    /// Steps, timers and questions of a task share one space of keys: a key names one thing.
    StepKey
}

impl From<&InputKey> for StepKey {
    fn from(key: &InputKey) -> Self {
        Self(key.0.clone())
    }
}

/// A fencing token: each claim of a task gets the next one, and a write under an older one is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

impl Token {
    /// The token of the next claim.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The name of a worker process; it tells operators who held a lease and guards nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// A worker of this name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
