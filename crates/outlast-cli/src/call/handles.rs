//! The handles that this command keeps, one for each task that has not ended, and how to reach their servers again.

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use futures::future::BoxFuture;
use outlast_client::{DirStore, HandleStore, SavedTask};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A directory of handles.
#[derive(Clone)]
pub(crate) struct Handles {
    directory: PathBuf,
    store: DirStore,
}

/// A server that is a command, and where it was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) command: Vec<OsString>,
    pub(crate) directory: PathBuf,
}

impl Handles {
    /// Those in `directory`; by default where the user's programs keep their state.
    ///
    /// # Errors
    /// When there is no such place, or it cannot be made.
    pub(crate) fn open(directory: Option<PathBuf>) -> anyhow::Result<Self> {
        let directory = directory.or_else(by_default).ok_or_else(|| {
            anyhow!("there is no home directory to keep handles in; name a directory with --handles")
        })?;
        let store = DirStore::open(&directory)
            .with_context(|| format!("cannot keep handles in {}", directory.display()))?;
        Ok(Self { directory, store })
    }

    /// Where a client keeps the handles of a server. When that is a command, it is kept beside each of them.
    pub(crate) fn shelf(&self, started: Option<Started>) -> Shelf {
        Shelf { handles: self.clone(), started }
    }

    /// Every handle, of whatever server, the oldest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn all(&self) -> anyhow::Result<Vec<SavedTask>> {
        let cannot = || format!("cannot read {}", self.directory.display());
        let mut tasks = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(cannot)? {
            let path = entry.with_context(cannot)?.path();
            // What is not a handle, or just going, is none to show. What is no file, such as a pipe, may have no end.
            if path.is_file()
                && path.extension().is_some_and(|extension| extension == "json")
                && let Ok(text) = fs::read_to_string(&path)
                && let Ok(task) = SavedTask::from_json(&text)
            {
                tasks.push(task);
            }
        }
        tasks.sort_by_key(|task| task.first_seen);
        Ok(tasks)
    }

    /// The handle that is meant by `text`: the JSON itself, a file of it, the name of one that is kept here, or the id of
    /// its task.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub(crate) fn find(&self, text: &str) -> anyhow::Result<SavedTask> {
        if text.trim_start().starts_with('{') {
            return SavedTask::from_json(text).context("the handle on the command line cannot be used");
        }
        let mut meant: Vec<_> =
            self.all()?.into_iter().filter(|task| name(task) == text || task.task_id == text).collect();
        match (meant.pop(), meant.is_empty()) {
            (Some(task), true) => return Ok(task),
            (Some(_), false) => bail!("more than one task is meant by '{text}'; give its handle as JSON"),
            (None, _) => {}
        }
        match fs::read_to_string(text) {
            Ok(json) => SavedTask::from_json(&json).with_context(|| format!("{text} cannot be used")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(anyhow!(
                "there is no handle '{text}' in {}, and no such file; `outlast tasks handles` lists those that there are, and \
                a task that has ended has none",
                self.directory.display()
            )),
            Err(error) => Err(error).with_context(|| format!("cannot read {text}")),
        }
    }

    /// How the server of a task was started, if it is a command that was kept.
    pub(crate) fn started(&self, task: &SavedTask) -> Option<Started> {
        let text = fs::read_to_string(self.file(&task.server, &task.task_id)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// In a folder of its own, because every file beside it is taken for a handle.
    fn file(&self, server: &str, task_id: &str) -> PathBuf {
        self.directory.join("commands").join(format!("{}.json", digest(server, task_id, 16)))
    }

    fn keep(&self, task: &SavedTask, started: &Started) -> io::Result<()> {
        let file = self.file(&task.server, &task.task_id);
        let folder = file.parent().unwrap_or(&self.directory);
        if file.exists() {
            return Ok(());
        }
        make_private(folder)?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        io::Write::write_all(&mut new, &serde_json::to_vec(started)?)?;
        new.persist(&file).map(drop).map_err(|error| error.error)
    }
}

/// What a person calls a task: short, and the same each time.
pub(crate) fn name(task: &SavedTask) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let tool: String = task.tool.chars().take(40).map(plain).collect();
    format!("{tool}.{}", digest(&task.server, &task.task_id, 3))
}

