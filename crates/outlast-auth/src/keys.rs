//! The keys of an issuer, as they are now.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::watch, time::Instant};
use url::Url;

use crate::{Denied, clock, fetch, metadata::is_safe};

/// Where keys come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A document with the keys.
    Url(Url),
    /// A file with the keys.
    File(PathBuf),
    /// The issuer's own metadata, which names the document.
    Issuer(Url),
}

/// As the log has it: what else a URL may hold can be a secret.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => write!(f, "{}{}", url.origin().ascii_serialization(), url.path()),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Issuer(url) => {
                write!(f, "metadata of {}{}", url.origin().ascii_serialization(), url.path())
            }
        }
    }
}

/// How long keys are taken as they are.
const FRESH: Duration = Duration::from_secs(600);
/// The same for keys in a file.
const FRESH_FILE: Duration = Duration::from_secs(2);
/// The shortest time between two looks for a key that is not known: tokens of anybody's making can ask for one.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a look may hold up those whose key is known, though not whether it is still good.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long keys are good while their issuer cannot be reached.
const LAST: Duration = Duration::from_secs(24 * 3_600);

/// See the module.
pub(crate) struct Keys {
    source: Source,
    client: Option<reqwest::Client>,
    known: RwLock<Option<Known>>,
    /// The last look at them.
    last: Mutex<Option<Look>>,
}

/// A look at the keys of an issuer. It goes on when whoever wanted it has left: others may wait for it, too.
#[derive(Clone)]
struct Look {
    begun: Instant,
    /// Closed when it is over.
    under_way: watch::Receiver<()>,
}

impl Look {
    fn is_over(&self) -> bool {
        self.under_way.has_changed().is_err()
    }

    async fn over(mut self) {
        while self.under_way.changed().await.is_ok() {}
    }
}

#[derive(Clone)]
struct Known {
    keys: Arc<[Key]>,
    read: Instant,
}

/// A key that signs tokens.
pub(crate) struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    pub(crate) key: DecodingKey,
}

impl Keys {
    pub(crate) fn new(source: Source, client: Option<reqwest::Client>) -> Arc<Self> {
        Arc::new(Self { source, client, known: RwLock::default(), last: Mutex::default() })
    }

