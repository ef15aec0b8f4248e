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
/// free SQLite's locks on it. That file is never removed: another process may be about to lock it.
#[derive(Debug)]
pub(crate) struct RuntimeLock {
    _file: File,
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
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path(database))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(read_holder(&mut file))),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let note = serde_json::to_string(&Note { process: std::process::id(), since: now })?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(note.as_bytes())?;
        Ok(Ok(Self { _file: file }))
    }
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
