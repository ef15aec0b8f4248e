//! Where handles are kept, so that another process can go on with the tasks (S26).

use std::{
    io,
    path::{Path, PathBuf},
};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;

use crate::{clock, connection::random_text, saved::SavedTask};

/// No file takes this long to be written.
const ABANDONED: TimeDelta = TimeDelta::hours(1);

/// Keeps the handles of tasks that have not ended.
///
/// A handle is saved when its task is created, before the caller has it; again with each answer, before the answer is sent;
/// and removed when the end of the task has been told. `save` replaces what is kept under the same server and id; it must
/// not return before the handle would survive the end of the process.
pub trait HandleStore: Send + Sync + 'static {
    /// Keeps a handle.
    fn save<'a>(&'a self, task: &'a SavedTask) -> BoxFuture<'a, io::Result<()>>;
    /// Removes a handle; one that is not there is no error.
    fn remove<'a>(&'a self, server: &'a str, task_id: &'a str) -> BoxFuture<'a, io::Result<()>>;
    /// The handles kept for a server, in any order.
    fn list<'a>(&'a self, server: &'a str) -> BoxFuture<'a, io::Result<Vec<SavedTask>>>;
}

/// Handles in a directory, one file each, readable by its owner alone.
///
/// A file is written beside its place and moved there, so that a crash leaves the old one or the new one. Several processes
/// may share the directory.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let directory = std::env::temp_dir().join("outlast-handles-example");
/// use outlast_client::DirStore;
/// let store = DirStore::open(&directory)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct DirStore {
    directory: PathBuf,
}

impl DirStore {
    /// Opens a directory, and makes it where it is missing.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&directory)?;
        sweep(&directory)?;
        Ok(Self { directory })
    }

    /// The file of a task. Its name is a digest, since an id may be a secret and may hold anything.
    fn file(&self, server: &str, task_id: &str) -> PathBuf {
        use sha2::{Digest, Sha256};
        let mut digest = Sha256::new();
        digest.update((server.len() as u64).to_le_bytes());
        digest.update(server);
        digest.update(task_id);
        let name: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(format!("{name}.json"))
    }
}

impl HandleStore for DirStore {
    fn save<'a>(&'a self, task: &'a SavedTask) -> BoxFuture<'a, io::Result<()>> {
        let (file, text) = (self.file(&task.server, &task.task_id), task.to_json());
        Box::pin(blocking(move || write(&file, &text)))
    }

    fn remove<'a>(&'a self, server: &'a str, task_id: &'a str) -> BoxFuture<'a, io::Result<()>> {
        let file = self.file(server, task_id);
        Box::pin(blocking(move || match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }))
    }

    fn list<'a>(&'a self, server: &'a str) -> BoxFuture<'a, io::Result<Vec<SavedTask>>> {
        let (directory, server) = (self.directory.clone(), server.to_owned());
        Box::pin(blocking(move || read_all(&directory, &server)))
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Removes what processes left that ended between the writing of a file and its move. One that is young may be at it now.
fn sweep(directory: &Path) -> io::Result<()> {
    let now = clock::wall();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let is_left = entry.path().extension().is_some_and(|extension| extension == "new")
            && entry
                .metadata()
                .and_then(|file| file.modified())
                .is_ok_and(|at| now - DateTime::<Utc>::from(at) > ABANDONED);
        if is_left {
            // Another process may have done it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let beside = file.with_extension(format!("{}.new", random_text()));
    let written = write_new(&beside, text).and_then(|()| std::fs::rename(&beside, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
        return written;
    }
    // The move is durable when its directory is.
    match file.parent() {
        Some(directory) => std::fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn write_new(file: &Path, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(file)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()
}

/// A file that cannot be read as a handle is passed over, so that one damaged file hides no other task.
fn read_all(directory: &Path, server: &str) -> io::Result<Vec<SavedTask>> {
    let mut tasks = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        // What is no file, such as a pipe, may not be readable to its end.
        let is_file = path.metadata().is_ok_and(|file| file.is_file());
        if !is_file || path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // Another process has just removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                tracing::warn!(%error, "a file of a handle could not be read");
                continue;
            }
        };
        match SavedTask::from_json(&text) {
            Ok(task) if task.server == server => tasks.push(task),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a file of a handle was passed over"),
        }
    }
    Ok(tasks)
}
