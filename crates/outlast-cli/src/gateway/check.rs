//! `outlast gateway --check`: whether the settings are right and the servers can be reached.

use outlast_client::{CallError, CallErrorKind};
use outlast_gateway::Introduction;

use super::{
    config::{Config, UpstreamConfig},
    settings::nearest,
};
use crate::{call::exit::Exit, text::printable};

/// Reaches each upstream once, and writes what it is; looks whether callers can be known, and whether they alone could call.
/// Nothing is opened or listened on.
pub(super) async fn check(config: &Config) -> anyhow::Result<Exit> {
    let looks = config.upstreams.iter().map(|upstream| async {
        let server = upstream.upstream();
        let looked = server.introduce().await;
        server.close().await;
        report(upstream, looked)
    });
    let mut is_right = true;
    for (text, is_good) in futures::future::join_all(looks).await {
        println!("{}", printable(&text));
        is_right &= is_good;
    }
    for checked in [config.access.check().await, can_be_served(config).await] {
        if let Err(error) = checked {
            println!("{}", printable(&format!("{error:#}")));
            is_right = false;
        }
    }
    Ok(if is_right { Exit::Done } else { Exit::Failed })
}

/// Whether the addresses are there for nobody but those who may use them, and the operators' token is one.
async fn can_be_served(config: &Config) -> anyhow::Result<()> {
    if config.stdio {
        return Ok(());
    }
    config.access.addresses(&config.listen).await?;
    match &config.admin {
        Some(admin) => admin.check().await,
        None => Ok(()),
    }
}

/// What is to be said of an upstream, and whether it is as it should be.
fn report(upstream: &UpstreamConfig, looked: Result<Introduction, CallError>) -> (String, bool) {
    let name = upstream.shown();
    let server = match looked {
        Ok(server) => server,
        // That is what its callers bring.
        Err(error) if upstream.forwards() && matches!(error.kind(), CallErrorKind::Unauthorized(_)) => {
            let said = "reached; it asks for authorization, which each caller brings (forward_authorization), so that its tools are \
                not known here";
            return (format!("{name}: {said}"), true);
        }
        Err(why) => return (format!("{name}: {why}"), false),
    };
    let tasks = if server.knows_tasks { ", knows tasks itself" } else { "" };
    let mut text = format!(
        "{name}: reached; {}, protocol {}{tasks}, {} tools",
        server.server,
        server.protocol,
        server.tools.len()
    );
    let known: Vec<&str> = server.tools.iter().map(String::as_str).collect();
    if !known.is_empty() {
        text.push_str(&format!(": {}", known.join(", ")));
    }
    let mut is_good = true;
    for tool in upstream.tools().filter(|tool| !known.contains(tool)) {
        is_good = false;
        let hint = nearest(tool, &known).map(|near| format!("; the nearest is '{near}'")).unwrap_or_default();
        text.push_str(&format!("\n{name}: something is set for the tool '{tool}', which it has not{hint}"));
    }
    (text, is_good)
}
