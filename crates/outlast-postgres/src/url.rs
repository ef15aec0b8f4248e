//! The URL of a database: what of it is the driver's, and what is ours.

use std::{path::PathBuf, time::Duration};

use tokio_postgres::{
    Config,
    config::{SslMode, TargetSessionAttrs},
};

use crate::OpenError;

/// A URL, understood.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) trust: Trust,
}

/// Which certificate a server may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Any: the connection is encrypted, and who is at its end is not known. What libpq's `require` means.
    Any,
    /// One for its name that the machine trusts.
    Platform,
    /// One for its name that this file's certificates vouch for.
    File(PathBuf),
}

/// Where the server takes no connection or answers no more.
const CONNECT: Duration = Duration::from_secs(5);
const SILENT: Duration = Duration::from_secs(10);

pub(crate) fn parse(url: &str) -> Result<Target, OpenError> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(OpenError::Url("it does not begin with postgres://".into()));
    }
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let mut trust = Trust::Any;
    let mut file = None;
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            // The driver knows these two not, or not this far.
            Some(("sslmode", "verify-full")) => {
                trust = Trust::Platform;
                kept.push("sslmode=require");
            }
            Some(("sslmode", "verify-ca")) => {
                return Err(OpenError::Url("sslmode=verify-ca is not supported, use verify-full".into()));
            }
            Some(("sslrootcert", path)) => file = Some(decoded(path)),
            _ => kept.push(pair),
        }
    }
    if let Some(file) = file {
        trust = if file == "system" { Trust::Platform } else { Trust::File(file.into()) };
    }
    let ours = if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) };
    // What the driver says of a text that it does not understand may quote it.
    let mut config: Config = ours.parse().map_err(|error: tokio_postgres::Error| {
        let why =
            std::error::Error::source(&error).map_or_else(|| "it is malformed".into(), ToString::to_string);
        OpenError::Url(why)
    })?;
    if trust != Trust::Any {
        config.ssl_mode(SslMode::Require);
    }
    if config.get_application_name().is_none() {
        config.application_name("outlast");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENT);
    }
    // A standby answers reads that lag and refuses writes: of several hosts, the one that takes writes is meant.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(Target { config, trust })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code =
            after.get(..2).filter(|_| first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_whom_to_trust() {
        let trust = |query: &str| parse(&format!("postgres://u:p@h/d{query}")).unwrap().trust;
        assert_eq!(trust(""), Trust::Any);
        assert_eq!(trust("?sslmode=require"), Trust::Any);
        assert_eq!(trust("?sslmode=verify-full"), Trust::Platform);
        assert_eq!(
            trust("?sslmode=verify-full&sslrootcert=%2Fca%20one.pem"),
            Trust::File("/ca one.pem".into())
        );
        assert_eq!(trust("?sslrootcert=system"), Trust::Platform);
        let verified = parse("postgres://u@h/d?sslmode=verify-full&application_name=x").unwrap().config;
        assert_eq!(verified.get_ssl_mode(), SslMode::Require);
        assert_eq!(verified.get_application_name(), Some("x"));
    }

    #[test]
    fn a_refused_url_is_not_repeated() {
        for url in [
            "mysql://u:secret@h/d",
            "postgres://u:secret@h:port/d",
            "postgres://u:secret@h/d?sslmode=verify-ca",
            "postgres://u:secret@h/d?sslmode=often",
            "postgres://u:secret@h/d?password=secret&colour=red",
        ] {
            let error = parse(url).unwrap_err();
            let told = format!("{error} {error:?}");
            assert!(!told.contains("secret") && told.contains("postgres://user:password@"), "{told}");
        }
    }
}
