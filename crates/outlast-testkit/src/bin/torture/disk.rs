//! What a power cut leaves of a store: its files as they were, and of what was written since, all that was synced.
//!
//! SIGKILL keeps the page cache, so it cannot show a sync that is missing. Here the server's writes and syncs are read
//! from a trace (`trace/trace.c`), and the files are put together again as a disk could hold them at any moment: what
//! came before a file's last sync is there; what came after is not, or as the seed decides, in whole or in some of its
//! sectors, as a disk may have reordered it. A file that is new, or gone, is so for certain once its directory was
//! synced.
//!
//! Renames are not known here: a store that made one would have to be followed, and [`Trace::read`] says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use outlast_testkit::Seed;

/// What a disk writes as one.
const SECTOR: usize = 512;

/// The files of a directory by their names.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Files that are no part of what a store holds: SQLite's index of its log, which it makes anew, and the lock.
fn counts(name: &str) -> bool {
    !name.ends_with("-shm") && !name.ends_with(".lock")
}

pub(crate) fn read(directory: &Path) -> Files {
    let mut files = Files::new();
    for entry in std::fs::read_dir(directory).expect("the directory is there") {
        let entry = entry.expect("the directory can be read");
        let name = entry.file_name().to_string_lossy().into_owned();
        if counts(&name) {
            files.insert(name, std::fs::read(entry.path()).expect("the file can be read"));
        }
    }
    files
}

/// Makes `directory` hold these files and nothing else.
pub(crate) fn write(files: &Files, directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).expect("a directory can be made");
    for (name, bytes) in files {
        std::fs::write(directory.join(name), bytes).expect("a file can be written");
    }
}

/// What a process did to the files of a directory, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace(pub(crate) Vec<Record>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// When it was done, in nanoseconds since 1970.
    pub(crate) at: u64,
    /// The file's name; empty for the directory.
    pub(crate) name: String,
    pub(crate) what: Deed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deed {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate { length: usize },
    Sync,
    Unlink,
}

impl Trace {
    /// Reads what `trace.c` recorded of `directory`. A last record that the kill cut off is left out.
    ///
    /// # Errors
    /// When the process did what no image can be made of.
    pub(crate) fn read(bytes: &[u8], directory: &Path) -> Result<Self, String> {
        const HEAD: usize = 24;
        let mut records = Vec::new();
        let mut rest = bytes;
        while let Some((head, after)) = rest.split_at_checked(HEAD) {
            let word =
                |from: usize| u64::from_ne_bytes(head[from..from + 8].try_into().expect("eight bytes"));
            let (at, offset) = (word(0), word(8) as usize);
            let length = u32::from_ne_bytes(head[16..20].try_into().expect("four bytes")) as usize;
            let path = usize::from(u16::from_ne_bytes(head[20..22].try_into().expect("two bytes")));
            let Some((path, after)) = after.split_at_checked(path) else { break };
            let Some((body, after)) = after.split_at_checked(length) else { break };
            rest = after;
            let path = Path::new(std::str::from_utf8(path).map_err(|error| error.to_string())?);
            let name = path.strip_prefix(directory).unwrap_or(path).to_string_lossy().into_owned();
            if !counts(&name) {
                continue;
            }
            let what = match head[22] {
                b'w' => Deed::Write { offset, bytes: body.to_vec() },
                b't' => Deed::Truncate { length: offset },
                b's' => Deed::Sync,
                b'u' => Deed::Unlink,
                b'r' => return Err(format!("the store renamed {name}, and the images do not know renames")),
                other => return Err(format!("the trace has a record of kind {other}")),
            };
            records.push(Record { at, name, what });
        }
        Ok(Self(records))
    }

    /// When the record of this number was made; after the last there is no end.
    pub(crate) fn time(&self, number: usize) -> u64 {
        self.0.get(number).map_or(u64::MAX, |record| record.at)
    }

