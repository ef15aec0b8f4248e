//! Opening a database: what is refused, and in which words.

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

mod harness;

use std::{error::Error, time::Duration};

use harness::{Cluster, fresh_schema, open, quoted, raw, still, url};
use outlast_core::{Inspect, Store};
use outlast_postgres::{OpenError, Options, PostgresStore, Skew};
use outlast_testkit::{run, story::*};

async fn refused(url: &str, options: Options) -> OpenError {
    match PostgresStore::connect(url, options).await {
        Ok(_) => panic!("it is refused"),
        Err(error) => error,
    }
}

/// All that is said of an error, its causes included.
fn told(error: &OpenError) -> String {
    let mut told = format!("{error} | {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        told += &format!(": {cause}");
        source = cause.source();
    }
    told
}

#[test]
fn many_replicas_may_begin_at_once_on_an_empty_database() {
    run(async {
        let schema = fresh_schema();
        let opened = at_once((0..8).map(|_| {
            let schema = schema.clone();
            async move { open(&schema, &Skew::default()).await }
        }))
        .await;
        let task = opened[0].create_one(new_task()).await;
        assert_eq!(opened[7].get(task.id).await.unwrap(), Some(task));
    });
}

#[test]
fn a_schema_of_a_newer_version_is_refused_and_left_as_it_is() {
    run(async {
        let schema = fresh_schema();
        open(&schema, &Skew::default()).await.close().await;
        let client = raw(url()).await;
        let meta = format!("{}.outlast", quoted(&schema));
        client.batch_execute(&format!("UPDATE {meta} SET value = 99 WHERE name = 'schema'")).await.unwrap();
        let error = refused(url(), Options::default().schema(&schema)).await;
        assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error:?}");
        let found =
            client.query_one(&format!("SELECT value FROM {meta} WHERE name = 'schema'"), &[]).await.unwrap();
        assert_eq!(found.get::<_, i64>(0), 99);
    });
}

#[test]
fn the_tables_of_another_program_are_left_alone() {
    run(async {
        let schema = fresh_schema();
        let client = raw(url()).await;
        let name = quoted(&schema);
        client
            .batch_execute(&format!("CREATE SCHEMA {name}; CREATE TABLE {name}.tasks (x int)"))
            .await
            .unwrap();
        let error = refused(url(), Options::default().schema(&schema)).await;
        assert!(matches!(error, OpenError::Foreign(_)), "{error:?}");
    });
}

#[test]
fn a_schema_that_an_operator_made_is_used() {
    run(async {
        let schema = fresh_schema();
        raw(url()).await.batch_execute(&format!("CREATE SCHEMA {}", quoted(&schema))).await.unwrap();
        open(&schema, &Skew::default()).await.create_one(new_task()).await;
    });
}

#[test]
fn a_schema_may_have_any_name() {
    run(async {
        for name in [r#"a"; DROP SCHEMA public; --"#, "o'clock $1 $S", "Größe 日本"] {
            let store = open(name, &still()).await;
            let (task, token) = store.create_leased(new_keyed("k", 1), "one").await;
            store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
            assert_eq!(store.counts().await.unwrap().total(), 1);
            store.close().await;
            let drop = format!("DROP SCHEMA \"{}\" CASCADE", name.replace('"', "\"\""));
            raw(url()).await.batch_execute(&drop).await.unwrap();
        }
        let error = refused(url(), Options::default().schema("")).await;
        assert!(matches!(error, OpenError::Name(_)), "{error:?}");
    });
}

#[test]
fn a_database_that_cannot_keep_every_text_is_refused() {
    run(async {
        let client = raw(url()).await;
        let name = format!("latin_{}", fresh_schema().replace(' ', "_"));
        client
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"))
            .await
            .unwrap();
        let (server, _) = url().rsplit_once('/').unwrap();
        let latin = format!("{server}/{name}");
        let error = refused(&latin, Options::default()).await;
        assert!(matches!(&error, OpenError::Encoding(encoding) if encoding == "LATIN1"), "{error:?}");
        client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
    });
}

