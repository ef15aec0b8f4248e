//! The token that lets an operator in.

use std::fmt::{self, Write as _};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The token that whoever uses the API has to show. `Debug` hides it.
#[derive(Clone)]
pub struct AdminToken(String);

/// A text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// It is too short.
    #[error("an admin token has 16 characters at least; a shorter one is guessed too easily")]
    Short,
    /// It cannot be sent in a header.
    #[error("an admin token is letters, digits and signs of ASCII, without spaces")]
    Characters,
    /// The system gives no random bytes.
    #[error("the system gives no random bytes for an admin token; set one")]
    Random,
}

impl AdminToken {
    const SHORTEST: usize = 16;

    /// A token that was set. White space around it, such as a file's last line end, is not part of it.
    ///
    /// # Errors
    /// When it is too short, or cannot be sent.
    pub fn new(text: &str) -> Result<Self, InvalidToken> {
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Err(InvalidToken::Characters)
        } else if text.len() < Self::SHORTEST {
            Err(InvalidToken::Short)
        } else {
            Ok(Self(text.to_owned()))
        }
    }

    /// A token of 128 random bits.
    ///
    /// # Errors
    /// When the system has none.
    pub fn random() -> Result<Self, InvalidToken> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| InvalidToken::Random)?;
        let mut text = String::with_capacity(32);
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text))
    }

    /// The token, to be given to who may use it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `given` is this token. How long that takes tells nothing of it: digests are compared, in constant time.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        Sha256::digest(&self.0).as_slice().ct_eq(Sha256::digest(given).as_slice()).into()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_alone_and_is_not_shown() {
        let token = AdminToken::new(" 0123456789abcdef\n").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdef ", b"0123456789abcdeg"] {
            assert!(!token.is(other));
        }
        assert!(!format!("{token:?}").contains('0'));
    }

    #[test]
    fn what_is_no_token_is_refused_in_words() {
        assert_eq!(AdminToken::new("0123456789abcde").unwrap_err(), InvalidToken::Short);
        assert_eq!(AdminToken::new("").unwrap_err(), InvalidToken::Short);
        assert_eq!(AdminToken::new("0123456789 abcdef").unwrap_err(), InvalidToken::Characters);
        assert_eq!(AdminToken::new("0123456789abcdefé").unwrap_err(), InvalidToken::Characters);
    }

    #[test]
    fn random_tokens_are_good_and_differ() {
        let (one, other) = (AdminToken::random().unwrap(), AdminToken::random().unwrap());
        assert_ne!(one.as_str(), other.as_str());
        assert!(AdminToken::new(one.as_str()).is_ok());
    }
}