    /// What a power cut after the first `cut` records leaves of `start`. What was not synced is lost, or with a seed
    /// partly kept.
    pub(crate) fn cut(&self, start: &Files, cut: usize, mut keep: Option<Seed>) -> Files {
        let done = &self.0[..cut];
        let last_sync = |name: &str| {
            done.iter().rposition(|record| record.name == name && record.what == Deed::Sync).unwrap_or(0)
        };
        let names: BTreeSet<&str> =
            done.iter().map(|record| &*record.name).filter(|name| !name.is_empty()).collect();
        let of_directory = last_sync("");
        let mut files = start.clone();
        for name in names {
            let synced = last_sync(name);
            let mut is_there = start.contains_key(name);
            let mut bytes = start.get(name).cloned().unwrap_or_default();
            for (number, record) in done.iter().enumerate().filter(|(_, record)| record.name == name) {
                let durable = number < synced;
                let listed = number < of_directory || keep.as_mut().is_some_and(|seed| seed.one_in(2));
                match &record.what {
                    Deed::Write { offset, bytes: written } => {
                        is_there |= listed;
                        if durable {
                            put(&mut bytes, *offset, written);
                        } else if let Some(seed) = &mut keep {
                            put_some(&mut bytes, *offset, written, seed);
                        }
                    }
                    Deed::Truncate { length }
                        if durable || keep.as_mut().is_some_and(|seed| seed.one_in(2)) =>
                    {
                        bytes.resize(*length, 0);
                    }
                    Deed::Unlink if listed => {
                        is_there = false;
                        bytes.clear();
                    }
                    Deed::Truncate { .. } | Deed::Sync | Deed::Unlink => {}
                }
            }
            if is_there {
                files.insert(name.to_owned(), bytes);
            } else {
                files.remove(name);
            }
        }
        files
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

/// Writes all of it, nothing, or some of its sectors.
fn put_some(file: &mut Vec<u8>, offset: usize, bytes: &[u8], seed: &mut Seed) {
    match seed.below(4) {
        0 => put(file, offset, bytes),
        1 => {
            let mut at = 0;
            while at < bytes.len() {
                // Sectors lie where the disk has them, not where the write began.
                let end = (at + SECTOR - (offset + at) % SECTOR).min(bytes.len());
                if seed.one_in(2) {
                    put(file, offset + at, &bytes[at..end]);
                }
                at = end;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, what: Deed) -> Record {
        Record { at: 0, name: name.to_owned(), what }
    }

    fn write(name: &str, offset: usize, text: &str) -> Record {
        record(name, Deed::Write { offset, bytes: text.as_bytes().to_vec() })
    }

    fn files<const N: usize>(files: [(&str, &str); N]) -> Files {
        files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into()
    }

    #[test]
    fn what_was_synced_is_kept_and_the_rest_is_lost() {
        let trace = Trace(vec![
            write("a", 2, "XY"),
            write("b", 0, "B"),
            record("a", Deed::Sync),
            write("a", 0, "lost"),
            record("a", Deed::Truncate { length: 1 }),
        ]);
        let start = files([("a", "abcdef"), ("b", "b")]);
        assert_eq!(trace.cut(&start, 5, None), files([("a", "abXYef"), ("b", "b")]));
        assert_eq!(trace.cut(&start, 2, None), start, "before the sync nothing of it is certain");
    }

    #[test]
    fn a_new_file_is_there_once_its_directory_was_synced() {
        let mut trace = Trace(vec![write("new", 0, "text"), record("new", Deed::Sync)]);
        assert_eq!(trace.cut(&Files::new(), 2, None), Files::new());
        trace.0.push(record("", Deed::Sync));
        assert_eq!(trace.cut(&Files::new(), 3, None), files([("new", "text")]));
    }

    #[test]
    fn a_file_that_was_removed_comes_back_unless_its_directory_was_synced() {
        let mut trace = Trace(vec![record("a", Deed::Unlink)]);
        let start = files([("a", "a")]);
        assert_eq!(trace.cut(&start, 1, None), start);
        trace.0.push(record("", Deed::Sync));
        assert_eq!(trace.cut(&start, 2, None), Files::new());
    }

    #[test]
    fn what_was_not_synced_may_be_torn_at_any_sector_and_nowhere_else() {
        let (old, new) = ("o".repeat(2_000), "n".repeat(2_000));
        let trace = Trace(vec![write("a", 100, &new)]);
        let start = files([("a", &format!("{}{old}", "o".repeat(100)))]);
        let mut torn = false;
        for seed in 0..50 {
            let bytes = &trace.cut(&start, 1, Some(Seed(seed)))["a"];
            let changes: Vec<usize> = (101..bytes.len()).filter(|at| bytes[*at] != bytes[*at - 1]).collect();
            assert!(changes.iter().all(|at| at % SECTOR == 0), "torn at {changes:?}");
            torn |= !changes.is_empty();
        }
        assert!(torn);
    }

    #[test]
    fn a_trace_that_was_cut_off_is_read_as_far_as_it_goes() {
        let mut bytes = Vec::new();
        for (kind, body) in [(b'w', "body"), (b's', "")] {
            bytes.extend(7_u64.to_ne_bytes());
            bytes.extend(3_u64.to_ne_bytes());
            bytes.extend(u32::try_from(body.len()).unwrap().to_ne_bytes());
            bytes.extend(4_u16.to_ne_bytes());
            bytes.extend([kind, 0]);
            bytes.extend(b"/d/a");
            bytes.extend(body.as_bytes());
        }
        let whole = Trace::read(&bytes, Path::new("/d")).unwrap();
        let expected = Deed::Write { offset: 3, bytes: b"body".to_vec() };
        assert_eq!(whole.0[0], Record { at: 7, name: "a".to_owned(), what: expected });
        assert_eq!(whole.0[1].what, Deed::Sync);
        let cut_off = Trace::read(&bytes[..bytes.len() - 1], Path::new("/d")).unwrap();
        assert_eq!(cut_off.0.len(), 1);
    }
}
