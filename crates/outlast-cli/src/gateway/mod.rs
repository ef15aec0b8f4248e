//! `outlast gateway`: durable tasks for servers that know nothing of them.

mod access;
mod admin;
mod check;
mod config;
mod settings;

use std::{
    env, fs,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use outlast::{BuildError, Store, TaskServer, http};
use outlast_gateway::Gateway;
use outlast_sqlite::Role;
use sha2::{Digest, Sha256};
use toml::Value;

use self::{config::Config, settings::Settings};
use crate::{
    call::exit::Exit,
    signals,
    store::{self, Opened, Place},
    telemetry,
    text::{self, shell_word},
};

/// Stand in front of any MCP server, and make its slow calls durable tasks
///
/// The server is a command that is started and spoken to over its standard input and output, or a URL; several are named
/// in a file. Whoever calls the gateway gets their tools, prompts and resources. A call that takes long becomes a task that is
/// kept in a file, for callers who can follow one; the call of any other caller is held open, and past --hold the answer
/// names tools by which the result is asked for.
///
/// Unless --auth says who may call, only this machine may.
#[derive(clap::Args)]
#[command(
    override_usage = "outlast gateway [OPTIONS] -- COMMAND [ARG]...\n       outlast gateway [OPTIONS] --upstream URL\n       outlast \
        gateway [OPTIONS] [--config FILE]",
    after_help = AFTER_HELP
)]
pub(crate) struct Args {
    /// The server, as a command
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["upstream", "token_env"])]
    command: Vec<String>,
    /// The server, as a URL
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Send the bearer token that is in this environment variable to the server with that URL
    #[arg(long, value_name = "VAR", requires = "upstream")]
    token_env: Option<String>,
    /// Send each caller's own Authorization header to the server with that URL, which has to accept the tokens that callers show
    /// to the gateway
    #[arg(long, requires = "upstream", conflicts_with_all = ["token_env", "stdio"])]
    forward_authorization: bool,
    /// The protocol to speak with the server: auto, 2026-07-28, 2025-11-25 or 2025-06-18 [default: auto, the newest that it knows]
    #[arg(long, value_name = "VERSION")]
    protocol: Option<String>,
    /// Read settings from this file [default: gateway.toml, where the command line names no server]
    #[arg(long, env = "OUTLAST_GATEWAY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:8808]
    #[arg(long, value_name = "ADDR", conflicts_with = "stdio")]
    listen: Option<String>,
    /// Serve on standard input and output instead, for a host that starts its servers itself
    #[arg(long)]
    stdio: bool,
    /// The file that tasks are kept in; created when there is none [default: outlast-gateway.db; with --stdio, one for each
    /// set of servers]
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// The database that tasks are kept in, as postgres://USER@HOST/DATABASE, which any number of gateways may share. Also in
    /// the variable OUTLAST_STORE, where a password is not seen by other users of this machine
    #[arg(long, value_name = "URL", conflicts_with = "db")]
    store: Option<String>,
    /// Who may call: none (anybody, from this machine alone), bearer-file FILE, or jwt
    #[arg(long, value_names = ["HOW", "FILE"], num_args = 1..=2)]
    auth: Vec<String>,
    /// With --auth jwt: the URL of the issuer of tokens
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// With --auth jwt: what the `aud` of a token has to name
    #[arg(long, value_name = "TEXT")]
    audience: Option<String>,
    /// With --auth jwt: the file of the issuer's keys [default: found by the issuer's metadata]
    #[arg(long, value_name = "FILE")]
    keys_file: Option<String>,
    /// With --auth jwt: the URL of the issuer's keys
    #[arg(long, value_name = "URL")]
    keys_url: Option<String>,
    /// The URL by which callers reach the gateway, for the metadata that leads them to the issuer [default: the audience,
    /// where it is a URL]
    #[arg(long, value_name = "URL")]
    resource: Option<String>,
    /// Serve requests to this host name too
    #[arg(long, value_name = "NAME", conflicts_with = "stdio")]
    allow_host: Vec<String>,
    /// With --auth none: let in anybody from anywhere, who can then call every tool
    #[arg(long)]
    open_to_anyone: bool,
    /// Serve the operators' page and its API here, such as 127.0.0.1:8809: tasks to see, answer, cancel and retry, and metrics
    #[arg(long, value_name = "ADDR", conflicts_with = "stdio")]
    admin: Option<String>,
    /// The file of the token that operators have to show. It may also be in the variable OUTLAST_GATEWAY_ADMIN_TOKEN
    /// [default: a new one each time, which is printed]
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
    /// How long to hold the call of a caller who cannot follow a task [default: 50s]
    #[arg(long, value_name = "TIME")]
    hold: Option<String>,
    /// When a call becomes a task: now, never, or after a time such as 3s [default: 3s]
    #[arg(long, value_name = "WHEN")]
    start: Option<String>,
    /// Check the settings, reach each server once, say what it is, and end
    #[arg(long)]
    check: bool,
}

