//! What the gateway is told: read from a file, the environment and the command line, and checked. Pure.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use outlast::Recovery;
use outlast_client::Server;
use outlast_gateway::{GatewayOptions, ToolPolicy, Upstream, When};
use rmcp::model::ProtocolVersion;

use super::{
    access::Access,
    admin,
    settings::{Found, Problems, Section, Settings},
};
use crate::{
    call::{Place, duration, header},
    store,
};

/// What the gateway is told, once it is known to be right.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) listen: String,
    pub(super) stdio: bool,
    pub(super) access: Access,
    pub(super) admin: Option<admin::Settings>,
    pub(super) store: Option<store::Place>,
    pub(super) limits: Limits,
    pub(super) options: GatewayOptions,
    pub(super) upstreams: Vec<UpstreamConfig>,
}

/// A server to stand in front of.
#[derive(Debug)]
pub(super) struct UpstreamConfig {
    /// None for the only one, whose tools keep their names.
    pub(super) name: Option<String>,
    way: Way,
    /// None for the newest that both know.
    protocol: Option<ProtocolVersion>,
    tools: BTreeMap<String, ToolPolicy>,
}

#[derive(Debug)]
enum Way {
    Command { command: Vec<String>, env: BTreeMap<String, Secret> },
    Url { url: Secret, headers: BTreeMap<String, Secret>, token: Option<Secret>, forwards: bool },
}

/// What is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

const LISTEN: &str = "127.0.0.1:8808";
const ADDRESS: &str = "an address of this machine with a port, such as 127.0.0.1:8808";
const TIME: &str = "a time such as 50s, 5m or 2h";
const WHEN: &str = "now, never, or a time such as 3s after which a call becomes a task";
const RECOVERY: &str = "rerun, to make an interrupted call again, or fail, to end its task";
const FILE: &str = "the name of a file";
const STORE: &str = "a database, such as postgres://USER@HOST/DATABASE, or the name of a file";
const COUNT: &str = "a number from 1 to 1000000";
const URL: &str = "the URL of a server, such as https://tools.example.com/mcp";
const COMMAND: &str = r#"a command as a list of texts, such as ["npx", "-y", "some-server"]"#;
const VARIABLE: &str = "the name of an environment variable, such as API_TOKEN, and not the secret itself";
/// What may be set as the protocol of an upstream.
const PROTOCOLS: [&str; 4] = ["auto", "2026-07-28", "2025-11-25", "2025-06-18"];
/// The key by which an upstream gets its callers' own tokens.
const FORWARD: &str = "forward_authorization";
const UPSTREAMS: &str = "a table for each upstream, such as [upstream.files]";
const TOOLS: &str = "a table for each tool, such as [tools.report]";

impl Config {
    /// Reads what is set. `lookup` gives variables of the environment, for the secrets that are named.
    ///
    /// # Errors
    /// All that is wrong, a sentence each.
    pub(super) fn read(
        settings: Settings,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Vec<String>> {
        let problems = Problems::default();
        let mut top = settings.read(&problems);
        let mut options = GatewayOptions::default();
        let listen = top.text("listen", ADDRESS, Found::Shown, address).unwrap_or_else(|| LISTEN.to_owned());
        let stdio = top.yes_or_no("stdio").unwrap_or_default();
        let access = Access::read(&mut top, stdio);
        let admin = admin::Settings::read(&mut top, stdio);
        let store = place(&mut top);
        let limits = Limits::read(&mut top);
        if let Some(hold) = top.text("hold", TIME, Found::Shown, time) {
            options.hold = hold;
        }
        if let Some(start) = top.text("start", WHEN, Found::Shown, when) {
            options.start = start;
        }
        let only = upstream(None, &mut top, lookup);
        let mut named = top.sections("upstream", UPSTREAMS);
        match (&only, named.is_empty()) {
            (Ok(_), false) => top.problem(
                "upstream",
                "an upstream without a name stands beside these (a `url` or a `command` at the top or on the command line); \
                give it a name too, or leave one or the other out",
            ),
            (Err(Missing::Settings(key)), false) => top.problem(
                key,
                "this is for the one upstream without a name, and there is none; put it under [upstream.NAME]",
            ),
            _ => {}
        }
        top.finish();
        let mut upstreams = Vec::new();
        for (name, section) in &mut named {
            if !is_upstream_name(name) {
                section.problem("", UPSTREAM_NAME);
            }
            match upstream(Some(name), section, lookup) {
                Ok(upstream) => upstreams.push(upstream),
                Err(_) => section.problem("", "an upstream has a `url` or a `command`; set one of them"),
            }
        }
        named.into_iter().for_each(|(_, section)| section.finish());
        upstreams.extend(only);
        if stdio && upstreams.iter().any(UpstreamConfig::forwards) {
            problems.add(FORWARDS_NOTHING);
        }
        let mut problems = problems.into_vec();
        if problems.is_empty() && upstreams.is_empty() {
            problems.push(NO_UPSTREAM.to_owned());
        }
        if problems.is_empty() {
            Ok(Self { listen, stdio, access, admin, store, limits, options, upstreams })
        } else {
            Err(problems)
        }
    }
}

/// How much work there may be at once.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) running: Option<u32>,
    pub(super) running_per_owner: Option<u32>,
    pub(super) open_per_owner: Option<u32>,
}

