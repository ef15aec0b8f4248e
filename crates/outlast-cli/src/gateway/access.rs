//! Who may call the gateway: what is set about it, and what follows.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context, bail};
use outlast::http;
use outlast_auth::{Auth, Bearer, Jwt};
use tokio::net::TcpListener;
use url::Url;

use super::settings::{Found, Section};

/// What may be set as `auth`.
const KINDS: [&str; 3] = ["none", "bearer-file", "jwt"];
const TOKENS: &str = "the name of a file with a name and a token in each line";
const ISSUER: &str = "the URL of an issuer of tokens, such as https://login.example.com";
const AUDIENCE: &str = "what the `aud` of a token has to name, such as the URL of this gateway";
const KEYS: &str = "the URL of the issuer's keys, a JSON Web Key Set";
const KEYS_FILE: &str = "the name of a file with the issuer's keys, a JSON Web Key Set";
const KEYS_WANTED: &str = "no token of the issuer can be checked; name a JSON Web Key Set with its public keys with --keys-file \
    or --keys-url, or leave both out where the issuer has metadata";
const SCOPES: &str = r#"a list of texts, such as ["tools"]"#;
const RESOURCE: &str = "the URL by which callers reach this gateway, such as https://tools.example.com/mcp";
const HOSTS: &str = r#"a list of host names without a port, such as ["tools.example.com"]"#;

/// Who may call, and by which names.
#[derive(Debug)]
pub(super) struct Access {
    who: Who,
    /// The URL by which callers reach the gateway.
    resource: Option<String>,
    hosts: Vec<String>,
    /// Whether it was said that anybody may call from anywhere.
    is_open: bool,
}

#[derive(Debug)]
enum Who {
    Anybody,
    Tokens(PathBuf),
    Issuer { issuer: String, audience: String, keys: Keys, scopes: Vec<String> },
}

#[derive(Debug)]
enum Keys {
    Found,
    Url(String),
    File(PathBuf),
}

impl Access {
    /// Reads what is set. What is wrong becomes a problem of the section.
    pub(super) fn read(top: &mut Section<'_>, is_stdio: bool) -> Self {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let kind = top.one_of("auth", &KINDS);
        let tokens = top.text("tokens", TOKENS, Found::Shown, path);
        let issuer = top.text("issuer", ISSUER, Found::Shown, some);
        let audience = top.text("audience", AUDIENCE, Found::Shown, some);
        let keys_url = top.text("keys_url", KEYS, Found::Shown, some);
        let keys_file = top.text("keys_file", KEYS_FILE, Found::Shown, path);
        let scopes = top.texts("scopes", SCOPES).unwrap_or_default();
        let resource =
            top.text("resource", RESOURCE, Found::Shown, |text| Url::parse(text).ok().and(some(text)));
        let hosts = top.texts("hosts", HOSTS).unwrap_or_default();
        let open_to_anyone = top.yes_or_no("open_to_anyone").unwrap_or_default();
        let asks_for = match kind {
            Some("bearer-file") => "bearer-file",
            Some("jwt") => "jwt",
            _ => "none",
        };
        for (key, is_set, kind) in [
            ("tokens", tokens.is_some(), "bearer-file"),
            ("issuer", issuer.is_some(), "jwt"),
            ("audience", audience.is_some(), "jwt"),
            ("keys_url", keys_url.is_some(), "jwt"),
            ("keys_file", keys_file.is_some(), "jwt"),
            ("scopes", !scopes.is_empty(), "jwt"),
        ] {
            if is_set && asks_for != kind {
                top.problem(
                    key,
                    format_args!("this goes with auth = \"{kind}\"; set that too, or leave this out"),
                );
            }
        }
        if is_stdio && asks_for != "none" {
            top.problem(
                "auth",
                "whoever starts a gateway on standard input and output is its caller; leave this out",
            );
        }
        if open_to_anyone && kind != Some("none") {
            top.problem(
                "open_to_anyone",
                "this goes with auth = \"none\"; say that too, if anybody is to call every tool",
            );
        }
        let who = match (asks_for, tokens, issuer, audience) {
            ("bearer-file", Some(file), ..) => Who::Tokens(file),
            ("bearer-file", ..) => {
                top.problem("auth", format_args!("the tokens are missing; set `tokens`, {TOKENS}"));
                Who::Anybody
            }
            ("jwt", _, Some(issuer), Some(audience)) => {
                let keys = match (keys_url, keys_file) {
                    (Some(_), Some(_)) => {
                        top.problem("keys_file", "there are two places for keys; set keys_url or keys_file");
                        Keys::Found
                    }
                    (Some(url), None) => Keys::Url(url),
                    (None, Some(file)) => Keys::File(file),
                    (None, None) => Keys::Found,
                };
                Who::Issuer { issuer, audience, keys, scopes }
            }
            ("jwt", _, issuer, _) => {
                let (key, what) = if issuer.is_none() { ("issuer", ISSUER) } else { ("audience", AUDIENCE) };
                top.problem("auth", format_args!("`{key}` is missing; set it to {what}"));
                Who::Anybody
            }
            _ => Who::Anybody,
        };
        Self { who, resource, hosts, is_open: open_to_anyone }
    }

