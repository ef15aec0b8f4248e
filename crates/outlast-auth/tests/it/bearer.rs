//! Tokens in a file.

use std::{fs, time::Duration};

use outlast_auth::{Auth, Authenticate as _, Bearer, Denied};

use crate::support::{call, serve};

const OLD: &str = "old-token-0123456789";
const NEW: &str = "new-token-0123456789";

#[tokio::test]
async fn a_token_is_exchanged_without_a_restart_and_its_bearer_stays_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    fs::write(&file, format!("ann {OLD}\n")).unwrap();
    let tokens = Bearer::from_file(&file).unwrap();
    let before = tokens.authenticate(OLD).await.unwrap();
    assert_eq!(tokens.authenticate(NEW).await, Err(Denied::Invalid("the token is not known")));

    fs::write(&file, format!("# changed\nann {NEW}\n")).unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(tokens.authenticate(NEW).await.unwrap(), before);
    assert!(tokens.authenticate(OLD).await.is_err());

    // A file in the middle of being written does not lock everybody out.
    fs::write(&file, "ann").unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(tokens.authenticate(NEW).await.unwrap(), before);
}

#[tokio::test]
async fn a_server_without_metadata_asks_for_a_token_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    fs::write(&file, format!("ann {OLD}\n")).unwrap();
    let server = serve(Auth::new(Bearer::from_file(&file).unwrap())).await;

    let refused = call(server, None).await;
    assert_eq!((refused.status, refused.challenge.as_deref()), (401, Some("Bearer")));
    let refused = call(server, Some(&format!("Bearer {NEW}"))).await;
    assert_eq!((refused.status, refused.error()), (401, Some("invalid_token")));
    assert!(!refused.body.contains(NEW));
    assert_eq!(call(server, Some(&format!("Bearer {OLD}"))).await.status, 200);
}

#[test]
fn a_file_that_cannot_be_used_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Bearer::from_file(folder.path().join("missing")).unwrap_err().to_string();
    assert!(missing.contains("cannot read the tokens in"), "{missing}");
    let file = folder.path().join("tokens");
    fs::write(&file, "ann secret-that-is-long and more").unwrap();
    let wrong = Bearer::from_file(&file).unwrap_err().to_string();
    assert!(wrong.contains("line 1") && !wrong.contains("secret"), "{wrong}");
}
