//! Where tasks are kept: in a file of this machine, or in a database that many replicas share.

mod copy;

use std::{
    env, fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use outlast_core::Transfer;
use outlast_postgres::PostgresStore;
use outlast_sqlite::{OpenError, Role, SqliteStore};
use url::Url;

use crate::call::{duration, exit::Exit};

/// The variable that names the store where the command line does not.
pub(crate) const VARIABLE: &str = "OUTLAST_STORE";
const SCHEMA: &str = "OUTLAST_STORE_SCHEMA";
const DIRECT: &str = "OUTLAST_STORE_DIRECT";
const WAIT: &str = "OUTLAST_STORE_WAIT";

/// Move tasks from one store to another
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Copy(copy::Args),
}

pub(crate) async fn main(Args { command: Command::Copy(args) }: Args) -> anyhow::Result<Exit> {
    copy::run(args, &mut io::stdout()).await.map(|()| Exit::Done)
}

/// Where tasks are kept, as the command line says.
#[derive(clap::Args, Default)]
pub(crate) struct Named {
    /// The file that tasks are kept in
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,
    /// The database that tasks are kept in, as postgres://USER@HOST/DATABASE, or a file. Also in the variable
    /// OUTLAST_STORE, where a password is not seen by other users of this machine
    #[arg(long, global = true, value_name = "URL", conflicts_with = "db")]
    pub(crate) store: Option<Place>,
}

impl Named {
    /// What the command line names, or else the environment.
    ///
    /// # Errors
    /// When the environment's is none.
    pub(crate) fn place(self) -> anyhow::Result<Option<Place>> {
        match self.on_command_line() {
            Some(place) => Ok(Some(place)),
            None => of_environment(),
        }
    }

    /// What the command line names.
    pub(crate) fn on_command_line(self) -> Option<Place> {
        self.db.map(Place::File).or(self.store)
    }
}

/// What the environment names.
///
/// # Errors
/// When that is none.
pub(crate) fn of_environment() -> anyhow::Result<Option<Place>> {
    let Some(text) = env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let text = text.to_str().with_context(|| format!("{VARIABLE}: the value is not text in UTF-8"))?;
    let place = text.parse().map_err(|why: String| anyhow!("{VARIABLE}: {why}"))?;
    Ok(Some(place))
}

/// Where tasks are kept.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Place {
    File(PathBuf),
    Database(Url),
}

impl FromStr for Place {
    type Err = String;

    /// Nothing of a text that is not understood is repeated: it may hold a password.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("name a database, as postgres://USER@HOST/DATABASE, or a file".into());
        }
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(Self::File(text.into())) };
        match scheme {
            "postgres" | "postgresql" => Url::parse(text).map(Self::Database).map_err(|why| {
                format!("the URL cannot be read ({why}); it has the form postgres://USER:PASSWORD@HOST:5432/DATABASE")
            }),
            "sqlite" | "file" if !rest.is_empty() => Ok(Self::File(rest.into())),
            _ => Err("a store is a database, as postgres://USER@HOST/DATABASE, or a file".into()),
        }
    }
}