const AFTER_HELP: &str = "\
Settings come from the file, then the environment, then the command line; later ones win. The keys of the file:
  listen, stdio, db, store, hold, start  as the options above
  auth, tokens, issuer, audience, keys_url, keys_file, scopes, resource, hosts, open_to_anyone
                                         who may call; tokens is the file of bearer-file
  admin, admin_token_file                the operators' page
  running, running_per_owner, open_per_owner
                                         how much work there may be at once
  url, command, env, headers, header_env, token_env, forward_authorization, protocol, tools
                                         the one server, whose tools keep their names
  [upstream.NAME]                        one of several, with the same keys; its tools are NAME__TOOL
  [tools.TOOL], [upstream.NAME.tools.TOOL]
                                         for one tool: start, recovery (rerun or fail), deadline
Each key is a variable, too: OUTLAST_GATEWAY_HOLD, OUTLAST_GATEWAY_UPSTREAM__FILES__URL.";

/// How long running calls have to end when the gateway is stopped: short enough for the patience of those who stop it.
const DRAIN: Duration = Duration::from_secs(5);
/// How many calls may be under way at once, and how many of one owner.
const RUNNING: u32 = 512;
const RUNNING_PER_OWNER: u32 = 128;
const CONFIG: &str = "gateway.toml";
pub(crate) const DB: &str = "outlast-gateway.db";

/// Wires: reads what is set, opens, binds, serves.
pub(crate) async fn main(args: Args) -> anyhow::Result<Exit> {
    let is_check = args.check;
    let config = read(args)?;
    let place = match config.store.clone() {
        Some(place) => place,
        None => store::of_environment()?.unwrap_or_else(|| Place::File(default_db(&config))),
    };
    if is_check {
        return check::check(&config).await;
    }
    // Before anyone is told that there is a server, so that whoever stops it is heard.
    let stop = signals::asked_to_stop()?;
    if config.stdio {
        // A host may start one gateway for each of its windows, all on one file.
        let store = Opened::open(&place, Role::Auto).await?;
        let server = serve(&config, store.shared()).await?;
        text::note(format_args!("outlast: serving on standard input and output, with tasks in {place}"));
        let served = outlast::stdio::serve(server.clone(), stop).await;
        end(&server, &store).await;
        served?;
        return Ok(Exit::Done);
    }
    let auth = config.access.auth().await?;
    let listener = config.access.listen(&config.listen).await?;
    let page = match &config.admin {
        Some(admin) => Some(admin.listen().await?),
        None => None,
    };
    // Before anything is there to be counted.
    let measured = page.is_some().then(telemetry::metrics::begin).transpose()?;
    let store = Opened::open(&place, Role::Runtime).await?;
    let server = serve(&config, store.shared()).await?;
    let address = listener.local_addr()?;
    let mut stdout = io::stdout();
    let link = page.as_ref().map(|page| page.link.as_str());
    stdout.write_all(banner(&config, address, &place, link).as_bytes())?;
    stdout.flush()?;
    let mut options = http::Options::default();
    options.allowed_hosts.push(address.ip().to_string());
    config.access.name(&mut options);
    // Without `auth` a token is all that tells one caller from another, and here it matters who that is.
    options.sessions_by_token = config.upstreams.iter().any(config::UpstreamConfig::forwards);
    let page = page.zip(measured);
    let page = page.map(|(page, measured)| page.serve(store.shared(), measured, &options.allowed_hosts));
    let admin = page.as_ref().map(|page| page.admin.clone());
    let stop = async move {
        stop.await;
        if let Some(admin) = admin {
            admin.stop();
        }
    };
    let mut router = http::router(&server, &options);
    if let Some(auth) = auth {
        router = auth.protect(router);
    }
    let served = http::serve_router(listener, router, server.clone(), &options, stop).await;
    if let Some(page) = page {
        page.end().await;
    }
    end(&server, &store).await;
    served?;
    Ok(Exit::Done)
}