    /// A listener that only those can reach who may.
    pub(super) async fn listen(&self, place: &str) -> anyhow::Result<TcpListener> {
        TcpListener::bind(&*self.addresses(place).await?)
            .await
            .with_context(|| format!("cannot listen on {place}; choose another place with --listen"))
    }

    /// The addresses of this place, if only those can reach them who may.
    ///
    /// # Errors
    /// When there are none, or others can.
    pub(super) async fn addresses(&self, place: &str) -> anyhow::Result<Vec<SocketAddr>> {
        let found = tokio::net::lookup_host(place).await;
        let found = found
            .with_context(|| format!("there is no address {place}; choose another place with --listen"))?;
        let addresses: Vec<SocketAddr> = found.collect();
        let is_protected = !matches!(self.who, Who::Anybody) || self.is_open;
        if let Some(open) =
            addresses.iter().find(|address| !address.ip().is_loopback()).filter(|_| !is_protected)
        {
            bail!(
                "{open} can be reached from other machines, and whoever reaches it could call every tool behind the gateway; say \
                who may call, with --auth bearer-file FILE or --auth jwt, or listen on 127.0.0.1 (or [::1]); to let in anybody \
                all the same, say both --auth none and --open-to-anyone"
            );
        }
        Ok(addresses)
    }

    /// The layer that lets in those who may call; none where anybody may.
    ///
    /// # Errors
    /// When the tokens or the issuer cannot be used.
    pub(super) async fn auth(&self) -> anyhow::Result<Option<Auth>> {
        let auth = match &self.who {
            Who::Anybody => return Ok(None),
            Who::Tokens(file) => Auth::new(Bearer::from_file(file).context(
                "the tokens of those who may call cannot be used; each line of the file is a name, a space and a token",
            )?),
            Who::Issuer { keys, .. } => {
                let jwt = self.jwt()?;
                if matches!(keys, Keys::File(_)) {
                    // It is here or not; an issuer may be away for a while.
                    jwt.read_keys().await.context(KEYS_WANTED)?;
                }
                Auth::new(jwt)
            }
        };
        // An audience is most often the URL of the server it is for.
        let resource = self.resource.as_deref().or(match &self.who {
            Who::Issuer { audience, .. } if Url::parse(audience).is_ok_and(|url| url.has_host()) => {
                Some(audience)
            }
            _ => None,
        });
        Ok(Some(match resource {
            Some(url) => auth.resource(url).context("the URL of the gateway cannot be used (resource)")?,
            None => auth,
        }))
    }

    fn jwt(&self) -> anyhow::Result<Jwt> {
        let Who::Issuer { issuer, audience, keys, scopes } = &self.who else { bail!("there is no issuer") };
        let mut jwt = Jwt::new(issuer, audience)?;
        for scope in scopes {
            jwt = jwt.scope(scope);
        }
        Ok(match keys {
            Keys::Found => jwt,
            Keys::Url(url) => jwt.keys_url(url)?,
            Keys::File(file) => jwt.keys_file(file),
        })
    }

    /// Whether those who may call can be known: whether the tokens can be used, or the issuer's keys be read.
    ///
    /// # Errors
    /// Why not.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        self.auth().await?;
        match self.who {
            Who::Issuer { .. } => self.jwt()?.read_keys().await.context(KEYS_WANTED),
            _ => Ok(()),
        }
    }

    /// Adds the names by which callers reach the gateway to those that are served.
    pub(super) fn name(&self, options: &mut http::Options) {
        let resource = self.resource.as_deref().and_then(|url| Url::parse(url).ok());
        let named = resource.as_ref().and_then(|url| url.host_str()).map(str::to_owned);
        for host in self.hosts.iter().cloned().chain(named) {
            options.allowed_origins.extend(["http", "https"].map(|scheme| format!("{scheme}://{host}:*")));
            options.allowed_hosts.push(host);
        }
    }

    /// What a caller adds to the command line of `outlast call`.
    pub(super) fn option(&self) -> &'static str {
        if matches!(self.who, Who::Anybody) { "" } else { " --token-env VAR" }
    }

    /// Who may call, in a few words.
    pub(super) fn shown(&self) -> &'static str {
        match self.who {
            Who::Anybody => "anybody who reaches it",
            Who::Tokens(_) => "whoever shows a token of the file",
            Who::Issuer { .. } => "whoever shows a token of the issuer",
        }
    }
}
