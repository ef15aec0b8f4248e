//! The side file and the side database: what the tools did outside of the server, which no crash takes back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use crate::clock;

/// A line of the side file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at: u64,
    /// The process that wrote it, and which of its attempts at a task.
    pub(crate) process: u64,
    pub(crate) attempt: u64,
    pub(crate) marker: String,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// A process began; what the one before it wrote last may be cut off.
    Process {
        pid: u32,
    },
    /// A tool began.
    Attempt,
    /// The work of a step began.
    Begin {
        key: String,
        step_id: String,
    },
    /// It ended well.
    End {
        key: String,
    },
    /// It failed, as its program says, and is to be tried again.
    Failed {
        key: String,
    },
    /// Its future was dropped before it ended.
    Dropped {
        key: String,
    },
    /// The step returned to the tool: by the promise, its entry is durable.
    Got {
        key: String,
        value: u64,
    },
    /// The step returned the error that it declared as final.
    GotError {
        key: String,
    },
    Asking {
        key: String,
    },
    Heard {
        key: String,
        name: String,
    },
    TimedOut {
        key: String,
    },
    Sleeping {
        key: String,
    },
    Slept {
        key: String,
    },
    Won {
        key: String,
        first: bool,
    },
    /// A step ran in a context that was kept beyond its attempt.
    Stale {
        key: String,
    },
}

/// The side of the server's process.
pub(crate) struct Side {
    file: Mutex<File>,
    effects: Mutex<Connection>,
    process: u64,
    attempts: AtomicU64,
}

impl Side {
    pub(crate) fn open(file: &Path, effects: &Path, process: u64) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(file).expect("the side file opens");
        let side = Self {
            file: Mutex::new(file),
            effects: Mutex::new(open_effects(effects)),
            process,
            attempts: AtomicU64::new(0),
        };
        // The killed process may have left a line unfinished.
        side.put("\n");
        side.write(0, "", What::Process { pid: std::process::id() });
        side
    }

    /// Its number among the processes of its store.
    pub(crate) fn process(&self) -> u64 {
        self.process
    }

    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn write(&self, attempt: u64, marker: &str, what: What) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that the lines are in the order of their times.
        let line = Line { at: clock::now(), process: self.process, attempt, marker: marker.to_owned(), what };
        let text = serde_json::to_string(&line).expect("a line is JSON");
        file.write_all(format!("{text}\n").as_bytes()).expect("the side file takes a line");
    }

    fn put(&self, text: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(text.as_bytes()).expect("the side file takes a line");
    }

    /// The effect of a step on another system: it counts once for each step id, however often it is tried.
    pub(crate) fn effect(&self, step_id: &str, marker: &str, key: &str) {
        let effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
        let mut insert = effects
            .prepare_cached(
                "INSERT INTO effects (step_id, marker, key) VALUES (?1, ?2, ?3)
                 ON CONFLICT (step_id, marker, key) DO UPDATE SET tries = tries + 1",
            )
            .expect("the statement is right");
        insert.execute(params![step_id, marker, key]).expect("the side database takes an effect");
    }
}

/// All lines of a side file, in order. Those that a kill cut off are left out.
pub(crate) fn read(file: &Path) -> Vec<Line> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    let mut lines: Vec<Line> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    // Of two processes each may be held up between reading its clock and writing.
    lines.sort_by_key(|line| line.at);
    lines
}

/// How often each effect came about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// The step ids of each step (marker and key) that had an effect.
    pub(crate) by_step: Vec<(String, String, Vec<String>)>,
    /// Step ids that more than one step used.
    pub(crate) shared: Vec<String>,
    pub(crate) tries: u64,
}

fn open_effects(path: &Path) -> Connection {
    let effects = Connection::open(path).expect("the side database opens");
    effects
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = OFF;
             CREATE TABLE IF NOT EXISTS effects (
                 step_id TEXT NOT NULL,
                 marker TEXT NOT NULL,
                 key TEXT NOT NULL,
                 tries INTEGER NOT NULL DEFAULT 1,
                 PRIMARY KEY (step_id, marker, key)
             ) STRICT;
             CREATE INDEX IF NOT EXISTS by_step ON effects (marker, key);",
        )
        .expect("the side database is set up");
    effects
}

/// The effects of the tasks whose markers begin so, all of the run with "", from a side database or from a folder of them.
pub(crate) fn effects(path: &Path, prefix: &str) -> Effects {
    let files: Vec<PathBuf> = match std::fs::read_dir(path) {
        Ok(folder) => folder.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(_) => vec![path.to_owned()],
    };
    let mut by_step: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    let mut by_id: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    let mut tries = 0;
    // Beside a database lie its log and its index.
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "db")) {
        let mut see = |step_id: String, step: (String, String), times: u64| {
            by_step.entry(step.clone()).or_default().insert(step_id.clone());
            by_id.entry(step_id).or_default().insert(step);
            tries += times;
        };
        read_effects(file, prefix, &mut see).expect("the side database can be read");
    }
    let shared = by_id.into_iter().filter(|(_, steps)| steps.len() > 1).map(|(id, _)| id).collect();
    let by_step =
        by_step.into_iter().map(|((marker, key), ids)| (marker, key, ids.into_iter().collect())).collect();
    Effects { by_step, shared, tries }
}

fn read_effects(
    file: &Path,
    prefix: &str,
    see: &mut dyn FnMut(String, (String, String), u64),
) -> rusqlite::Result<()> {
    let connection = open_effects(file);
    let mut statement = connection.prepare(
        "SELECT step_id, marker, key, tries FROM effects WHERE marker >= ?1 AND marker < ?1 || char(1114111)",
    )?;
    let mut rows = statement.query([prefix])?;
    while let Some(row) = rows.next()? {
        see(row.get(0)?, (row.get(1)?, row.get(2)?), row.get(3)?);
    }
    Ok(())
}
