//! Where a server is and how it is reached.

use std::{ffi::OsString, fmt, io, sync::Arc};

use futures::future::{BoxFuture, FutureExt};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    authorization::AuthorizationSource,
    wire::{Address, Lines, Observed, Process, Program, Reader, Wire, WireError, Writer},
};

/// Where a server is and how it is reached. Cheap to clone; nothing happens until a client connects.
///
/// ```
/// # use outlast_client::Server;
/// let remote = Server::http("https://tools.example.com/mcp?region=eu").bearer("secret");
/// assert_eq!(remote.name(), "https://tools.example.com:443/mcp");
///
/// let local = Server::command("my-server", ["--verbose"]).env("API_KEY", "secret");
/// assert!(local.name().starts_with("command:my-server#"));
/// ```
#[derive(Clone)]
pub struct Server {
    name: Arc<str>,
    way: Way,
}

#[derive(Clone)]
enum Way {
    Http(Address),
    Command(Program),
    Streams(Connect),
}

/// Gives the tokens that requests to a server carry, where a fixed one will not do: they expire, or a person has to agree
/// first (OAuth). The SDK's `rmcp::transport::auth` does the latter.
pub trait Authorize: Send + Sync + 'static {
    /// The token for the next request; none to send it without.
    fn token(&self) -> BoxFuture<'_, Option<String>>;

    /// The server refused a request that carried the token `refused`, with this `WWW-Authenticate` challenge (401, or 403 where
    /// the scope did not suffice). Whether there is another token now, with which the request is worth sending again; at most
    /// three times for one request.
    fn challenged<'a>(&'a self, challenge: &'a str, refused: Option<&'a str>) -> BoxFuture<'a, bool>;
}

/// Makes a new connection each time.
type Connect = Arc<dyn Fn() -> BoxFuture<'static, io::Result<(Reader, Writer)>> + Send + Sync>;

impl Server {
    /// A server that speaks Streamable HTTP at `url`.
    pub fn http(url: impl Into<String>) -> Server {
        let url = url.into();
        let name = http_name(&url).into();
        Server {
            name,
            way: Way::Http(Address {
                url,
                headers: Vec::new(),
                bearer: None,
                authority: None,
                authorization: None,
            }),
        }
    }

    /// A server that is started as a child process, once for each connection, and speaks over its standard input and
    /// output. What it writes to its standard error goes to the log; the end of it is part of the error when the process
    /// ends on its own.
    ///
    /// The name of the server holds a digest of `args`, not the arguments: another argument makes it another server. What
    /// changes or is secret belongs into the environment, see [`env`](Server::env).
    pub fn command(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Server {
        let program = Program {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
        };
        Server { name: command_name(&program).into(), way: Way::Command(program) }
    }

    /// A server behind any two byte streams, with one message per line. `connect` is called for each connection; what it
    /// connects to is always the same server, and `name` is its identity.
    pub fn streams<C, F, R, W>(name: impl Into<String>, connect: C) -> Server
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<(R, W)>> + Send + 'static,
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let connect: Connect = Arc::new(move || {
            let streams = connect();
            async move {
                let (read, write) = streams.await?;
                Ok((Box::new(read) as Reader, Box::new(write) as Writer))
            }
            .boxed()
        });
        Server { name: name.into().into(), way: Way::Streams(connect) }
    }

