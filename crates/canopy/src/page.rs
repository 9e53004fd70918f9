//! Pages that a running relay serves, for the commands that read them.

use anyhow::{Context, bail};
use axum::body::{Body, to_bytes};
use axum::http::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::time::Duration;

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The page `/{name}` of the relay that serves its metrics or its console at `address`, of at most
/// `max_bytes`.
///
/// # Errors
/// If no relay answers there; the error says how to make one.
pub(crate) async fn ask(address: &str, name: &str, max_bytes: usize) -> anyhow::Result<String> {
    let no_relay = || {
        format!(
            "no relay tells how it stands at {address}; name the address of its metrics or console, \
             which it serves with --metrics ADDR:PORT or --console ADDR:PORT"
        )
    };
    let uri: Uri = format!("http://{address}/{name}")
        .parse()
        .with_context(|| format!("{address:?} is no address; write it like 127.0.0.1:8080"))?;
    let answer = tokio::time::timeout(PATIENCE, client().get(uri)).await;
    let answer = answer.with_context(no_relay)?.with_context(no_relay)?;
    let status = answer.status();
    let bytes = to_bytes(Body::new(answer.into_body()), max_bytes).await?;
    let text = String::from_utf8(bytes.into())?;
    match status {
        StatusCode::OK => Ok(text),
        StatusCode::SERVICE_UNAVAILABLE => bail!("the relay at {address} says: {}", text.trim()),
        _ => bail!("{address} answers {status}; {}", no_relay()),
    }
}

/// Who asks pages.
pub(crate) fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}
