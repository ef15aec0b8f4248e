//! What a shell and a reader of manuals get.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::process::{Output, Stdio};

use support::{Place, fails, outlast, text, works};

fn completions(out: impl Into<Stdio>) -> Output {
    outlast().args(["completions", "bash"]).stdout(out).output().unwrap()
}

#[test]
fn a_reader_of_completions_who_has_seen_enough_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let done = completions(writer);
    assert_eq!(text(&done.stderr), "");
    assert!(done.status.success());
}

#[cfg(target_os = "linux")]
#[test]
fn completions_that_find_no_room_are_said_to() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let done = completions(full);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    assert!(text(&done.stderr).starts_with("outlast: "), "{}", text(&done.stderr));
}

#[test]
fn the_manual_goes_into_a_folder_that_is_made() {
    let place = Place::new(&[("a.txt", "abc")]);
    works(&place.path(), &["man", "share/man/man1"]);
    let page = std::fs::read_to_string(place.path().join("share/man/man1/outlast-store-copy.1")).unwrap();
    assert!(page.contains(".TH"), "{page}");
    let refused = fails(&place.path(), &["man", "files/a.txt"]);
    assert!(refused.contains("cannot write the pages into files/a.txt"), "{refused}");
}
