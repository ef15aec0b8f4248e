//! Sessions of earlier protocols, each for the verified caller alone who began it.
//!
//! The SDK knows a session by its id: whoever came to know the id, and may call the server at all, would hear on the
//! session's stream what its caller is asked, and could end it. So the id that a caller gets has a seal on it, by which it is
//! good for them alone.

use http::{HeaderMap, HeaderValue};
use outlast_runtime::random_id;
use sha2::{Digest, Sha256};

use super::owner::Principal;

const SESSION: &str = "mcp-session-id";
/// What stands between the SDK's id and the seal.
const BETWEEN: char = '.';

/// The secret that seals are made with. Sessions end with their process, and so does it.
#[derive(Clone)]
pub(super) struct SessionSeal(String);

impl SessionSeal {
    pub(super) fn new() -> Self {
        Self(random_id().to_string())
    }

    /// Puts the seal of a caller on the id in the headers of an answer, where there is one. A session of somebody who is not
    /// known stays as it is.
    pub(super) fn put(&self, caller: Option<&Principal>, headers: &mut HeaderMap) {
        let (Some(caller), Some(id)) = (caller, headers.get(SESSION).and_then(|id| id.to_str().ok())) else {
            return;
        };
        let sealed = HeaderValue::from_str(&format!("{id}{BETWEEN}{}", self.of(caller, id)));
        if let Ok(sealed) = sealed {
            headers.insert(SESSION, sealed);
        }
    }

    /// Takes the seal off the id in the headers of a request, where there is one. False where it is not that of this caller.
    pub(super) fn take(&self, caller: Option<&Principal>, headers: &mut HeaderMap) -> bool {
        let (Some(caller), Some(sealed)) = (caller, headers.get(SESSION)) else { return true };
        let parts = sealed.to_str().ok().and_then(|sealed| sealed.rsplit_once(BETWEEN));
        let Some((id, seal)) = parts else { return false };
        // Digests are compared, so that how long that takes tells nothing of the seal.
        if Sha256::digest(seal) != Sha256::digest(self.of(caller, id)) {
            return false;
        }
        let Ok(id) = HeaderValue::from_str(id) else { return false };
        headers.insert(SESSION, id);
        true
    }

    fn of(&self, caller: &Principal, id: &str) -> String {
        let mut digest = Sha256::new();
        for part in [&*self.0, caller.name(), id] {
            // With its length, so that no two have the same bytes.
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        // Half of it: nobody can go on from what they have not seen.
        digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Debug for SessionSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionSeal(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(id: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(SESSION, id.parse().unwrap());
        headers
    }

    fn id(headers: &HeaderMap) -> &str {
        headers[SESSION].to_str().unwrap()
    }

    #[test]
    fn a_seal_is_good_for_its_caller_and_its_session() {
        let seal = SessionSeal::new();
        let (ann, bob) = (Principal::new("ann"), Principal::new("bob"));
        let mut headers = with("s1");
        seal.put(Some(&ann), &mut headers);
        let sealed = id(&headers).to_owned();
        assert!(!seal.take(Some(&bob), &mut headers.clone()));
        assert!(!SessionSeal::new().take(Some(&ann), &mut headers.clone()), "of another process");
        assert!(seal.take(Some(&ann), &mut headers));
        assert_eq!(id(&headers), "s1");

        let (_, of_s1) = sealed.rsplit_once(BETWEEN).unwrap();
        for forged in ["s1", "s1.", ".", &format!("s2.{of_s1}"), &format!("s1.{of_s1}0")] {
            assert!(!seal.take(Some(&ann), &mut with(forged)), "{forged}");
        }
    }

    #[test]
    fn who_is_not_known_has_sessions_without_a_seal() {
        let seal = SessionSeal::new();
        let mut headers = with("s1");
        seal.put(None, &mut headers);
        assert!(seal.take(None, &mut headers));
        assert_eq!(id(&headers), "s1");
        assert!(
            !seal.take(Some(&Principal::new("ann")), &mut headers),
            "and nobody who is known takes one over"
        );
        assert!(seal.take(Some(&Principal::new("ann")), &mut HeaderMap::new()), "no session");
    }
}
