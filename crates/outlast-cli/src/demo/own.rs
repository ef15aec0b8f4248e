//! The files of the server's own store, which its tools must not touch.
//!
//! SQLite holds its locks by POSIX's rules: when a process closes *any* handle of a file, all its locks on that file are
//! gone. A tool in the server's process that only reads the store's file so lets another process believe that nobody
//! uses it, which may remove the log that acknowledged work is in.

use std::{
    ffi::OsString,
    fs::Metadata,
    io,
    path::{Path, PathBuf},
};

use crate::store::Place;

/// The store's file and those that stand beside it.
#[derive(Debug)]
pub(super) struct OwnFiles(Vec<PathBuf>);

/// Why a tool leaves a file alone, in a sentence for the caller.
pub(super) const OWN: &str = "this server keeps its tasks in it";

impl OwnFiles {
    /// The files of a store; none of a database.
    ///
    /// # Errors
    /// When the path cannot be made whole.
    pub(super) fn of(store: &Place) -> io::Result<Self> {
        let Place::File(db) = store else { return Ok(Self(Vec::new())) };
        let db = real(&std::path::absolute(db)?);
        let beside = |ending: &&str| {
            let mut path = OsString::from(&db);
            path.push(ending);
            PathBuf::from(path)
        };
        Ok(Self(["", "-wal", "-shm", "-journal", ".lock"].iter().map(beside).collect()))
    }

    /// Whether `path`, by whatever name or link, is one of them. Opens nothing.
    pub(super) fn contain(&self, path: &Path) -> bool {
        let path = real(path);
        let found = path.metadata().ok();
        self.0.iter().any(|own| {
            let same = |found: &Metadata| own.metadata().is_ok_and(|own| is_same(&own, found));
            *own == path || found.as_ref().is_some_and(same)
        })
    }
}

/// The path without links, as far as there is something at it.
fn real(path: &Path) -> PathBuf {
    let folder = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(folder).unwrap_or_else(|| path.to_owned())
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Elsewhere locks do not go with another handle, and a second name of the file may be read.
#[cfg(not(unix))]
fn is_same(_: &Metadata, _: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn they_are_known_by_each_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        for name in ["tasks.db", "tasks.db-wal", "other.db"] {
            fs::write(file(name), "").unwrap();
        }
        fs::create_dir(file("deep")).unwrap();
        let own = OwnFiles::of(&Place::File(file("deep/../tasks.db"))).unwrap();
        for name in ["tasks.db", "tasks.db-wal", "tasks.db-shm", "tasks.db.lock", "deep/../tasks.db"] {
            assert!(own.contain(&file(name)), "{name}");
        }
        assert!(!own.contain(&file("other.db")) && !own.contain(&file("deep/tasks.db")));
    }

    #[cfg(unix)]
    #[test]
    fn they_are_known_by_links_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("tasks.db"), "").unwrap();
        fs::hard_link(file("tasks.db"), file("hard")).unwrap();
        std::os::unix::fs::symlink(file("tasks.db"), file("soft")).unwrap();
        let own = OwnFiles::of(&Place::File(file("tasks.db"))).unwrap();
        assert!(own.contain(&file("hard")) && own.contain(&file("soft")));
        let by_link = OwnFiles::of(&Place::File(file("soft"))).unwrap();
        assert!(by_link.contain(&file("tasks.db-wal")), "the log stands beside the real file");
    }
}
