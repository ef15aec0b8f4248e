#![cfg(unix)]

use std::path::Path;

use super::*;

/// A server in the shell: it introduces itself, then runs `body` for each further line, which is in `$line`, and whose id
/// is in `$id`.
fn script(body: &str) -> Server {
    let discovered = discovered();
    let script = format!(
        r#"
        answer() {{ printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$id" "$1"; }}
        while read -r line; do
            id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
            case "$line" in
                *server/discover*) answer '{discovered}' ;;
                *) {body} ;;
            esac
        done
        "#
    );
    Server::command("sh", ["-c", script.as_str()])
}

/// Waits until the process whose id is written there is gone.
async fn is_gone(pid: &Path) -> bool {
    let pid = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    soon(async {
        while rustix::process::test_kill_process(pid).is_ok() {
            tokio::task::yield_now().await;
        }
        true
    })
    .await
}

#[tokio::test]
async fn an_answer_of_a_process_is_raw_and_its_environment_is_what_it_was_given() {
    let server = script(r#"answer "{\"ttlMs\":60000.0,\"key\":\"$OUTLAST_TEST_KEY\"}""#)
        .env("OUTLAST_TEST_KEY", "secret");
    let client = Client::connect(&server).await;
    let result = client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap();
    assert_eq!(result, json!({"ttlMs": 60000.0, "key": "secret"}));
    client.close().await;
}

#[tokio::test]
async fn requests_fail_at_once_when_the_process_dies_and_its_last_words_are_kept() {
    // It has much to say, and it takes time to hear it to the end.
    let server = script("head -c 500000 /dev/zero >&2; printf '\\033[31mthe disk is on fire' >&2; exit 3");
    let client = Client::connect(&server).await;
    let result = client.ask("tasks/get", json!({"taskId": "t"})).await;
    assert!(matches!(result, Err(ServiceError::TransportClosed)), "{result:?}");
    let end = client.observed.end().unwrap();
    assert!(end.contains("exit status: 3") && end.contains("the disk is on fire"), "{end}");
    assert!(!end.contains('\u{1b}') && !end.contains('\0'), "{end:?}");
}

#[tokio::test]
async fn a_process_that_is_killed_fails_its_requests_although_its_child_keeps_its_output_open() {
    // The grandchild ends with this test.
    let alive = tempfile::NamedTempFile::new().unwrap();
    let grandchild = format!("while [ -e {} ]; do sleep 0.05; done & kill -9 $$", alive.path().display());
    let server = script(&grandchild);
    let client = Client::connect(&server).await;
    let result = client.ask("tasks/get", json!({"taskId": "t"})).await;
    assert!(matches!(result, Err(ServiceError::TransportClosed)), "{result:?}");
    let end = client.observed.end().unwrap();
    assert!(end.contains("signal: 9"), "{end}");
}

#[tokio::test]
async fn what_a_process_says_before_it_ends_is_heard() {
    let server = script(r#"answer '{"ttlMs":1.0}'; exit 0"#);
    let client = Client::connect(&server).await;
    assert_eq!(client.ask("tasks/get", json!({"taskId": "t"})).await.unwrap(), json!({"ttlMs": 1.0}));
}

#[tokio::test]
async fn a_process_ends_when_its_input_is_closed_and_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (pid, end) = (directory.path().join("pid"), directory.path().join("end"));
    let (pid_text, end_text) = (pid.display(), end.display());
    let server = Server::command(
        "sh",
        [
            "-c",
            &format!(
                "echo $$ > {pid_text}; read -r line; printf '{{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":%s}}\\n' '{}'; \
                 cat > /dev/null; head -c 1000000 /dev/zero; echo orderly > {end_text}",
                discovered()
            ),
        ],
    );
    let client = Client::connect(&server).await;
    client.close().await;
    assert_eq!(std::fs::read_to_string(end).unwrap(), "orderly\n", "although it had much to say to the end");
    assert!(is_gone(&pid).await);
}

#[tokio::test]
async fn a_process_that_does_not_end_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let (pid, end) = (directory.path().join("pid"), directory.path().join("end"));
    let (pid_text, end_text) = (pid.display(), end.display());
    let server = Server::command(
        "sh",
        [
            "-c",
            &format!(
                "trap 'echo told > {end_text}; exit 0' TERM; echo $$ > {pid_text}; read -r line; \
                 printf '{{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":%s}}\\n' '{}'; while :; do sleep 0.05; done",
                discovered()
            ),
        ],
    );
    let client = Client::connect(&server).await;
    client.close().await;
    assert_eq!(std::fs::read_to_string(end).unwrap(), "told\n");
    assert!(is_gone(&pid).await);
}

#[tokio::test]
async fn a_process_does_not_outlive_a_connection_that_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let pid = directory.path().join("pid");
    let server = Server::command("sh", ["-c", &format!("echo $$ > {}; exec sleep 1000", pid.display())]);
    let wire = server.connect(Arc::default()).await.unwrap();
    soon(async {
        while !std::fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(wire);
    assert!(is_gone(&pid).await);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error() {
    let error = Server::command("/no/such/program", [""; 0]).connect(Arc::default()).await.err().unwrap();
    assert!(error.to_string().contains("No such file"), "{error}");
}