#[test]
fn a_user_who_may_not_is_told_so() {
    run(async {
        let client = raw(url()).await;
        let name = format!("nobody_{}", fresh_schema().replace(' ', "_"));
        client.batch_execute(&format!("CREATE ROLE {name} LOGIN PASSWORD 'secret'")).await.unwrap();
        let (_, place) = url().split_once('@').unwrap();
        let error =
            refused(&format!("postgres://{name}:secret@{place}"), Options::default().schema(fresh_schema()))
                .await;
        assert!(matches!(error, OpenError::NotAllowed { .. }), "{error:?}");
        client.batch_execute(&format!("DROP ROLE {name}")).await.unwrap();
    });
}

#[test]
fn no_refusal_repeats_a_password() {
    run(async {
        let (_, place) = url().split_once('@').unwrap();
        let wrong = format!("postgres://outlast:hunter2@{place}");
        for url in [
            &wrong,
            "postgres://u:hunter2@127.0.0.1:1/d",
            "postgres://u:hunter2@no.such.host.invalid/d",
            "x:hunter2",
        ] {
            let told = told(&refused(url, Options::default()).await);
            assert!(!told.contains("hunter2"), "{told}");
        }
        let error = refused(&wrong, Options::default().wait(Some(Duration::from_secs(600)))).await;
        assert!(!error.is_retryable(), "nobody waits for a wrong password");
    });
}

#[test]
fn a_database_that_is_away_is_waited_for_when_told_so() {
    run(async {
        let cluster = Cluster::start();
        cluster.kill();
        let error = refused(&cluster.url, Options::default()).await;
        assert!(matches!(error, OpenError::Unreachable(_)) && error.is_retryable(), "{error:?}");
        let error = refused(&cluster.url, Options::default().wait(Some(Duration::from_millis(300)))).await;
        assert!(told(&error).contains("300 ms"), "{}", told(&error));

        let waiting = tokio::spawn({
            let url = cluster.url.clone();
            async move {
                PostgresStore::connect(&url, Options::default().wait(Some(Duration::from_secs(60)))).await
            }
        });
        cluster.start_again();
        waiting.await.unwrap().unwrap().create_one(new_task()).await;
    });
}

#[test]
fn a_connection_is_encrypted_and_its_server_known_as_the_url_says() {
    run(async {
        let cluster = Cluster::with("--tls");
        let certificate = format!("{}/server.crt", cluster.folder);
        let is_encrypted = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
            WHERE a.application_name = 'outlast'";
        let client = raw(&cluster.url).await;
        for mode in ["sslmode=require".to_owned(), format!("sslmode=verify-full&sslrootcert={certificate}")] {
            let url = format!("{}?{mode}", cluster.url);
            let store = PostgresStore::connect(&url, Options::default()).await.unwrap();
            let (task, token) = store.create_leased(new_task(), "one").await;
            // Larger than one record of TLS.
            store.worked(task.id, token, vec![complete(&serde_json::json!("x".repeat(100_000)))]).await;
            assert!(store.task(task.id).await.is_final());
            assert!(client.query_one(is_encrypted, &[]).await.unwrap().get::<_, bool>(0), "{mode}");
            store.close().await;
        }
        // Nobody vouches for it; and it is not that of another name.
        let unknown = refused(&format!("{}?sslmode=verify-full", cluster.url), Options::default()).await;
        let named = cluster.url.replace("127.0.0.1", "localhost");
        let other = format!("{named}?sslmode=verify-full&sslrootcert={certificate}");
        for error in [unknown, refused(&other, Options::default()).await] {
            assert!(told(&error).contains("certificate"), "{}", told(&error));
        }
        let error = refused(&format!("{}?sslrootcert=/no/such/file", cluster.url), Options::default()).await;
        assert!(told(&error).contains("/no/such/file"), "{}", told(&error));
    });
}