/// All that is set, in the file, the environment and on the command line.
fn read(args: Args) -> anyhow::Result<Config> {
    let names_one = args.upstream.is_some() || !args.command.is_empty();
    let mut settings = match args.config.as_deref().filter(|file| !file.as_os_str().is_empty()) {
        Some(file) => of_file(file)?,
        None if !names_one && Path::new(CONFIG).exists() => of_file(Path::new(CONFIG))?,
        None => Settings::default(),
    };
    for (name, value) in env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(settings::PREFIX)) else { continue };
        let value = value.to_str().with_context(|| format!("{name}: the value is not text in UTF-8"))?;
        settings.set_variable(name, value);
    }
    if names_one {
        // The one on the command line takes the place of the one that is set elsewhere.
        for key in ["url", "command", "env", "headers", "header_env", "token_env", "forward_authorization"] {
            settings.unset(key);
        }
    }
    let texts = [
        ("url", "--upstream", args.upstream),
        ("token_env", "--token-env", args.token_env),
        ("protocol", "--protocol", args.protocol),
        ("listen", "--listen", args.listen),
        ("db", "--db", args.db),
        ("store", "--store", args.store),
        ("issuer", "--issuer", args.issuer),
        ("audience", "--audience", args.audience),
        ("keys_file", "--keys-file", args.keys_file),
        ("keys_url", "--keys-url", args.keys_url),
        ("resource", "--resource", args.resource),
        ("admin", "--admin", args.admin),
        ("admin_token_file", "--admin-token-file", args.admin_token_file),
        ("hold", "--hold", args.hold),
        ("start", "--start", args.start),
    ];
    for (key, option, text) in texts {
        if let Some(text) = text {
            settings.set_option(key, option, Value::String(text));
        }
    }
    if !args.command.is_empty() {
        let words = args.command.into_iter().map(Value::String).collect();
        settings.set_option("command", "the command after --", Value::Array(words));
    }
    if args.forward_authorization {
        settings.set_option("forward_authorization", "--forward-authorization", Value::Boolean(true));
    }
    if args.stdio {
        settings.set_option("stdio", "--stdio", Value::Boolean(true));
    }
    let mut auth = args.auth.into_iter();
    for (key, text) in ["auth", "tokens"].into_iter().zip(&mut auth) {
        settings.set_option(key, "--auth", Value::String(text));
    }
    if !args.allow_host.is_empty() {
        let hosts = args.allow_host.into_iter().map(Value::String).collect();
        settings.set_option("hosts", "--allow-host", Value::Array(hosts));
    }
    if args.open_to_anyone {
        settings.set_option("open_to_anyone", "--open-to-anyone", Value::Boolean(true));
    }
    for (of_other, key) in [("db", "store"), ("store", "db")] {
        // The place on the command line is the only one.
        if settings.is_option(of_other) {
            settings.unset(key);
        }
    }
    Config::read(settings, &|name| env::var(name).ok())
        .map_err(|problems| anyhow!("the gateway cannot start as it is set up\n{}", problems.join("\n")))
}