impl Limits {
    fn read(top: &mut Section<'_>) -> Self {
        let mut count = |key| top.number(key, COUNT, 1..=1_000_000);
        Self {
            running: count("running"),
            running_per_owner: count("running_per_owner"),
            open_per_owner: count("open_per_owner"),
        }
    }
}

/// Where tasks are kept, by either of its names.
fn place(top: &mut Section<'_>) -> Option<store::Place> {
    let file = top.text("db", FILE, Found::Shown, |text| (!text.is_empty()).then(|| PathBuf::from(text)));
    let store = top.text("store", STORE, Found::Hidden, |text| text.parse().ok());
    if file.is_some() && store.is_some() {
        top.problem("store", "tasks are kept in one place; set db or store");
    }
    store.or(file.map(store::Place::File))
}

const UPSTREAM_NAME: &str = "the name of an upstream is 1 to 32 letters, digits, '-' and '_', without '_' at an end or twice in a \
    row, because its tools are named NAME__TOOL";
const NO_UPSTREAM: &str = "there is no server to stand in front of; name one as `outlast gateway -- COMMAND ARG...`, as `outlast \
    gateway --upstream URL`, or in a file (gateway.toml, or --config FILE)";

const FORWARDS_NOTHING: &str = "forward_authorization: whoever calls a gateway on standard input and output sends no headers; leave it \
    out, or serve over HTTP";

/// Why something is no upstream.
enum Missing {
    /// Nothing of one is set.
    All,
    /// This is set, but not where the upstream is.
    Settings(&'static str),
}

/// Reads an upstream. What is wrong with one that is there becomes a problem of the section.
fn upstream(
    name: Option<&str>,
    section: &mut Section<'_>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<UpstreamConfig, Missing> {
    const URL_ONLY: [&str; 4] = ["headers", "header_env", "token_env", FORWARD];
    let is_set = ["url", "command"].map(|key| section.has(key));
    let beside = ["tools", "protocol", "env"].into_iter().chain(URL_ONLY).find(|key| section.has(key));
    let of_url = URL_ONLY.into_iter().find(|key| section.has(key));
    let has_env = section.has("env");

    let url = section.text("url", URL, Found::Hidden, |text| Place::is_url(text).ok());
    let command = section.texts("command", COMMAND);
    let env = section.named_texts("env", "a table of variables, such as { LEVEL = \"debug\" }");
    let headers = headers(section);
    let from_env = header_variables(section, lookup);
    let token = section.text("token_env", VARIABLE, Found::Hidden, variable);
    let token = token.and_then(|name| secret(section, "token_env", &name, lookup));
    let forwards = section.yes_or_no(FORWARD).unwrap_or_default();
    let protocol = section.one_of("protocol", &PROTOCOLS).and_then(protocol);
    let tools = section.sections("tools", TOOLS);
    let tools = tools.into_iter().map(|(name, section)| (name, policy(section))).collect();

    let hidden = |named: BTreeMap<String, String>| named.into_iter().map(|(name, text)| (name, Secret(text)));
    let way = match is_set {
        [false, false] => return Err(beside.map_or(Missing::All, Missing::Settings)),
        [true, true] => {
            section.problem("command", "an upstream has a `url` or a `command`, and not both; remove one");
            Way::Command { command: Vec::new(), env: BTreeMap::new() }
        }
        [true, false] => {
            if has_env {
                section.problem(
                    "env",
                    "the environment is for an upstream with a `command`, and this one has a `url`",
                );
            }
            let headers: BTreeMap<_, _> = hidden(headers).chain(hidden(from_env)).collect();
            let url = url.unwrap_or_default();
            if forwards && let Some(own) = own_authorization(&url, &headers, token.is_some()) {
                section.problem(
                    FORWARD,
                    format_args!(
                        "the upstream has an `Authorization` of its own, by {own}, and gets one or the other; leave this or that out"
                    ),
                );
            }
            Way::Url { url: Secret(url), headers, token, forwards }
        }
        [false, true] => {
            if let Some(key) = of_url {
                section.problem(
                    key,
                    "this is for an upstream with a `url`, and this one has a `command`, which inherits the environment",
                );
            }
            Way::Command { command: command.unwrap_or_default(), env: hidden(env).collect() }
        }
    };
    Ok(UpstreamConfig { name: name.map(str::to_owned), way, protocol, tools })
}

/// By what an upstream is sent an `Authorization` that is the gateway's, if it is.
fn own_authorization(url: &str, headers: &BTreeMap<String, Secret>, has_token: bool) -> Option<&'static str> {
    let url = url::Url::parse(url).ok();
    if has_token {
        Some("`token_env`")
    } else if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
        Some("`headers` or `header_env`")
    } else if url.is_some_and(|url| !url.username().is_empty() || url.password().is_some()) {
        Some("the credentials in its `url`")
    } else {
        None
    }
}

