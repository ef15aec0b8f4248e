//! Who gets in, and how strict a browser is told to be.

use axum::body::Body;
use http::{Request, header};

use crate::support::{Answer, Place, TOKEN, id, request};

const GUARDED: [(&str, &str); 10] = [
    ("GET", "/api/tasks"),
    ("GET", "/api/tasks/07070707070707070707070707070707"),
    ("POST", "/api/tasks/07070707070707070707070707070707/answers"),
    ("POST", "/api/tasks/07070707070707070707070707070707/cancel"),
    ("POST", "/api/tasks/07070707070707070707070707070707/retry"),
    ("GET", "/api/changes"),
    ("GET", "/api/counts"),
    ("GET", "/metrics"),
    ("GET", "/api/nothing"),
    ("DELETE", "/api/tasks"),
];

#[tokio::test]
async fn nothing_of_a_task_is_told_or_done_without_the_token() {
    let place = Place::new();
    place.task(7, "alice", "slow").await;
    for (method, path) in GUARDED {
        let wrong = [None, Some("0123456789abcdeg"), Some(""), Some("0123456789abcdef0")];
        for token in wrong {
            let answer =
                Answer::of(place.send(request(method, path, token).body(Body::empty()).unwrap()).await).await;
            let challenge = answer.header("www-authenticate");
            assert_eq!(
                (answer.status.as_u16(), challenge),
                (401, Some("Bearer")),
                "{method} {path} with {token:?}"
            );
            assert!(!answer.body.contains("slow"), "{}", answer.body);
        }
    }
    let twice =
        request("GET", "/api/tasks", Some(TOKEN)).header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
    assert_eq!(place.send(twice.body(Body::empty()).unwrap()).await.status(), 401);
    let in_query = request("GET", &format!("/api/tasks?token={TOKEN}"), None).body(Body::empty()).unwrap();
    assert_eq!(place.send(in_query).await.status(), 401);
    let task = outlast_core::Store::get(&*place.store, id(7)).await.unwrap().unwrap();
    assert!(!task.cancel_requested());
}

#[tokio::test]
async fn the_page_and_the_probes_are_open() {
    let place = Place::new();
    for path in ["/ui", "/healthz", "/readyz"] {
        let answer = place.send(request("GET", path, None).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), 200, "{path}");
    }
    let root = place.send(request("GET", "/", None).body(Body::empty()).unwrap()).await;
    assert_eq!((root.status().as_u16(), &root.headers()["location"]), (307, &"/ui".parse().unwrap()));
}

#[tokio::test]
async fn another_host_or_origin_gets_nothing_not_even_with_the_token() {
    let place = Place::new();
    for path in ["/ui", "/api/tasks", "/metrics", "/healthz"] {
        for (name, value) in [(header::HOST, "evil.example"), (header::ORIGIN, "http://evil.example")] {
            let mut request = request("GET", path, Some(TOKEN)).body(Body::empty()).unwrap();
            request.headers_mut().insert(name.clone(), value.parse().unwrap());
            assert_eq!(place.send(request).await.status(), 403, "{path} with {name}");
        }
        let without = Request::builder().uri(path).body(Body::empty()).unwrap();
        assert_eq!(place.send(without).await.status(), 400, "{path} without a host");
    }
    let named = Place::with(|options| options.allowed_hosts = vec!["ops.example.com".to_owned()]);
    for (host, status) in [("127.0.0.1", 403), ("ops.example.com", 200)] {
        let request = Request::builder().uri("/ui").header(header::HOST, host).body(Body::empty()).unwrap();
        assert_eq!(named.send(request).await.status(), status, "{host}");
    }
}

#[tokio::test]
async fn every_answer_is_strict_and_the_page_runs_its_own_script_alone() {
    let place = Place::new();
    for (path, token) in [
        ("/ui", None),
        ("/api/tasks", Some(TOKEN)),
        ("/api/tasks", None),
        ("/nothing", None),
        ("/healthz", None),
    ] {
        let answer =
            Answer::of(place.send(request("GET", path, token).body(Body::empty()).unwrap()).await).await;
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none';") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        if path == "/ui" {
            assert!(
                policy.contains("script-src 'sha256-") && policy.contains("connect-src 'self'"),
                "{policy}"
            );
            assert!(policy.contains("require-trusted-types-for 'script'"), "{policy}");
        }
    }
}
