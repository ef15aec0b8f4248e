//! Which version of the protocol is spoken with an upstream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_client::TaskClient;
use outlast_gateway::{Upstream, When};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, DiscoverResult,
        ElicitRequestParams, ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities,
        ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::json;

use crate::{
    scripted::{Reply, Scripted, question, said},
    support::{Person, gateway, streams, text},
};

const LONG: Duration = Duration::from_secs(60);

/// A server that takes the newest protocol, but asks as servers did before it.
#[derive(Clone, Default)]
struct Both {
    discovered: Arc<AtomicUsize>,
}

impl ServerHandler for Both {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn discover(&self, _context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        self.discovered.fetch_add(1, Ordering::SeqCst);
        Ok(DiscoverResult::new(ProtocolVersion::KNOWN_VERSIONS.to_vec(), self.get_info().capabilities))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![Tool::new("asks", "a tool", Arc::default())]))
    }

    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let asked: ElicitRequestParams = serde_json::from_value(question("who?")).unwrap();
        let answer = context.peer.create_elicitation(asked).await;
        let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(CallToolResult::success(vec![ContentBlock::text(json!(answer.content).to_string())]).into())
    }
}

#[tokio::test]
async fn an_upstream_that_would_take_2026_07_28_is_spoken_to_in_an_older_protocol() {
    for version in [ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2025_06_18] {
        let both = Both::default();
        let upstream = || Upstream::only(streams("both", both.clone()));

        let introduced = upstream().introduce().await.unwrap();
        assert_eq!((introduced.protocol.as_str(), both.discovered.load(Ordering::SeqCst)), ("2026-07-28", 1));
        let introduced = upstream().protocol(version.clone()).introduce().await.unwrap();
        assert_eq!(introduced.protocol, version.as_str());

        let server = gateway(upstream().protocol(version), When::Now, LONG).await;
        let client = TaskClient::new(streams("gateway", server), Person);
        let result = client.call_tool(CallToolRequestParams::new("asks")).await.unwrap();
        assert_eq!(text(&result), r#"{"name":"Ada"}"#);
        assert_eq!(both.discovered.load(Ordering::SeqCst), 1, "the newer one is not offered");
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_what_is_set_is_refused_by_name() {
    let old = Scripted::legacy(|_| said("never"));
    let refused = old.upstream().protocol(ProtocolVersion::V_2026_07_28).introduce().await.unwrap_err();
    assert!(refused.to_string().contains("does not speak protocol 2026-07-28"), "{refused}");
    assert!(old.asked("initialize").is_empty(), "an older one is not offered");

    // It answers with a newer one than it was offered.
    let refused = old.upstream().protocol(ProtocolVersion::V_2025_06_18).introduce().await.unwrap_err();
    assert!(refused.to_string().contains("answers in protocol 2025-11-25"), "{refused}");
    assert!(refused.to_string().contains("2025-06-18 is set"), "{refused}");
}

#[tokio::test]
async fn initialize_names_a_protocol_that_has_it() {
    // Some servers hang up at what they do not know, and some take whatever version they are offered.
    let scripted = Scripted::with(true, json!([]), |_| Reply::Drop).hanging_up_at("server/discover");

    scripted.upstream().introduce().await.unwrap();

    assert_eq!(scripted.asked("initialize")[0].params["protocolVersion"], "2025-11-25");
}
