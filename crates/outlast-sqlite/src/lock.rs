//! The lock that makes one process the runtime of a file.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use outlast_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Holder;

/// The lock, held for as long as this value lives; the system frees it when the process dies, however it dies.
///
/// It is a lock on a file of its own beside the database, because closing any handle of the database's own file would
/// free SQLite's locks on it.
#[derive(Debug)]
pub(crate) struct RuntimeLock {
    file: File,
    path: PathBuf,
    /// Whether there was no such file before.
    created: bool,
}

/// What the holder writes into the lock file, for those who find it locked.
#[derive(Serialize, Deserialize)]
struct Note {
    process: u32,
    since: Timestamp,
}

impl RuntimeLock {
    /// Takes the lock of `database`; `Err` inside says who has it.
    pub(crate) fn take(database: &Path, now: Timestamp) -> io::Result<Result<Self, Holder>> {
        let path = path(database);
        loop {
            let (mut file, created) = open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Err(read_holder(&mut file))),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Another process may have removed the file since it was opened here, and a third one made a new one.
            if !is_still_at(&file, &path)? {
                continue;
            }
            let note = serde_json::to_string(&Note { process: std::process::id(), since: now })?;
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(note.as_bytes())?;
            return Ok(Ok(Self { file, path, created }));
        }
    }

    /// Frees the lock of a file that turned out to be no use, and removes the lock file if there was none before. That of
    /// a store which was in use is never removed.
    pub(crate) fn abandon(self) {
        let Self { file, path, created } = self;
        if created && cfg!(unix) {
            // While it is locked, so that whoever locks it next can tell.
            let _ = std::fs::remove_file(path);
        }
        drop(file);
    }
}

/// Opens the lock file, and says whether it had to be made.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((options.create(true).truncate(false).open(path)?, false))
        }
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let ours = file.metadata()?;
    match path.metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Elsewhere it is never removed.
#[cfg(not(unix))]
fn is_still_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// The lock file of a database.
fn path(database: &Path) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(".lock");
    path.into()
}

/// Who holds the lock, if the file can be read at all: some systems keep others from reading a locked file.
fn read_holder(file: &mut File) -> Holder {
    let mut text = String::new();
    let note = file.read_to_string(&mut text).ok().and_then(|_| serde_json::from_str::<Note>(&text).ok());
    note.map_or_else(Holder::default, |note| Holder { process: Some(note.process), since: Some(note.since) })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_goes_with_the_open_that_made_it_in_vain() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("tasks.db");
        let take = || RuntimeLock::take(&database, Timestamp::from_millis(0)).unwrap();
        take().unwrap().abandon();
        assert!(!path(&database).exists());

        drop(take().unwrap());
        take().unwrap().abandon();
        assert!(path(&database).exists(), "it was there before");
    }

    #[test]
    fn a_lock_on_a_file_that_was_removed_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tasks.db.lock");
        let (removed, _) = open(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(!is_still_at(&removed, &file).unwrap());
        let (new, _) = open(&file).unwrap();
        assert!(is_still_at(&new, &file).unwrap() && !is_still_at(&removed, &file).unwrap());
    }
}