    /// The keys that may have signed a token with this header.
    ///
    /// An issuer that hangs holds nobody up for long whose key is known.
    ///
    /// # Errors
    /// When there is none, or when keys cannot be read now.
    pub(crate) async fn of(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Vec<DecodingKey>, Denied> {
        let known = self.known();
        let matches = known.as_ref().and_then(|known| matching(&known.keys, id, algorithm));
        let is_fresh = known.is_some_and(|known| clock::now() < known.read + self.fresh());
        let is_known = match matches {
            Some(keys) if is_fresh => return Ok(keys),
            matches => matches.is_some(),
        };
        let look = self.look();
        if is_known {
            // What comes of it counts, if it comes soon.
            let _ = tokio::time::timeout_at(look.begun + PATIENCE, look.over()).await;
        } else {
            look.over().await;
        }
        let known = self.known().filter(|known| clock::now() < known.read + LAST);
        let known = known.ok_or(Denied::Unavailable(PAUSE))?;
        matching(&known.keys, id, algorithm)
            .ok_or(Denied::Invalid("the token is signed by a key that its issuer does not have"))
    }

    /// Reads the keys, whether or not that is due.
    ///
    /// # Errors
    /// Why that cannot be done.
    pub(crate) async fn read_now(&self) -> Result<(), String> {
        let keys = self.read().await.map_err(|why| format!("{}: {why}", self.source))?;
        let known = Known { keys: keys.into(), read: clock::now() };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(())
    }

    fn known(&self) -> Option<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fresh(&self) -> Duration {
        if matches!(self.source, Source::File(_)) { FRESH_FILE } else { FRESH }
    }

    /// The look that is under way, or was a moment ago, else a new one; one look serves all who wait for it.
    fn look(self: &Arc<Self>) -> Look {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = if matches!(self.source, Source::File(_)) { FRESH_FILE } else { PAUSE };
        let now = clock::now();
        if let Some(look) = &*last
            && (now < look.begun + pause || !look.is_over())
        {
            return look.clone();
        }
        let (ends, under_way) = watch::channel(());
        let look = Look { begun: now, under_way };
        *last = Some(look.clone());
        let keys = self.clone();
        tokio::spawn(async move {
            if let Err(why) = keys.read_now().await {
                tracing::error!(why, "the keys of an issuer cannot be read");
            }
            drop(ends);
        });
        look
    }

    async fn read(&self) -> Result<Vec<Key>, String> {
        let document = match (&self.source, &self.client) {
            (Source::File(path), _) => {
                let bytes = tokio::fs::read(path).await.map_err(|error| error.to_string())?;
                serde_json::from_slice(&bytes).map_err(|error| error.to_string())?
            }
            (Source::Url(url), Some(client)) => fetch::json(client, url).await?,
            (Source::Issuer(issuer), Some(client)) => {
                let url = find(client, issuer).await?;
                fetch::json(client, &url).await?
            }
            (_, None) => return Err("there is no client to fetch them with".into()),
        };
        keys(&document)
    }
}

/// Finds the document with the keys by the issuer's metadata, in either of its two places.
async fn find(client: &reqwest::Client, issuer: &Url) -> Result<Url, String> {
    let mut last = String::new();
    for place in places(issuer) {
        let document = match fetch::json(client, &place).await {
            Ok(document) => document,
            Err(why) => {
                last = why;
                continue;
            }
        };
        // Another issuer's metadata would lead to another issuer's keys (RFC 8414).
        let is_its_own =
            document["issuer"].as_str().is_some_and(|named| named.trim_end_matches('/') == bare(issuer));
        if !is_its_own {
            last = "its metadata is that of another issuer".into();
            continue;
        }
        let keys = document["jwks_uri"].as_str().and_then(|text| Url::parse(text).ok());
        return keys.filter(is_safe).ok_or_else(|| "its metadata names no safe place for keys".into());
    }
    Err(last)
}

fn bare(issuer: &Url) -> &str {
    issuer.as_str().trim_end_matches('/')
}

/// Where the metadata of an issuer may be (RFC 8414, OpenID Connect Discovery).
fn places(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let at = |path: String| {
        let mut url = issuer.clone();
        url.set_path(&path);
        url
    };
    vec![
        at(format!("/.well-known/oauth-authorization-server{path}")),
        at(format!("{path}/.well-known/openid-configuration")),
        at(format!("/.well-known/openid-configuration{path}")),
    ]
}

/// The keys of a set that sign tokens; others, and those that are not understood, are passed over.
fn keys(document: &Value) -> Result<Vec<Key>, String> {
    let keys = document["keys"].as_array().ok_or("there are no `keys` in it")?;
    let keys: Vec<Key> = keys.iter().filter_map(|key| Key::read(&Jwk::deserialize(key).ok()?)).collect();
    if keys.is_empty() { Err("it has no key that signs tokens".into()) } else { Ok(keys) }
}

impl Key {
    fn read(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref().is_none_or(|what| *what == PublicKeyUse::Signature);
        let verifies = |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
        if !signs || !common.key_operations.as_ref().is_none_or(verifies) {
            return None;
        }
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => vec![
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                vec![Algorithm::ES256]
            }
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => {
                vec![Algorithm::ES384]
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                vec![Algorithm::EdDSA]
            }
            _ => return None,
        };
        if let Some(named) = &common.key_algorithm {
            algorithms.retain(|algorithm| same(*named, *algorithm));
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        (!algorithms.is_empty()).then(|| Self { id: common.key_id.clone(), algorithms, key })
    }
}

fn same(named: KeyAlgorithm, algorithm: Algorithm) -> bool {
    named.to_string() == format!("{algorithm:?}")
}

/// The keys that a token's header may mean: of its id, or where it names none, all of its algorithm.
fn matching(keys: &[Key], id: Option<&str>, algorithm: Algorithm) -> Option<Vec<DecodingKey>> {
    let fits =
        |key: &&Key| key.algorithms.contains(&algorithm) && id.is_none_or(|id| key.id.as_deref() == Some(id));
    let found: Vec<_> = keys.iter().filter(fits).map(|key| key.key.clone()).collect();
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_of_an_issuer_is_looked_for_where_the_standards_say() {
        let places = |issuer: &str| -> Vec<String> {
            places(&Url::parse(issuer).unwrap()).into_iter().map(Into::into).collect()
        };
        assert_eq!(
            places("https://a.example/realms/x/"),
            [
                "https://a.example/.well-known/oauth-authorization-server/realms/x",
                "https://a.example/realms/x/.well-known/openid-configuration",
                "https://a.example/.well-known/openid-configuration/realms/x",
            ]
        );
        assert_eq!(places("https://a.example")[1], "https://a.example/.well-known/openid-configuration");
    }

    #[test]
    fn keys_that_sign_nothing_or_are_secrets_are_passed_over() {
        let ec = |more: Value| {
            let mut key =
                serde_json::json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "a" });
            for (name, field) in more.as_object().unwrap() {
                key[name] = field.clone();
            }
            keys(&serde_json::json!({ "keys": [{ "kty": "odd" }, 7, key] })).map(|keys| keys.len()).ok()
        };
        assert_eq!(ec(serde_json::json!({})), Some(1));
        assert_eq!(ec(serde_json::json!({ "use": "sig", "alg": "ES256", "key_ops": ["verify"] })), Some(1));
        for more in [
            serde_json::json!({ "use": "enc" }),
            serde_json::json!({ "key_ops": ["encrypt"] }),
            serde_json::json!({ "alg": "ES384" }),
            serde_json::json!({ "crv": "P-521" }),
            serde_json::json!({ "kty": "oct", "k": "c2VjcmV0" }),
        ] {
            assert_eq!(ec(more.clone()), None, "{more}");
        }
    }
}
