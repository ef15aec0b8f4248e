//! A load balancer without stickiness, to show that replicas need none: each request goes to the next server, so that no two
//! requests of a client in a row reach the same one.
//!
//! `cargo run -p outlast --example round_robin -- 127.0.0.1:0 127.0.0.1:8808 127.0.0.1:8809`

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    serve::ListenerExt as _,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;

struct Servers {
    authorities: Vec<String>,
    next: AtomicUsize,
    client: Client<HttpConnector, Body>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().context("the first argument is where to listen")?;
    let authorities: Vec<String> = arguments.collect();
    anyhow::ensure!(!authorities.is_empty(), "the arguments behind it are the servers");
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let servers = Arc::new(Servers { authorities, next: AtomicUsize::new(0), client });
    let listener = TcpListener::bind(listen).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        // Best effort: it is slower without.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, Router::new().fallback(forward).with_state(servers)).await?;
    Ok(())
}

async fn forward(State(servers): State<Arc<Servers>>, mut request: Request) -> Response {
    let turn = servers.next.fetch_add(1, Ordering::Relaxed);
    let authority = &servers.authorities[turn % servers.authorities.len()];
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri: Result<Uri, _> = format!("http://{authority}{path}").parse();
    let (Ok(uri), Ok(host)) = (uri, HeaderValue::from_str(authority)) else {
        return (StatusCode::BAD_REQUEST, "the path cannot be passed on").into_response();
    };
    *request.uri_mut() = uri;
    request.headers_mut().insert(header::HOST, host);
    match servers.client.request(request).await {
        Ok(response) => response.map(Body::new).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
