//! How connections are set up: what durability rests on.

use std::time::Duration;

use rusqlite::{Connection, types::Value};

use super::Rig;
use crate::open;

fn pragma(connection: &Connection, name: &str) -> Value {
    connection.pragma_query_value(None, name, |row| row.get(0)).unwrap()
}

#[test]
fn every_connection_syncs_in_full_and_leaves_checkpoints_to_the_writer() {
    let rig = Rig::new();
    let first = rig.path.with_file_name("other.db");
    let timeout = Duration::from_secs(5);
    for connection in [
        open::open(&first, timeout).unwrap().connection,
        open::reopen(&rig.path, timeout).unwrap(),
        open::reader(&rig.path, timeout).unwrap(),
    ] {
        for (name, value) in [
            ("journal_mode", Value::from("wal".to_owned())),
            ("synchronous", Value::from(2)),
            ("mmap_size", Value::from(0)),
            ("wal_autocheckpoint", Value::from(0)),
            ("user_version", Value::from(3)),
            ("application_id", Value::from(1330410356)),
        ] {
            assert_eq!(pragma(&connection, name), value, "{name}");
        }
    }
}

#[test]
fn a_reader_cannot_write() {
    let rig = Rig::new();
    let reader = open::reader(&rig.path, Duration::from_secs(5)).unwrap();
    assert!(reader.execute("UPDATE meta SET value = 0", []).is_err());
}

#[test]
fn every_table_is_strict() {
    let rig = Rig::new();
    let file = Connection::open(&rig.path).unwrap();
    let lax: i64 = file
        .query_row(
            "SELECT count(*) FROM pragma_table_list WHERE strict = 0 AND schema = 'main' AND name NOT LIKE 'sqlite%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(lax, 0);
}

#[test]
fn a_file_that_vanished_is_not_made_anew_by_a_later_connection() {
    let rig = Rig::new();
    let elsewhere = rig.path.with_file_name("gone.db");
    assert!(open::reopen(&elsewhere, Duration::from_secs(5)).is_err());
    assert!(!elsewhere.exists());
}