fn headers(section: &mut Section<'_>) -> BTreeMap<String, String> {
    let headers = section.named_texts("headers", "a table of headers, such as { X-Team = \"red\" }");
    for (name, value) in &headers {
        if let Err(why) = header(&format!("{name}:{value}")) {
            section.problem("headers", why);
        }
    }
    headers
}

/// Headers whose values are in the environment.
fn header_variables(
    section: &mut Section<'_>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> BTreeMap<String, String> {
    const TABLE: &str =
        "a table of headers and the variables that hold their values, such as { X-Api-Key = \"API_KEY\" }";
    let mut headers = BTreeMap::new();
    for (name, held) in section.named_texts("header_env", TABLE) {
        let Some(held) = variable(&held) else {
            section.problem("header_env", format!("expected {VARIABLE}"));
            continue;
        };
        let Some(Secret(value)) = secret(section, "header_env", &held, lookup) else { continue };
        match header(&format!("{name}:{value}")) {
            Ok(_) => drop(headers.insert(name, value)),
            Err(_) => {
                section.problem("header_env", format!("the value of {held} cannot be sent as that header"));
            }
        }
    }
    headers
}

/// The secret in the variable `name`.
fn secret(
    section: &Section<'_>,
    key: &str,
    name: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Option<Secret> {
    match lookup(name) {
        Some(value) if !value.trim().is_empty() => Some(Secret(value.trim().to_owned())),
        _ => {
            section.problem(key, format!("the environment variable {name} is not set; set it to the secret"));
            None
        }
    }
}

fn policy(mut section: Section<'_>) -> ToolPolicy {
    let mut policy = ToolPolicy::default();
    policy.start = section.text("start", WHEN, Found::Shown, when);
    policy.recovery = section.text("recovery", RECOVERY, Found::Shown, |text| match text {
        "rerun" => Some(Recovery::Rerun),
        "fail" => Some(Recovery::Fail),
        _ => None,
    });
    policy.deadline = section.text("deadline", TIME, Found::Shown, time).filter(|deadline| {
        if deadline.is_zero() {
            section
                .problem("deadline", "a call cannot be over in no time; leave the key out for no deadline");
        }
        !deadline.is_zero()
    });
    section.finish();
    policy
}

/// The version that is set; none where it is to be negotiated.
fn protocol(word: &str) -> Option<ProtocolVersion> {
    ProtocolVersion::KNOWN_VERSIONS.iter().find(|version| version.as_str() == word).cloned()
}

fn time(text: &str) -> Option<Duration> {
    duration(text).ok()
}

/// When a call becomes a task.
pub(super) fn when(text: &str) -> Option<When> {
    match text {
        "now" => Some(When::Now),
        "never" => Some(When::Never),
        text => time(text).map(When::After),
    }
}

pub(super) fn address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let port: Option<u16> = port.parse().ok();
    (!host.is_empty() && port.is_some()).then(|| text.to_owned())
}