fn of_file(file: &Path) -> anyhow::Result<Settings> {
    let text = fs::read_to_string(file).with_context(|| {
        format!("cannot read the settings in {}; name the right file with --config", file.display())
    })?;
    Settings::of_file(file.to_owned(), &text).map_err(anyhow::Error::msg)
}

/// The file for the tasks of stdio gateways is one for each set of upstreams: hosts start several gateways in one folder, and
/// each would take up the tasks of the others, whose tools it does not have.
fn default_db(config: &Config) -> PathBuf {
    if !config.stdio {
        return DB.into();
    }
    let mut digest = Sha256::new();
    for upstream in &config.upstreams {
        digest.update(format!("{:?}\n{}\n", upstream.name, upstream.identity()));
    }
    let digest: String = digest.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("outlast-gateway-{digest}.db").into()
}

async fn serve(config: &Config, store: Arc<dyn Store>) -> anyhow::Result<TaskServer<Gateway>> {
    let upstreams = config.upstreams.iter().map(config::UpstreamConfig::upstream).collect();
    let mut runtime = outlast::Config::default();
    runtime.drain = DRAIN;
    // A call that is under way waits for its upstream, and costs little here.
    runtime.max_running = config.limits.running.unwrap_or(RUNNING) as usize;
    runtime.max_running_per_owner = config.limits.running_per_owner.unwrap_or(RUNNING_PER_OWNER);
    if let Some(open) = config.limits.open_per_owner {
        runtime.max_open_per_owner = open;
    }
    let served = Gateway::serve(upstreams, config.options.clone(), store, runtime).await;
    served.map_err(|refusal| match refusal {
        BuildError::UnknownTool(tool) => anyhow!(
            "something is set for the tool '{tool}', which no server behind the gateway has; `outlast gateway --check` with the \
            same settings says which one is near"
        ),
        other => other.into(),
    })
}

/// Ends the servers that were started here, and closes the store.
async fn end(server: &TaskServer<Gateway>, store: &Opened) {
    server.handler().close().await;
    store.close().await;
}

/// Where the gateway is, and what to do with it. Its first line is for scripts too.
fn banner(config: &Config, address: SocketAddr, place: &Place, page: Option<&str>) -> String {
    let url = format!("http://{address}/mcp");
    let behind: Vec<String> = config.upstreams.iter().map(config::UpstreamConfig::shown).collect();
    let (see, shown) = match place {
        Place::File(file) => {
            let shown = file.to_string_lossy().into_owned();
            (format!("outlast tasks list --db {}", shell_word(&shown)), shown)
        }
        // Its URL is shown without what may be secret in it.
        Place::Database(_) => {
            ("outlast tasks list, with the same --store or OUTLAST_STORE".to_owned(), place.to_string())
        }
    };
    // No caller reaches an address that stands for all.
    let called = match address.ip() {
        ip if !ip.is_unspecified() => url.clone(),
        ip => format!("http://{}:{}/mcp", if ip.is_ipv4() { "127.0.0.1" } else { "[::1]" }, address.port()),
    };
    let page = page.map(|link| format!("Their page:       {link}\n")).unwrap_or_default();
    format!(
        "listening on {url}\n\n\
        Behind it: {}.\n\
        May call:  {}.\n\
        Call a tool:      outlast call {called} TOOL --arg NAME=VALUE{}\n\
        See the tasks:    {see}\n{page}\n\
        Ctrl-C stops the gateway. Its tasks stay in {shown}. Started again, it repeats interrupted calls of harmless tools alone.\n",
        behind.join(", "),
        config.access.shown(),
        config.access.option(),
    )
}
