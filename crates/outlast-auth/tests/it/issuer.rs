//! An issuer of tokens: its metadata, its keys, and what it signs.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{Router, http::StatusCode, routing};
use base64::{Engine as _, prelude::*};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
        RSA_PSS_SHA256, RsaKeyPair,
    },
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A key that an issuer signs with.
pub(crate) enum Signer {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

pub(crate) fn base64url(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub(crate) fn ed25519() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
    }

    pub(crate) fn p256() -> Self {
        let (how, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let key = EcdsaKeyPair::generate_pkcs8(how, &random).unwrap();
        Self::P256(EcdsaKeyPair::from_pkcs8(how, key.as_ref(), &random).unwrap())
    }

    /// A key of the tests, which `ring` cannot make.
    pub(crate) fn rsa() -> Self {
        let text: String = include_str!("../fixtures/rsa-test-key.pk8.base64").split_whitespace().collect();
        Self::Rsa(RsaKeyPair::from_pkcs8(&BASE64_STANDARD.decode(text).unwrap()).unwrap())
    }

    /// The public half, as the issuer publishes it.
    pub(crate) fn jwk(&self, id: &str) -> Value {
        let mut key = match self {
            Self::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": base64url(pair.public_key()) })
            }
            Self::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": base64url(x), "y": base64url(y) })
            }
            Self::Rsa(pair) => {
                let public = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "kty": "RSA", "n": base64url(public.n), "e": base64url(public.e) })
            }
        };
        key["kid"] = id.into();
        key["use"] = "sig".into();
        key
    }

    pub(crate) fn token(&self, id: &str, claims: &Value) -> String {
        let algorithm = match self {
            Self::Ed25519(_) => "EdDSA",
            Self::P256(_) => "ES256",
            Self::Rsa(_) => "RS256",
        };
        self.token_as(&json!({ "alg": algorithm, "kid": id, "typ": "at+jwt" }), claims)
    }

    pub(crate) fn token_as(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64url(header.to_string()), base64url(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ed25519(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
            Self::P256(pair) => pair.sign(&random, message.as_bytes()).unwrap().as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let how: &dyn ring::signature::RsaEncoding =
                    if header["alg"] == "PS256" { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                pair.sign(how, &random, message.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{message}.{}", base64url(signature))
    }
}

/// A running issuer.
#[derive(Clone)]
pub(crate) struct Issuer {
    pub(crate) url: String,
    pub(crate) keys: Arc<Mutex<Vec<Value>>>,
    /// How often its keys were read.
    pub(crate) reads: Arc<AtomicUsize>,
    pub(crate) is_down: Arc<AtomicBool>,
    /// Whether it lets those wait for ever who want its keys.
    pub(crate) hangs: Arc<AtomicBool>,
}

impl Issuer {
    pub(crate) async fn start(keys: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/realms/a", listener.local_addr().unwrap());
        let issuer = Self {
            url,
            keys: Arc::new(Mutex::new(keys)),
            reads: Arc::default(),
            is_down: Arc::default(),
            hangs: Arc::default(),
        };
        let (metadata, served) = (issuer.clone(), issuer.clone());
        let router = Router::new()
            .route(
                "/realms/a/.well-known/openid-configuration",
                routing::get(async move || {
                    json!({ "issuer": metadata.url, "jwks_uri": format!("{}/keys", metadata.url) })
                        .to_string()
                }),
            )
            .route(
                "/realms/a/keys",
                routing::get(async move || {
                    served.reads.fetch_add(1, Ordering::SeqCst);
                    if served.hangs.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    if served.is_down.load(Ordering::SeqCst) {
                        return (StatusCode::BAD_GATEWAY, String::new());
                    }
                    (StatusCode::OK, json!({ "keys": *served.keys.lock().unwrap() }).to_string())
                }),
            );
        tokio::spawn(async move { axum::serve(listener, router).await });
        issuer
    }
}