/// A name, and not a secret that was put where its name belongs.
fn variable(text: &str) -> Option<String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let begins = text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    (is_name && begins).then(|| text.to_owned())
}

fn is_upstream_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        && !name.starts_with('_')
        && !name.ends_with('_')
        && !name.contains("__")
}

impl UpstreamConfig {
    /// The upstream, to be put behind a gateway.
    pub(super) fn upstream(&self) -> Upstream {
        let server = self.server();
        let upstream = match &self.name {
            Some(name) => Upstream::named(name, server),
            None => Upstream::only(server),
        };
        let upstream = match &self.protocol {
            Some(version) => upstream.protocol(version.clone()),
            None => upstream,
        };
        let upstream = if self.forwards() { upstream.forward_authorization() } else { upstream };
        self.tools.iter().fold(upstream, |upstream, (tool, policy)| upstream.tool(tool, policy.clone()))
    }

    /// Whether it gets its callers' own `Authorization` headers.
    pub(super) fn forwards(&self) -> bool {
        matches!(self.way, Way::Url { forwards: true, .. })
    }

    /// The names of the tools for which something is settled.
    pub(super) fn tools(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// What tells the upstream apart from others, without credentials.
    pub(super) fn identity(&self) -> String {
        self.server().name().to_owned()
    }

    /// What a person knows it by.
    pub(super) fn shown(&self) -> String {
        match (&self.name, &self.way) {
            (Some(name), _) => name.clone(),
            (None, Way::Url { .. }) => self.identity(),
            // Arguments may hold secrets.
            (None, Way::Command { command, .. }) => command.first().cloned().unwrap_or_default(),
        }
    }

    fn server(&self) -> Server {
        match &self.way {
            Way::Command { command, env } => {
                let (program, args) =
                    command.split_first().map_or(("", [].as_slice()), |(program, args)| (program, args));
                let server = Server::command(program, args);
                env.iter().fold(server, |server, (name, Secret(value))| server.env(name, value))
            }
            Way::Url { url: Secret(url), headers, token, .. } => {
                let server = Server::http(url);
                let server =
                    headers.iter().fold(server, |server, (name, Secret(value))| server.header(name, value));
                match token {
                    Some(Secret(token)) => server.bearer(token),
                    None => server,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let mut settings = Settings::of_file("gateway.toml".into(), file)?;
        for (name, value) in variables {
            settings.set_variable(name, value);
        }
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Config::read(settings, &lookup).map_err(|problems| problems.join("\n"))
    }

    fn refused(file: &str, variables: &[(&str, &str)]) -> String {
        read(file, variables).unwrap_err()
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        let config = read(r#"command = ["server"]"#, &[]).unwrap();
        assert_eq!((config.listen.as_str(), config.stdio, config.store), ("127.0.0.1:8808", false, None));
        assert_eq!(config.options.hold, Duration::from_secs(50));
        assert_eq!(config.options.start, When::After(Duration::from_secs(3)));
        assert_eq!(config.upstreams[0].name, None);
    }

    #[test]
    fn every_key_of_the_file_is_read() {
        let config = read(
            r#"
            listen = "[::1]:9000"
            stdio = true
            db = "tasks.db"
            hold = "20s"
            start = "now"
            [upstream.files]
            command = ["server", "--root", "."]
            env = { LEVEL = "debug" }
            [upstream.files.tools.read]
            start = "never"
            recovery = "rerun"
            deadline = "10m"
            [upstream.web]
            url = "https://tools.example.com/mcp"
            headers = { X-Team = "red" }
            header_env = { X-Key = "KEY" }
            token_env = "TOKEN"
            protocol = "2025-11-25"
            "#,
            &[("KEY", "k"), ("TOKEN", "t")],
        )
        .unwrap();
        assert_eq!((config.listen.as_str(), config.stdio), ("[::1]:9000", true));
        assert_eq!(config.store, Some(store::Place::File("tasks.db".into())));
        assert_eq!((config.options.hold, config.options.start), (Duration::from_secs(20), When::Now));
        let [files, web] = &*config.upstreams else { panic!("there are two") };
        let policy = &files.tools["read"];
        assert_eq!(
            (policy.start, policy.recovery, policy.deadline),
            (Some(When::Never), Some(Recovery::Rerun), Some(Duration::from_secs(600)))
        );
        let Way::Command { command, env } = &files.way else { panic!("it is a command") };
        assert_eq!((command.len(), env["LEVEL"].0.as_str()), (3, "debug"));
        let Way::Url { headers, token, .. } = &web.way else { panic!("it is a URL") };
        assert_eq!((headers["X-Team"].0.as_str(), headers["X-Key"].0.as_str()), ("red", "k"));
        assert_eq!(token.as_ref().unwrap().0, "t");
        assert_eq!((&files.protocol, &web.protocol), (&None, &Some(ProtocolVersion::V_2025_11_25)));
    }

    #[test]
    fn an_upstream_gets_its_callers_tokens_only_where_that_is_set_and_it_has_none_of_its_own() {
        let forwards = |file: &str, variables: &[(&str, &str)]| {
            read(file, variables).map(|config| config.upstreams[0].forwards())
        };
        let url = "url = \"http://h/\"\n";
        assert_eq!(forwards(url, &[]), Ok(false));
        assert_eq!(forwards(&format!("{url}forward_authorization = false"), &[]), Ok(false));
        assert_eq!(
            forwards(&format!("{url}forward_authorization = true\nheaders = {{ X-Team = \"red\" }}"), &[]),
            Ok(true)
        );
        assert_eq!(forwards(url, &[("OUTLAST_GATEWAY_FORWARD_AUTHORIZATION", "true")]), Ok(true));
        let token = &[("TOKEN", "t")];
        let refusal = forwards(&format!("{url}forward_authorization = true\ntoken_env = \"TOKEN\""), token);
        assert!(refusal.unwrap_err().contains("by `token_env`"));
        let held = forwards(&format!("{url}forward_authorization = false\ntoken_env = \"TOKEN\""), token);
        assert_eq!(held, Ok(false));
    }

    #[test]
    fn a_protocol_may_be_set_as_a_day_and_by_a_variable_and_an_option() {
        let protocol = |file: &str, variables: &[(&str, &str)]| {
            read(file, variables).map(|config| config.upstreams[0].protocol.clone())
        };
        let old = Ok(Some(ProtocolVersion::V_2025_06_18));
        assert_eq!(protocol("command = [\"x\"]\nprotocol = 2025-06-18", &[]), old);
        let variable = ("OUTLAST_GATEWAY_PROTOCOL", "2025-06-18");
        assert_eq!(protocol("command = [\"x\"]\nprotocol = \"auto\"", &[variable]), old);
        assert_eq!(protocol("command = [\"x\"]\nprotocol = \"auto\"", &[]), Ok(None));
        let variable = ("OUTLAST_GATEWAY_UPSTREAM__A__PROTOCOL", "2025-06-18");
        assert_eq!(protocol("[upstream.a]\ncommand = [\"x\"]", &[variable]), old);

        let mut settings = Settings::of_file("gateway.toml".into(), "command = [\"x\"]").unwrap();
        settings.set_option("protocol", "--protocol", toml::Value::String("2025-11-52".to_owned()));
        let refusal = Config::read(settings, &|_| None).unwrap_err().join("\n");
        assert_eq!(
            refusal,
            "--protocol: expected one of auto, 2026-07-28, 2025-11-25, 2025-06-18, and found '2025-11-52'; the nearest known one is \
            '2025-11-25'"
        );
    }

    #[test]
    fn a_variable_of_the_environment_wins_over_the_file_and_may_name_what_is_there() {
        let file = r#"
            hold = "20s"
            [upstream.my-files]
            command = ["server"]
            [upstream.my-files.tools.readAll]
            start = "now"
        "#;
        let variables = [
            ("OUTLAST_GATEWAY_HOLD", "5s"),
            ("OUTLAST_GATEWAY_START", ""),
            ("OUTLAST_GATEWAY_STDIO", "true"),
            ("OUTLAST_GATEWAY_CONFIG", "elsewhere.toml"),
            ("OUTLAST_GATEWAY_UPSTREAM__MY_FILES__COMMAND", r#"["other", "--flag"]"#),
            ("OUTLAST_GATEWAY_UPSTREAM__MY_FILES__TOOLS__READALL__START", "never"),
            ("OUTLAST_GATEWAY_UPSTREAM__WEB__URL", "http://127.0.0.1:1/mcp"),
            ("OUTLAST_GATEWAY_UPSTREAM__WEB__TOOLS__readOne__START", "now"),
            ("OUTLAST_GATEWAY_UPSTREAM__WEB__HEADERS__X-Team", "red"),
        ];
        let config = read(file, &variables).unwrap();
        assert_eq!((config.options.hold, config.stdio), (Duration::from_secs(5), true));
        let [files, web] = &*config.upstreams else { panic!("there are two") };
        assert_eq!((files.name.as_deref(), web.name.as_deref()), (Some("my-files"), Some("web")));
        assert_eq!(files.tools["readAll"].start, Some(When::Never));
        let Way::Command { command, .. } = &files.way else { panic!("it is a command") };
        assert_eq!(command, &["other", "--flag"]);
        assert_eq!(web.tools["readOne"].start, Some(When::Now));
        let Way::Url { headers, .. } = &web.way else { panic!("it is a URL") };
        assert_eq!(headers["X-Team"].0, "red");
    }

    #[test]
    fn a_wrong_value_is_refused_with_where_it_is_and_what_is_expected() {
        for (file, said) in [
            ("hold = 5", "gateway.toml: hold: expected a time such as 50s, 5m or 2h, and found 5"),
            (
                "hold = \"soon\"",
                "gateway.toml: hold: expected a time such as 50s, 5m or 2h, and found 'soon'",
            ),
            ("start = \"later\"", "gateway.toml: start: expected now, never, or a time such as 3s"),
            ("listen = \"here\"", "gateway.toml: listen: expected an address of this machine with a port"),
            ("stdio = \"true\"", "gateway.toml: stdio: expected true or false, and found 'true'"),
            ("db = []", "gateway.toml: db: expected the name of a file, and found another list"),
            ("url = \"ftp://u:secret@host\"", "gateway.toml: url: expected the URL of a server"),
            ("command = \"a server\"", "gateway.toml: command: expected a command as a list of texts"),
            ("command = []", "gateway.toml: command: expected a command as a list of texts"),
            ("upstream = 1", "gateway.toml: upstream: expected a table for each upstream"),
            ("[upstream]\na = 1", "gateway.toml: upstream.a: expected a table, and found a number"),
            ("[upstream.a]", "gateway.toml: upstream.a: an upstream has a `url` or a `command`"),
            (
                "[upstream.a_]\ncommand = [\"x\"]",
                "gateway.toml: upstream.a_: the name of an upstream is 1 to 32",
            ),
            (
                "[upstream.\"a b\"]\ncommand = [\"x\"]",
                "gateway.toml: upstream.\"a b\": the name of an upstream",
            ),
            (
                "command = [\"x\"]\nforward_authorization = true",
                "gateway.toml: forward_authorization: this is for an upstream with a `url`",
            ),
            (
                "url = \"http://h/\"\nforward_authorization = true\nheaders = { authorization = \"Bearer secret@\" }",
                "gateway.toml: forward_authorization: the upstream has an `Authorization` of its own, by `headers` or `header_env`",
            ),
            (
                "url = \"http://u:secret@h/\"\nforward_authorization = true",
                "gateway.toml: forward_authorization: the upstream has an `Authorization` of its own, by the credentials in its `url`",
            ),
            (
                "url = \"http://h/\"\nforward_authorization = \"yes\"",
                "gateway.toml: forward_authorization: expected true or false, and found 'yes'",
            ),
            (
                "stdio = true\n[upstream.a]\nurl = \"http://h/\"\nforward_authorization = true",
                "forward_authorization: whoever calls a gateway on standard input and output sends no headers",
            ),
            (
                "[upstream.a]\nurl = \"http://h/\"\nforward_authorisation = true",
                "gateway.toml: upstream.a.forward_authorisation: there is no key",
            ),
            (
                "command = [\"x\"]\n[tools.a]\nrecovery = \"retry\"",
                "gateway.toml: tools.a.recovery: expected rerun",
            ),
            (
                "command = [\"x\"]\n[tools.a]\ndeadline = \"0s\"",
                "gateway.toml: tools.a.deadline: a call cannot be over",
            ),
            (
                "command = [\"x\"]\nurl = \"http://h/\"",
                "gateway.toml: command: an upstream has a `url` or a `command`",
            ),
            (
                "command = [\"x\"]\ntoken_env = \"T\"",
                "gateway.toml: token_env: the environment variable T is not set",
            ),
            (
                "url = \"http://h/\"\nenv = { A = \"b\" }",
                "gateway.toml: env: the environment is for an upstream",
            ),
            (
                "url = \"http://h/\"\nheaders = { \"a b\" = \"c\" }",
                "gateway.toml: headers: 'a b' is not the name",
            ),
            ("admin = \"8809\"", "gateway.toml: admin: expected an address of this machine with a port"),
            (
                "command = [\"x\"]\nadmin_token_file = \"token\"",
                "gateway.toml: admin_token_file: this goes with `admin`",
            ),
            (
                "command = [\"x\"]\nadmin = \"127.0.0.1:0\"\nadmin_token = \"secret@\"",
                "gateway.toml: admin_token: an admin token has 16 characters at least",
            ),
            (
                "command = [\"x\"]\nadmin = \"127.0.0.1:0\"\nadmin_token = \"0123456789secret@\"\nadmin_token_file = \"t\"",
                "gateway.toml: admin_token: there are two tokens",
            ),
            (
                "command = [\"x\"]\nstdio = true\nadmin = \"127.0.0.1:0\"",
                "gateway.toml: admin: hosts start several gateways",
            ),
            (
                "command = [\"x\"]\nprotocol = \"atuo\"",
                "gateway.toml: protocol: expected one of auto, 2026-07-28, 2025-11-25, 2025-06-18, and found 'atuo'; the nearest known one is 'auto'",
            ),
            (
                "command = [\"x\"]\nprotocol = 2025-06-19",
                "and found 2025-06-19; the nearest known one is '2025-06-18'",
            ),
            ("protocol = \"auto\"", "there is no server to stand in front of"),
            (
                "protocol = \"auto\"\n[upstream.a]\ncommand = [\"y\"]",
                "gateway.toml: protocol: this is for the one upstream without a name",
            ),
            ("hold = \"1s\"\nhold =", "gateway.toml: line 2 is not TOML"),
            ("", "there is no server to stand in front of"),
            (
                "command = [\"x\"]\n[upstream.a]\ncommand = [\"y\"]",
                "gateway.toml: upstream: an upstream without a name stands beside these",
            ),
            (
                "[tools.a]\nstart = \"now\"\n[upstream.a]\ncommand = [\"y\"]",
                "gateway.toml: tools: this is for the one upstream without a name",
            ),
        ] {
            let refusal = refused(file, &[]);
            assert!(refusal.contains(said), "{file}\nis refused with\n{refusal}\nand not with\n{said}");
            assert!(!refusal.contains("secret@"), "{refusal}");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        for (file, key, near) in [
            ("holdd = \"5s\"", "holdd", "the nearest known one is 'hold'"),
            ("upstreams = 1", "upstreams", "the nearest known one is 'upstream'"),
            ("[upstream.a]\ncomand = [\"x\"]", "upstream.a.comand", "the nearest known one is 'command'"),
            (
                "command = [\"x\"]\n[tools.a]\ndead_line = \"5s\"",
                "tools.a.dead_line",
                "the nearest known one is 'deadline'",
            ),
            ("command = [\"x\"]\n[tools.a]\nxyz = 1", "tools.a.xyz", "known are deadline, recovery, start"),
        ] {
            let refusal = refused(file, &[]);
            assert!(refusal.contains(&format!("gateway.toml: {key}: there is no key")), "{refusal}");
            assert!(refusal.contains(near), "{refusal}");
        }
        let refusal = refused("", &[("OUTLAST_GATEWAY_LISTN", "127.0.0.1:1")]);
        assert_eq!(
            refusal,
            "OUTLAST_GATEWAY_LISTN: there is no key 'listn'; the nearest known one is 'listen'"
        );
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let refusal = refused("hold = 5\nstart = 6\nlistn = \"x\"", &[]);
        assert_eq!(refusal.lines().count(), 3, "{refusal}");
    }

    #[test]
    fn no_secret_is_shown() {
        let config = read(
            "url = \"http://u:hunter2@h/?k=hunter2\"\ntoken_env = \"TOKEN\"\nheaders = { X-Key = \"hunter2\" }",
            &[("TOKEN", "hunter2")],
        )
        .unwrap();
        let upstream = &config.upstreams[0];
        assert!(!format!("{config:?} {} {}", upstream.shown(), upstream.identity()).contains("hunter2"));
        assert!(!format!("{:?}", upstream.upstream()).contains("hunter2"));
        // One that stands where the name of its variable belongs, or in a line that is no TOML.
        for file in ["url = \"http://h/\"\ntoken_env = \"hunter2\"", "token = hunter2"] {
            assert!(!refused(file, &[]).contains("hunter2"));
        }
    }
}
