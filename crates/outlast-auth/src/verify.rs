//! Signatures, checked by `ring`, which the rest of the program has anyway.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{ErrorKind, Result},
    signature,
};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

/// What a program that has chosen nothing else checks its tokens by.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: refuse,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Chooses `ring` for the whole program, unless something was chosen before.
pub(crate) fn choose() {
    if CryptoProvider::try_get_default().is_none() {
        // Somebody else may have chosen in between.
        let _ = RING.install_default();
    }
}

struct Checks {
    algorithm: Algorithm,
    how: How,
    key: DecodingKey,
}

enum How {
    Rsa(&'static RsaParameters),
    Other(&'static dyn VerificationAlgorithm),
}

/// This program checks tokens and gives none out.
fn refuse(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

/// Never by a shared secret: a public key must not be taken for one.
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let how = match algorithm {
        Algorithm::RS256 => How::Rsa(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => How::Rsa(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => How::Rsa(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => How::Rsa(&RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => How::Rsa(&RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => How::Rsa(&RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => How::Other(&ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => How::Other(&ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => How::Other(&ED25519),
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    if key.family() != algorithm.family() || key.family() == AlgorithmFamily::Hmac {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(Checks { algorithm: *algorithm, how, key: key.clone() }))
}

impl signature::Verifier<Vec<u8>> for Checks {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let checked = match (&self.how, self.key.kind()) {
            (How::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (How::Rsa(parameters), DecodingKeyKind::SecretOrDer(der)) => {
                UnparsedPublicKey::new(*parameters, der).verify(message, signature)
            }
            (How::Other(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(*algorithm, key).verify(message, signature)
            }
            (How::Other(_), DecodingKeyKind::RsaModulusExponent { .. }) => {
                return Err(signature::Error::new());
            }
        };
        checked.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Checks {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