    /// Sends this header along with each request. Only over HTTP; elsewhere it changes nothing.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Server {
        if let Way::Http(address) = &mut self.way {
            address.headers.push((name.into(), value.into()));
        }
        self
    }

    /// Sends `Authorization: Bearer <token>` along with each request. Only over HTTP; elsewhere it changes nothing.
    #[must_use]
    pub fn bearer(mut self, token: impl Into<String>) -> Server {
        if let Way::Http(address) = &mut self.way {
            address.bearer = Some(token.into());
        }
        self
    }

    /// Sends the tokens that `authority` gives, and lets it meet the server's challenges. Only over HTTP; elsewhere it changes
    /// nothing.
    #[must_use]
    pub fn authorize(mut self, authority: impl Authorize) -> Server {
        if let Way::Http(address) = &mut self.way {
            address.authority = Some(Arc::new(authority));
        }
        self
    }

    /// Sends the `Authorization` header that `authorization` gives for each request, whatever its scheme, in the place of any
    /// other token that is set here; a request that brings an [`Authorization`](crate::Authorization) of its own is sent with
    /// that. Only over HTTP; elsewhere it changes nothing.
    #[must_use]
    pub fn authorization(mut self, authorization: AuthorizationSource) -> Server {
        if let Way::Http(address) = &mut self.way {
            address.authorization = Some(authorization);
        }
        self
    }

    /// Sets a variable of the environment of the process, besides those that it inherits. Only for a command; elsewhere
    /// it changes nothing.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Server {
        if let Way::Command(program) = &mut self.way {
            program.env.push((name.into(), value.into()));
        }
        self
    }

    /// This is the server that is known as `name`, reached in another way than usual: at another replica, through a tunnel, at the
    /// address that it moved to. Tasks that were saved under the name are taken up here.
    ///
    /// ```
    /// # use outlast_client::Server;
    /// let usual = Server::http("https://tools.example.com/mcp");
    /// let tunnel = Server::http("http://127.0.0.1:8443/mcp").known_as(usual.name());
    /// assert_eq!(tunnel.name(), usual.name());
    /// ```
    #[must_use]
    pub fn known_as(mut self, name: &str) -> Server {
        self.name = name.into();
        self
    }

    /// The identity of the server, under which its tasks are saved. It holds no credentials: of a URL the scheme, the
    /// host, the port and the path; of a command the program and a digest of its arguments.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is reached by Streamable HTTP, where a session is more than its connection.
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(self.way, Way::Http(_))
    }

    /// A new connection. Over HTTP nothing is sent yet.
    ///
    /// # Errors
    /// When the address cannot be one, the program cannot be started, or the streams cannot be had.
    pub(crate) async fn connect(&self, observed: Arc<Observed>) -> Result<Wire, WireError> {
        Ok(match &self.way {
            Way::Http(address) => Wire::http(address, &observed)?,
            Way::Command(program) => Wire::Process(Box::new(Process::start(program, observed)?)),
            Way::Streams(connect) => {
                let (read, write) = connect().await?;
                Wire::Lines(Lines::new(read, write, observed))
            }
        })
    }
}

/// Without the credentials.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).finish_non_exhaustive()
    }
}

fn http_name(url: &str) -> String {
    let Ok(url) = reqwest::Url::parse(url) else {
        // Nothing can be saved under it: such a server is never reached.
        return "an invalid URL".to_owned();
    };
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{}", url.scheme(), url.path())
}

fn command_name(program: &Program) -> String {
    const DIGITS: usize = 16;
    let mut digest = Sha256::new();
    for text in std::iter::once(&program.program).chain(&program.args) {
        let bytes = text.as_encoded_bytes();
        // With its length, so that no two lists have the same bytes.
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    }
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("command:{}#{}", program.program.to_string_lossy(), &digest[..DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_url_is_where_it_leads_and_holds_no_credentials() {
        for (url, name) in [
            ("https://user:secret@Example.com/mcp?key=secret#secret", "https://example.com:443/mcp"),
            ("http://example.com", "http://example.com:80/"),
            ("http://[::1]:9000/a/b/", "http://[::1]:9000/a/b/"),
            ("no url: secret", "an invalid URL"),
        ] {
            assert_eq!(Server::http(url).bearer("secret").header("x-key", "secret").name(), name);
        }
    }

    #[test]
    fn the_name_of_a_command_tells_its_arguments_apart_and_shows_none() {
        let name = |args: &[&str]| {
            let server = Server::command("server", args).env("KEY", "secret");
            assert!(!format!("{server:?}").contains("secret"));
            server.name().to_owned()
        };
        assert_eq!(name(&["--token", "secret"]), name(&["--token", "secret"]));
        let names = [name(&[]), name(&["a"]), name(&["a", "b"]), name(&["ab"]), name(&["", "ab"])];
        for (at, one) in names.iter().enumerate() {
            assert!(one.starts_with("command:server#"), "{one}");
            assert!(names[at + 1..].iter().all(|other| other != one), "{one}");
        }
    }

    #[test]
    fn what_it_prints_holds_no_credentials() {
        let server = Server::http("http://u:secret@host/?k=secret").bearer("secret").header("x", "secret");
        assert!(!format!("{server:?}").contains("secret"));
    }
}
