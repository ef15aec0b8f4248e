//! Which server is meant, and how it is reached.

use std::{env, ffi::OsString, path::PathBuf};

use anyhow::{Context, anyhow, bail};
use outlast_client::{SavedTask, Server, TaskClient};
use serde_json::Value;
use url::Url;

use super::{
    arguments,
    handles::{Handles, Started},
    prompt::Prompter,
    terminal::Terminal,
};

/// How a server is reached, besides its place.
#[derive(clap::Args)]
pub(crate) struct Reach {
    /// Send this header with each request; may be repeated
    #[arg(long, value_name = "NAME:VALUE", value_parser = arguments::header, help_heading = "The server")]
    header: Vec<(String, String)>,
    /// Send the bearer token that is in this environment variable
    #[arg(long, value_name = "VAR", help_heading = "The server")]
    token_env: Option<String>,
    /// Keep the handles of tasks here, instead of where the user's programs keep their state
    #[arg(long, env = "OUTLAST_HANDLES", value_name = "DIR", help_heading = "The server")]
    handles: Option<PathBuf>,
}

/// How what a server asks is answered.
#[derive(clap::Args)]
pub(crate) struct Asked {
    /// Answer the question of this key without asking: with the values of its form as a JSON object, with `decline` or
    /// `cancel`, or with a whole result; may be repeated
    #[arg(long, value_name = "KEY=JSON", value_parser = arguments::answer, help_heading = "Questions")]
    answer: Vec<(String, Value)>,
    /// Tell the server of this folder when it asks for roots; may be repeated
    #[arg(long, value_name = "PATH", help_heading = "Questions")]
    root: Vec<PathBuf>,
}

/// Where a server is.
pub(crate) enum Place {
    Url(String),
    Command(Started),
}

impl Place {
    /// A server that speaks HTTP.
    ///
    /// # Errors
    /// When this is no URL of one.
    pub(crate) fn url(text: &str) -> Result<Self, String> {
        match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
                Ok(Self::Url(text.to_owned()))
            }
            _ => Err(format!(
                "'{text}' is not the URL of a server, such as http://127.0.0.1:8808/mcp; a server that is a command stands \
                after --"
            )),
        }
    }

    /// The same text, if it is the URL of a server.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) fn is_url(text: &str) -> Result<String, String> {
        Self::url(text).map(|_| text.to_owned())
    }

    /// A server that is started here.
    ///
    /// # Errors
    /// When the current folder cannot be found out.
    pub(crate) fn command(command: Vec<OsString>) -> anyhow::Result<Self> {
        let directory = env::current_dir().context("cannot find out the current folder")?;
        Ok(Self::Command(Started { command, directory }))
    }

    /// Where the server of a task is, as far as is known here: `command` where one is given, what was kept with the handle,
    /// or what the handle says.
    ///
    /// # Errors
    /// When it is a command that nobody knows.
    pub(crate) fn of(task: &SavedTask, command: Vec<OsString>, handles: &Handles) -> anyhow::Result<Self> {
        if !command.is_empty() {
            return Self::command(command);
        }
        if let Some(started) = handles.started(task) {
            // A relative path in the command is meant from where it was given.
            env::set_current_dir(&started.directory).with_context(|| {
                format!("cannot go to {}, where the server was started", started.directory.display())
            })?;
            return Ok(Self::Command(started));
        }
        Self::url(&task.server).map_err(|_| {
            anyhow!(
                "the server of this task is a command that was not kept with it; give the same one after --"
            )
        })
    }

    fn server(&self, reach: &Reach) -> anyhow::Result<Server> {
        match self {
            Self::Url(url) => {
                let mut server = Server::http(url.as_str());
                for (name, value) in &reach.header {
                    server = server.header(name.as_str(), value.as_str());
                }
                if let Some(name) = &reach.token_env {
                    match env::var(name) {
                        Ok(token) if !token.trim().is_empty() => server = server.bearer(token.trim()),
                        _ => bail!("there is no token in the environment variable {name}"),
                    }
                }
                Ok(server)
            }
            Self::Command(_) if !reach.header.is_empty() || reach.token_env.is_some() => {
                bail!("--header and --token-env are for a server with a URL; a command has its environment")
            }
            Self::Command(Started { command, .. }) => {
                let (program, args) = command.split_first().context("the command of the server is empty")?;
                Ok(Server::command(program, args))
            }
        }
    }

    /// What a person knows the server by.
    fn shown(&self, server: &Server) -> String {
        match self {
            Self::Url(_) => server.name().to_owned(),
            Self::Command(Started { command, .. }) => {
                command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// A client of the server, which keeps its handles among `handles`, under the name `known_as` where it has one already.
    ///
    /// # Errors
    /// When the server cannot be reached as it was said.
    pub(crate) fn client(
        self,
        reach: &Reach,
        handles: &Handles,
        known_as: Option<&str>,
        prompter: impl FnOnce(&str) -> anyhow::Result<Prompter>,
    ) -> anyhow::Result<TaskClient> {
        let server = self.server(reach)?;
        // Whoever is asked is told where the question comes from, not where it usually would.
        let prompter = prompter(&self.shown(&server))?;
        let server = match known_as {
            Some(name) => server.known_as(name),
            None => server,
        };
        let started = match self {
            Self::Url(_) => None,
            Self::Command(started) => Some(started),
        };
        Ok(TaskClient::builder(server).handler(prompter).store(handles.shelf(started)).build())
    }
}

impl Reach {
    /// Whether the command line says anything of it. The directory of handles may be the environment's.
    pub(crate) fn is_given(&self) -> bool {
        !self.header.is_empty() || self.token_env.is_some()
    }

    /// The handles that are kept.
    ///
    /// # Errors
    /// When there is no place for them.
    pub(crate) fn handles(&self) -> anyhow::Result<Handles> {
        Handles::open(self.handles.clone())
    }
}

impl Asked {
    /// Who answers.
    ///
    /// # Errors
    /// When a key is answered twice, or a root is no folder.
    pub(crate) fn prompter(self, terminal: &Terminal, server: &str) -> anyhow::Result<Prompter> {
        let roots = self.root.iter().map(|path| {
            let folder =
                path.canonicalize().with_context(|| format!("cannot use the root {}", path.display()))?;
            let uri = Url::from_directory_path(&folder)
                .map_err(|()| anyhow!("the root {} is no folder", path.display()))?;
            Ok(uri.as_str().trim_end_matches('/').to_owned())
        });
        let roots = roots.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Prompter::new(terminal.clone(), server, arguments::answers(self.answer)?, roots))
    }
}