impl Place {
    /// Whether both are certainly one and the same, however they are written.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => {
                let whole = |file: &PathBuf| file.canonicalize().unwrap_or_else(|_| file.clone());
                whole(one) == whole(other)
            }
            (Self::Database(one), Self::Database(other)) => {
                let place = |url: &Url| {
                    let host = url.host_str().filter(|host| !host.is_empty()).map(str::to_owned);
                    host.map(|host| (host, url.port().unwrap_or(5432), url.path().to_owned()))
                };
                one == other || (place(one).is_some() && place(one) == place(other))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Place {
    /// Without what may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Database(url) => {
                write!(f, "postgres://{}", url.host_str().unwrap_or_default())?;
                if let Some(port) = url.port() {
                    write!(f, ":{port}")?;
                }
                f.write_str(url.path())
            }
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An open store.
#[derive(Clone)]
pub(crate) enum Opened {
    File(SqliteStore),
    Database(PostgresStore),
}

impl Opened {
    /// Opens a store to run its tasks, as `role` says where it is a file; a file that is not there is created.
    pub(crate) async fn open(place: &Place, role: Role) -> anyhow::Result<Self> {
        match place {
            Place::File(file) => {
                let options = outlast_sqlite::Options::default().role(role);
                SqliteStore::open_with(file, options).map(Self::File).map_err(explained)
            }
            Place::Database(url) => connect(url).await.map(Self::Database),
        }
    }

    /// Opens a store so that no server runs on it in the meantime, where it is a file.
    async fn open_alone(place: &Place) -> anyhow::Result<Self> {
        let Place::File(file) = place else { return Self::open(place, Role::Runtime).await };
        let options = outlast_sqlite::Options::default().role(Role::Runtime);
        SqliteStore::open_with(file, options).map(Self::File).map_err(|refusal| match refusal {
            // The one that was tried is named by whoever asked for it.
            OpenError::Held { holder, .. } => anyhow!("it is served by {holder}; stop that one before"),
            other => other.into(),
        })
    }

    /// Opens a store that is there, beside the servers that may be running on it.
    pub(crate) async fn open_beside(place: &Place) -> anyhow::Result<Self> {
        if let Place::File(file) = place {
            is_there(file, "name the file of a server with --db")?;
        }
        Self::open(place, Role::Front).await
    }

    /// The store, whichever it is.
    pub(crate) fn shared(&self) -> Arc<dyn Transfer> {
        match self {
            Self::File(store) => Arc::new(store.clone()),
            Self::Database(store) => Arc::new(store.clone()),
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::File(store) => store.close().await,
            Self::Database(store) => store.close().await,
        }
    }
}

async fn connect(url: &Url) -> anyhow::Result<PostgresStore> {
    let mut options = outlast_postgres::Options::default();
    let variable = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    if let Some(schema) = variable(SCHEMA) {
        options = options.schema(schema);
    }
    if let Some(direct) = variable(DIRECT) {
        options = options.direct_url(direct);
    }
    if let Some(wait) = variable(WAIT) {
        let wait: Duration = duration(&wait).map_err(|why| anyhow!("{WAIT}: {why}"))?;
        options = options.wait(Some(wait));
    }
    PostgresStore::connect(url.as_str(), options).await.map_err(|refusal| {
        let can_wait = refusal.is_retryable() && variable(WAIT).is_none();
        let refusal = anyhow::Error::from(refusal);
        if can_wait {
            refusal
                .context(format!("the store cannot be opened; {WAIT}=60s waits for a database that starts"))
        } else {
            refusal
        }
    })
}

/// A refusal, with what the one at the command line can do about it.
fn explained(refusal: OpenError) -> anyhow::Error {
    match refusal {
        OpenError::Held { path, holder } => anyhow!(
            "{} is served by {holder}; stop that one, or name another file with --db, or serve beside it with --stdio",
            path.display()
        ),
        other => other.into(),
    }
}

/// Refuses what the store would make a new file of: what is not there, or empty. `instead` says what to do.
fn is_there(path: &Path, instead: &str) -> anyhow::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            bail!("{} is a folder; {instead}", path.display())
        }
        Ok(found) if found.len() == 0 => bail!("{} is empty: it holds no tasks", path.display()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("there is no file {}; {instead}", path.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(path: &Path) -> String {
        Opened::open_beside(&Place::File(path.to_owned())).await.err().expect("it is refused").to_string()
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_or_is_no_store_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("empty.db"), "").unwrap();
        fs::write(
            file("text.db"),
            "not a database, but long enough to be read as the head of one".repeat(20),
        )
        .unwrap();

        assert!(refusal(&file("missing.db")).await.contains("there is no file"));
        assert!(refusal(&file("empty.db")).await.contains("is empty"));
        assert!(refusal(&file("text.db")).await.contains("is not an SQLite database"));
        assert!(refusal(folder.path()).await.contains("is a folder"));

        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["empty.db", "text.db"], "nothing was made");
        assert_eq!(fs::metadata(file("empty.db")).unwrap().len(), 0);
    }

    #[test]
    fn one_store_is_known_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| Place::File(folder.path().join(name));
        fs::write(folder.path().join("a.db"), "a").unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        assert!(file("a.db").is_same(&file("b/../a.db")));
        assert!(!file("a.db").is_same(&file("b.db")));
        let database = |text: &str| text.parse::<Place>().unwrap();
        let one = database("postgres://ann:secret@db/tasks");
        assert!(one.is_same(&database("postgresql://bob@db:5432/tasks?sslmode=require")));
        for other in ["postgres://db/others", "postgres://db:5433/tasks", "postgres://other/tasks", "tasks"] {
            assert!(!one.is_same(&database(other)), "{other}");
        }
        // Without a host in front, what follows says which one it is.
        let socket = |folder: &str| database(&format!("postgres:///tasks?host={folder}"));
        assert!(!socket("/run/one").is_same(&socket("/run/two")));
    }

    #[test]
    fn a_store_is_a_file_or_a_database_and_its_password_is_never_shown() {
        let shown = |text: &str| text.parse::<Place>().map(|place| format!("{place} {place:?}"));
        for text in
            ["postgres://ann:secret@db.example.com:6432/tasks?sslmode=require", "postgresql://db/tasks"]
        {
            let shown = shown(text).unwrap();
            assert!(shown.starts_with("postgres://db") && !shown.contains("secret"), "{shown}");
            assert!(!shown.contains("ann") && !shown.contains("sslmode"), "{shown}");
        }
        for (text, file) in
            [("tasks.db", "tasks.db"), ("/var/a b.db", "/var/a b.db"), ("sqlite:///a.db", "/a.db")]
        {
            assert_eq!(text.parse(), Ok(Place::File(file.into())));
        }
        for text in ["", "mysql://ann:secret@db/tasks", "sqlite://", "postgres://ann:secret@[/tasks"] {
            let refusal = text.parse::<Place>().unwrap_err();
            assert!(refusal.contains("postgres://") && !refusal.contains("secret"), "{refusal}");
        }
    }
}
