//! Tokens that are given out by hand, in a file.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{Authenticate, Denied, Principal, clock};

/// The tokens in a file, each with the name of its bearer.
///
/// A line is a name, white space, and a token or `sha256:` and the digest of one in hexadecimal; empty lines and those that
/// begin with `#` are passed over. A name may stand in several lines, so that a token can be exchanged while both are good.
/// ```text
/// # who   token
/// ann     sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
/// bob     d3adb33fd3adb33fd3adb33f
/// ```
/// A change of the file is seen within a second. One that cannot be read any more leaves the tokens as they were, with an error
/// in the log.
#[derive(Debug)]
pub struct Bearer {
    path: PathBuf,
    state: Mutex<State>,
}

/// The file cannot be used. No token is in its message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BearerError {
    /// It cannot be read.
    #[error("cannot read the tokens in {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not what it should be.
    #[error("{}: line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
}

#[derive(Debug)]
struct State {
    tokens: Arc<Tokens>,
    /// What the file looked like when it was read.
    stamp: Option<Stamp>,
    looked: Instant,
}

/// When the file was changed, and how long it is.
type Stamp = (SystemTime, u64);
/// Names by the digests of their tokens. A digest is looked up, so that how long that takes tells nothing of a token.
type Tokens = HashMap<[u8; 32], Principal>;

/// How long the file is taken as it is.
const FRESH: Duration = Duration::from_secs(1);
/// A shorter one is guessed too easily.
const SHORTEST: usize = 16;
const DIGEST: &str = "sha256:";

impl Bearer {
    /// Reads the tokens in a file.
    ///
    /// # Errors
    /// When it cannot be read, or one of its lines is not understood.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self, BearerError> {
        let path = path.into();
        let stamp = stamp(&path);
        let state = State { tokens: Arc::new(read(&path)?), stamp, looked: clock::now() };
        Ok(Self { path, state: Mutex::new(state) })
    }

    fn tokens(&self) -> Arc<Tokens> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if clock::now().duration_since(state.looked) >= FRESH {
            state.looked = clock::now();
            let stamp = stamp(&self.path);
            if stamp != state.stamp {
                state.stamp = stamp;
                match read(&self.path) {
                    Ok(tokens) => state.tokens = Arc::new(tokens),
                    Err(error) => tracing::error!(%error, "the tokens that were read before stay good"),
                }
            }
        }
        state.tokens.clone()
    }
}

#[async_trait]
impl Authenticate for Bearer {
    async fn authenticate(&self, token: &str) -> Result<Principal, Denied> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        self.tokens().get(&digest).cloned().ok_or(Denied::Invalid("the token is not known"))
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

fn read(path: &Path) -> Result<Tokens, BearerError> {
    let text =
        fs::read_to_string(path).map_err(|source| BearerError::Io { path: path.to_owned(), source })?;
    parse(&text).map_err(|(line, why)| BearerError::Line { path: path.to_owned(), line, why })
}

fn parse(text: &str) -> Result<Tokens, (usize, &'static str)> {
    let mut tokens = Tokens::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why| (n + 1, why);
        let (name, token) =
            line.split_once(char::is_whitespace).ok_or(wrong("a line is a name and a token"))?;
        let token = token.trim();
        let digest = match token.strip_prefix(DIGEST) {
            Some(hex) => digest(hex).ok_or(wrong("a digest is 64 hexadecimal digits"))?,
            None if token.contains(char::is_whitespace) => return Err(wrong("a token has no white space")),
            None if token.len() < SHORTEST => return Err(wrong("a token has 16 characters at least")),
            None => Sha256::digest(token).into(),
        };
        let name = Principal::new(format!("bearer:{name}"));
        if tokens.insert(digest, name.clone()).is_some_and(|other| other != name) {
            return Err(wrong("another name has this token"));
        }
    }
    if tokens.is_empty() { Err((1, "there is no token in it")) } else { Ok(tokens) }
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, n) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[n..n + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_names_tokens_and_digests() {
        let digest = "2C26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        let tokens = parse(&format!(
            "# who\n\n ann \t sha256:{digest}\nann 0123456789abcdef\nbob  fedcba9876543210\n"
        ));
        let tokens = tokens.unwrap();
        let of = |token: &str| tokens.get::<[u8; 32]>(&Sha256::digest(token).into()).map(Principal::name);
        assert_eq!((of("foo"), of("0123456789abcdef")), (Some("bearer:ann"), Some("bearer:ann")));
        assert_eq!((of("fedcba9876543210"), of("other")), (Some("bearer:bob"), None));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_without_its_token() {
        for (text, line) in [
            ("", 1),
            ("# nothing\n", 1),
            ("ann", 1),
            ("ann short", 1),
            ("\nann 0123456789abcdef more", 2),
            ("ann sha256:12", 1),
            ("ann sha256:zz26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", 1),
            ("ann 0123456789abcdef\nbob 0123456789abcdef", 2),
        ] {
            let (at, why) = parse(text).unwrap_err();
            assert_eq!(at, line, "{text}: {why}");
            assert!(!why.contains("0123"), "{why}");
        }
    }
}
