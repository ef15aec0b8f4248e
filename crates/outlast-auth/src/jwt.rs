//! Signed tokens of an issuer.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, errors::ErrorKind};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::{
    Authenticate, Denied, Principal, clock, fetch,
    keys::{Keys, Source},
    metadata::is_safe,
    verify,
};

/// The tokens of one issuer that are meant for this server.
///
/// A token is good that is signed by one of the issuer's keys (RS, PS, ES256, ES384 or EdDSA; never `none` or a shared secret),
/// whose `iss` is the issuer and whose `aud` names the audience, which has a `sub`, an `exp` that is not over and no `nbf` that
/// is yet to come; clocks may differ by a minute. The principal is issuer and subject together.
///
/// Keys are read again every ten minutes, and when a token names one that is not known, at most every ten seconds. When
/// they cannot be read, or not within a second, those that were read before are good for a day.
pub struct Jwt {
    issuer: String,
    audience: String,
    scopes: Vec<String>,
    source: Source,
    client: Option<reqwest::Client>,
    keys: Arc<Keys>,
}

/// What is said of the issuer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    /// The URL of the issuer, or of its keys, is not safe.
    #[error("{0} is https, or http on this machine")]
    Url(&'static str),
    /// The certificates of this machine cannot be used.
    #[error("cannot fetch the keys of an issuer")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The keys cannot be read now.
    #[error("the keys of the issuer cannot be read: {0}")]
    Keys(String),
}

/// How far the clocks of issuer and server may differ.
const LEEWAY: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
    #[serde(default)]
    nbf: Option<f64>,
    /// Scopes as one text, or as some issuers have them.
    #[serde(default)]
    scope: Option<Value>,
    #[serde(default)]
    scp: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Jwt {
    /// Tokens of `issuer` whose `aud` is, or has, `audience`. The issuer's keys are found by its metadata.
    ///
    /// # Errors
    /// When the issuer is no safe URL.
    pub fn new(issuer: &str, audience: &str) -> Result<Self, JwtError> {
        verify::choose();
        let url = safe(issuer, "the URL of an issuer")?;
        let client = fetch::client().map_err(JwtError::Client)?;
        let source = Source::Issuer(url);
        Ok(Self {
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            scopes: Vec::new(),
            keys: Keys::new(source.clone(), Some(client.clone())),
            source,
            client: Some(client),
        })
    }

    /// Reads the issuer's keys from this URL.
    ///
    /// # Errors
    /// When it is not safe.
    pub fn keys_url(self, url: &str) -> Result<Self, JwtError> {
        let url = safe(url, "the URL of an issuer's keys")?;
        Ok(self.keys_from(Source::Url(url)))
    }

    /// Reads the issuer's keys from this file, a JSON Web Key Set. A change of the file is seen within seconds.
    #[must_use]
    pub fn keys_file(self, path: impl Into<PathBuf>) -> Self {
        self.keys_from(Source::File(path.into()))
    }

    /// Asks for this scope too: a token without it is good, and not enough.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// Reads the keys now. They are read when the first token comes; this is for those who want to know before whether that
    /// will do.
    ///
    /// # Errors
    /// When they cannot be read, or when none of them can sign a token.
    pub async fn read_keys(&self) -> Result<(), JwtError> {
        self.keys.read_now().await.map_err(JwtError::Keys)
    }

    fn keys_from(mut self, source: Source) -> Self {
        self.keys = Keys::new(source.clone(), self.client.clone());
        self.source = source;
        self
    }

    /// What a token says whose signature is good.
    async fn read(&self, token: &str) -> Result<Claims, Denied> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| MALFORMED)?;
        if header.alg.family() == AlgorithmFamily::Hmac {
            return Err(Denied::Invalid("the token is not signed by a key of its issuer"));
        }
        let keys = self.keys.of(header.kid.as_deref(), header.alg).await?;
        let mut end = Denied::Invalid("the token's signature is not good");
        for key in keys {
            match signed(token, &key, header.alg) {
                Ok(claims) => return Ok(claims),
                Err(denied) => end = denied,
            }
        }
        Err(end)
    }
}

const MALFORMED: Denied = Denied::Invalid("the token is not one that this server can read");

/// What a token says, if this key signed it. What it says is looked at elsewhere, with the time.
fn signed(token: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<Claims, Denied> {
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    jsonwebtoken::decode(token, key, &validation).map(|token| token.claims).map_err(|error| {
        match error.kind() {
            ErrorKind::Json(_) => {
                Denied::Invalid("the token lacks a claim, or has one of another kind: iss, sub, aud, exp")
            }
            _ => Denied::Invalid("the token's signature is not good"),
        }
    })
}

impl Claims {
    /// Whose the token is, at `now` in seconds since 1970.
    fn principal(&self, jwt: &Jwt, now: f64) -> Result<Principal, Denied> {
        let leeway = LEEWAY.as_secs_f64();
        if self.iss != jwt.issuer {
            return Err(Denied::Invalid("the token is of another issuer"));
        }
        let is_meant = match &self.aud {
            Audience::One(audience) => *audience == jwt.audience,
            Audience::Many(audiences) => audiences.contains(&jwt.audience),
        };
        if !is_meant {
            return Err(Denied::Invalid("the token is meant for another server"));
        }
        if self.exp <= now - leeway {
            return Err(Denied::Invalid("the token has expired"));
        }
        if self.nbf.is_some_and(|from| from > now + leeway) {
            return Err(Denied::Invalid("the token is not good yet"));
        }
        if self.sub.is_empty() {
            return Err(Denied::Invalid("the token has no subject"));
        }
        let has = |wanted: &String| {
            [&self.scope, &self.scp].into_iter().flatten().any(|scopes| names(scopes, wanted))
        };
        if !jwt.scopes.iter().all(has) {
            return Err(Denied::Scope);
        }
        // Two parts that cannot run into each other: no URL has a space in it.
        Ok(Principal::new(format!("{} {}", self.iss, self.sub)))
    }
}

/// Whether a scope stands in a claim, which is a text with spaces or a list.
fn names(scopes: &Value, wanted: &str) -> bool {
    match scopes {
        Value::String(text) => text.split(' ').any(|scope| scope == wanted),
        Value::Array(list) => list.iter().any(|scope| scope.as_str() == Some(wanted)),
        _ => false,
    }
}

fn safe(url: &str, what: &'static str) -> Result<Url, JwtError> {
    let has_space = url.contains(char::is_whitespace);
    Url::parse(url).ok().filter(|url| is_safe(url) && !has_space).ok_or(JwtError::Url(what))
}

#[async_trait]
impl Authenticate for Jwt {
    async fn authenticate(&self, token: &str) -> Result<Principal, Denied> {
        self.read(token).await?.principal(self, clock::wall())
    }

    fn issuers(&self) -> Vec<String> {
        vec![self.issuer.clone()]
    }

    fn scopes(&self) -> Vec<String> {
        self.scopes.clone()
    }
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt")
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
