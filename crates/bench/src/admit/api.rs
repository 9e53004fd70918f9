//! The controller's API, asked as the commands ask it.

use anyhow::{Context, ensure};
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;

/// The longest answer in bytes: the accounts of all relays and links.
const MAX_ANSWER: usize = 16 << 20;

/// Who asks the API, over connections that are kept.
#[derive(Clone)]
pub(super) struct Api {
    client: Client<HttpConnector, Body>,
    address: SocketAddr,
    secret: String,
}

impl Api {
    /// The API of a controller at an address, whose folder has the secret.
    pub(super) fn of(address: SocketAddr, folder: &Path) -> anyhow::Result<Api> {
        let path = folder.join("api.secret");
        let secret = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Api { client, address, secret: secret.trim().to_owned() })
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::GET, path, String::new()).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask(Method::POST, path, body.to_string()).await
    }

    async fn ask(&self, method: Method, path: &str, body: String) -> anyhow::Result<Value> {
        let request = Request::builder()
            .method(&method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.secret))
            .header("content-type", "application/json")
            .body(Body::from(body))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER).await?;
        let why = || String::from_utf8_lossy(&body);
        ensure!(status.is_success(), "{method} {path}: the API answered {status}: {}", why());
        Ok(serde_json::from_slice(&body)?)
    }
}