fn digest(server: &str, task_id: &str, bytes: usize) -> String {
    let both = format!("{} {server}{task_id}", server.len());
    Sha256::digest(both).iter().take(bytes).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn by_default() -> Option<PathBuf> {
    let named = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = if cfg!(windows) {
        named("LOCALAPPDATA")
    } else {
        named("XDG_STATE_HOME").or_else(|| Some(env::home_dir()?.join(".local").join("state")))
    };
    Some(state?.join("outlast").join("handles"))
}

fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// The handles of one server.
pub(crate) struct Shelf {
    handles: Handles,
    started: Option<Started>,
}

impl HandleStore for Shelf {
    fn save<'a>(&'a self, task: &'a SavedTask) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            if let Some(started) = &self.started {
                self.handles.keep(task, started)?;
            }
            self.handles.store.save(task).await
        })
    }

    fn remove<'a>(&'a self, server: &'a str, task_id: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.handles.store.remove(server, task_id).await?;
            match fs::remove_file(self.handles.file(server, task_id)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })
    }

    fn list<'a>(&'a self, server: &'a str) -> BoxFuture<'a, io::Result<Vec<SavedTask>>> {
        self.handles.store.list(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str) -> SavedTask {
        let text = format!(
            r#"{{"version": 1, "server": "s", "taskId": "{id}", "tool": "count up", "generation": "2026-07-28",
            "createdAt": "2026-11-29T10:00:00Z", "firstSeen": "2026-11-29T10:00:00Z"}}"#
        );
        SavedTask::from_json(&text).unwrap()
    }

    #[tokio::test]
    async fn a_handle_is_found_by_its_name_its_id_its_file_and_itself() {
        let folder = tempfile::tempdir().unwrap();
        let handles = Handles::open(Some(folder.path().join("handles"))).unwrap();
        let saved = task("one");
        handles.shelf(None).save(&saved).await.unwrap();
        let file = folder.path().join("other.json");
        fs::write(&file, task("two").to_json()).unwrap();

        let name = name(&saved);
        assert!(name.starts_with("count-up."), "{name}");
        assert_eq!(handles.find(&name).unwrap(), saved);
        assert_eq!(handles.find("one").unwrap(), saved);
        assert_eq!(handles.find(&saved.to_json()).unwrap(), saved);
        assert_eq!(handles.find(&file.display().to_string()).unwrap(), task("two"));
        assert_eq!(handles.all().unwrap(), [saved]);
        assert!(handles.find("three").unwrap_err().to_string().starts_with("there is no handle 'three'"));
        assert!(handles.find("{}").is_err());
    }

    #[tokio::test]
    async fn the_command_of_a_server_is_kept_as_long_as_the_handle() {
        let folder = tempfile::tempdir().unwrap();
        let handles = Handles::open(Some(folder.path().to_owned())).unwrap();
        let started = Started { command: vec!["server".into(), "-x".into()], directory: "/somewhere".into() };
        let shelf = handles.shelf(Some(started.clone()));
        shelf.save(&task("one")).await.unwrap();
        assert_eq!(handles.started(&task("one")), Some(started));
        assert_eq!(handles.started(&task("two")), None);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&handles.file("s", "one")), 0o600, "it may hold what is secret");
            assert_eq!(mode(&folder.path().join("commands")), 0o700);
        }

        shelf.remove("s", "one").await.unwrap();
        assert_eq!(handles.started(&task("one")), None);
        assert_eq!(handles.all().unwrap(), []);
        shelf.remove("s", "one").await.unwrap();
    }
}
