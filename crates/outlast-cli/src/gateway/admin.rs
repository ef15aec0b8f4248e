//! The operator's page of the gateway: what is set about it, and where it is served.

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context, bail};
use outlast::Store;
use outlast_admin::{Admin, AdminToken, Measured, Options};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::{
    config::Secret,
    settings::{Found, Section},
};

const ADDRESS: &str = "an address of this machine with a port, such as 127.0.0.1:8809";
const TOKEN_FILE: &str = "the name of a file with the admin token";
const TOKEN: &str = "the admin token";

/// Where the page is, and who may use it.
#[derive(Debug)]
pub(super) struct Settings {
    listen: String,
    token: Token,
}

#[derive(Debug)]
enum Token {
    /// A new one each time.
    Random,
    Set(Secret),
    File(PathBuf),
}

impl Settings {
    /// Reads what is set; none where no page is. What is wrong becomes a problem of the section.
    pub(super) fn read(top: &mut Section<'_>, is_stdio: bool) -> Option<Self> {
        let listen = top.text("admin", ADDRESS, Found::Shown, super::config::address);
        let file = top.text("admin_token_file", TOKEN_FILE, Found::Shown, |text| {
            (!text.is_empty()).then(|| PathBuf::from(text))
        });
        let token =
            top.text("admin_token", TOKEN, Found::Hidden, |text| Some(Secret(text.trim().to_owned())));
        if is_stdio && listen.is_some() {
            top.problem(
                "admin",
                "hosts start several gateways on standard input and output, and the page has one address; leave this out, or \
                serve over HTTP",
            );
        }
        if listen.is_none() {
            for (key, is_set) in [("admin_token_file", file.is_some()), ("admin_token", token.is_some())] {
                if is_set {
                    top.problem(key, format_args!("this goes with `admin`, {ADDRESS}; set that too"));
                }
            }
        }
        let token = match (file, token) {
            (Some(_), Some(_)) => {
                top.problem("admin_token", "there are two tokens; set this or admin_token_file");
                Token::Random
            }
            (Some(file), None) => Token::File(file),
            (None, Some(token)) => {
                if let Err(why) = AdminToken::new(&token.0) {
                    top.problem("admin_token", why);
                }
                Token::Set(token)
            }
            (None, None) => Token::Random,
        };
        listen.map(|listen| Self { listen, token })
    }

    /// Takes the page's address, and its token.
    pub(super) async fn listen(&self) -> anyhow::Result<Listening> {
        let token = self.token()?;
        let place = &self.listen;
        let listener = TcpListener::bind(&*self.addresses().await?)
            .await
            .with_context(|| format!("cannot listen on {place}; choose another place with --admin"))?;
        let address = listener.local_addr()?;
        let known = if self.is_random() { format!("#token={}", token.as_str()) } else { String::new() };
        Ok(Listening { listener, token, link: format!("http://{address}/ui{known}"), address })
    }

    /// Whether the page could be served, as far as that is known without taking its address.
    ///
    /// # Errors
    /// Why not.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        self.token()?;
        self.addresses().await.map(drop)
    }

    fn is_random(&self) -> bool {
        matches!(self.token, Token::Random)
    }

    fn token(&self) -> anyhow::Result<AdminToken> {
        Ok(match &self.token {
            Token::Random => AdminToken::random()?,
            Token::Set(Secret(text)) => AdminToken::new(text)?,
            Token::File(file) => {
                let text = fs::read_to_string(file)
                    .with_context(|| format!("cannot read the admin token in {}", file.display()))?;
                AdminToken::new(&text).with_context(|| format!("{} holds no admin token", file.display()))?
            }
        })
    }

    /// The addresses of the page, which other machines may reach only where its token was set.
    async fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let place = &self.listen;
        let found = tokio::net::lookup_host(place).await;
        let found = found
            .with_context(|| format!("there is no address {place}; choose another place with --admin"))?;
        let addresses: Vec<SocketAddr> = found.collect();
        if let Some(open) = addresses.iter().find(|address| self.is_random() && !address.ip().is_loopback()) {
            bail!(
                "{open} can be reached from other machines; set the token that operators have to show, with --admin-token-file \
                FILE, or serve the page on 127.0.0.1 (or [::1])"
            );
        }
        Ok(addresses)
    }
}

/// A page that has its address, and is not served yet.
pub(super) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    token: AdminToken,
    /// Where it is, with the token where nobody has set one.
    pub(super) link: String,
}

impl Listening {
    /// Serves the page of `store` to those who call it by one of `hosts`.
    pub(super) fn serve(self, store: Arc<dyn Store>, measured: Measured, hosts: &[String]) -> Serving {
        let mut options = Options::default();
        options.measured = Some(measured);
        options.allowed_hosts.extend(hosts.iter().cloned().chain([self.address.ip().to_string()]));
        let admin = Admin::new(store, self.token, options);
        let (end, ended) = oneshot::channel::<()>();
        let serving = admin.clone();
        let served = tokio::spawn(async move {
            let ended = async { drop(ended.await) };
            if let Err(error) = serving.serve(self.listener, ended).await {
                tracing::error!(%error, "the operator's page is served no more");
            }
        });
        Serving { admin, end, served }
    }
}

/// A page that is served.
pub(super) struct Serving {
    /// To be told when the gateway is about to end.
    pub(super) admin: Admin,
    end: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Serving {
    /// Serves it no more.
    pub(super) async fn end(self) {
        drop(self.end);
        let _ = self.served.await;
    }
}
